"""What raw readers of other servers have in common: how they tell the bench what they measured."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


class Reader(Protocol):
    """One reader and its times, by ``time.perf_counter``."""

    first_at: float
    done_at: float
    done: asyncio.Future[None]


async def report(readers: Sequence[Reader], wanted: int, started: float | None) -> None:
    """Print "subscribed", then a line once all have everything; None: the time counts from the first entry."""
    print("subscribed", flush=True)
    await asyncio.gather(*(reader.done for reader in readers))
    begun = min(reader.first_at for reader in readers) if started is None else started
    measured = {
        "seconds": max(reader.done_at for reader in readers) - begun,
        "captures": wanted * len(readers),
    }
    print(json.dumps(measured), flush=True)
