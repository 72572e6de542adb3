"""Hostile peers against one real server: its memory stays bounded, and whoever comes next is served.

The attacks stand in attacks.py, a row each.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import pytest

import tailrace
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tests.process.commands import Command, ServerProcess
from tests.robustness.attacks import ATTACKS, LARGE_ROWS, Attack
from tests.support.peers import EVENTS, GRAPHQL, REST, Peer
from tests.support.polling import until, until_answered

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

MIB: Final = 1 << 20
BUDGET: Final = 256 * MIB
FRESH_S: Final = 10
"""How long a client may take that comes behind an attack; one second where the machine is idle."""
BEHIND_S: Final = 10
"""How long memory may take to be below its bound again; as above, five."""
OPTIONS: Final = (
    *("--log-format", "json", "--memory", "256MiB"),
    *("--request-head-s", "3s", "--request-body-s", "3s", "--ws-init-timeout-s", "3s"),
)


def anonymous_bytes(command: Command) -> int:
    with open(f"/proc/{command.process.pid}/status") as status:
        (found,) = re.findall(r"^RssAnon:\s+(\d+) kB", status.read(), re.M)
    return int(found) << 10


async def reads_on_every_face(server: ServerProcess) -> None:
    """Subscribe on each face as a client that was not there before, and read the first change."""
    with ExitStack() as stack:
        for way in (REST, GRAPHQL, EVENTS):
            peer = stack.enter_context(Peer(server.http))
            await peer.open(way)
            await peer.say(way.subscribe(1))
            await peer.until(b"innocent")
    async with (
        tailrace.connect(server.grpc) as client,
        client.subscribe("shop", since=0, content=tailrace.Content.AFTER) as reader,
    ):
        assert (await anext(reader)).version == 1


async def ended(server: ServerProcess, guard: str) -> bool:
    text = (await server.get("/metrics")).text
    return f'tailrace_live_connections_ended_total{{guard="{guard}"}}' in text


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
async def test_contract_13_45_what_hostile_peers_send_costs_its_bound_and_nobody_else(
    log_root: Path, attack: Attack
) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([Mutation("product", "1", after=b'{"id":1,"name":"innocent"}')])
        for number in range(LARGE_ROWS * attack.needs_large_rows):
            writer.commit()
            image = b'{"id":%d,"text":"%s"}' % (number, b"x" * MIB)
            writer.append([Mutation("product", str(number), after=image)])
    server = ServerProcess(log_root, OPTIONS)
    async with server.up() as command:
        await reads_on_every_face(server)
        highest = 0

        async def watch() -> None:
            nonlocal highest
            while True:
                highest = max(highest, anonymous_bytes(command))
                await asyncio.sleep(0.02)

        watching = asyncio.ensure_future(watch())
        with ExitStack() as stack:
            await attack.run(server, stack)
            async with asyncio.timeout(FRESH_S):
                await reads_on_every_face(server)
            if attack.guard is not None:
                guard = attack.guard
                await until_answered(lambda: ended(server, guard))
        watching.cancel()
        await until(lambda: anonymous_bytes(command) < BUDGET, BEHIND_S)
        async with asyncio.timeout(FRESH_S):
            await reads_on_every_face(server)
        assert highest < BUDGET
        assert not [line for line in command.notes if "Traceback" in line]
