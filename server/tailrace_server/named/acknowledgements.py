"""Acknowledgements on their way into the log: those that come while one is written are written together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tailrace.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

    from tailrace.cursor import Cursor

    Write = Callable[[Cursor], Awaitable[Cursor]]
    """Makes a cursor durable; returns it, or the one that was durable already."""


class AcknowledgementLine:
    """Those of one reader. Lives on the event loop."""

    __slots__ = ("durable", "lock", "requested", "waiting")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.requested: Cursor | None = None
        """The furthest that was requested."""
        self.durable: Cursor | None = None
        """The furthest that is in the log."""
        self.waiting = 0
        """How many callers have it."""


class AcknowledgementLines:
    """Those of all readers that have one under way."""

    def __init__(self) -> None:
        """Begin without any."""
        self._lines: dict[Hashable, AcknowledgementLine] = {}

    async def write(self, reader: Hashable, cursor: Cursor, write: Write) -> Cursor:
        """Make a reader's cursor durable; return what is durable then.

        Raises:
            InvalidRequest: The same reader has requested a later one already.
            TailraceError: What ``write`` raises.
        """
        line = self._lines.setdefault(reader, AcknowledgementLine())
        # 1. In the order in which they came: what is requested next never lies before.
        if line.requested is not None and cursor < line.requested:
            raise InvalidRequest(
                f"acknowledge {cursor}: {line.requested} was acknowledged already, which lies behind it"
            )
        line.requested = cursor
        line.waiting += 1
        try:
            # 2. Whoever gets the turn writes the furthest for all who wait; they find it done.
            async with line.lock:
                if line.durable is None or line.durable < cursor:
                    line.durable = await write(line.requested)
                return line.durable
        finally:
            line.waiting -= 1
            if not line.waiting:
                del self._lines[reader]
