"""Hostile peers against one real server: its memory stays bounded, and whoever comes next is served.

The attacks stand in attacks.py, a row each. A neighbour reads at a steady pace meanwhile, from this server and
from another one of the same log that nobody attacks: what the machine costs, it costs on both.

``HOSTILE_S=120`` makes all of them at once for two minutes instead of some seconds.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from threading import Event
from typing import TYPE_CHECKING, Final

import pytest

import tailrace
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tests.process.commands import PATIENCE_S, Command, ServerProcess
from tests.robustness.attacks import ATTACKS, LARGE_ROWS, Attack
from tests.robustness.neighbour import Neighbour, paced_neighbour
from tests.support.peers import EVENTS, GRAPHQL, REST, Peer, Way
from tests.support.polling import until, until_answered

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

MIB: Final = 1 << 20
BUDGET: Final = 256 * MIB
BUDGET_AT_ONCE: Final = 352 * MIB
"""Of all attacks together: what an idle server has, and the shares of all that peers can make it keep."""
AT_ONCE_S: Final = float(os.environ.get("HOSTILE_S", "8"))
FRESH_S: Final = 1.0
"""How long a client that comes behind an attack may take on one face."""
FRESH_FACTOR: Final = 10
"""The same against the slowest face before the attack, or now at the server that is let be, where the machine
has other work."""
BESIDE_S: Final = 15.0
"""The same while the peers are still at it."""
BEHIND_S: Final = 5.0
"""How long memory may take to be below its bound again."""
QUIET_S: Final = 2.0
OPTIONS: Final = (
    *("--log-format", "json", "--memory", "256MiB"),
    *("--request-head-s", "3s", "--request-body-s", "3s", "--ws-init-timeout-s", "3s"),
)


class Watched:
    """A server's process, and the most memory that it has had."""

    def __init__(self, command: Command) -> None:
        self._command = command
        self.highest = 0

    def anonymous_bytes(self) -> int:
        with open(f"/proc/{self._command.process.pid}/status") as status:
            (found,) = re.findall(r"^RssAnon:\s+(\d+) kB", status.read(), re.M)
        return int(found) << 10

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch it in a thread: the attackers leave this process's event loop few turns."""
        over = Event()

        def watch() -> None:
            while not over.wait(0.02):
                self.highest = max(self.highest, self.anonymous_bytes())

        with ThreadPoolExecutor(1) as thread:
            watched = thread.submit(watch)
            try:
                yield
            finally:
                over.set()
            watched.result()


async def over_http(server: ServerProcess, way: Way) -> None:
    with Peer(server.http) as peer:
        await peer.open(way)
        await peer.say(way.subscribe(1))
        await peer.until(b"innocent")


async def over_grpc(server: ServerProcess) -> None:
    async with (
        tailrace.connect(server.grpc) as client,
        client.subscribe("shop", since=0, content=tailrace.Content.AFTER) as reader,
    ):
        assert (await anext(reader)).version == 1


async def slowest_face(server: ServerProcess) -> float:
    """Subscribe on each face as a client that was not there before, and read the first change; in seconds."""
    slowest = 0.0
    async with asyncio.timeout(PATIENCE_S):
        for way in (REST, GRAPHQL, EVENTS, None):
            begin = time.monotonic()
            await (over_grpc(server) if way is None else over_http(server, way))
            slowest = max(slowest, time.monotonic() - begin)
    return slowest


async def served(server: ServerProcess) -> bool:
    """Whether each face takes a client that was not there before; at its bounds a server resets connections."""
    try:
        await slowest_face(server)
    except ConnectionError:
        return False
    return True


async def ended(server: ServerProcess, guard: str) -> bool:
    text = (await server.get("/metrics")).text
    return f'tailrace_live_connections_ended_total{{guard="{guard}"}}' in text


@asynccontextmanager
async def stage(
    root: Path,
    large_rows: int,
) -> AsyncIterator[tuple[ServerProcess, ServerProcess, Watched, Neighbour]]:
    """Serve a log twice, with a neighbour of both; at the end the attacked one has logged no traceback."""
    with LogWriter.open(root, "shop") as writer:
        writer.append([Mutation("product", "1", after=b'{"id":1,"name":"innocent"}')])
        for number in range(large_rows):
            writer.commit()
            image = b'{"id":%d,"text":"%s"}' % (number, b"x" * MIB)
            writer.append([Mutation("product", str(number), after=image)])
    server, beside = ServerProcess(root, OPTIONS), ServerProcess(root, OPTIONS)
    async with (
        server.up() as command,
        beside.up(),
        paced_neighbour(root, server, beside) as neighbour,
    ):
        await neighbour.until(0)
        yield server, beside, Watched(command), neighbour
        assert not [line for line in command.notes if "Traceback" in line]


ALIKE: Final = {
    "bodies that are not finished": ("chunks that are not finished",),
    "messages that are not finished": ("fragments that are not finished",),
    "gRPC requests that are not finished": ("gRPC demand that is not finished",),
    "history that nobody reads, as NDJSON": (
        "history that nobody reads, as JSON",
        "history that nobody reads, as Arrow",
    ),
}
"""Attacks, and the others that the same guard stops in the same way."""
REPEATED: Final = pytest.mark.nightly(
    "tests/robustness/test_hostile_peers.py: the attack of the same guard that ALIKE names, and all at once"
)


def marks(attack: Attack) -> list[pytest.MarkDecorator]:
    """Mark an attack as nightly if `ALIKE` names another that stays."""
    return [REPEATED] if any(attack.name in names for names in ALIKE.values()) else []


@pytest.mark.parametrize(
    "attack", [pytest.param(each, id=each.name, marks=marks(each)) for each in ATTACKS]
)
async def test_contract_13_45_what_hostile_peers_send_costs_its_bound_and_nobody_else(
    log_root: Path, attack: Attack
) -> None:
    async with stage(log_root, LARGE_ROWS * attack.needs_large_rows) as (
        server,
        beside,
        watched,
        neighbour,
    ):
        # 1. The quiet time. The first client of each face finds what is made only once.
        await slowest_face(server)
        before_s = await slowest_face(server)
        begin = time.monotonic()
        await neighbour.until(begin + QUIET_S)
        quiet = neighbour.p99(0, begin, time.monotonic())
        # 2. The attack. Its peers are still there when the first fresh client comes.
        begin = time.monotonic()
        with ExitStack() as stack, watched.watching():
            await attack.run(server, stack)
            assert await slowest_face(server) < BESIDE_S
            if attack.guard is not None:
                guard = attack.guard
                await until_answered(lambda: ended(server, guard))
        # 3. Behind it.
        await until(lambda: watched.anonymous_bytes() < BUDGET, BEHIND_S)
        fresh_s = await slowest_face(server)
        machine_s = max(before_s, await slowest_face(beside))
        assert fresh_s < max(FRESH_S, FRESH_FACTOR * machine_s)
        assert watched.highest < BUDGET
        # 4. The neighbour has everything, on both transports, and was never cut. How late is printed, not
        #    judged: that says as much about the machine.
        end = time.monotonic()
        async with asyncio.timeout(2 * PATIENCE_S):
            await neighbour.until(end)
        late, let_be = neighbour.p99(0, begin, end), neighbour.p99(1, begin, end)
        print(f"p99: quiet {quiet:.3f} s, attacked {late:.3f} s, let be {let_be:.3f} s")


@pytest.mark.timeout(0)
async def test_contract_13_45_all_hostile_peers_at_once_cost_a_bound_and_nobody_is_cut(
    log_root: Path,
) -> None:
    async with stage(log_root, LARGE_ROWS) as (server, _, watched, neighbour):

        async def again_and_again(attack: Attack) -> None:
            while True:
                with ExitStack() as stack:
                    await attack.run(server, stack)

        begin = time.monotonic()
        with watched.watching():
            attacking = [asyncio.ensure_future(again_and_again(each)) for each in ATTACKS]
            done, _ = await asyncio.wait(attacking, timeout=AT_ONCE_S)
            for each in attacking:
                each.cancel()
            ends = await asyncio.gather(*attacking, return_exceptions=True)
        # Attacks that end by themselves are refused connections: that many at once are too many.
        assert all(
            isinstance(each, OSError | asyncio.CancelledError | AssertionError) for each in ends
        )
        await until(lambda: watched.anonymous_bytes() < BUDGET, BEHIND_S)
        await until_answered(lambda: served(server))
        end = time.monotonic()
        async with asyncio.timeout(2 * PATIENCE_S):
            await neighbour.until(end)
        late, let_be = neighbour.p99(0, begin, end), neighbour.p99(1, begin, end)
        print(f"{watched.highest / MIB:.0f} MiB; p99: attacked {late:.3f} s, let be {let_be:.3f} s")
        print(f"{len(done)} attacks ended early")
        assert watched.highest < BUDGET_AT_ONCE
