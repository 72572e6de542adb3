"""Waits until a version is published."""

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
    """Until it is published,"""
    patience_s: float
    """for so long at most."""


class VersionWaits:
    """The waits of one catalog. Lives on the event loop."""

    def __init__(self) -> None:
        """Begin with none."""
        self._waits: dict[asyncio.Future[None], int] = {}
        """The event of each waiter → the version that it waits for."""
        self._ended: TailraceError | None = None
        """Why no version comes any more; None while one may."""

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waits)

    def see(self, view: LogView) -> None:
        """Wake those whose version is published."""
        for waiter, version in tuple(self._waits.items()):
            if version <= view.published and not waiter.done():
                waiter.set_result(None)

    def end(self, error: TailraceError) -> None:
        """End all waits with an error, and those to come."""
        self._ended = error
        for waiter in self._waits:
            if not waiter.done():
                waiter.set_exception(again(error))

    async def wait(self, version: int, patience_s: float) -> None:
        """Return once a version is published that is not yet.

        Raises:
            TimeoutError: It was not, for so long.
            TailraceError: The catalog has ended meanwhile, or the server stops.
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
