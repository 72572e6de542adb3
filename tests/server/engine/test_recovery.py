"""What the engine makes of logs that change under it, and of faults that nobody foresaw."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.capture import Heartbeat
from tailrace.criteria import After, Content, Criteria, FromTime, Operation, Since
from tailrace.errors import (
    CatalogReplaced,
    CatalogUnknown,
    InternalError,
    LogError,
    LogMissing,
    PositionCompacted,
    ServerStopping,
    TransportError,
)
from tailrace.position import END, Position, TimestampMicros
from tailrace_server.catalogs import catalogs as catalogs_module
from tailrace_server.codecs import JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.log_cache import start as start_module
from tailrace_server.log_cache.batch_cache import BatchCache, CacheKind
from tailrace_server.log_cache.followed_log import FollowedLog
from tailrace_server.log_cache.frames import Frames
from tailrace_server.log_cache.memory_governor import MemoryGovernor
from tailrace_server.resources.settings import EngineSettings, SubscriptionLimits
from tailrace_server.wal.catalog import create_catalog, drop_catalog
from tailrace_server.wal.segment import reader as segment_reader
from tailrace_server.wal.segment.reader import BatchReader, SegmentMissing
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.state.tailer import Tailer
from tailrace_server.wal.upkeep.retention import delete_unnamed
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
from tests.support.polling import until

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.criteria import Start
    from tailrace_server.live.subscription import Subscription
    from tailrace_server.wal.files.local_watch import FileWait
    from tailrace_server.wal.segment.reader import BatchHead
    from tailrace_server.wal.segment.refs import BatchRef

OLDEST = Since(Position(0))


def upsert(number: int) -> ModelMutation:
    return ModelMutation("product", str(number), Operation.UPSERT, None, {"id": number})


def quick(**others: Any) -> EngineSettings:
    return EngineSettings(heartbeat_interval_s=0.01, **others)


async def subscribe_and_receive(engine: Engine) -> None:
    await receive(await engine.subscribe(ANONYMOUS, "shop", codec=JSON), 1)


def compact(root: Path, writer: ModelWriter) -> None:
    """Compact, and delete at once what was replaced."""
    assert writer.writer.compact() is not None
    assert delete_unnamed(root / "shop", 2**62)


async def test_contract_38_what_a_ring_refers_to_may_be_compacted_away(
    log_root: Path, writer: ModelWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        segment_reader, "_OPEN_FILES_MAX", 1
    )  # what is open can be read although deleted
    writer.write([upsert(0)])
    async with Engine(log_root, quick()) as engine:
        stalled = await engine.subscribe(
            ANONYMOUS, "shop", content=Content.AFTER, codec=JSON, demand=0
        )
        other = await engine.subscribe(ANONYMOUS, "shop", content=Content.AFTER, codec=JSON)
        for number in range(1, 20):
            writer.write([upsert(number)])
        await receive(other, 38)
        while observer_of(engine, "shop").log.routed < 40:
            await stalled.receive()
        compact(log_root, writer)
        stalled.request(100)
        received = await receive(stalled, 38)
        assert [coordinates(each)[0] for each in received[::2]] == list(range(2, 21))
        writer.write([upsert(20)])
        assert len(await receive(stalled, 2)) == 2


async def test_contract_09_38_one_that_stops_while_its_queue_is_read_again_can_resume_without_loss(
    log_root: Path, writer: ModelWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_reader, "_OPEN_FILES_MAX", 1)
    for number in range(5):
        writer.write([upsert(number)])
    writer.write([ModelMutation("order", "1", Operation.UPSERT, None, {"id": 1})])
    products = [Criteria(entity_type=("product",))]
    recover = FollowedLog.recover

    async def stopping(self: FollowedLog, missing: SegmentMissing, row: int) -> None:
        for each in observer_of(engine, "shop").subscriptions:
            each.stop()
        await recover(self, missing, row)

    monkeypatch.setattr(FollowedLog, "recover", stopping)
    async with Engine(log_root) as engine:
        subscription = await engine.subscribe(
            ANONYMOUS, "shop", products, start=OLDEST, content=Content.AFTER, codec=JSON, demand=2
        )
        received = await receive(subscription, 2)
        compact(log_root, writer)
        subscription.request(100)
        with pytest.raises(ServerStopping):
            await receive_into(received, subscription)
        resume = After(subscription.resume_cursor())
        again = await engine.subscribe(ANONYMOUS, "shop", products, start=resume, codec=JSON)
        received += await receive(again, 5 - len(received))
        assert [each["version"] for each in received] == [1, 2, 3, 4, 5]


async def test_contract_21_what_is_trimmed_before_anybody_takes_it_is_not_passed_over_in_silence(
    log_root: Path, writer: ModelWriter
) -> None:
    """Nobody is there to route for: retention gets ahead of the routing, which then begins behind it."""
    writer.write([upsert(0)])
    async with Engine(log_root, quick(ring_captures=16)) as engine:
        paused = await engine.subscribe(ANONYMOUS, "shop", codec=JSON, demand=1)
        for number in range(1, 10):
            writer.write([upsert(number)])
        received = await receive(paused, 1)
        while observer_of(engine, "shop").log.view.published < 10:
            assert isinstance(await paused.receive(), Heartbeat)
        writer.writer.trim(before=9)
        while observer_of(engine, "shop").log.view.oldest.version < 9:
            assert isinstance(await paused.receive(), Heartbeat)
        paused.request(100)
        with pytest.raises(PositionCompacted):
            await receive_into(received, paused)
        places = [coordinates(each) for each in received]
        assert places == [(2 + place // 2, place % 2, 0) for place in range(len(places))]


@pytest.mark.parametrize("reverse", [False, True])
async def test_contract_38_39_a_read_of_history_survives_a_compaction(
    log_root: Path, writer: ModelWriter, reverse: bool
) -> None:
    for number in range(40):
        writer.write([upsert(number)])
    settings = EngineSettings(scan_batches=2)
    async with Engine(log_root, settings) as engine:
        history = await engine.history(
            ANONYMOUS, "shop", content=Content.AFTER, codec=JSON, reverse=reverse
        )
        received: list[tuple[int, int]] = []
        async with asyncio.timeout(PATIENCE_S):
            async for frames in history:
                if not received:
                    compact(log_root, writer)
                received.extend((each["version"], each["index"]) for each in objects(frames))
        expected = [(version, index) for version in range(1, 41) for index in (0, 1)]
        assert received == (expected[::-1] if reverse else expected)


@pytest.mark.parametrize("limit", [None, 15])
@pytest.mark.parametrize("reverse", [False, True])
async def test_contract_38_39_a_read_that_keeps_no_block_goes_on_inside_a_compacted_one(
    log_root: Path,
    writer: ModelWriter,
    monkeypatch: pytest.MonkeyPatch,
    reverse: bool,
    limit: int | None,
) -> None:
    """A reader that pauses loses its block. What is left of it stands in another file by then."""
    monkeypatch.setattr(segment_reader, "_OPEN_FILES_MAX", 1)
    for first in (0, 12, 24):
        writer.write([upsert(number) for number in range(first, first + 12)])
    expected = [(version, index) for version in (1, 2, 3) for index in range(13)]
    async with Engine(log_root) as engine:
        history = await engine.history(
            ANONYMOUS,
            "shop",
            codec=JSON,
            reverse=reverse,
            max_message_bytes=1200,
            limit=limit,
        )
        received: list[list[tuple[int, int]]] = []
        async for frames in history:
            history.let_go_of_block(float("inf"))
            engine._cache._evict_down_to(0)
            if len(received) == 1:
                # Another reader needs the only descriptor; without it the file is gone when it is deleted.
                await anext(
                    aiter(await engine.history(ANONYMOUS, "shop", codec=JSON, reverse=not reverse))
                )
                compact(log_root, writer)
            received.append([(each["version"], each["index"]) for each in objects(frames)])
        assert len(received) > 3
        assert len(received[0]) < 13
        places = [each for message in received for each in message]
        assert places == (expected[::-1] if reverse else expected)[:limit]
        assert history.has_next is (limit is not None)


async def test_a_start_in_a_segment_that_was_just_compacted_is_found(
    log_root: Path, writer: ModelWriter
) -> None:
    for number in range(4):
        writer.write([upsert(number)])
    async with Engine(log_root, quick()) as engine:
        observer = observer_of(engine, "shop")
        older = observer.log.view
        compact(log_root, writer)
        observer.log.view = older  # as long as the tailer has not told
        subscription = await engine.subscribe(
            ANONYMOUS, "shop", start=Since(Position(2, 1)), codec=JSON
        )
        assert coordinates((await receive(subscription, 5))[0]) == (2, 1, 0)


async def test_contract_39_what_waits_in_a_queue_keeps_its_commit_timestamp_when_it_is_trimmed(
    log_root: Path, writer: ModelWriter
) -> None:
    for number in range(10):
        writer.write([upsert(number)])
    view = CommitLog.open(log_root / "shop").view
    async with Engine(log_root, quick()) as engine:
        subscription = await engine.subscribe(ANONYMOUS, "shop", start=OLDEST, codec=JSON, demand=1)
        history = await engine.history(ANONYMOUS, "shop", codec=JSON)
        received = await receive(subscription, 1)
        writer.writer.trim(before=9)
        while observer_of(engine, "shop").log.view.oldest.version < 9:
            assert isinstance(await subscription.receive(), Heartbeat)
        subscription.request(100)
        received += await receive(subscription, 19)
        received += [each async for frames in history for each in objects(frames)]
        assert len(received) == 40
        for each in received:
            assert int(each["commitTimestamp"]) == view.timestamp_of(each["version"])


async def test_contract_05_a_message_limit_below_the_size_of_a_message_loses_nothing(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([upsert(number) for number in range(500)])
    limits = SubscriptionLimits(max_message_bytes=1024)
    async with Engine(log_root, quick()) as engine:
        subscription = await engine.subscribe(
            ANONYMOUS, "shop", start=OLDEST, content=Content.AFTER, codec=JSON, limits=limits
        )
        received: list[dict[str, Any]] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(received) < 501:
                message = await subscription.receive()
                if isinstance(message, Frames):
                    assert len(message.data) <= 1024
                    received += objects(message)
        assert [each["index"] for each in received] == list(range(501))
        assert all("omittedBytes" not in each for each in received)


async def test_contract_22_a_batch_that_cannot_be_routed_is_left_to_those_who_need_it(
    log_root: Path, writer: ModelWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.write([upsert(0)])
    head = BatchReader.head

    def failing(self: BatchReader, ref: BatchRef) -> BatchHead:
        if ref.first.version == 2:
            raise RuntimeError("not foreseen")
        return head(self, ref)

    monkeypatch.setattr(BatchReader, "head", failing)
    async with Engine(log_root, quick()) as engine:
        needs_it = await engine.subscribe(ANONYMOUS, "shop", codec=JSON)
        late = await engine.subscribe(ANONYMOUS, "shop", start=Since(Position(3)), codec=JSON)
        writer.write([upsert(1)])
        with pytest.raises(InternalError, match="not foreseen"):
            await receive(needs_it, 1)
        writer.write([upsert(2)])
        assert len(await receive(late, 2)) == 2


async def test_contract_22_a_failed_tailer_ends_its_catalog_and_no_other(
    log_root: Path, writer: ModelWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.write([upsert(0)])
    other = ModelWriter(log_root, "depot", ModelLog())
    other.write([upsert(0)])
    read_new = Tailer._read_new
    broken = True

    def failing(self: Tailer, waits: FileWait) -> float:
        if self._log.path.name == "shop" and broken:
            raise RuntimeError("not foreseen")
        return read_new(self, waits)

    monkeypatch.setattr(Tailer, "_read_new", failing)
    settings = EngineSettings(heartbeat_interval_s=0.01, reopen_interval_s=0.01)
    async with Engine(log_root, settings) as engine:
        neighbour = await engine.subscribe(ANONYMOUS, "depot", codec=JSON)
        with pytest.raises(InternalError):
            await subscribe_and_receive(engine)
        other.write([upsert(1)])
        assert len(await receive(neighbour, 2)) == 2
        broken = False
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    subscription = await engine.subscribe(ANONYMOUS, "shop", codec=JSON)
                    await heartbeat_at(subscription, 1)
                    break
                except InternalError:
                    await asyncio.sleep(0)
        writer.write([upsert(1)])
        assert len(await receive(subscription, 2)) == 2
    other.writer.close()


async def test_a_cache_that_cannot_measure_still_answers(tmp_path: Path) -> None:
    def unmeasurable() -> int:
        raise OSError(24, "too many open files")

    class Value:
        nbytes = 1

    with ThreadPoolExecutor(1) as threads:
        cache = BatchCache(1 << 20, 1 << 20, 1 << 20, threads, measure=unmeasurable)
        async with asyncio.timeout(PATIENCE_S):
            assert isinstance(await cache.get(CacheKind.HEAD, "key", Value), Value)


async def test_what_could_not_be_loaded_for_want_of_a_thread_is_loaded_for_the_next_reader() -> (
    None
):
    class Value:
        nbytes = 1

    class Threads(ThreadPoolExecutor):
        exhausted = True

        def submit(self, *job: Any, **arguments: Any) -> Any:
            if self.exhausted:
                raise RuntimeError("can't start new thread")
            return super().submit(*job, **arguments)

    with Threads(1) as threads:
        cache = BatchCache(1 << 20, 1 << 20, 1 << 20, threads)
        with pytest.raises(RuntimeError, match="thread"):
            await cache.get(CacheKind.HEAD, "key", Value)
        threads.exhausted = False
        async with asyncio.timeout(PATIENCE_S):
            assert isinstance(await cache.get(CacheKind.HEAD, "key", Value), Value)


async def test_contract_03_a_start_by_time_passes_over_what_is_published_later_and_is_older(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([upsert(0)])
    writer.commit([upsert(1)])
    committed = CommitLog.open(log_root / "shop").state.last_timestamp
    async with Engine(log_root, quick()) as engine:
        start = FromTime(TimestampMicros(committed + 1))
        subscription = await engine.subscribe(ANONYMOUS, "shop", start=start, codec=JSON)
        writer.publish()
        assert (await heartbeat_at(subscription, 2)).records_scanned == 0
        writer.write([upsert(2)])
        received = await receive(subscription, 2)
        assert [coordinates(each) for each in received] == [(3, 0, 0), (3, 1, 0)]


async def test_contract_12_an_older_view_never_replaces_a_newer_one(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([upsert(0)])
    async with Engine(log_root, quick()) as engine:
        observer = observer_of(engine, "shop")
        older = observer.log.view
        subscription = await engine.subscribe(ANONYMOUS, "shop", codec=JSON)
        writer.write([upsert(1)])
        assert len(await receive(subscription, 2)) == 2
        observer.log.see(older)
        assert observer.log.view.published == 2


@pytest.mark.parametrize("lost", ["catalog", "root"])
async def test_contract_25_a_lost_volume_is_a_fault_that_readers_wait_for(
    log_root: Path, writer: ModelWriter, lost: str
) -> None:
    """Only a drop tells readers to forget what they have."""
    writer.write([upsert(0)])
    settings = EngineSettings(heartbeat_interval_s=0.01, reopen_interval_s=0.01)
    place = log_root if lost == "root" else log_root / "shop"
    async with Engine(log_root, settings) as engine:
        subscription = await engine.subscribe(ANONYMOUS, "shop", start=OLDEST, codec=JSON)
        assert len(await receive(subscription, 2)) == 2
        aside = log_root.parent / "not mounted"
        os.rename(place, aside)
        if lost == "root":
            os.mkdir(log_root)  # an empty mount point
        with pytest.raises(LogMissing) as ended:
            await receive(subscription, 1)
        assert ended.value.retriable
        cursor = subscription.resume_cursor()
        await until(
            lambda: "shop" in {each.subject for each in engine.statistics(ANONYMOUS).faults}
        )
        with pytest.raises(LogMissing):
            await engine.subscribe(ANONYMOUS, "shop", start=After(cursor), codec=JSON)
        # Other catalogs may come and go meanwhile; that records no drop either.
        create_catalog(log_root, "bank")
        if lost == "root":
            shutil.rmtree(log_root)
        os.rename(aside, place)
        await until(
            lambda: "shop" not in {each.subject for each in engine.statistics(ANONYMOUS).faults}
        )
        writer.write([upsert(1)])
        again = await engine.subscribe(ANONYMOUS, "shop", start=After(cursor), codec=JSON)
        assert len(await receive(again, 2)) == 2


async def test_a_catalog_that_is_dropped_while_it_is_lost_is_unknown(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([upsert(0)])
    settings = EngineSettings(heartbeat_interval_s=0.01, reopen_interval_s=0.01)
    async with Engine(log_root, settings) as engine:
        subscription = await engine.subscribe(ANONYMOUS, "shop", codec=JSON)
        writer.writer.close()
        os.rename(log_root / "shop", log_root.parent / "away")
        with pytest.raises(LogMissing):
            await receive(subscription, 1)
        await until(
            lambda: "shop" in {each.subject for each in engine.statistics(ANONYMOUS).faults}
        )
        drop_catalog(log_root, "shop")
        await until(lambda: not engine.statistics(ANONYMOUS).faults)
        with pytest.raises(CatalogUnknown):
            await engine.subscribe(ANONYMOUS, "shop", codec=JSON)


async def test_a_catalog_whose_folder_is_gone_is_unknown_whatever_it_was_before(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([upsert(0)])
    broken = log_root / "depot"
    broken.mkdir()
    (broken / "catalog.json").write_text("damaged")
    settings = EngineSettings(heartbeat_interval_s=0.01, reopen_interval_s=0.01)
    async with Engine(log_root, settings) as engine:
        shutil.rmtree(broken)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await engine.subscribe(ANONYMOUS, "depot", codec=JSON)
                except CatalogUnknown:
                    break
                except LogError:
                    await asyncio.sleep(0)


async def test_contract_25_who_comes_back_while_the_old_tailer_ends_finds_the_new_catalog(
    log_root: Path, writer: ModelWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.write([upsert(0)])
    go_on, leave = asyncio.Event(), Tailer.__aexit__

    async def slow(self: Tailer, *reason: Any) -> None:
        await go_on.wait()
        await leave(self, *reason)

    monkeypatch.setattr(Tailer, "__aexit__", slow)
    async with Engine(log_root, quick()) as engine:
        try:
            subscription = await engine.subscribe(ANONYMOUS, "shop", codec=JSON)
            writer.writer.close()
            drop_catalog(log_root, "shop")
            with pytest.raises(CatalogReplaced):
                await receive(subscription, 1)
            with pytest.raises(CatalogUnknown):
                await engine.subscribe(ANONYMOUS, "shop", codec=JSON)
            replacement = ModelWriter(log_root, "shop", ModelLog())
            subscription = await engine.subscribe(ANONYMOUS, "shop", codec=JSON)
            assert observer_of(engine, "shop").log.view.uuid == replacement.writer.uuid
            go_on.set()
            replacement.write([upsert(1)])
            assert len(await receive(subscription, 2)) == 2
            assert [info.name for info in engine.catalogs(ANONYMOUS)] == ["shop"]
            replacement.writer.close()
        finally:
            go_on.set()


async def test_contract_26_a_subscribe_that_races_with_the_stop_is_told_so(
    log_root: Path, writer: ModelWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.write([upsert(0)], [upsert(1)])
    reached, go_on = asyncio.Event(), asyncio.Event()
    locate = start_module.locate

    async def slow(log: FollowedLog, position: Position, ordinal: int) -> object:
        reached.set()
        await go_on.wait()
        return await locate(log, position, ordinal)

    monkeypatch.setattr(start_module, "locate", slow)
    async with Engine(log_root, quick()) as engine:
        opening = asyncio.ensure_future(
            engine.subscribe(ANONYMOUS, "shop", start=OLDEST, codec=JSON)
        )
        await reached.wait()
        engine.stop_subscriptions()
        go_on.set()
        subscription = await opening
        with pytest.raises(ServerStopping):
            await receive(subscription, 1)


def hang_for(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, catalog: str
) -> threading.Event:
    """Let a function of one path hang for a catalog until the event that is returned is set."""
    released, real = threading.Event(), getattr(owner, name)

    def hanging(path: Path, *others: object, **options: bool) -> object:
        if path.name == catalog:
            released.wait(PATIENCE_S)
        return real(path, *others, **options)

    monkeypatch.setattr(owner, name, hanging)
    return released


async def subscribe_at_last(
    engine: Engine, catalog: str, start: Since | None = None
) -> Subscription:
    """Subscribe to a catalog whose opening may still be under way."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await engine.subscribe(ANONYMOUS, catalog, start=start, codec=JSON)
            except TransportError:
                continue


async def test_a_storage_that_hangs_keeps_the_other_catalogs_waiting_neither_at_start_nor_later(
    log_root: Path, writer: ModelWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.write([upsert(0)])
    stuck = [ModelWriter(log_root, f"stuck{number}", ModelLog()) for number in range(4)]
    for each in stuck:
        each.write([upsert(0)])
        each.writer.close()
    released = [hang_for(monkeypatch, CommitLog, "open", f"stuck{n}") for n in range(4)]
    settings = EngineSettings(heartbeat_interval_s=0.01, opening_patience_s=0.05)
    try:
        async with asyncio.timeout(PATIENCE_S / 2), Engine(log_root, settings) as engine:
            live = await subscribe_at_last(engine, "shop")
            assert [each.name for each in engine.catalogs(ANONYMOUS)] == ["shop"]
            writer.write([upsert(1)])
            assert len(await receive(live, 2)) == 2
            with pytest.raises(TransportError, match=r"stuck0.*storage") as refused:
                await engine.subscribe(ANONYMOUS, "stuck0", codec=JSON)
            assert refused.value.retriable
            for event in released:
                event.set()
            late = await subscribe_at_last(engine, "stuck0", OLDEST)
            assert len(await receive(late, 2)) == 2
    finally:
        for event in released:
            event.set()


async def test_a_root_that_hangs_keeps_neither_subscribers_nor_the_memory_governor_waiting(
    log_root: Path, writer: ModelWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.write([upsert(0)])
    governed = asyncio.Event()
    settings = EngineSettings(heartbeat_interval_s=0.01, opening_patience_s=0.05)
    monkeypatch.setattr(MemoryGovernor, "relieve", lambda *_: governed.set())
    async with asyncio.timeout(PATIENCE_S / 2), Engine(log_root, settings) as engine:
        released = hang_for(monkeypatch, catalogs_module, "catalog_names", log_root.name)
        try:
            with pytest.raises(TransportError):
                await engine.subscribe(ANONYMOUS, "new", codec=JSON)
            governed.clear()
            await governed.wait()
            await subscribe_at_last(engine, "shop")
        finally:
            released.set()


async def test_the_resume_cursor_of_one_that_has_ended_is_behind_what_was_handed_over(
    log_root: Path, writer: ModelWriter
) -> None:
    """Not behind what waited in its queue."""
    for number in range(4):
        writer.write([upsert(number)])
    async with Engine(log_root, quick()) as engine:
        ended = await engine.subscribe(ANONYMOUS, "shop", start=OLDEST, codec=JSON, demand=3)
        await receive(ended, 3)
        before = ended.resume_cursor()
        ended.end(ServerStopping("enough"))
        assert ended.resume_cursor() == before
        assert ended.statistics().position == before.position
        again = await engine.subscribe(
            ANONYMOUS, "shop", start=After(ended.resume_cursor()), codec=JSON
        )
        assert coordinates((await receive(again, 5))[0]) == (2, 1, 0)


@pytest.mark.parametrize("kind", ["in the log", "by version", "by time"])
async def test_contract_21_one_without_demand_ends_when_retention_takes_what_it_needs_next(
    log_root: Path, writer: ModelWriter, kind: str
) -> None:
    """Whether it has begun, or waits for a start that is published and trimmed before it asks."""
    for number in range(4):
        writer.write([upsert(number)])
    async with Engine(log_root, quick()) as engine:
        (info,) = engine.catalogs(ANONYMOUS)
        starts: dict[str, Start] = {
            "in the log": OLDEST,
            "by version": Since(Position(6)),
            "by time": FromTime(TimestampMicros(info.newest_timestamp + 1)),
        }
        paused = await engine.subscribe(ANONYMOUS, "shop", start=starts[kind], codec=JSON, demand=0)
        kept = await engine.subscribe(
            ANONYMOUS, "shop", start=Since(Position(9)), codec=JSON, demand=0
        )
        for number in range(4, 10):
            writer.write([upsert(number)])
        writer.writer.trim(before=8)
        with pytest.raises(PositionCompacted) as raised:
            await end_of(paused)
        assert raised.value.oldest == Position(8, 0)
        kept.request(2)
        assert coordinates((await receive(kept, 2))[0]) == (9, 0, 0)


async def test_contract_21_one_whose_queue_refers_to_what_is_deleted_is_told_where_it_stands(
    log_root: Path, writer: ModelWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        segment_reader, "_OPEN_FILES_MAX", 1
    )  # what is open can be read although deleted
    for number in range(10):
        writer.write([upsert(number)])
    async with Engine(log_root, quick()) as engine:
        paused = await engine.subscribe(
            ANONYMOUS, "shop", start=OLDEST, content=Content.AFTER, codec=JSON, demand=3
        )
        await receive(paused, 3)
        writer.writer.trim(before=10)
        assert delete_unnamed(log_root / "shop", 2**62)
        while observer_of(engine, "shop").log.view.oldest < Position(10):
            assert isinstance(await paused.receive(), Heartbeat)
        paused.request(100)
        received: list[dict[str, Any]] = []
        with pytest.raises(PositionCompacted) as raised:
            await receive_into(received, paused)
        assert [coordinates(each) for each in received] == [(2, 1, 0)]  # encoded with its lead
        assert raised.value.wanted == Position(2, END)
        assert raised.value.oldest == Position(10, 0)


async def test_contract_09_21_retention_does_not_overtake_one_whose_cursor_has_passed_what_it_takes(
    log_root: Path, writer: ModelWriter
) -> None:
    """Nothing matched up to there, and what matches then is more than the ring holds."""
    products = [Criteria(entity_type=("product",))]
    settings = EngineSettings(heartbeat_interval_s=0.01, ring_captures=1)
    async with Engine(log_root, settings) as engine:
        quiet = await engine.subscribe(ANONYMOUS, "shop", products, codec=JSON, demand=0)
        for number in range(3):
            writer.write([ModelMutation("order", str(number), Operation.UPSERT, None, {"id": 1})])
        assert (await heartbeat_at(quiet, 3)).cursor.version == 3
        writer.write([upsert(1), upsert(2)])
        while observer_of(engine, "shop").log.routed < 9:
            assert isinstance(await quiet.receive(), Heartbeat)
        writer.writer.trim(before=4)
        while observer_of(engine, "shop").log.view.oldest < Position(4):
            assert isinstance(await quiet.receive(), Heartbeat)
        quiet.request(2)
        received = await receive(quiet, 2)
        assert [coordinates(each) for each in received] == [(4, 1, 0), (4, 2, 0)]


async def receive_into(received: list[dict[str, Any]], subscription: Subscription) -> None:
    """Receive captures until the subscription ends."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            message = await subscription.receive()
            received += objects(message) if isinstance(message, Frames) else []


async def end_of(subscription: Subscription) -> None:
    """Receive heartbeats until the subscription ends."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            assert isinstance(await subscription.receive(), Heartbeat)
