"""The loop of the tests finds what is called from other threads."""

from __future__ import annotations

import asyncio

import pytest


async def test_what_other_threads_call_is_refused() -> None:
    loop = asyncio.get_running_loop()
    for call in (loop.call_soon, lambda later: loop.call_later(0, later)):
        with pytest.raises(RuntimeError, match="call_soon_threadsafe"):
            await asyncio.to_thread(call, lambda: None)
    reached = asyncio.Event()
    await asyncio.to_thread(loop.call_soon_threadsafe, reached.set)
    await reached.wait()
