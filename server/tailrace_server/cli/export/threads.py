"""Steps of an export that block, run in a thread beside the event loop that hears the signals."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_Result = TypeVar("_Result")


async def in_thread(step: Callable[[], _Result], stop: Callable[[], None]) -> _Result:
    """Run a step in a thread; cancelled, have it end behind what it writes, and wait for that.

    Until then it uses files that whoever is told of the cancellation would close.

    Args:
        step: What to run.
        stop: Has it end; called in the event loop's thread.
    """
    running = asyncio.get_running_loop().run_in_executor(None, step)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stop()
        await asyncio.wait([running])
        running.exception()  # it was stopped; nobody asks how it went
        raise
