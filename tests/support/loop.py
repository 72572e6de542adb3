"""The event loop of the tests: asyncio's own, watched for the one mistake that its debug mode alone finds.

Debug mode also notes where each future and callback was made, which takes a quarter of the time of the tests.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVarTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context

_Ts = TypeVarTuple("_Ts")


class WatchedLoop(asyncio.SelectorEventLoop):
    """Refuses callbacks of other threads, which would wait for the loop to wake up by chance."""

    def call_soon(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """As asyncio's; from its own thread only."""
        self._refuse_other_thread()
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """As asyncio's; from its own thread only."""
        self._refuse_other_thread()
        return super().call_at(when, callback, *args, context=context)

    def _refuse_other_thread(self) -> None:
        if self.is_running() and asyncio._get_running_loop() is not self:
            raise RuntimeError("call_soon_threadsafe is for other threads")
