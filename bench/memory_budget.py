"""Does the server stay inside ``--memory``, whatever its subscribers do, and whatever peers send?

::

    1,000 gRPC streams at 100 positions of rows of 1 MiB        ──▶ tailrace --memory 256MiB
    1,000 gRPC streams at 1,000 positions of rows of 200 bytes  ──▶ the same
    800 readers each: REST and GraphQL over WebSocket, and
        server-sent events, rows of 1 MiB                       ──▶ the same
    100 peers each that send nearly all of a message of 4 MB:
        bodies, REST and GraphQL over WebSocket, gRPC           ──▶ the same

No reader reads, and nobody who sends finishes; whoever is let go of comes again. The figure is the server's
anonymous memory (RssAnon): the highest within half a minute, looked at every 10 ms. There is no baseline: the
bound is the budget. ``python -m bench.memory_budget 50 5`` has 50 peers of each kind, for 5 seconds.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
import time
from collections import deque
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc.aio
import uvloop

from bench import _stalled_readers as http
from bench._harness import (
    Server,
    http_server,
    machine,
    server,
    stay_with_the_subscribers,
    table,
    tailrace_server,
)
from bench._log import CATALOG, write_log
from tailrace.v1 import capture_pb2, change_capture_pb2
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tests.support.unfinished import UnfinishedRequests

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

MIB = 1 << 20
BUDGET_MIB = 256
STREAMS = 1_000
HTTP_READERS = 800
SENDERS = 100
ROWS = 100
SMALL_ROWS = 1_000_000
SMALL_PER_TRANSACTION = 100
SMALL_POSITIONS = 1_000
WATCH_S = 30.0
LOOK_EVERY_S = 0.01
_CHANNELS = 20
_OPTIONS = [
    ("grpc.http2.bdp_probe", 0),
    ("grpc.max_receive_message_length", 8 * MIB),
    ("grpc.use_local_subchannel_pool", 1),
]


def write_large_rows(root: Path) -> None:
    """Publish rows of 1 MiB, a version each."""
    with LogWriter.open(root, CATALOG) as writer:
        for number in range(ROWS):
            image = b'{"id":%d,"text":"%s"}' % (number, b"x" * MIB)
            writer.append([Mutation("product", str(number), after=image)])
            writer.commit()
        writer.publish()


@contextmanager
def bounded_server(root: Path, *, over_http: bool = False) -> Iterator[Server]:
    """Run our server with the budget; what it logs of each stream that it ends is read, or it would wait."""
    budget = "--memory", f"{BUDGET_MIB}MiB"
    running = http_server(root, *budget) if over_http else server(tailrace_server(root, *budget))
    with running as subject:
        threading.Thread(target=deque, args=(subject.process.stdout, 0), daemon=True).start()
        yield subject


def request(version: int) -> bytes:
    """Return a subscribe to all rows from a version on."""
    return change_capture_pb2.SubscribeRequest(
        catalog=CATALOG,
        criteria=[capture_pb2.Criteria(area=capture_pb2.AREA_DATA, entity_type=["product"])],
        body=[capture_pb2.BODY_AFTER],
        since_version=version,
    ).SerializeToString()


def subscribe(channel: grpc.aio.Channel, version: int) -> Any:
    """Begin a stream of bytes."""
    method = channel.unary_stream("/tailrace.v1.ChangeCapture/Subscribe", None, None)
    return method(request(version))


async def stall(channel: grpc.aio.Channel, version: int) -> None:
    """Read the acknowledgement and nothing more; whoever is let go of comes again."""
    while True:
        call = subscribe(channel, version)
        ended = asyncio.Event()
        call.add_done_callback(lambda _, ended=ended: ended.set())
        try:
            await call.read()
            await ended.wait()
        except grpc.aio.AioRpcError:
            continue
        finally:
            call.cancel()


async def beside(subject: Server, versions: list[int]) -> float:
    """Stall at versions; return the highest memory of the server, MiB."""
    highest = 0.0
    channels = [
        grpc.aio.insecure_channel(subject.address, options=_OPTIONS) for _ in range(_CHANNELS)
    ]
    try:
        stalled = [
            asyncio.ensure_future(stall(channels[number % _CHANNELS], version))
            for number, version in enumerate(versions)
        ]
        end = time.monotonic() + WATCH_S
        while time.monotonic() < end:
            highest = max(highest, subject.anonymous_bytes() / MIB)
            await asyncio.sleep(LOOK_EVERY_S)
        for each in stalled:
            each.cancel()
        await asyncio.gather(*stalled, return_exceptions=True)
    finally:
        for channel in channels:
            await channel.close(None)
    return highest


def large() -> list[str]:
    """Measure rows of 1 MiB, without and with a thousand that stall."""
    with tempfile.TemporaryDirectory() as folder:
        write_large_rows(Path(folder))
        with bounded_server(Path(folder)) as subject:
            at_rest = subject.anonymous_bytes() / MIB
            versions = [1 + number % ROWS for number in range(STREAMS)]
            highest = uvloop.run(beside(subject, versions))
    return row("stalled: gRPC", STREAMS, "1 MiB", at_rest, highest)


def small() -> list[str]:
    """Measure rows of 200 bytes with a thousand that stall."""
    with tempfile.TemporaryDirectory() as folder:
        write_log(
            Path(folder),
            rows=SMALL_ROWS,
            rows_per_transaction=SMALL_PER_TRANSACTION,
            transactions_per_commit=1_000,
        )
        with bounded_server(Path(folder)) as subject:
            at_rest = subject.anonymous_bytes() / MIB
            apart = SMALL_ROWS // SMALL_PER_TRANSACTION // SMALL_POSITIONS
            versions = [1 + apart * (number % SMALL_POSITIONS) for number in range(STREAMS)]
            highest = uvloop.run(beside(subject, versions))
    return row("stalled: gRPC", STREAMS, "200 bytes", at_rest, highest)


async def watched(subject: Server, peers: list[Coroutine[Any, Any, None]]) -> float:
    """Run peers beside the server; return its highest memory, MiB."""
    highest = 0.0
    tasks = [asyncio.ensure_future(each) for each in peers]
    end = time.monotonic() + WATCH_S
    while time.monotonic() < end:
        highest = max(highest, subject.anonymous_bytes() / MIB)
        await asyncio.sleep(LOOK_EVERY_S)
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return highest


def over_http(face: http.Face) -> list[str]:
    """Measure rows of 1 MiB with readers of a face over HTTP that stall."""
    with tempfile.TemporaryDirectory() as folder:
        write_large_rows(Path(folder))
        with bounded_server(Path(folder), over_http=True) as subject:
            at_rest = subject.anonymous_bytes() / MIB
            begun = [0]
            peers = [
                http.stall(subject.address, face, 1 + number % ROWS, begun)
                for number in range(HTTP_READERS)
            ]
            highest = uvloop.run(watched(subject, peers))
    assert begun[0] >= HTTP_READERS
    return row(f"stalled: {face.name}", HTTP_READERS, "1 MiB", at_rest, highest)


async def unfinished_calls(address: str) -> None:
    """Send nearly all of the requests of 20 calls of one connection, again and again."""
    port = int(address.rpartition(":")[2])
    while True:
        with suppress(OSError):
            async with UnfinishedRequests(
                port, "/tailrace.v1.ChangeCapture/Subscribe", streams=20, size=4_000_000
            ) as peer:
                await peer.run()
                await asyncio.sleep(LOOK_EVERY_S)


def sent(name: str, send: Callable[[str], Coroutine[Any, Any, None]]) -> list[str]:
    """Measure peers that send messages and do not finish them."""
    with tempfile.TemporaryDirectory() as folder:
        write_large_rows(Path(folder))
        with bounded_server(Path(folder), over_http=send is not unfinished_calls) as subject:
            at_rest = subject.anonymous_bytes() / MIB
            highest = uvloop.run(watched(subject, [send(subject.address) for _ in range(SENDERS)]))
    return row(f"unfinished: {name}", SENDERS, "4 MB", at_rest, highest)


def row(name: str, peers: int, size: str, at_rest: float, highest: float) -> list[str]:
    """Return a line of the table."""
    held = "yes" if highest <= BUDGET_MIB else "NO"
    print(f"{name}: {highest:.0f} MiB", file=sys.stderr, flush=True)
    return [name, f"{peers:,}", size, f"{at_rest:.0f} MiB", f"{highest:.0f} MiB", held]


def main() -> None:
    """Measure and print one table; progress goes to stderr."""
    print(machine())
    stay_with_the_subscribers()
    rows = [
        large(),
        small(),
        *map(over_http, (http.REST, http.GRAPHQL, http.EVENTS)),
        sent("bodies", http.send_unfinished),
        sent("REST over WebSocket", partial(http.send_unfinished_message, face=http.REST)),
        sent("GraphQL over WebSocket", partial(http.send_unfinished_message, face=http.GRAPHQL)),
        sent("gRPC requests", unfinished_calls),
    ]
    table(
        f"Anonymous memory of the server with --memory {BUDGET_MIB}MiB, within {WATCH_S:g} s",
        ["what peers do", "peers", "each", "before", "highest", f"within {BUDGET_MIB} MiB"],
        rows,
    )


if __name__ == "__main__":
    if len(sys.argv) == 3:
        STREAMS = HTTP_READERS = SENDERS = int(sys.argv[1])
        WATCH_S = float(sys.argv[2])
    main()
