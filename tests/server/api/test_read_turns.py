"""Connections that bring more than a turn's share wait for their turn, first come, first read."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from tailrace_server.api.byte_budget import ReadTurns


@dataclass
class Connection:
    name: int
    released: list[int] = field(default_factory=list)
    held: bool = False

    def hold_reading(self) -> None:
        self.held = True

    def release_reading(self) -> None:
        self.held = False
        self.released.append(self.name)


async def test_above_the_share_of_a_turn_connections_wait_and_go_on_in_the_order_they_came() -> (
    None
):
    turns = ReadTurns()
    released: list[int] = []
    connections = [Connection(number, released) for number in range(20)]
    for each in connections:
        turns.took(each, 256 << 10)
    assert [each.held for each in connections] == [False] * 4 + [True] * 16
    await asyncio.sleep(0)
    assert released == [4, 5, 6, 7]
    for _ in range(3):
        await asyncio.sleep(0)
    assert released == [*range(4, 20)]


async def test_small_reads_wait_for_nothing_and_each_turn_begins_anew() -> None:
    turns = ReadTurns()
    one = Connection(0)
    for _ in range(10_000):
        turns.took(one, 1024)
    for _ in range(100):
        turns.took(one, 1 << 20)
        assert not one.held
        await asyncio.sleep(0)
