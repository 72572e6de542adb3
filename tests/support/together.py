"""Awaiting several things of which any may fail, with none left running behind the one that did."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable

_T = TypeVar("_T")


async def together(*awaited: Awaitable[_T]) -> list[_T]:
    """Return what each gives, in their order. ``asyncio.gather`` leaves the others running at an error.

    Raises:
        Exception: Of the first that failed; the others have been cancelled, and are over.
    """
    tasks = [asyncio.ensure_future(each) for each in awaited]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
