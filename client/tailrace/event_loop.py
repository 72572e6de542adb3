"""The event loop of a client: a check that it is the one that entered, and work in threads beside it.

gRPC answers on the loop that made the channel. A caller on another loop or in another thread would wait for
ever, and no timeout of its loop would end that. So the client refuses such a call at once.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from tailrace.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable


class OnOneLoop:
    """A base for objects that are used only on the event loop that entered them."""

    _loop: asyncio.AbstractEventLoop | None = None
    """The loop that entered it; None before that."""

    def _note_loop(self) -> None:
        """Belong to the running event loop from now on."""
        self._loop = asyncio.get_running_loop()

    def _check_loop(self) -> None:
        """Refuse to be used from elsewhere; before it was entered there is nothing to refuse.

        Raises:
            InvalidRequest: Another event loop runs here than the one that entered it, or none.
        """
        home = self._loop
        if home is None or asyncio._get_running_loop() is home:
            return
        state = "that is closed" if home.is_closed() else "of another thread or run"
        raise InvalidRequest(
            f"this {type(self).__name__.lower()} belongs to the event loop that entered it, one {state}: "
            "make one with `connect` on the loop that uses it"
        )


_T = TypeVar("_T")


async def waited_out(running: asyncio.Future[_T], stop: Callable[[], None] | None = None) -> _T:
    """Return the result of work in a thread; a cancelled caller still waits for its end.

    A thread cannot be cancelled, and until its end it uses resources that a cancelled caller would close.

    Args:
        running: The work.
        stop: Has it end soon; called on the event loop, at the first cancellation.
    """
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        if stop is not None:
            stop()
        while not running.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # no caller is left that could get it
        raise
