"""Acknowledgements on their way to the server: at most one a second, or at once where somebody waits for it.

::

    acknowledge ─▶ noted ─▶ sent a second after the last one ─▶ durable in the log
                     │
                     └────▶ sent at once: durable=True, or the subscription is left
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from tailrace.errors import InvalidRequest, SubscriptionTakenOver, TailraceError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from tailrace.cursor import Cursor

    Send = Callable[[int, Cursor], Awaitable[None]]
    """Makes a cursor of a reader's epoch durable."""

_EVERY_S: Final = 1.0
"""The interval at which acknowledgements without a waiter are sent, as a group."""


class Acknowledger:
    """Those of one subscription."""

    def __init__(
        self,
        name: str,
        send: Send,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        """Send nothing yet; ``spawn`` starts a task that the client owns."""
        self.name = name
        self.epoch = 0
        """Of the newest connection."""
        self._send = send
        self._spawn = spawn
        self._noted: Cursor | None = None
        """The furthest; None: there is none yet."""
        self._durable: Cursor | None = None
        """The furthest that the server has; None: that is not known."""
        self._task: asyncio.Task[None] | None = None
        """Sends what is noted; None while nothing is."""
        self._lock = asyncio.Lock()
        self._fail: Callable[[TailraceError], None] = lambda error: None

    def begin(self, fail: Callable[[TailraceError], None]) -> None:
        """Tell an error that no retry helps to ``fail``."""
        self._fail = fail

    def note(self, cursor: Cursor) -> None:
        """Have a cursor sent within a second.

        Raises:
            InvalidRequest: It lies before one that was noted already.
        """
        self._move(cursor)
        if self._task is None or self._task.done():
            self._task = self._spawn(self._run())

    async def flush(self, cursor: Cursor | None = None) -> None:
        """Send a cursor, or what is noted, and return when it is durable.

        Raises:
            InvalidRequest: It lies before one that was noted already.
            TailraceError: It was refused, or the server cannot be reached.
        """
        if cursor is not None:
            self._move(cursor)
        async with self._lock:
            noted = self._noted
            if noted is not None and noted != self._durable:
                await self._send_by_newest(noted)
                self._durable = noted

    def stop(self) -> None:
        """Send nothing more by itself."""
        if self._task is not None:
            self._task.cancel()

    def _move(self, cursor: Cursor) -> None:
        if self._noted is not None and cursor < self._noted:
            raise InvalidRequest(
                f"acknowledge {cursor}: {self._noted} was acknowledged already, which lies behind it"
            )
        self._noted = cursor

    async def _send_by_newest(self, cursor: Cursor) -> None:
        """Send with the epoch of the newest connection, which may be made while this is on its way."""
        epoch = self.epoch
        try:
            await self._send(epoch, cursor)
        except SubscriptionTakenOver:
            # By ourselves, if the connection was made anew: its acknowledgement may still be coming.
            if self.epoch == epoch:
                await asyncio.sleep(_EVERY_S)
            if self.epoch == epoch:
                raise
            await self._send(self.epoch, cursor)

    async def _run(self) -> None:
        """Send what is noted until it is durable; never raises."""
        while self._noted != self._durable:
            await asyncio.sleep(_EVERY_S)
            try:
                await self.flush()
            except TailraceError as error:
                if not error.retriable:
                    self._fail(error)
                    return
