"""The engine on real logs: what it keeps, what it reads, and whom a fault reaches."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.capture import Heartbeat
from tailrace.criteria import After, Content, Criteria, FromTime, Operation, Since
from tailrace.cursor import Cursor
from tailrace.errors import (
    CatalogReplaced,
    CatalogUnknown,
    CursorAhead,
    InvalidRequest,
    LogCorrupted,
    PositionCompacted,
    ServerStopping,
    SubscriptionClosed,
)
from tailrace.position import END, Position, TimestampMicros
from tailrace_server.codecs import JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.live.subscription import Subscription
from tailrace_server.log_cache.frames import Frames
from tailrace_server.resources.settings import EngineSettings, SubscriptionLimits
from tailrace_server.wal.catalog import drop_catalog
from tailrace_server.wal.segment.reader import BatchReader
from tailrace_server.wal.state.commit_log import CommitLog
from tests.support.inprocess import (
    PATIENCE_S,
    ModelWriter,
    coordinates,
    heartbeat_at,
    objects,
    observer_of,
    receive,
)
from tests.support.model import ModelLog, ModelMutation

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from tailrace.criteria import Start
    from tailrace_server.wal.segment.refs import BatchRef

OLDEST = Since(Position(0))


def upsert(number: int, entity_type: str = "product") -> ModelMutation:
    return ModelMutation(entity_type, str(number), Operation.UPSERT, None, {"id": number})


async def receive_some(subscription: Subscription) -> list[dict[str, Any]]:
    """Return the captures of the next message with any."""
    async with asyncio.timeout(PATIENCE_S):
        while not isinstance(message := await subscription.receive(), Frames):
            pass
    return objects(message)


def cursor_of(subscription: Subscription) -> tuple[int, int, int]:
    cursor = subscription.resume_cursor()
    return cursor.version, cursor.index, cursor.ordinal


def quick(**settings: int) -> EngineSettings:
    return EngineSettings(heartbeat_interval_s=0.01, **settings)


async def test_contract_01_27_a_subscription_gets_what_is_published_after_its_acknowledgement(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([upsert(1)])
    async with Engine(log_root, quick()) as engine:
        subscription = await engine.subscribe(ANONYMOUS, "shop", codec=JSON)
        assert subscription.acknowledgement.published == 1
        assert subscription.acknowledgement.start == Position(2, 0)
        writer.write([upsert(2)], [upsert(3)])
        received = await receive(subscription, 4)
        assert [coordinates(each) for each in received] == [
            (2, 0, 0),
            (2, 1, 0),
            (3, 0, 0),
            (3, 1, 0),
        ]


async def test_a_small_commit_is_sent_without_a_reader_thread(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([upsert(1)])
    async with Engine(log_root, quick()) as engine:
        subscription = await engine.subscribe(ANONYMOUS, "shop", codec=JSON, content=Content.AFTER)
        before = engine.statistics(ANONYMOUS).cache.misses
        for number in range(2, 40):  # more than are kept
            writer.write([upsert(number)])
            _, change = await receive(subscription, 2)
            assert change["after"] == {"id": number}
        assert engine.statistics(ANONYMOUS).cache.misses == before


async def test_contract_06_what_is_committed_and_not_published_is_not_delivered(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([upsert(1)])
    async with Engine(log_root, quick()) as engine:
        live = await engine.subscribe(ANONYMOUS, "shop", codec=JSON)
        writer.commit([upsert(2)])
        reader = await engine.subscribe(ANONYMOUS, "shop", start=OLDEST, codec=JSON)
        await receive(reader, 2)
        assert (await heartbeat_at(reader, 1)).published == 1
        writer.commit([upsert(3)])
        writer.publish()
        for subscription in (live, reader):
            assert [each["version"] for each in await receive(subscription, 4)] == [2, 2, 3, 3]


async def test_what_is_committed_and_not_published_shows_in_the_figures(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([upsert(1)])
    async with Engine(log_root, quick()) as engine:
        subscription = await engine.subscribe(ANONYMOUS, "shop", codec=JSON)
        for number in (2, 3):
            writer.commit([upsert(number)])
            async with asyncio.timeout(PATIENCE_S):
                while engine.catalogs(ANONYMOUS)[0].committed < number:
                    assert isinstance(await subscription.receive(), Heartbeat)
        figures = observer_of(engine, "shop").statistics()
        assert (figures.published, figures.committed) == (1, 3)


@pytest.mark.parametrize("kind", ["by version", "by time"])
async def test_nothing_is_behind_one_that_waits_for_its_start(
    log_root: Path, writer: ModelWriter, kind: str
) -> None:
    writer.write([upsert(1)])
    writer.commit([upsert(2)])
    second = CommitLog.open(log_root / "shop").state.last_timestamp
    starts: dict[str, Start] = {
        "by version": Since(Position(3)),
        "by time": FromTime(TimestampMicros(second + 1)),
    }
    async with asyncio.timeout(PATIENCE_S), Engine(log_root, quick()) as engine:
        waiting = await engine.subscribe(
            ANONYMOUS, "shop", start=starts[kind], codec=JSON, demand=0
        )
        live = await engine.subscribe(ANONYMOUS, "shop", codec=JSON, demand=0)
        writer.publish()
        while observer_of(engine, "shop").log.view.published < 2:
            assert isinstance(await waiting.receive(), Heartbeat)
        assert (waiting.statistics().lag_records, live.statistics().lag_records) == (0, 2)
        writer.write([upsert(3)])
        while observer_of(engine, "shop").log.view.published < 3:
            assert isinstance(await waiting.receive(), Heartbeat)
        assert waiting.statistics().lag_records >= 2
        waiting.request(2)
        assert coordinates((await receive(waiting, 2))[0]) == (3, 0, 0)
        assert waiting.statistics().lag_records == 0


async def test_contract_17_what_everybody_has_taken_is_kept_by_nobody(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([upsert(0)])
    async with Engine(log_root, quick()) as engine:
        subscriptions = [
            await engine.subscribe(ANONYMOUS, "shop", start=OLDEST, codec=JSON) for _ in range(3)
        ]
        for subscription in subscriptions:
            await receive(subscription, 2)
            await heartbeat_at(subscription, 1)
        writer.write([upsert(1)])
        await receive(subscriptions[0], 2)
        (publisher,) = observer_of(engine, "shop").publishers()
        assert publisher.ring.captures == 2
        for subscription in subscriptions[1:]:
            await receive(subscription, 2)
        assert publisher.ring.captures == 0


async def test_contract_10_demand_0_delivers_nothing_and_the_cursor_of_a_quiet_filter_advances(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([upsert(0)])
    async with Engine(log_root, quick()) as engine:
        quiet = await engine.subscribe(
            ANONYMOUS, "shop", [Criteria(entity_type=("nothing",))], codec=JSON, demand=0
        )
        loud = await engine.subscribe(ANONYMOUS, "shop", codec=JSON, demand=0)
        for number in range(5):
            writer.write([upsert(number)])
        assert (await heartbeat_at(quiet, 6)).records_scanned == 10
        held = await loud.receive()
        assert isinstance(held, Heartbeat)
        assert held.cursor == Cursor.before(held.cursor.catalog_uuid, Position(2, 0))
        loud.request(3)
        assert len(await receive(loud, 3)) == 3
        with pytest.raises(InvalidRequest, match=r"3\.9"):
            loud.request(0)
        with pytest.raises(InvalidRequest, match=r"3\.9"):
            await loud.receive()


async def test_contract_15_a_filter_that_matches_nothing_costs_no_scan_of_the_log(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([upsert(0)])
    async with Engine(log_root, quick(ring_captures=1)) as engine:
        quiet = await engine.subscribe(
            ANONYMOUS, "shop", [Criteria(entity_type=("nothing",))], codec=JSON
        )
        for number in range(50):
            writer.write([upsert(number)])
        await heartbeat_at(quiet, 51)
        assert quiet.statistics().resyncs == 0


async def test_contract_14_16_a_paused_subscriber_is_overrun_resyncs_and_returns_live(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([upsert(0)])
    async with Engine(log_root, quick(ring_captures=4)) as engine:
        subscription = await engine.subscribe(ANONYMOUS, "shop", start=OLDEST, codec=JSON)
        await receive(subscription, 2)
        while subscription.statistics().mode != "live":
            await heartbeat_at(subscription, 1)
        other = await engine.subscribe(ANONYMOUS, "shop", codec=JSON)
        for number in range(10):
            writer.write([upsert(number)])
            await receive(other, 2)
        received = await receive(subscription, 20)
        assert [coordinates(each)[0] for each in received] == [
            version for version in range(2, 12) for _ in range(2)
        ]
        while subscription.statistics().mode != "live":  # a heartbeat may be due before the return
            await heartbeat_at(subscription, 11)
        statistics = subscription.statistics()
        assert (statistics.resyncs, statistics.returns) == (1, 1)
        assert other.statistics().resyncs == 0


async def test_contract_16_a_commit_of_100_000_rows_sends_nobody_who_keeps_up_to_the_log(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([upsert(0)])
    async with Engine(log_root, quick()) as engine:
        subscriptions = [await engine.subscribe(ANONYMOUS, "shop", codec=JSON) for _ in range(3)]
        big = [upsert(number) for number in range(100_000)]
        writer.writer.append([])  # an emptied transaction in the same commit
        writer.commit(big)
        writer.writer.publish()

        async def read(subscription: object) -> int:
            return len(await receive(subscription, 100_002))  # type: ignore[arg-type]

        assert await asyncio.gather(*map(read, subscriptions)) == [100_002] * 3
        assert [each.statistics().resyncs for each in subscriptions] == [0] * 3


@pytest.mark.parametrize("demand", [None, 50])
async def test_what_is_taken_as_it_is_ready_is_counted_when_somebody_looks(
    log_root: Path, writer: ModelWriter, demand: int | None
) -> None:
    writer.write([upsert(number) for number in range(100)])
    async with Engine(
        log_root, EngineSettings(message_bytes=300, heartbeat_interval_s=60)
    ) as engine:
        one = await engine.subscribe(ANONYMOUS, "shop", start=OLDEST, codec=JSON, demand=demand)
        taken = await receive_some(one)
        looks = 0
        for frames in one.ready():
            taken += objects(frames)
            if len(taken) % 3:
                continue  # nobody looks
            looks += 1
            assert one.statistics().delivered == len(taken)
            assert one.last.nbytes == len(frames.data)
            assert cursor_of(one) == coordinates(taken[-1]) == frames.last
            if demand is not None:
                assert one.statistics().demand == demand - len(taken)
                one.request(1)
                demand += 1
        assert looks
        assert engine.statistics(ANONYMOUS).captures_delivered == len(taken)
        assert len(taken) == (demand or 101)
        assert [coordinates(each)[1] for each in taken] == list(range(len(taken)))


async def test_contract_20_one_that_ends_lets_go_of_the_message_that_its_transport_is_busy_with(
    log_root: Path, writer: ModelWriter
) -> None:
    """A transport that hangs keeps the subscription, and its own copy of the message, for a while yet."""
    writer.write([upsert(1)])
    async with Engine(log_root, EngineSettings(message_bytes=1, heartbeat_interval_s=60)) as engine:
        for end in (Subscription.cancel, Subscription.stop):
            one = await engine.subscribe(ANONYMOUS, "shop", start=OLDEST, codec=JSON)
            await receive_some(one)
            assert one.last.nbytes > 0
            end(one)
            assert one.last.nbytes == 0


async def test_what_was_taken_before_the_end_counts(log_root: Path, writer: ModelWriter) -> None:
    writer.write([upsert(number) for number in range(100)])
    async with Engine(
        log_root, EngineSettings(message_bytes=300, heartbeat_interval_s=60)
    ) as engine:
        one = await engine.subscribe(ANONYMOUS, "shop", start=OLDEST, codec=JSON)
        taken = await receive_some(one)
        ready = one.ready()
        for _ in range(3):
            taken += objects(next(ready))
        one.stop()
        assert next(ready, None) is None
        assert one.statistics().delivered == len(taken)
        assert cursor_of(one) == coordinates(taken[-1])


async def test_contract_18_the_event_loop_opens_no_file_of_the_log(
    log_root: Path, writer: ModelWriter
) -> None:
    opened: list[str] = []
    loop_thread = threading.get_ident()
    listening = True

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if listening and event in ("open", "os.listdir", "os.scandir"):
            on_loop = threading.get_ident() == loop_thread
            if on_loop and str(arguments[0]).startswith(os.fspath(log_root)):
                opened.append(f"{event} {arguments[0]}")

    for number in range(30):
        writer.write([upsert(number)])
    sys.addaudithook(hook)  # cannot be taken back, only told to listen no more
    async with Engine(log_root, quick(ring_captures=4)) as engine:
        subscription = await engine.subscribe(
            ANONYMOUS, "shop", start=OLDEST, content=Content.AFTER, codec=JSON
        )
        assert len(await receive(subscription, 60)) == 60
        listening = False
        writer.write([upsert(30)])
        listening = True
        assert len(await receive(subscription, 2)) == 2
    listening = False
    assert opened == []


async def test_contract_18_a_read_that_hangs_keeps_nobody_else_waiting(
    log_root: Path, writer: ModelWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        writer.write([upsert(number)])
    released = threading.Event()
    hanging = threading.Event()
    texts = BatchReader.texts

    def slow_texts(self: BatchReader, ref: BatchRef, columns: Collection[str]) -> object:
        if ref.first == Position(1, 0):
            hanging.set()
            released.wait(PATIENCE_S)
        return texts(self, ref, columns)

    monkeypatch.setattr(BatchReader, "texts", slow_texts)
    async with Engine(log_root, quick()) as engine:
        stuck = await engine.subscribe(
            ANONYMOUS, "shop", start=OLDEST, content=Content.AFTER, codec=JSON
        )
        waiting = asyncio.ensure_future(receive(stuck, 8))
        neighbour = await engine.subscribe(ANONYMOUS, "shop", content=Content.AFTER, codec=JSON)
        assert await asyncio.get_running_loop().run_in_executor(None, hanging.wait, PATIENCE_S)
        writer.write([upsert(3)])
        assert len(await receive(neighbour, 2)) == 2
        assert not waiting.done()
        released.set()
        assert len(await waiting) == 8


async def test_contract_19_ten_laggards_near_each_other_cost_about_one_scan(
    log_root: Path, writer: ModelWriter
) -> None:
    for commit in range(20):
        writer.write(*[[upsert(commit * 10 + number)] for number in range(10)])

    async def loads(laggards: int) -> int:
        async with Engine(log_root, quick()) as engine:
            before = engine.statistics(ANONYMOUS).cache.misses
            subscriptions = [
                await engine.subscribe(
                    ANONYMOUS, "shop", start=Since(Position(1 + number)), codec=JSON
                )
                for number in range(laggards)
            ]
            counts = [400 - 2 * number for number in range(laggards)]
            await asyncio.gather(*map(receive, subscriptions, counts))
            return engine.statistics(ANONYMOUS).cache.misses - before

    one, ten = await loads(1), await loads(10)
    assert ten <= one + 10  # each of the ten may look its own start up


async def test_one_batch_at_a_time_is_read_of_what_is_queued(
    log_root: Path, writer: ModelWriter
) -> None:
    """A scan of three, then the first; the next is not begun before the last message of that one."""
    rows = 60 * 101
    for _ in range(3):
        writer.commit(*[[upsert(number) for number in range(100)] for _ in range(60)])
    writer.publish()
    async with Engine(log_root, quick(queue_captures=3 * rows, ring_captures=1)) as engine:
        before = engine.statistics(ANONYMOUS).cache.misses
        late = await engine.subscribe(ANONYMOUS, "shop", start=OLDEST, codec=JSON, demand=1)
        received = await receive(late, 1)
        assert engine.statistics(ANONYMOUS).cache.misses - before == 1 + 1
        late.request(3 * rows)
        received += await receive(late, 3 * rows - 1)
        assert engine.statistics(ANONYMOUS).cache.misses - before == 1 + 3
    assert [coordinates(each)[0] for each in received[::101]] == list(range(1, 181))


@pytest.mark.parametrize("neighbours", [0, 1], ids=["alone", "with another"])
async def test_frames_that_were_sent_are_kept_for_others_only(
    log_root: Path, writer: ModelWriter, neighbours: int
) -> None:
    batches, rows = 3, 60 * 101
    for _ in range(batches):
        writer.commit(*[[upsert(number) for number in range(100)] for _ in range(60)])
    writer.publish()
    async with Engine(log_root, quick()) as engine:
        others = [await engine.subscribe(ANONYMOUS, "shop", codec=JSON) for _ in range(neighbours)]
        first = await engine.subscribe(ANONYMOUS, "shop", start=OLDEST, codec=JSON)
        await receive(first, batches * rows)
        first.cancel()
        before = engine.statistics(ANONYMOUS).cache.misses
        second = await engine.subscribe(ANONYMOUS, "shop", start=OLDEST, codec=JSON)
        await receive(second, batches * rows)
        assert engine.statistics(ANONYMOUS).cache.misses - before == (0 if others else batches)


async def test_a_batch_that_is_larger_than_the_queue_is_encoded_once(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write(*[[upsert(number) for number in range(100)] for _ in range(60)])
    async with Engine(log_root, quick(queue_captures=1_000)) as engine:
        before = engine.statistics(ANONYMOUS).cache.misses
        subscription = await engine.subscribe(ANONYMOUS, "shop", start=OLDEST, codec=JSON)
        assert len(await receive(subscription, 60 * 101)) == 60 * 101
        assert engine.statistics(ANONYMOUS).cache.misses - before == 1 + 1  # the scan, the frames


async def test_contract_19_a_start_that_the_ring_holds_is_not_read_from_the_log(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([upsert(0)])
    async with Engine(log_root, quick()) as engine:
        stalled = await engine.subscribe(ANONYMOUS, "shop", codec=JSON, demand=0)
        other = await engine.subscribe(ANONYMOUS, "shop", codec=JSON)
        for number in range(5):
            writer.write([upsert(number)])
        uuid = stalled.acknowledgement.catalog_uuid
        await receive(other, 10)
        late = await engine.subscribe(
            ANONYMOUS, "shop", start=After(Cursor(uuid, 3, 1, 0)), codec=JSON
        )
        while observer_of(engine, "shop").log.routed < 12:
            assert isinstance(await stalled.receive(), Heartbeat)
        received = await receive(late, 6)
        assert coordinates(received[0]) == (4, 0, 0)


async def test_contract_21_25_starts_that_cannot_be_served_are_refused_by_name(
    log_root: Path, writer: ModelWriter
) -> None:
    for number in range(4):
        writer.write([upsert(number)])
    writer.writer.trim(before=3)
    async with Engine(log_root, quick()) as engine:
        (info,) = engine.catalogs(ANONYMOUS)
        assert info.oldest == Position(3, 0)
        with pytest.raises(PositionCompacted) as compacted:
            await engine.subscribe(ANONYMOUS, "shop", start=Since(Position(2)), codec=JSON)
        assert compacted.value.oldest == Position(3, 0)
        with pytest.raises(PositionCompacted):
            await engine.subscribe(
                ANONYMOUS, "shop", start=After(Cursor(info.uuid, 1, 1)), codec=JSON
            )
        foreign = Cursor(type(info.uuid)(int=7), 3, 1)
        with pytest.raises(CatalogReplaced):
            await engine.subscribe(ANONYMOUS, "shop", start=After(foreign), codec=JSON)
        highest = Cursor(info.uuid, 2**63 - 1, 2**31 - 1)
        with pytest.raises(CursorAhead) as ahead:
            await engine.subscribe(ANONYMOUS, "shop", start=After(highest), codec=JSON)
        assert ahead.value.newest == Position(4, END)
        highest = replace(highest, commit_timestamp=0)  # that of a start that waits
        waits = await engine.subscribe(ANONYMOUS, "shop", start=After(highest), codec=JSON)
        assert waits.acknowledgement.start.version == 2**63 - 1
        with pytest.raises(CatalogUnknown, match="shop"):
            await engine.subscribe(ANONYMOUS, "shoe", codec=JSON)
        oldest = await engine.subscribe(ANONYMOUS, "shop", start=OLDEST, codec=JSON)
        assert coordinates((await receive(oldest, 4))[0]) == (3, 0, 0)


async def test_contract_22_33_a_damaged_batch_ends_only_those_who_need_it(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([upsert(1)])
    segment = log_root / "shop" / writer.writer.state.batches.segments[0].path
    writer.write([upsert(2)])
    data = bytearray(segment.read_bytes())
    place = data.index(b'{"id": 1}')
    data[place] ^= 1
    segment.chmod(0o644)
    segment.write_bytes(data)
    async with Engine(log_root, quick()) as engine:
        needs_it = await engine.subscribe(
            ANONYMOUS, "shop", start=OLDEST, content=Content.AFTER, codec=JSON
        )
        neighbour = await engine.subscribe(
            ANONYMOUS, "shop", start=Since(Position(2)), content=Content.AFTER, codec=JSON
        )
        with pytest.raises(LogCorrupted) as corrupted:
            await receive(needs_it, 1)
        assert corrupted.value.path == os.fspath(segment.relative_to(log_root / "shop"))
        assert len(await receive(neighbour, 2)) == 2
        writer.write([upsert(3)])
        assert len(await receive(neighbour, 2)) == 2
        assert engine.statistics(ANONYMOUS).subscriptions == 1


async def test_contract_20_23_a_cancelled_subscription_is_gone_and_its_publisher_with_it(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([upsert(1)])
    async with Engine(log_root) as engine:
        subscription = await engine.subscribe(ANONYMOUS, "shop", codec=JSON)
        assert engine.statistics(ANONYMOUS).observers[0].publishers == 1
        waiting = asyncio.ensure_future(subscription.receive())
        await asyncio.sleep(0)
        subscription.cancel()
        with pytest.raises(SubscriptionClosed):
            await waiting
        assert engine.statistics(ANONYMOUS).observers[0].publishers == 0
        reference = weakref.ref(subscription)
        del subscription, waiting
        await asyncio.sleep(0)  # the interpreter lets go of the exception of this step
        gc.collect()
        assert reference() is None


async def test_contract_24_a_subscribe_during_the_close_of_an_empty_publisher_is_live(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([upsert(1)])
    async with Engine(log_root, quick()) as engine:
        for number in range(20):
            first = await engine.subscribe(ANONYMOUS, "shop", codec=JSON)
            subscribing = asyncio.ensure_future(
                engine.subscribe(ANONYMOUS, "shop", start=Since(Position(number + 2)), codec=JSON)
            )
            for _ in range(number % 4):
                await asyncio.sleep(0)
            first.cancel()
            second = await subscribing
            writer.write([upsert(number)])
            assert len(await receive(second, 2)) == 2
            second.cancel()


async def test_contract_25_a_replaced_catalog_ends_its_subscriptions(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([upsert(1)])
    async with Engine(log_root, quick()) as engine:
        subscription = await engine.subscribe(ANONYMOUS, "shop", start=OLDEST, codec=JSON)
        await receive(subscription, 2)
        old = subscription.acknowledgement.catalog_uuid
        writer.writer.close()
        drop_catalog(log_root, "shop")
        replacement = ModelWriter(log_root, "shop", ModelLog())
        replacement.write([upsert(2)])
        replacement.writer.close()
        with pytest.raises(CatalogReplaced) as replaced:
            await receive(subscription, 1)
        assert replaced.value.expected == old
        while True:
            try:
                again = await engine.subscribe(ANONYMOUS, "shop", start=OLDEST, codec=JSON)
            except (CatalogUnknown, CatalogReplaced):
                continue
            break
        assert again.acknowledgement.catalog_uuid != old
        assert len(await receive(again, 2)) == 2


async def test_contract_26_a_stop_hands_everybody_the_cursor_to_resume_from(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([upsert(1)], [upsert(2)])
    async with Engine(log_root, quick()) as engine:
        limits = SubscriptionLimits(queue_captures=1)
        subscription = await engine.subscribe(
            ANONYMOUS, "shop", start=OLDEST, codec=JSON, demand=1, limits=limits
        )
        await receive(subscription, 1)
        engine.stop_subscriptions()
        with pytest.raises(ServerStopping) as stopping:
            await subscription.receive()
        with pytest.raises(ServerStopping):
            await engine.subscribe(ANONYMOUS, "shop", codec=JSON)
    assert stopping.value.resume_cursor is not None
    async with Engine(log_root, quick()) as engine:
        start = After(Cursor.parse(stopping.value.resume_cursor))
        resumed = await engine.subscribe(ANONYMOUS, "shop", start=start, codec=JSON)
        received = await receive(resumed, 3)
        assert [coordinates(each) for each in received] == [(1, 1, 0), (2, 0, 0), (2, 1, 0)]
