"""Checks that a client is used on the event loop that entered it, and a wait for work in threads.

gRPC answers on the event loop that created the channel. A call from another loop or thread would wait for ever,
and no timeout on that loop would end the wait. So the client refuses such a call at once.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from tailrace.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable


class OnOneLoop:
    """Base class of objects that may be used only on the event loop that entered them."""

    _loop: asyncio.AbstractEventLoop | None = None
    """The event loop that entered the object; None before that."""

    def _note_loop(self) -> None:
        """Bind the object to the running event loop."""
        self._loop = asyncio.get_running_loop()

    def _check_loop(self) -> None:
        """Check that the running event loop is the one that entered the object; do nothing before that.

        Raises:
            InvalidRequest: Another event loop runs here, or none.
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
    """Return the result of work in a thread. If the caller is cancelled, wait for the end of the work first.

    A thread cannot be cancelled. Until it ends, it uses resources that a cancelled caller would close.

    Args:
        running: The future of the work.
        stop: Asks the work to end soon; called on the event loop, at the first cancellation.
    """
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        if stop is not None:
            stop()
        # Swallow further cancellations while the thread runs; the first one is raised again at the end.
        while not running.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # retrieve it, or asyncio logs an exception that was never retrieved
        raise
