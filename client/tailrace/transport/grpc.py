"""The transport over grpc.aio.

A process that was forked while a connection was open is refused. A fork copies gRPC in the midst of its work,
without the threads that do it: in 22 of 22 trials the child hung or crashed.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from contextlib import suppress
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Final

import grpc
import grpc.aio

from tailrace.errors import (
    InvalidRequest,
    SubscriptionClosed,
    TlsFailed,
    TokenExpired,
    TransportError,
)
from tailrace.tls import why_plain_failed, why_tls_failed
from tailrace.transport.grpc_status import error_of, may_be_tls
from tailrace.transport.target import is_loopback, proxy_to
from tailrace.transport.token import LateStream, Token

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tailrace.errors import TailraceError
    from tailrace.tls import LoadedTls
    from tailrace.transport import Stream
    from tailrace.transport.target import Target
    from tailrace.transport.token import Metadata


class OpenChannels:
    """Whatever of gRPC's is open in this process; what is forgotten is open no longer."""

    def __init__(self) -> None:
        """Watch this process for forks."""
        self._open: weakref.WeakSet[object] = weakref.WeakSet()
        self._inherited = False
        """True if a channel was open when this process was forked."""
        os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        self._inherited = self._inherited or len(self._open) > 0

    def add(self, channel: object) -> None:
        """Note a channel that is about to be opened.

        Raises:
            InvalidRequest: The process was forked while another was open.
        """
        if self._inherited:
            raise InvalidRequest(
                "this process was forked while a client was open, so gRPC would hang in it: start processes "
                'with "spawn" (multiprocessing.get_context), or fork while no client is open'
            )
        self._open.add(channel)

    def discard(self, channel: object) -> None:
        """Note that a channel was closed."""
        self._open.discard(channel)


OPEN_CHANNELS: Final = OpenChannels()
"""Those of this process."""

SERVICE: Final = "tailrace.v1.ChangeCapture"

MAX_MESSAGE_BYTES: Final = 32 << 20
"""Largest capture that the client asks for; above it comes a header with ``omitted_bytes``."""

_FRAMING_BYTES: Final = 64 << 10
"""The bytes of a message besides its one largest capture."""

_OPTIONS: Final = (
    # Without the bandwidth probe the receive window stays at what follows: 2 MB buffered at most instead
    # of 4 to 21, at 93 to 96 % of the speed.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 20),
    # A message in one frame. With HTTP/2's default of 16 KiB the server writes, and the client reads, four.
    ("grpc.http2.max_frame_size", 4 << 20),
    # One connection a client: a stalled one shares its socket with nobody.
    ("grpc.use_local_subchannel_pool", 1),
    # The waits between attempts are ours (retry.py); these only keep gRPC from adding its own minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Finds a peer that vanished without a word; heartbeats end the stream, this the connection.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # A subscriber sends next to nothing; by default its third ping would wait for that.
    ("grpc.http2.max_pings_without_data", 0),
)


@cache
def _user_agent() -> str:
    """Return the user agent: this client and its version."""
    try:
        return f"tailrace-python/{version('tailrace')}"
    except PackageNotFoundError:  # copied into a program, or packed with one
        return "tailrace-python"


class GrpcTransport:
    """One channel. Make it on the event loop that uses it."""

    def __init__(
        self,
        target: Target,
        *,
        tls: LoadedTls | None = None,
        reload_tls: Callable[[], LoadedTls] | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        token: Token | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        """Bind to a server; nothing is sent before the first call.

        Args:
            target: Where the server listens.
            tls: What TLS needs; None, without credentials, speaks plain text.
            reload_tls: Reads the files of ``tls`` again, which is asked when a handshake has failed.
            credentials: Those of gRPC, in place of ``tls``.
            token: What every call shows of its sender; None shows nothing.
            max_message_bytes: Largest message taken.

        Raises:
            InvalidRequest: The process was forked while a channel was open.
        """
        self._token = token or Token(None)
        OPEN_CHANNELS.add(self)
        self._target = target
        self._tls = tls
        self._reload_tls = reload_tls
        self._diagnosable = tls is not None or credentials is None
        if tls is not None:
            credentials = tls.credentials()
        self._proxy = proxy_to(target.host)
        self._options = (
            *_OPTIONS,
            ("grpc.enable_http_proxy", 0 if is_loopback(target.host) else 1),
            ("grpc.primary_user_agent", _user_agent()),
            ("grpc.max_receive_message_length", max_message_bytes + _FRAMING_BYTES),
        )
        self._channel = self._new_channel(credentials)
        self.closed = False
        """True if ``close`` was called."""

    @property
    def route(self) -> str:
        """The proxy in between, for messages: none, or the environment's."""
        return "" if self._proxy is None else f", through {self._proxy}"

    def _new_channel(self, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
        if credentials is None:
            return grpc.aio.insecure_channel(self._target.name, self._options)
        return grpc.aio.secure_channel(self._target.name, credentials, self._options)

    async def failure(self, error: grpc.aio.AioRpcError) -> TailraceError:
        """Return what a failed call means; where TLS may be the reason, ask the server once more."""
        found = error_of(error, self._proxy)
        if isinstance(found, TokenExpired) and not self._token.changes:
            found.retriable = False  # the next call would show the same
        if not (self._diagnosable and self._target.host and may_be_tls(error, self._target.host)):
            return found
        if self._proxy is not None:
            return found  # it is asked by gRPC alone
        if await self._took_changed_files():
            return found  # a further attempt goes by them
        host, port = self._target.host, int(self._target.name.rpartition(":")[2])
        if self._tls is None:
            why = await asyncio.to_thread(why_plain_failed, host, port)
        else:
            why = await asyncio.to_thread(why_tls_failed, host, port, self._tls)
        return found if why is None else TlsFailed(self._target.name, why)

    async def _took_changed_files(self) -> bool:
        """Return whether the files of TLS hold something else by now, by which calls from now on connect.

        gRPC keeps what it was given for as long as the channel is there. No call is under way on one that
        does not come to a handshake, so another takes its place.
        """
        if self._reload_tls is None:
            return False
        try:
            found = await asyncio.to_thread(self._reload_tls)
        except InvalidRequest:
            return False  # somebody is writing them, or they are gone: the earlier ones stay
        if found == self._tls or self.closed:
            return False
        earlier = self._channel
        self._tls, self._channel = found, self._new_channel(found.credentials())
        await earlier.close(None)
        return True

    def open(self, method: str, requests: AsyncIterator[bytes]) -> Stream:
        """Begin a call with many requests."""
        return self._with_token(partial(self._open, method, requests))

    def read(self, method: str, request: bytes) -> Stream:
        """Begin a call with one request and many answers."""
        return self._with_token(partial(self._read, method, request))

    def _with_token(self, begin: Callable[[Metadata], Stream]) -> Stream:
        if self._token.changes:
            return LateStream(self._token, begin)
        return begin(self._token.at_hand)

    def _open(self, method: str, requests: AsyncIterator[bytes], metadata: Metadata) -> GrpcStream:
        call = self._channel.stream_stream(f"/{SERVICE}/{method}", None, None)(metadata=metadata)  # type: ignore[call-arg]  # the rest is optional, which the stubs do not know
        # A task of ours sends them: grpc.aio's own waits for ever if the call fails before its headers are
        # sent, since to cancel a call that has ended does not reach it.
        return GrpcStream(call, self, asyncio.create_task(_send(call, requests)))

    def _read(self, method: str, request: bytes, metadata: Metadata) -> GrpcStream:
        call = self._channel.unary_stream(f"/{SERVICE}/{method}", None, None)(
            request, metadata=metadata
        )
        return GrpcStream(call, self)

    async def call(self, method: str, request: bytes, timeout_s: float) -> bytes:
        """Make a call with one request and one answer."""
        try:
            async with asyncio.timeout(timeout_s):
                metadata = await self._token.metadata()
        except TimeoutError:
            raise TransportError(f"token: none came within {timeout_s:g} s") from None
        try:
            answer: bytes = await self._channel.unary_unary(f"/{SERVICE}/{method}", None, None)(
                request, timeout=timeout_s, metadata=metadata
            )
        except grpc.aio.AioRpcError as error:
            raise await self.failure(error) from error
        return answer

    async def close(self) -> None:
        """End all calls and the connection."""
        self.closed = True
        await self._channel.close(None)
        OPEN_CHANNELS.discard(self)


class GrpcStream:
    """The answers to one call."""

    def __init__(
        self,
        call: grpc.aio.StreamStreamCall[bytes, bytes] | grpc.aio.UnaryStreamCall[bytes, bytes],
        transport: GrpcTransport,
        sending: asyncio.Task[None] | None = None,
    ) -> None:
        """Take over a call that has begun, and the task that sends its requests."""
        self._call = call
        self._transport = transport
        self._sending = sending
        self._closed = False

    async def receive(self) -> bytes | None:
        """Return the next message; None when the server has completed.

        Raises:
            SubscriptionClosed: It was closed here, or the channel under it.
            TailraceError: What the server said, or TransportError.
        """
        try:
            message = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise await self._transport.failure(error) from error
        except grpc.aio.UsageError as error:
            raise SubscriptionClosed("the connection was closed") from error
        except asyncio.CancelledError:
            if _cancelled_from_outside():
                raise
            if self._closed or self._transport.closed:
                raise SubscriptionClosed("the connection was closed") from None
            raise TransportError("the call was cancelled") from None
        return message if isinstance(message, bytes) else None

    def close(self) -> None:
        """End the call, if it has not ended."""
        self._closed = True
        self._call.cancel()
        if self._sending is not None:
            self._sending.cancel()


async def _send(
    call: grpc.aio.StreamStreamCall[bytes, bytes], requests: AsyncIterator[bytes]
) -> None:
    """Send requests until they or the call end. How a call ended is said to the one who receives."""
    with suppress(grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
        async for request in requests:
            await call.write(request)
        await call.done_writing()


def _cancelled_from_outside() -> bool:
    """Return True if somebody cancels this task, rather than gRPC the call.

    In a function of its own: a frame that keeps the task is kept by the error that the task ends with.
    """
    task = asyncio.current_task()
    return task is None or bool(task.cancelling())
