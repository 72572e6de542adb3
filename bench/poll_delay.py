"""How long after a version is published does a poll of one second give its rows?

::

    LogWriter: a version of one row, 20 a second ──▶ tailrace ──▶ client.poll(…, every_s=1.0)     to measure
                                                              └─▶ client.subscribe(…)              baseline

Delay counts from the moment at which the writer's commit returned, which published the version, to the moment
at which the program has the row. All share one machine and one clock. Each version has to come once.

A poll can give a row no sooner than it asks, so half a second is the least that its median can be. What it does
not show: statements that take long, and answers with many rows.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import tailrace
from bench._harness import machine, server, table, tailrace_server
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import SchemaMapping

SECONDS: Final = int(sys.argv[1]) if len(sys.argv) > 1 else 60
_RATE: Final = 20
_VERSIONS: Final = SECONDS * _RATE
_TYPED: Final = SchemaMapping.parse(
    '[entity_types.product]\nkey = ["id"]\n[entity_types.product.columns]\nid = { type = "BIGINT" }\n'
)
_STATEMENT: Final = "SELECT _commit_version AS version FROM CHANGES('product', $from, $to)"


def write(writer: LogWriter, published: dict[int, float]) -> None:
    """Write versions at a pace; keep when each was published."""
    begun = time.monotonic()
    for number in range(_VERSIONS):
        time.sleep(max(0.0, begun + number / _RATE - time.monotonic()))
        writer.append([Mutation("product", str(number), after=b'{"id":%d}' % number)])
        writer.commit(publish=True)
        published[number + 2] = time.monotonic()


async def polled(client: tailrace.Client, came: dict[int, float]) -> None:
    """Keep when a poll gave each version; the first, with which the engine begins, was there before."""
    async with client.poll("shop", _STATEMENT, since=0, every_s=1.0) as poll:
        async for answer in poll:
            async for row in answer:
                assert row["version"] not in came, "a version came twice"
                came[row["version"]] = time.monotonic()
            if len(came) == _VERSIONS + 1:
                return


async def subscribed(client: tailrace.Client, came: dict[int, float]) -> None:
    """Keep when a subscription gave each version."""
    criteria = tailrace.Criteria(entity_type=("product",))
    async with client.subscribe("shop", criteria, since=tailrace.Position(1, 0)) as captures:
        async for capture in captures:
            came[capture.position.version] = time.monotonic()
            if len(came) == _VERSIONS + 1:
                return


async def measured(address: str, writer: LogWriter) -> dict[str, list[float]]:
    """Return the delays of both, seconds, sorted."""
    published: dict[int, float] = {}
    poll: dict[int, float] = {}
    stream: dict[int, float] = {}
    async with tailrace.connect(address) as client, asyncio.TaskGroup() as tasks:
        tasks.create_task(polled(client, poll))
        tasks.create_task(subscribed(client, stream))
        while not (poll and stream):  # noqa: ASYNC110 - the first version tells that both are at work
            await asyncio.sleep(0.05)
        await asyncio.to_thread(write, writer, published)
    return {
        name: sorted(came[version] - at for version, at in published.items())
        for name, came in (("poll of 1 s", poll), ("subscription", stream))
    }


def main() -> None:
    """Measure, and print."""
    print(machine(), f"{_VERSIONS} versions, {_RATE} a second", sep="; ")
    with tempfile.TemporaryDirectory(prefix="tailrace-poll-") as folder:
        root = Path(folder) / "log"
        with LogWriter.open(root, "shop", mapping=_TYPED) as writer:
            writer.append([Mutation("product", "first", after=b'{"id":-1}')])
            writer.commit(publish=True)
            with server(tailrace_server(root, "--log-format", "json")) as served:
                found = asyncio.run(measured(served.address, writer))
    rows = [
        (name, *(f"{delays[int(share * (len(delays) - 1))]:.3f} s" for share in (0.5, 0.99, 1.0)))
        for name, delays in found.items()
    ]
    table("From the publication to the program", ("", "p50", "p99", "max"), rows)


if __name__ == "__main__":
    main()
