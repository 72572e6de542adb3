"""What does a subscription cost that waits?

::

    10,000 subscriptions in process, different criteria each, all waiting in ``receive``
    1,000 streams over gRPC that wait, beside 1,000 bare grpc.aio streams that wait

Anonymous memory (RssAnon) before and after, by the number of subscriptions.
"""

from __future__ import annotations

import asyncio
import gc
import tempfile
from pathlib import Path

from bench._harness import (
    bare_server,
    machine,
    median,
    server,
    subscribers,
    table,
    tailrace_server,
)
from bench._log import CATALOG, write_log
from tailrace.criteria import Criteria
from tailrace_server.codecs import PROTOBUF
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.log_cache.batch_cache import anonymous_bytes

IN_PROCESS = 10_000
STREAMS = 1_000
RUNS = 3


async def in_process(root: Path) -> float:
    """Return KiB a subscription."""
    async with Engine(root) as engine:
        gc.collect()
        before = anonymous_bytes()
        subscriptions = [
            await engine.subscribe(
                ANONYMOUS,
                CATALOG,
                [Criteria(entity_type=("product",), primary_key=(str(number),))],
                codec=PROTOBUF,
            )
            for number in range(IN_PROCESS)
        ]
        waiting = [asyncio.ensure_future(each.receive()) for each in subscriptions]
        await asyncio.sleep(1)
        gc.collect()
        used = anonymous_bytes() - before
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    return used / IN_PROCESS / 1024


def over_grpc(command: list[str]) -> float:
    """Return KiB a stream."""
    with server(command) as subject:
        with subscribers(subject.address, 1, 1 << 40, capture_bytes=1, start="new"):
            before = subject.anonymous_bytes()
        with subscribers(subject.address, STREAMS, 1 << 40, capture_bytes=1, start="new"):
            return (subject.anonymous_bytes() - before) / STREAMS / 1024


def main() -> None:
    """Measure and print."""
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_log(root, rows=1, rows_per_transaction=1, transactions_per_commit=1)
        own = median([asyncio.run(in_process(root)) for _ in range(RUNS)])
        pairs = [
            (over_grpc(bare_server(0, 0, 200)), over_grpc(tailrace_server(root)))
            for _ in range(RUNS)
        ]
    bare, ours = (median([pair[place] for pair in pairs]) for place in (0, 1))
    table(
        f"KiB an idle subscription, median of {RUNS}",
        [f"{IN_PROCESS:,} in process", f"{STREAMS:,} over gRPC", "bare grpc.aio", "more than bare"],
        [[f"{own:.1f}", f"{ours:.1f}", f"{bare:.1f}", f"{ours - bare:.1f}"]],
    )


if __name__ == "__main__":
    main()
