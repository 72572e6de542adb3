"""A paced neighbour (paced_neighbour.py) as a test sees it: what it has read, and how late that was."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from tests.process.commands import Command

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.process.commands import ServerProcess


class Neighbour:
    """Readings of servers, numbered from 0, over two transports each."""

    def __init__(self, command: Command, servers: int) -> None:
        self._command = command
        self._readers = 2 * servers
        self._readings: dict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
        """Of each server and transport: when a transaction began to be written, and how late it came."""
        self._news = asyncio.Event()

    async def collect(self) -> None:
        """Take readings until the process ends, which is an error."""
        assert self._command.process.stdout is not None
        async for line in self._command.process.stdout:
            number, transport, begun, late = json.loads(line)
            self._readings[number, transport].append((begun, late))
            self._news.set()
        raise AssertionError(self._command.notes)

    async def until(self, moment: float) -> None:
        """Wait until every reader has what was written after a moment of the monotonic clock."""
        while len(self._readings) < self._readers or moment > min(
            each[-1][0] for each in self._readings.values()
        ):
            self._news.clear()
            await self._news.wait()

    def p99(self, number: int, begin: float, end: float) -> float:
        """Return how late what was written between two moments came from a server, in seconds."""
        late = sorted(
            late
            for (server, _), readings in self._readings.items()
            for begun, late in readings
            if server == number and begin <= begun <= end
        )
        return late[len(late) * 99 // 100]


@asynccontextmanager
async def paced_neighbour(root: Path, *servers: ServerProcess) -> AsyncIterator[Neighbour]:
    """Run a neighbour of servers of one log; it must be there until the end."""
    addresses = [each for server in servers for each in (server.grpc, server.http)]
    command = Command(root, *addresses, python=("-m", "tests.robustness.paced_neighbour"))
    async with command, asyncio.TaskGroup() as tasks:
        one = Neighbour(command, len(servers))
        collecting = tasks.create_task(one.collect())
        yield one
        collecting.cancel()
