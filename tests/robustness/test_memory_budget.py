"""Memory stays inside its budget, whatever subscribers do: measured on the process, not summed."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import grpc.aio
import pytest

import tailrace
from tailrace.criteria import Area, Content, Criteria, Since
from tailrace.errors import SubscriberTooSlow
from tailrace.position import Position
from tailrace.v1 import capture_pb2, change_capture_pb2
from tailrace_server.codecs import PROTOBUF
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.log_cache.batch_cache import anonymous_bytes, return_freed_pages
from tailrace_server.log_cache.frames import Frames
from tailrace_server.resources.settings import EngineSettings
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tests.process.commands import ServerProcess
from tests.support.inprocess import observer_of
from tests.support.polling import until

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace_server.live.subscription import Subscription

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MIB = 1 << 20


def row(number: int, size: int = 20) -> Mutation:
    return Mutation("product", str(number), after=b'{"id":%d,"text":"%s"}' % (number, b"x" * size))


def write_large(log_root: Path, rows: int) -> None:
    """Publish rows of 1 MiB, a version each."""
    with LogWriter.open(log_root, "shop") as writer:
        for number in range(rows):
            writer.append([row(number, MIB)])
            writer.commit()
        writer.publish()


@pytest.mark.parametrize(
    "count",
    [
        10_000,
        pytest.param(
            100_000,
            marks=pytest.mark.nightly(
                "tests/robustness/test_memory_budget.py: a tenth of the publishers in a tenth of the rings"
            ),
        ),
    ],
)
async def test_contract_16_many_key_publishers_stay_inside_the_budget(
    log_root: Path, count: int
) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([row(0)])
        writer.commit()
        writer.publish()
        base = anonymous_bytes()
        rings_bytes = 64 * MIB * count // 100_000
        settings = EngineSettings(
            memory_bytes=base + 1024 * MIB, rings_bytes=rings_bytes, heartbeat_interval_s=600
        )
        async with Engine(log_root, settings) as engine:
            subscriptions = [
                await engine.subscribe(
                    ANONYMOUS,
                    "shop",
                    [Criteria(entity_type=("product",), primary_key=(str(number),))],
                    codec=PROTOBUF,
                    demand=0,
                )
                for number in range(count)
            ]
            for first in range(0, count, count // 5):
                for _ in range(2):
                    writer.append([row(number) for number in range(first, first + count // 5)])
                    writer.commit()
                    writer.publish()
            subscriptions[-1].request(2)
            message = await subscriptions[-1].receive()
            assert isinstance(message, Frames)
            observer = observer_of(engine, "shop").statistics()
            assert observer.publishers == count
            assert observer.ring_bytes <= rings_bytes
            assert (anonymous_bytes() - base) / count <= 10 * 1024


@pytest.mark.parametrize(
    "arriving",
    [
        pytest.param(
            100,
            marks=pytest.mark.nightly(
                "tests/robustness/test_memory_budget.py: all readers come at once, which needs most"
            ),
        ),
        1000,
    ],
)
async def test_contract_13_16_a_thousand_stalled_readers_of_rows_of_1_mib_stay_inside_the_budget(
    log_root: Path, arriving: int
) -> None:
    """They come so many at a time, the next ones once all have been sent a row, or were let go of again."""
    rows = 100
    write_large(log_root, rows)
    return_freed_pages()
    base = anonymous_bytes()
    settings = EngineSettings(memory_bytes=base + 256 * MIB, heartbeat_interval_s=600)
    async with Engine(log_root, settings) as engine:
        held: dict[Subscription, Frames] = {}
        ended: list[Subscription] = []

        async def stall(number: int) -> None:
            """Take one message, hold it as a transport would, and let go when told to."""
            subscription = await engine.subscribe(
                ANONYMOUS,
                "shop",
                [Criteria(entity_type=("product",))],
                start=Since(Position(1 + number % rows)),
                content=Content.AFTER,
                codec=PROTOBUF,
            )
            message = await subscription.receive()
            assert isinstance(message, Frames)
            # A transport copies what it is handed: these bytes are this reader's own.
            held[subscription] = Frames(bytes(bytearray(message.data)), message.count, message.last)
            subscription.on_end = lambda _: ended.append(subscription)

        def let_go() -> int:
            for subscription in ended:
                held.pop(subscription, None)
            return len(held) + len(ended)

        stalled: list[asyncio.Task[None]] = []
        highest = 0
        for first in range(0, 1000, arriving):
            numbers = range(first, first + arriving)
            stalled += [asyncio.ensure_future(stall(number)) for number in numbers]
            async with asyncio.timeout(200):
                while let_go() < len(stalled):
                    await asyncio.sleep(0)
                    highest = max(highest, anonymous_bytes())
        assert len(ended) + len(held) == 1000
        assert engine.statistics(ANONYMOUS).disconnected_for_memory == len(ended)
        with pytest.raises(SubscriberTooSlow) as too_slow:
            await ended[0].receive()
        assert too_slow.value.resume_cursor is not None
        assert highest <= settings.memory_bytes
        assert engine.statistics(ANONYMOUS).waiting_for_memory == 0
        await asyncio.gather(*stalled)


async def test_contract_13_one_that_reads_goes_on_beside_a_crowd_that_stalls_on_large_rows(
    log_root: Path,
) -> None:
    """The crowd fills the room that newcomers have, and more of it waits than will ever have a turn here."""
    rows, crowd = 20, 100
    write_large(log_root, rows)
    settings = EngineSettings(memory_bytes=anonymous_bytes() + 64 * MIB, heartbeat_interval_s=600)
    async with Engine(log_root, settings) as engine:

        async def subscribed() -> Subscription:
            return await engine.subscribe(
                ANONYMOUS,
                "shop",
                [Criteria(area=Area.DATA, entity_type=("product",))],
                start=Since(Position(1)),
                content=Content.AFTER,
                codec=PROTOBUF,
            )

        reader = await subscribed()
        first = await reader.receive()
        stalled = [await subscribed() for _ in range(crowd)]
        waiting = [asyncio.ensure_future(each.receive()) for each in stalled]
        await until(lambda: bool(engine.statistics(ANONYMOUS).waiting_for_memory))
        got = [first] + [await reader.receive() for _ in range(rows - 1)]
        assert [each.last[0] for each in got if isinstance(each, Frames)] == [*range(1, rows + 1)]
        assert engine.statistics(ANONYMOUS).waiting_for_memory
        for each in stalled:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert engine.statistics(ANONYMOUS).waiting_for_memory == 0


async def test_contract_13_16_streams_that_stall_on_large_rows_do_not_keep_them(
    log_root: Path,
) -> None:
    """Core keeps a message until it is read, whoever ended the call: it goes with the connection.

    The last few stay, as there is room for them and nobody waits.
    """
    rows, crowd, budget = 20, 100, 200 * MIB
    stay = budget // 8 // (2 * MIB)
    write_large(log_root, rows)
    request = change_capture_pb2.SubscribeRequest(
        catalog="shop",
        criteria=[capture_pb2.Criteria(area=capture_pb2.AREA_DATA)],
        body=[capture_pb2.BODY_AFTER],
        since_version=1,
    ).SerializeToString()
    server = ServerProcess(log_root, ("--log-format", "json", "--memory", str(budget)))
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)]
    async with server.up() as command, AsyncExitStack() as stack:

        async def stall() -> Any:
            channel = await stack.enter_async_context(
                grpc.aio.insecure_channel(server.grpc, options=options)
            )
            call = channel.unary_stream("/tailrace.v1.ChangeCapture/Subscribe", None, None)(request)
            await call.read()
            return call

        calls = [await stall() for _ in range(crowd)]
        highest = 0

        def let_go() -> bool:
            nonlocal highest
            with open(f"/proc/{command.process.pid}/status") as status:
                (found,) = re.findall(r"^RssAnon:\s+(\d+) kB", status.read(), re.M)
            highest = max(highest, int(found) << 10)
            return sum(bool(call.done()) for call in calls) >= crowd - stay

        await until(let_go, 120)
        assert highest <= budget
        ended = [await call.code() for call in calls if call.done()]
        assert {*ended} == {grpc.StatusCode.UNAVAILABLE}
        async with (
            tailrace.connect(server.grpc) as client,
            client.subscribe("shop", since=1, content=tailrace.Content.AFTER) as reader,
        ):
            got = 0
            async for capture in reader:
                got += capture.area is Area.DATA
                if got == rows:
                    break
