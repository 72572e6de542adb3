"""Group commit of acknowledgements: those that arrive during a write are written together by the next write."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tailrace.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

    from tailrace.cursor import Cursor

    Write = Callable[[Cursor], Awaitable[Cursor]]
    """Function that makes a cursor durable and returns it, or a later one that is already durable."""


class AcknowledgementLine:
    """The pending acknowledgements of one reader. Used on the event loop."""

    __slots__ = ("durable", "lock", "requested", "waiting")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.requested: Cursor | None = None
        """The latest cursor that was requested."""
        self.durable: Cursor | None = None
        """The latest cursor that is in the log."""
        self.waiting = 0
        """The number of calls of ``write`` that have not returned yet."""


class AcknowledgementLines:
    """The pending acknowledgements of all readers."""

    def __init__(self) -> None:
        """Begin without acknowledgements."""
        self._lines: dict[Hashable, AcknowledgementLine] = {}

    async def write(self, reader: Hashable, cursor: Cursor, write: Write) -> Cursor:
        """Make a reader's cursor durable; return the latest durable cursor.

        Args:
            reader: Key of the reader.
            cursor: The cursor to acknowledge.
            write: Function that writes a cursor.

        Raises:
            InvalidRequest: The reader has already requested a later cursor.
            TailraceError: ``write`` raises it.
        """
        line = self._lines.setdefault(reader, AcknowledgementLine())
        # 1. Check and note the request without await, so that `requested` rises in the order of the calls.
        if line.requested is not None and cursor < line.requested:
            raise InvalidRequest(
                f"acknowledge {cursor}: a later cursor, {line.requested}, is already acknowledged"
            )
        line.requested = cursor
        line.waiting += 1
        try:
            # 2. The call that gets the lock writes the latest cursor for all waiting calls. When these get the
            #    lock, their cursors are already durable.
            async with line.lock:
                if line.durable is None or line.durable < cursor:
                    line.durable = await write(line.requested)
                return line.durable
        finally:
            line.waiting -= 1
            if not line.waiting:
                del self._lines[reader]
