"""Work in a thread that outlasts the cancellation of who waits for it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

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
            running.exception()  # nobody is left to be told of it
        raise
