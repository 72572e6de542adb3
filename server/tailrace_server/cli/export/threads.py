"""Steps of an export that block, run in a thread beside the event loop that hears the signals."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from tailrace.threads import waited_out

if TYPE_CHECKING:
    from collections.abc import Callable

_Result = TypeVar("_Result")


async def in_thread(step: Callable[[], _Result], stop: Callable[[], None]) -> _Result:
    """Run a step in a thread; cancelled, have it end behind what it writes, and wait for that.

    Until then it uses files that a cancelled caller would close.

    Args:
        step: What to run.
        stop: Has it end; called in the event loop's thread.
    """
    return await waited_out(asyncio.get_running_loop().run_in_executor(None, step), stop)
