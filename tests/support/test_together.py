"""What ``together`` leaves behind: nothing."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.together import together


async def test_the_others_are_over_when_one_fails() -> None:
    ended = asyncio.Event()

    async def waiting() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def failing() -> None:
        await asyncio.sleep(0)
        raise OSError("refused")

    with pytest.raises(OSError, match="refused"):
        await together(waiting(), failing())
    assert ended.is_set()


async def test_results_come_in_the_order_of_what_gave_them() -> None:
    async def number(value: int, turns: int) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        return value

    assert await together(number(1, 3), number(2, 0)) == [1, 2]
