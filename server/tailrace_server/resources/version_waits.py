"""Waits for the publication of a version."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from tailrace.errors import again

if TYPE_CHECKING:
    from tailrace.errors import TailraceError
    from tailrace_server.wal.state.view import LogView


class VersionWait(NamedTuple):
    """The version that a read or a subscribe waits for before it begins."""

    version: int
    """Version to wait for until it is published."""
    patience_s: float
    """Longest time to wait, in seconds."""


class VersionWaits:
    """The waits of one catalog. Lives on the event loop."""

    def __init__(self) -> None:
        """Begin without waits."""
        self._waits: dict[asyncio.Future[None], int] = {}
        """Future of each waiter → the version that it waits for."""
        self._ended: TailraceError | None = None
        """The error that ended all waits; None while versions may still appear."""

    def __len__(self) -> int:
        """Return the number of waits."""
        return len(self._waits)

    def see(self, view: LogView) -> None:
        """Wake the waiters whose version is published."""
        # Woken waiters remove themselves later, in ``wait``; until then they are skipped as done.
        for waiter, version in tuple(self._waits.items()):
            if version <= view.published and not waiter.done():
                waiter.set_result(None)

    def end(self, error: TailraceError) -> None:
        """End all present and future waits with an error."""
        self._ended = error
        for waiter in self._waits:
            if not waiter.done():
                # Each waiter raises a copy: raising one object many times would add the frames of all to its
                # traceback.
                waiter.set_exception(again(error))

    async def wait(self, version: int, patience_s: float) -> None:
        """Wait until an unpublished version is published.

        Raises:
            TimeoutError: It was not published within ``patience_s``.
            TailraceError: The catalog has ended, or the server is stopping.
        """
        if self._ended is not None:
            raise again(self._ended)
        waiter = asyncio.get_running_loop().create_future()
        self._waits[waiter] = version
        try:
            async with asyncio.timeout(patience_s):
                await waiter
        finally:
            del self._waits[waiter]
