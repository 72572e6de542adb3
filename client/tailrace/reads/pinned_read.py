"""The common part of reads that end: entered once, pinned to a version by a header, iterated to the end."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from tailrace.errors import SubscriptionBroken, SubscriptionClosed, TransportError
from tailrace.event_loop import OnOneLoop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from types import TracebackType

    from tailrace.transport import Stream
    from tailrace.v1.capture_fields_pb2 import ReadChangesResponseParts, ReadStateResponseParts
    from tailrace.v1.sql_pb2 import QuerySqlResponse

_Header = TypeVar("_Header")
_End = TypeVar("_End")
_Item = TypeVar("_Item")
_Message = TypeVar(
    "_Message", "ReadChangesResponseParts", "ReadStateResponseParts", "QuerySqlResponse"
)


class PinnedRead(OnOneLoop, ABC, Generic[_Message, _Header, _End, _Item]):
    """One read, used under ``async with``. The server sends as fast as items are taken."""

    def __init__(self, open_stream: Callable[[], Stream], patience_s: float) -> None:
        """Store how to begin; entering the context sends the request."""
        self._open_stream = open_stream
        self._patience_s = patience_s
        self._stream: Stream | None = None
        self._header: _Header | None = None
        self._end: _End | None = None
        self._current: deque[_Item] = deque()

    async def __aenter__(self) -> Self:
        """Begin the read and wait for its header.

        Raises:
            TailraceError: The server refused the read, or could not be reached.
            SubscriptionClosed: The read has been entered before.
        """
        if self._stream is not None:
            raise SubscriptionClosed("a read can be entered only once; start another read")
        self._note_loop()
        self._stream = self._open_stream()
        try:
            try:
                async with asyncio.timeout(self._patience_s):
                    message = await self._receive()
            except TimeoutError:
                raise TransportError(f"no header was received for {self._patience_s:g} s") from None
            if not message.HasField("header"):
                raise TransportError("the first message is not a header")
        except BaseException:
            # `__aexit__` is not called if entering fails, so the call must be ended here.
            self._stream.close()
            raise
        self._header = self._header_of(message)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the call, even if the read is not complete."""
        self._check_loop()
        if self._stream is not None:
            self._stream.close()

    @property
    def header(self) -> _Header:
        """The header: the log and version that the read is pinned to."""
        if self._header is None:
            raise SubscriptionClosed("the read has not been entered: use async with")
        return self._header

    @property
    def end(self) -> _End:
        """The end of the read; available once the iteration is over."""
        if self._end is None:
            raise SubscriptionClosed("the read has not been iterated to its end")
        return self._end

    @property
    def is_over(self) -> bool:
        """True if the read was iterated to its end."""
        return self._end is not None and not self._current

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> _Item:
        """Return the next item. Cancelling the call ends the read.

        Raises:
            SubscriptionBroken: The connection failed.
            SubscriptionClosed: The read or its client was closed, or the read was not entered.
            TailraceError: The server ended the read.
        """
        while not self._current:
            if self._end is not None:
                raise StopAsyncIteration
            await self._advance()  # a message may have no items
        self._taken(item := self._current.popleft(), 1)
        return item

    async def batches(self) -> AsyncIterator[list[_Item]]:
        """Yield the items of one message after another, at least one item each.

        Raises:
            TailraceError: The read failed; the same errors as for the iteration over items.
        """
        while True:
            if self._current:
                batch = [*self._current]
                self._current.clear()
                self._taken(batch[-1], len(batch))
                yield batch
            if self._end is not None:
                return
            await self._advance()

    async def _advance(self) -> None:
        """Receive one message and take its items."""
        self._check_loop()
        if self._stream is None:
            raise SubscriptionClosed("the read has not been entered: iterate inside async with")
        try:
            message = await self._receive()
        except TransportError as error:
            raise SubscriptionBroken(str(error), self._resume_cursor()) from error
        self._take(message)
        await self._prepare()

    async def _prepare(self) -> None:
        """Hook for work on the new items that has to be awaited, such as a request for their schema."""

    async def _receive(self) -> _Message:
        # There is no timeout between messages: the server may scan any amount of the log without a match. The
        # keepalive probes of the connection detect a server that is gone.
        assert self._stream is not None
        data = await self._stream.receive()
        if data is None:
            raise TransportError("the server completed the read without its last message")
        return self._parsed(data)

    @abstractmethod
    def _parsed(self, data: bytes) -> _Message: ...

    @abstractmethod
    def _header_of(self, message: _Message) -> _Header: ...

    @abstractmethod
    def _take(self, message: _Message) -> None:
        """Store the items of a message, and the end of the read if the message has it."""

    def _taken(self, last: _Item, count: int) -> None:
        """Hook, called when the caller takes items.

        Args:
            last: The last one of the items.
            count: Number of the items.
        """

    def _resume_cursor(self) -> str | None:
        """Return the cursor from which a broken read can continue; None if it has to begin again."""
        return None
