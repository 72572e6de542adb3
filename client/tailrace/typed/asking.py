"""Asking for a schema as patiently as a subscription waits for its server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.clock import SystemClock
from tailrace.errors import TailraceError
from tailrace.retry import Attempts

if TYPE_CHECKING:
    from tailrace.retry import Retry, Timeouts
    from tailrace.schema import SchemaSpan
    from tailrace.typed.schemas import Ask


def patient(ask: Ask, retry: Retry, timeouts: Timeouts) -> Ask:
    """Return what asks again for as long as a retry may help and ``retry`` allows it."""

    async def asked(version: int) -> SchemaSpan:
        clock = SystemClock()
        attempts = Attempts(retry, timeouts, clock)
        attempts.acknowledged = True
        while True:
            try:
                return await ask(version)
            except TailraceError as error:
                wait_s = attempts.wait_after(error)
            await clock.sleep(wait_s)

    return asked
