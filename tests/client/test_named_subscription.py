"""Reading by a name: a reader goes on where another has acknowledged, and only the newest one counts."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

import tailrace
from tailrace import (
    Criteria,
    InvalidRequest,
    Operation,
    Position,
    Retry,
    SubscriptionExists,
    SubscriptionHealth,
    SubscriptionPaused,
    SubscriptionTakenOver,
    SubscriptionUnknown,
)
from tailrace_server.api.grpc import GrpcServer
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.named import named_subscriptions
from tailrace_server.resources.settings import EngineSettings
from tailrace_server.wal.upkeep.copying import copy_log
from tests.support.model import ModelMutation
from tests.support.polling import until, until_answered
from tests.support.proxy import FaultyProxy
from tests.support.swapping import swap

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.inprocess import ModelWriter

PATIENCE_S = 30.0
ROWS = Criteria(entity_type=("product",))


@asynccontextmanager
async def serving(log_root: Path, **settings: Any) -> AsyncIterator[str]:
    async with Engine(log_root, EngineSettings(heartbeat_interval_s=0.1, **settings)) as engine:
        server = GrpcServer(engine)
        try:
            yield f"127.0.0.1:{await server.start('127.0.0.1:0')}"
        finally:
            await server.stop(0.5)


@pytest.fixture
async def client(log_root: Path, writer: ModelWriter) -> AsyncIterator[tailrace.Client]:
    write(writer, 1)
    async with serving(log_root) as target, tailrace.connect(target) as client:
        yield client


def write(writer: ModelWriter, *keys: int) -> None:
    """Write a transaction of one row for each key."""
    for key in keys:
        writer.write([ModelMutation("product", str(key), Operation.UPSERT, None, {"id": key})])


async def take(captures: tailrace.Subscription, count: int) -> list[str | None]:
    """Return the keys of the next captures."""
    async with asyncio.timeout(PATIENCE_S):
        return [(await anext(captures)).primary_key for _ in range(count)]


async def test_contract_51_a_reader_continues_behind_what_was_acknowledged(
    client: tailrace.Client, writer: ModelWriter
) -> None:
    created = await client.create_subscription("shop", "billing", ROWS, since=1)
    assert (created.criteria, created.needed, created.epoch) == ((ROWS,), Position(1, 0), 0)
    write(writer, 2, 3, 4)
    async with client.subscribe("shop", name="billing") as captures:
        assert (captures.acknowledgement.name, captures.acknowledgement.epoch) == ("billing", 1)
        assert await take(captures, 2) == ["1", "2"]
        await captures.acknowledge(durable=True)
        assert await take(captures, 1) == ["3"]
    async with client.subscribe("shop", name="billing") as captures:
        assert await take(captures, 2) == ["3", "4"]
        await captures.acknowledge()
    found = await client.get_subscription("shop", "billing")
    assert (found.needed, found.epoch, found.health) == (
        Position(4, 1),
        2,
        SubscriptionHealth.HELD,
    )
    write(writer, 5)
    async with client.subscribe("shop", name="billing") as captures:
        assert await take(captures, 1) == ["5"]


async def test_a_capture_is_acknowledged_by_itself(
    client: tailrace.Client, writer: ModelWriter
) -> None:
    await client.create_subscription("shop", "billing", ROWS, since="earliest")
    write(writer, 2, 3)
    async with client.subscribe("shop", name="billing") as captures:
        async with asyncio.timeout(PATIENCE_S):
            first, second = await anext(captures), await anext(captures)
        await captures.acknowledge(first, durable=True)
        assert (await client.get_subscription("shop", "billing")).cursor == first.cursor
        await captures.acknowledge(second)
        with pytest.raises(InvalidRequest, match="is already acknowledged"):
            await captures.acknowledge(first)
    assert (await client.get_subscription("shop", "billing")).cursor == second.cursor


async def test_what_nobody_waits_for_is_sent_within_a_second(
    client: tailrace.Client, writer: ModelWriter
) -> None:
    await client.create_subscription("shop", "billing", ROWS, since="earliest")
    async with client.subscribe("shop", name="billing", heartbeat_interval_s=60) as captures:
        await take(captures, 1)
        await captures.acknowledge()

        async def is_kept() -> bool:
            found = await client.get_subscription("shop", "billing")
            return found.cursor == captures.cursor

        await until_answered(is_kept)


async def test_heartbeats_move_the_place_of_who_has_acknowledged_everything(
    client: tailrace.Client, writer: ModelWriter
) -> None:
    """Else a reader of rows that never change would hold retention for ever."""
    await client.create_subscription("shop", "billing", Criteria(entity_type=("order",)))
    write(writer, 2, 3)
    async with client.subscribe("shop", name="billing") as captures:
        messages = captures.messages()
        async with asyncio.timeout(PATIENCE_S):
            while (await client.get_subscription("shop", "billing")).needed < Position(4, 0):
                await anext(messages)


async def test_contract_51_a_second_reader_takes_over_and_the_first_is_fenced(
    client: tailrace.Client, writer: ModelWriter
) -> None:
    await client.create_subscription("shop", "billing", ROWS, since="earliest")
    write(writer, 2)
    async with client.subscribe("shop", name="billing") as first:
        await take(first, 1)
        async with client.subscribe("shop", name="billing") as second:
            assert await take(second, 2) == ["1", "2"]
            with pytest.raises(SubscriptionTakenOver) as caught:
                await take(first, 2)
            assert (caught.value.epoch, caught.value.holder_epoch) == (1, 2)
            with pytest.raises(SubscriptionTakenOver):
                await first.acknowledge(durable=True)
            await second.acknowledge(durable=True)


async def test_contract_51_two_servers_of_one_log_agree(
    log_root: Path, writer: ModelWriter
) -> None:
    write(writer, 1, 2)
    async with (
        serving(log_root) as here,
        serving(log_root) as there,
        tailrace.connect(here) as one,
        tailrace.connect(there) as other,
    ):
        await one.create_subscription("shop", "billing", ROWS, since="earliest")
        with pytest.raises(SubscriptionExists):
            await other.create_subscription("shop", "billing")
        async with one.subscribe("shop", name="billing") as first:
            await take(first, 1)
            await first.acknowledge(durable=True)
            async with other.subscribe("shop", name="billing") as second:
                assert await take(second, 1) == ["2"]
                # The stream of the first is ended by its own server, which looks every second.
                with pytest.raises(SubscriptionTakenOver):
                    await take(first, 100)
                with pytest.raises(SubscriptionTakenOver):
                    await one._acknowledge("shop", "billing", 1, first.cursor)
                await second.acknowledge(durable=True)
        assert (await one.get_subscription("shop", "billing")).needed == Position(2, 1)


async def test_contract_51_a_reader_keeps_its_name_over_a_break(
    log_root: Path, writer: ModelWriter, quick_retry: Retry
) -> None:
    write(writer, 1)
    async with (
        serving(log_root) as target,
        FaultyProxy(int(target.rpartition(":")[2])) as proxy,
        tailrace.connect(f"127.0.0.1:{proxy.port}", retry=quick_retry) as client,
    ):
        await client.create_subscription("shop", "billing", ROWS, since="earliest")
        async with client.subscribe("shop", name="billing") as captures:
            assert await take(captures, 1) == ["1"]
            proxy.cut()
            write(writer, 2)
            assert await take(captures, 1) == ["2"]
            await captures.acknowledge(durable=True)
            assert captures.acknowledgement.epoch == 2


async def test_a_reader_that_comes_back_after_another_has_come_is_refused(
    log_root: Path, writer: ModelWriter, quick_retry: Retry
) -> None:
    """It would take the name from the one that was meant to replace it."""
    write(writer, 1)
    async with (
        serving(log_root) as target,
        FaultyProxy(int(target.rpartition(":")[2])) as proxy,
        tailrace.connect(f"127.0.0.1:{proxy.port}", retry=quick_retry) as cut_off,
        tailrace.connect(target) as client,
    ):
        await client.create_subscription("shop", "billing", ROWS, since="earliest")
        async with cut_off.subscribe("shop", name="billing") as captures:
            await take(captures, 1)
            proxy.stall()
            async with client.subscribe("shop", name="billing") as newer:
                assert await take(newer, 1) == ["1"]
                proxy.cut()
                proxy.flow()
                with pytest.raises(SubscriptionTakenOver):
                    await take(captures, 2)
                write(writer, 2)
                assert await take(newer, 1) == ["2"]


async def test_who_keeps_its_place_itself_begins_there(
    client: tailrace.Client, writer: ModelWriter
) -> None:
    await client.create_subscription("shop", "billing", ROWS, since="earliest")
    write(writer, 2, 3)
    async with client.subscribe("shop", name="billing") as captures:
        await take(captures, 1)
        await captures.acknowledge(durable=True)
        early = captures.cursor
        await take(captures, 1)
        kept = captures.cursor
    async with client.subscribe("shop", name="billing", after=kept) as captures:
        assert await take(captures, 1) == ["3"]
        await captures.acknowledge(durable=True)
    with pytest.raises(InvalidRequest, match="leave after out, or reset the subscription"):
        async with client.subscribe("shop", name="billing", after=early):
            pass


async def test_a_reset_moves_the_place_and_ends_the_reader(
    client: tailrace.Client, writer: ModelWriter
) -> None:
    await client.create_subscription("shop", "billing", ROWS)
    write(writer, 2, 3)
    async with client.subscribe("shop", name="billing") as captures:
        await take(captures, 2)
        await captures.acknowledge(durable=True)
        moved = await client.reset_subscription("shop", "billing", Position(2, 1))
        assert (moved.needed, moved.epoch) == (Position(2, 1), 2)
        with pytest.raises(SubscriptionTakenOver, match="a reset by anonymous"):
            await take(captures, 1)
    async with client.subscribe("shop", name="billing") as captures:
        assert await take(captures, 2) == ["2", "3"]
    moved = await client.reset_subscription("shop", "billing", datetime.now(UTC))
    assert moved.needed == Position(4)


async def test_a_pause_ends_the_reader_and_lets_none_in(
    client: tailrace.Client, writer: ModelWriter
) -> None:
    await client.create_subscription("shop", "billing", ROWS, since="earliest")
    async with client.subscribe("shop", name="billing") as captures:
        await take(captures, 1)
        assert (await client.pause_subscription("shop", "billing")).paused
        with pytest.raises(SubscriptionPaused):
            await take(captures, 1)
    with pytest.raises(SubscriptionPaused):
        async with client.subscribe("shop", name="billing"):
            pass
    assert not (await client.resume_subscription("shop", "billing")).paused
    async with client.subscribe("shop", name="billing") as captures:
        assert await take(captures, 1) == ["1"]


async def test_a_deletion_ends_the_reader_and_frees_the_name(client: tailrace.Client) -> None:
    await client.create_subscription("shop", "billing", ROWS, since="earliest")
    async with client.subscribe("shop", name="billing") as captures:
        await take(captures, 1)
        await client.delete_subscription("shop", "billing")
        with pytest.raises(SubscriptionUnknown):
            await take(captures, 1)
        with pytest.raises(SubscriptionUnknown):
            await client._acknowledge("shop", "billing", 1, captures.cursor)
    assert await client.list_subscriptions("shop") == ()
    await client.create_subscription("shop", "billing")
    assert [each.name for each in await client.list_subscriptions("shop")] == ["billing"]


async def test_what_has_no_meaning_is_refused(client: tailrace.Client) -> None:
    await client.create_subscription("shop", "billing", ROWS)
    cases = [
        (client.subscribe("shop", ROWS, name="billing"), "has its own criteria; leave them out"),
        (client.subscribe("shop", name="billing", since=1), "only after is allowed"),
        (client.subscribe("shop", name="a/b"), "is not a valid name of a subscription"),
        (client.subscribe("shop", name="biling"), "it has: billing"),
    ]
    for subscription, text in cases:
        with pytest.raises(InvalidRequest, match=text):
            async with subscription:
                pass
    async with client.subscribe("shop") as captures:
        with pytest.raises(InvalidRequest, match="subscribe with name="):
            await captures.acknowledge()


async def test_a_hold_above_the_largest_is_refused(log_root: Path, writer: ModelWriter) -> None:
    write(writer, 1)
    async with (
        serving(log_root, hold_max_s=3600, hold_bytes_max=1 << 20) as target,
        tailrace.connect(target) as client,
    ):
        with pytest.raises(
            InvalidRequest,
            match="hold: 3,601,000,000 µs is too large; the maximum of this server is",
        ):
            await client.create_subscription("shop", "billing", hold_s=3601)
        with pytest.raises(
            InvalidRequest, match="hold_bytes: 1,048,577 bytes is too large; the maximum"
        ):
            await client.create_subscription("shop", "billing", hold_bytes=(1 << 20) + 1)
        found = await client.create_subscription("shop", "billing")
        assert (found.hold_s, found.hold_bytes) == (3600, 1 << 20)


async def test_acknowledgements_of_many_tasks_are_all_durable(
    log_root: Path, writer: ModelWriter
) -> None:
    """The tasks are the server's, where calls keep their order; on the network one may overtake another."""
    write(writer, *range(1, 40))
    async with Engine(log_root) as engine:
        server = GrpcServer(engine)
        target = f"127.0.0.1:{await server.start('127.0.0.1:0')}"
        async with tailrace.connect(target) as client:
            await client.create_subscription("shop", "billing", ROWS, since="earliest")
            async with client.subscribe("shop", name="billing") as captures:
                async with asyncio.timeout(PATIENCE_S):
                    cursors = [(await anext(captures)).cursor for _ in range(39)]
                    await asyncio.gather(
                        *(
                            engine.named.acknowledge(ANONYMOUS, "shop", "billing", 1, each)
                            for each in cursors
                        )
                    )
            found = await client.get_subscription("shop", "billing")
            assert found.cursor == cursors[-1]
        await server.stop(0.5)


async def test_the_reader_that_leaves_is_forgotten_by_the_engine(
    log_root: Path, writer: ModelWriter
) -> None:
    write(writer, 1)
    async with Engine(log_root, EngineSettings(heartbeat_interval_s=0.1)) as engine:
        server = GrpcServer(engine)
        target = f"127.0.0.1:{await server.start('127.0.0.1:0')}"
        async with tailrace.connect(target) as client:
            await client.create_subscription("shop", "billing", ROWS)
            async with client.subscribe("shop", name="billing"):
                assert engine.named.readers == 1
            await until(lambda: engine.named.readers == 0)
        await server.stop(0.5)


async def test_a_reader_of_a_restored_log_is_not_ended_by_an_epoch_of_the_log_before(
    log_root: Path, writer: ModelWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy knows lower epochs, and a reader that has left is forgotten only at the next look."""
    monkeypatch.setattr(named_subscriptions, "_LOOK_EVERY_S", 3_600.0)
    write(writer, 1)
    async with Engine(log_root) as engine:
        server = GrpcServer(engine)
        target = f"127.0.0.1:{await server.start('127.0.0.1:0')}"
        async with tailrace.connect(target) as client:
            await client.create_subscription("shop", "billing", ROWS, since=1)
            copy_log(log_root / "shop", tmp_path)
            for epoch in (1, 2):
                async with client.subscribe("shop", name="billing") as captures:
                    assert captures.acknowledgement.epoch == epoch
                    assert await take(captures, 1) == ["1"]
            await until(lambda: not engine.subscriptions(ANONYMOUS))
            assert engine.named.readers == 1
            swap(log_root / "shop", tmp_path / "shop")
            async with client.subscribe("shop", name="billing") as captures:
                assert captures.acknowledgement.epoch == 1
                assert await take(captures, 1) == ["1"]
        await server.stop(0.5)


async def test_a_reader_whose_epoch_a_restored_log_lacks_is_ended(
    log_root: Path, writer: ModelWriter, tmp_path: Path
) -> None:
    """It could acknowledge nothing, and the next reader would get its epoch."""
    write(writer, 1)
    async with serving(log_root) as target, tailrace.connect(target) as client:
        await client.create_subscription("shop", "billing", ROWS, since=1)
        copy_log(log_root / "shop", tmp_path)
        async with client.subscribe("shop", name="billing") as captures:
            assert await take(captures, 1) == ["1"]
            swap(log_root / "shop", tmp_path / "shop")
            with pytest.raises(InvalidRequest, match="has had readers only up to epoch 0"):
                await take(captures, 1)
