"""How the suite reads from a driven subscription, and waits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tailrace.capture import Heartbeat
from tailrace.errors import TailraceError
from tests.support.inprocess import observer_of
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.capture import Capture
    from tests.conformance.ways import DrivenSubscription, Driver

PATIENCE_S: Final = 20.0
"""How long a test waits for what must happen; a passing one waits for none of it."""


async def published(driver: Driver, version: int) -> None:
    """Wait until the server has seen a publication."""
    await until(lambda: observer_of(driver.engine, "shop").log.view.published >= version)


async def collect(subscription: DrivenSubscription, count: int) -> list[Capture]:
    """Return the next ``count`` captures exactly; heartbeats are passed over."""
    captures: list[Capture] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(captures) < count:
            message = await subscription.receive()
            if not isinstance(message, Heartbeat):
                captures.extend(message)
    assert len(captures) == count
    return captures


async def error_ending(subscription: DrivenSubscription) -> tuple[list[Capture], TailraceError]:
    """Return what still came, and the error that ended it."""
    captures: list[Capture] = []
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                message = await subscription.receive()
            except TailraceError as error:
                return captures, error
            if not isinstance(message, Heartbeat):
                captures.extend(message)


async def heartbeat_past(subscription: DrivenSubscription, version: int) -> Heartbeat:
    """Return the first heartbeat whose cursor has passed a whole version; captures must not come."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            message = await subscription.receive()
            assert isinstance(message, Heartbeat), message
            if message.cursor.version >= version:
                return message


def coordinates(captures: Sequence[Capture]) -> list[tuple[int, int, int]]:
    """Return version, index and ordinal of captures."""
    return [(each.version, each.index, each.ordinal) for each in captures]
