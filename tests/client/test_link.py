"""Silence on a link. Resumes and retries on a scripted server: test_subscription.py, test_faults.py."""

from __future__ import annotations

import asyncio
import time

import pytest

from tailrace.link import patience_s, silence


async def test_silence_longer_than_allowed_is_a_timeout() -> None:
    with pytest.raises(TimeoutError):
        async with silence(0.001):
            await asyncio.Event().wait()


async def test_a_message_that_came_while_the_loop_was_busy_wins_over_the_timer() -> None:
    came = asyncio.get_running_loop().create_future()
    async with silence(0.001):
        asyncio.get_running_loop().call_soon(came.set_result, b"message")
        started = time.monotonic()
        while time.monotonic() - started < 0.01:
            pass  # a turn of the event loop that takes longer than the silence allowed
        assert await came == b"message"


def test_a_short_interval_is_not_held_against_a_busy_server() -> None:
    assert patience_s(0.01) == 1.0
    assert patience_s(30.0) == 60.0
