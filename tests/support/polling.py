"""Waiting for what nothing announces, by asking again and again. Only for that: an event is awaited.

What there is no event for: figures that a server or a client keeps of itself (a signal at every change of a
counter would cost more than what it counts), and what another process has done to its files, to its
children or to the state that it answers with.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PATIENCE_S: Final = 30.0
"""How long a test waits for what must happen; a passing one waits for none of it."""
_EVERY_S: Final = 0.005


async def until(condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    """Wait until something holds.

    Raises:
        TimeoutError: It does not, for as long as patience lasts.
    """

    async def asked() -> bool:
        return condition()

    await until_answered(asked, patience_s)


async def until_answered(
    condition: Callable[[], Awaitable[bool]], patience_s: float = PATIENCE_S
) -> None:
    """Wait until something holds that is asked of another process. As ``until``."""
    async with asyncio.timeout(patience_s):
        while not await condition():  # noqa: ASYNC110 - see above
            await asyncio.sleep(_EVERY_S)


def wait_until(condition: Callable[[], bool], patience_s: float = 2 * PATIENCE_S) -> None:
    """Wait until something holds, where there is no event loop. As ``until``."""
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"it did not happen within {patience_s:g} s")
        time.sleep(_EVERY_S)
