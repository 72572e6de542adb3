"""The transport over grpc.aio.

No connection can be opened in a process that was forked while one was open. A fork copies the state of gRPC,
but not its threads: in 22 of 22 trials the child hung or crashed.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from contextlib import suppress
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final, Self

import grpc
import grpc.aio

from tailrace.errors import (
    InvalidRequest,
    SubscriptionClosed,
    TlsFailed,
    TokenExpired,
    TransportError,
)
from tailrace.tls import Tls, load, tls_of, why_plain_failed, why_tls_failed
from tailrace.transport.grpc_status import error_of, may_be_tls
from tailrace.transport.target import Target, is_loopback, proxy_to
from tailrace.transport.token import LateStream, Token

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tailrace.errors import TailraceError
    from tailrace.tls import LoadedTls, Trust
    from tailrace.transport import Stream
    from tailrace.transport.token import Metadata, TokenSource


class OpenChannels:
    """The open channels of gRPC in a process; channels that were garbage-collected count as closed."""

    def __init__(self) -> None:
        """Register a hook for forks of this process."""
        self._open: weakref.WeakSet[object] = weakref.WeakSet()
        self._inherited = False
        """True if a channel was open when this process was forked."""
        os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        self._inherited = self._inherited or len(self._open) > 0

    def add(self, channel: object) -> None:
        """Add a channel that is about to be opened.

        Raises:
            InvalidRequest: The process was forked while a channel was open.
        """
        if self._inherited:
            raise InvalidRequest(
                "this process was forked while a client was open, so gRPC would hang in it: start processes "
                'with "spawn" (multiprocessing.get_context), or fork while no client is open'
            )
        self._open.add(channel)

    def discard(self, channel: object) -> None:
        """Remove a channel that was closed."""
        self._open.discard(channel)


OPEN_CHANNELS: Final = OpenChannels()
"""The open channels of this process."""

SERVICE: Final = "tailrace.v1.ChangeCapture"

MAX_MESSAGE_BYTES: Final = 32 << 20
"""Maximum size of a capture, in bytes; a larger one comes without bodies and with ``omitted_bytes``."""

_FRAMING_BYTES: Final = 64 << 10
"""Maximum size of a message in addition to its one largest capture, in bytes."""

_OPTIONS: Final = (
    # Without the bandwidth probe the receive window stays at the size below: at most 2 MB are buffered instead
    # of 4 to 21 MB, at 93 to 96 % of the speed.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 20),
    # A message fits into one frame. With HTTP/2's default of 16 KiB a typical message would need four.
    ("grpc.http2.max_frame_size", 4 << 20),
    # A connection for each client: a stalled client must not block others that share its socket.
    ("grpc.use_local_subchannel_pool", 1),
    # The waits between attempts are ours (retry.py); this limits the additional waits of gRPC to a second.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Detect a peer that vanished without closing. A missed heartbeat ends the stream, this ends the connection.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # A subscriber sends almost no data; by default gRPC would send only two pings without data.
    ("grpc.http2.max_pings_without_data", 0),
)


@cache
def _user_agent() -> str:
    """Return the user agent: the name of this client and its version."""
    try:
        return f"tailrace-python/{version('tailrace')}"
    except PackageNotFoundError:  # copied into a program, or packed with one
        return "tailrace-python"


class GrpcTransport:
    """A transport over one gRPC channel. Create it on the event loop that uses it."""

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
            target: Address of the server.
            tls: Contents of the TLS files; None, without ``credentials``, means plain text.
            reload_tls: Function that reads the TLS files again, called after a failed handshake.
            credentials: Channel credentials of gRPC, in place of ``tls``.
            token: Credential of the caller, sent with every call; None sends none.
            max_message_bytes: Maximum size of a capture in a received message.

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

    @classmethod
    def opener(
        cls,
        target: str,
        tls: Trust | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        token: TokenSource | None = None,
    ) -> Callable[[], Self]:
        """Return a function that opens a transport; the arguments and errors are those of ``connect``."""
        asked = None if tls is None or tls is False else tls_of(tls)
        if asked is not None and credentials is not None:
            raise InvalidRequest("connect: give tls or credentials, not both")
        try:
            found = Target.parse(target, tls=asked is not None or credentials is not None)
            if found.tls and credentials is None:
                asked = asked or Tls()
            loaded = None if asked is None else load(asked)
        except InvalidRequest as error:
            raise InvalidRequest(f"connect: {error}") from None
        return partial(
            cls,
            found,
            tls=loaded,
            reload_tls=None if asked is None else partial(load, asked),
            credentials=credentials,
            token=Token(token),
        )

    @property
    def route(self) -> str:
        """Description of the environment's proxy on the way, for errors; empty without a proxy."""
        return "" if self._proxy is None else f", through {self._proxy}"

    def _new_channel(self, credentials: grpc.ChannelCredentials | None) -> Any:
        if credentials is None:
            return grpc.aio.insecure_channel(self._target.name, self._options)
        return grpc.aio.secure_channel(self._target.name, credentials, self._options)

    async def failure(self, error: grpc.aio.AioRpcError) -> TailraceError:
        """Return the error of a failed call; if TLS may be the cause, connect once more to find the reason."""
        # 1. The error that the server has sent, or that of the connection.
        found = error_of(error, self._proxy)
        if isinstance(found, TokenExpired) and not self._token.changes:
            found.retriable = False  # the next call would send the same token
        # 2. If TLS may be the cause, try changed files first, then connect once more to find the reason.
        if not (self._diagnosable and self._target.host and may_be_tls(error, self._target.host)):
            return found
        if self._proxy is not None:
            return found  # the diagnosis cannot connect through a proxy
        if await self._took_changed_files():
            return found  # the next attempt uses the new files and may succeed
        host, port = self._target.host, int(self._target.name.rpartition(":")[2])
        if self._tls is None:
            why = await asyncio.to_thread(why_plain_failed, host, port)
        else:
            why = await asyncio.to_thread(why_tls_failed, host, port, self._tls)
        return found if why is None else TlsFailed(self._target.name, why)

    async def _took_changed_files(self) -> bool:
        """Read the TLS files again; if they have changed, replace the channel and return True.

        A channel of gRPC keeps its certificates for its whole life. A channel whose handshakes fail has no
        calls under way, so it can be replaced.
        """
        if self._reload_tls is None:
            return False
        try:
            found = await asyncio.to_thread(self._reload_tls)
        except InvalidRequest:
            return False  # the files are being written, or are missing: keep the earlier contents
        if found == self._tls or self.closed:
            return False
        # Replace the channel before the old one is closed: a call that begins meanwhile must not get a closed
        # one.
        earlier = self._channel
        self._tls, self._channel = found, self._new_channel(found.credentials())
        await earlier.close(None)
        return True

    def open(self, method: str, requests: AsyncIterator[bytes]) -> Stream:
        """Begin a call with many requests and many answers."""
        return self._with_token(partial(self._open, method, requests))

    def read(self, method: str, request: bytes) -> Stream:
        """Begin a call with one request and many answers."""
        return self._with_token(partial(self._read, method, request))

    def _with_token(self, begin: Callable[[Metadata], Stream]) -> Stream:
        if self._token.changes:
            return LateStream(self._token, begin)
        return begin(self._token.at_hand)

    def _open(self, method: str, requests: AsyncIterator[bytes], metadata: Metadata) -> GrpcStream:
        call = self._channel.stream_stream(f"/{SERVICE}/{method}", None, None)(metadata=metadata)
        # Send the requests in a task of our own. The task of grpc.aio would wait for ever if the call fails
        # before its headers are sent, since cancelling a call that has ended does not reach that task.
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
            raise TransportError(
                f"token: its function returned none within {timeout_s:g} s"
            ) from None
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
    """The messages that the server sends in one call."""

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
        """Return the next message; None after the server has completed the call.

        Raises:
            SubscriptionClosed: This client closed the stream or its channel.
            TailraceError: The error that the server sent, or TransportError if the connection failed.
        """
        try:
            message = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise await self._transport.failure(error) from error
        except grpc.aio.UsageError as error:
            raise SubscriptionClosed("the connection was closed") from error
        except asyncio.CancelledError:
            # gRPC raises CancelledError for a cancelled call, too. Only a cancellation of this task may pass.
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
    """Send requests until the iterator or the call ends; ``receive`` reports how the call ended."""
    with suppress(grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
        async for request in requests:
            await call.write(request)
        await call.done_writing()


def _cancelled_from_outside() -> bool:
    """Return True if this task is being cancelled, and not just the gRPC call.

    This is a separate function so that no frame of ``receive`` references the task: the error would keep the
    frame, the frame the task, and the task the error.
    """
    task = asyncio.current_task()
    return task is None or bool(task.cancelling())
