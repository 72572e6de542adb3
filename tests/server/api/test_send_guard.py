"""The send deadline with a sender of its own. On real sockets: rest/test_guards.py, grpc/test_server.py."""

from __future__ import annotations

import asyncio

from tailrace_server.api.send_guard import Guarded, SendGuard
from tests.support.polling import until


class Sender(Guarded):
    """Counts how often it was ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = 0

    def _end_stream(self) -> None:
        self.ended += 1


async def test_only_a_sender_whose_write_is_overdue_is_ended_and_only_once() -> None:
    guard = SendGuard(0.02)
    stalled, busy, idle = Sender(), Sender(), Sender()
    for each in (stalled, busy, idle):
        guard.watch(each)
    now = asyncio.get_running_loop().time()
    stalled.blocked_since = now - 10
    busy.blocked_since = now + 3_600
    await until(lambda: stalled.expired)
    stalled.expire()
    stalled.interrupt()
    assert (stalled.ended, busy.ended, idle.ended) == (1, 0, 0)
    assert guard.expired == 1
    for each in (stalled, busy, idle):
        guard.forget(each)


async def test_an_interrupt_ends_a_write_under_way_and_nothing_between_writes() -> None:
    between, writing = Sender(), Sender()
    writing.blocked_since = asyncio.get_running_loop().time()
    between.interrupt()
    writing.interrupt()
    assert (between.ended, writing.ended) == (0, 1)
