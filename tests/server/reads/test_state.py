"""Reads of state inside the engine: grants, audit, memory. What they answer is in tests/conformance/."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.criteria import Operation
from tailrace.errors import (
    CatalogReplaced,
    CatalogUnknown,
    DeadlineExceeded,
    EntityTypeUnknown,
    InvalidRequest,
    NotPermitted,
    ServerStopping,
    SubscriberTooSlow,
)
from tailrace_server.access.admissions import RecordedAdmissions
from tailrace_server.access.audit import Audit
from tailrace_server.access.quotas import Quotas
from tailrace_server.access.settings import AuditSettings, QuotaSettings
from tailrace_server.codecs import JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.filters.claims import read_claimed
from tailrace_server.grants.grant import EVERYTHING, READING, Allowance, Columns, Grant
from tailrace_server.grants.principal import ANONYMOUS, Peer
from tailrace_server.log_cache import batch_cache
from tailrace_server.reads.state_request import StateRequest
from tailrace_server.wal.catalog import drop_catalog
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import SchemaMapping
from tailrace_server.wal.segment import reader as segment_reader
from tests.server.engine.test_recovery import compact
from tests.server.reads.test_history import LARGE, ROOM_FOR_ONE
from tests.support.inprocess import objects, observer_of
from tests.support.model import ModelMutation
from tests.support.polling import until
from tests.support.principals import Holder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tailrace.errors import TailraceError
    from tailrace_server.filters.tree import Condition
    from tailrace_server.grants.principal import Principal
    from tailrace_server.reads.state import StateRead
    from tests.support.inprocess import ModelWriter

PEER = Peer("grpc", "10.0.0.1:5000", "grpc-python")
ORDERS, PRODUCTS = frozenset({"order"}), frozenset({"product"})

NO_NAME, NO_TOTAL = Columns(frozenset({"name"})), Columns(frozenset({"total"}))


def rows(text: str, **claims: Any) -> Condition:
    return read_claimed(text).filled(claims)


def row(key: str, entity_type: str = "product", **columns: object) -> ModelMutation:
    return ModelMutation(entity_type, key, Operation.UPSERT, None, {"id": key, **columns})


def shop(writer: ModelWriter) -> None:
    writer.write(
        [row(key, name=f"p{key}", price=1) for key in ("1", "2", "3")],
        [row(key, "order", total=7) for key in ("1", "2")],
    )


async def state(
    engine: Engine, caller: Principal = ANONYMOUS, entity_type: str = "product", **asked: Any
) -> StateRead:
    wanted = StateRequest(entity_type=entity_type, **asked)
    return await engine.state(caller, "shop", wanted, codec=JSON, peer=PEER)


async def rows_of(read: StateRead) -> dict[str, Any]:
    with read:
        return {
            each["primaryKey"]: each.get("after")
            async for frames in read
            for each in objects(frames)
        }


@pytest.mark.parametrize(
    ("grant", "entity_type", "asked", "expected"),
    [
        (
            Grant((Allowance(PRODUCTS, frozenset({"1", "9"})),)),
            "product",
            {},
            {"1": "id name price"},
        ),
        (
            Grant((Allowance(None, columns=Columns(frozenset({"price"}))),)),
            "product",
            {"primary_keys": ("2",)},
            {"2": "id name"},
        ),
        (
            Grant(
                (
                    Allowance(PRODUCTS, columns=Columns(frozenset({"id"}), listed=True)),
                    Allowance(PRODUCTS, frozenset({"3"})),
                )
            ),
            "product",
            {"columns": ("id", "price")},
            {"1": "id", "2": "id", "3": "id price"},
        ),
        (
            Grant((Allowance(ORDERS, bodies=False), Allowance(ORDERS, frozenset({"2"})))),
            "order",
            {},
            {"1": None, "2": "id total"},
        ),
        (
            Grant((Allowance(ORDERS, bodies=False),)),
            "order",
            {"keys_only": True},
            {"1": None, "2": None},
        ),
        (EVERYTHING, "order", {}, {"1": "id total", "2": "id total"}),
        (
            Grant(
                (
                    Allowance(PRODUCTS, columns=Columns(frozenset({"id"}), listed=True)),
                    Allowance(PRODUCTS, frozenset({"3"})),
                )
            ),
            "product",
            {"where": "price > 0 OR price IS NULL"},
            {"3": "id name price"},
        ),
        (
            Grant((Allowance(ORDERS, bodies=False), Allowance(ORDERS, frozenset({"2"})))),
            "order",
            {"where": "total = 7"},
            {"2": "id total"},
        ),
        # Rules that choose rows by their values, also by what is not shown of them.
        (
            Grant((Allowance(PRODUCTS, columns=NO_NAME, rows=rows("name = {sub}", sub="p2")),)),
            "product",
            {},
            {"2": "id price"},
        ),
        (
            Grant((Allowance(PRODUCTS, columns=NO_NAME, rows=rows("name = {sub}", sub="p2")),)),
            "product",
            {"primary_keys": ("1", "2"), "where": "price = 1"},
            {"2": "id price"},
        ),
        (
            Grant((Allowance(PRODUCTS, rows=rows("name IN ({of})", of=["p2", "p3", "p9"])),)),
            "product",
            {"where": "name <> 'p3'"},
            {"2": "id name price"},
        ),
        (
            Grant(
                (
                    Allowance(PRODUCTS, frozenset({"1"})),
                    Allowance(PRODUCTS, frozenset({"1", "2"}), rows=rows("name = 'p2'")),
                    Allowance(PRODUCTS, frozenset({"3"}), rows=rows("name = 'p2'")),
                )
            ),
            "product",
            {},
            {"1": "id name price", "2": "id name price"},
        ),
        (
            Grant((Allowance(PRODUCTS, rows=rows("NOT text = 'draft'")),)),  # it is unknown
            "product",
            {},
            {},
        ),
    ],
)
async def test_contract_47_48_a_table_is_what_is_granted_of_it(
    log_root: Path,
    writer: ModelWriter,
    grant: Grant,
    entity_type: str,
    asked: dict[str, Any],
    expected: dict[str, str | None],
) -> None:
    shop(writer)
    async with Engine(log_root) as engine:
        found = await rows_of(await state(engine, Holder({"shop": grant}), entity_type, **asked))
    assert {
        key: None if image is None else " ".join(image) for key, image in found.items()
    } == expected


@pytest.mark.parametrize(
    ("grant", "entity_type", "asked", "told"),
    [
        (Grant((Allowance(ORDERS),)), "product", {}, "entity type 'product' is not granted"),
        (Grant((Allowance(ORDERS),)), "no such", {}, "entity type 'no such' is not granted"),
        (
            Grant((Allowance(ORDERS, frozenset({"1"})),)),
            "order",
            {"primary_keys": ("1", "2")},
            "primary key '2' is not granted",
        ),
        (
            Grant((Allowance(ORDERS, columns=Columns(frozenset({"total"}))),)),
            "order",
            {"columns": ("total",)},
            "column 'total' is not granted",
        ),
        (
            Grant((Allowance(ORDERS, columns=Columns(frozenset({"total"}))),)),
            "order",
            {"where": "id = '1' AND total > 0"},
            "column 'total' is not granted",
        ),
        (
            Grant((Allowance(ORDERS, bodies=False),)),
            "order",
            {"where": "total > 0", "keys_only": True},
            "bodies are not granted",
        ),
        (Grant((Allowance(ORDERS, bodies=False),)), "order", {}, "bodies are not granted"),
        (
            Grant((Allowance(ORDERS, actions=READING - {"history"}),)),
            "order",
            {},
            "history is not granted",
        ),
        (None, "order", {"wait_for_version": 99}, "nothing of catalog 'shop' is granted"),
        (
            Grant((Allowance(ORDERS, columns=NO_TOTAL, rows=rows("total = 7")),)),
            "order",
            {"where": "total = 7"},
            "column 'total' is not granted",
        ),
        (
            Grant((Allowance(ORDERS, rows=rows("secret = {sub}", sub="x")),)),
            "order",
            {},
            "a condition of the grants of 'order' does not fit it as it is; the server's log says why$",
        ),
        (
            Grant((Allowance(ORDERS, rows=rows("total = 7")), Allowance(ORDERS, bodies=False))),
            "order",
            {"keys_only": True},
            "the grants of 'order' show other columns of some rows than of others",
        ),
    ],
)
async def test_contract_47_what_is_not_granted_is_refused_whether_or_not_it_exists(
    log_root: Path,
    writer: ModelWriter,
    grant: Grant | None,
    entity_type: str,
    asked: dict[str, Any],
    told: str,
) -> None:
    shop(writer)
    caller = Holder({} if grant is None else {"shop": grant})
    async with Engine(log_root) as engine:
        with pytest.raises(NotPermitted, match=told):
            await state(engine, caller, entity_type, **asked)


@pytest.mark.parametrize(
    "columns",
    [Columns(frozenset({"total"})), Columns(frozenset({"id"}), listed=True)],
    ids=["all but one", "one"],
)
async def test_a_hidden_column_is_refused_as_one_that_does_not_exist(
    log_root: Path, writer: ModelWriter, columns: Columns
) -> None:
    """At the version that is waited for, in the same words; the hint knows visible columns only."""
    shop(writer)
    caller = Holder({"shop": Grant((Allowance(ORDERS, columns=columns),))})
    async with Engine(log_root) as engine:
        for name in ("total", "totel", "secret"):
            for asked in ({}, {"wait_for_version": 1}, {"primary_keys": ("1",)}):
                with pytest.raises(NotPermitted) as caught:
                    await state(engine, caller, "order", columns=("id", name), **asked)
                assert str(caught.value) == f"column {name!r} is not granted; known: id"
        with pytest.raises(DeadlineExceeded):
            await state(
                engine, caller, "order", columns=("total",), wait_for_version=9, wait_s=0.01
            )
        found = await rows_of(await state(engine, caller, "order", columns=("id",)))
        assert found == {"1": {"id": "1"}, "2": {"id": "2"}}


async def test_a_requested_column_is_found_under_the_name_of_each_row(log_root: Path) -> None:
    """The names of a request are those of the version that is read."""
    mapping = "[entity_types.product.columns]\ntitle = { renamed_from = 'name' }\nname = {optional = true}"
    for text, image in (
        ("", b'{"id":1,"name":"cup"}'),
        (mapping, b'{"id":2,"title":"mug","name":"other"}'),
    ):
        with LogWriter.open(log_root, "shop", mapping=SchemaMapping.parse(text)) as log:
            log.append([Mutation("product", str(json.loads(image)["id"]), after=image)])
            log.commit(publish=True)
    async with Engine(log_root) as engine:
        assert await rows_of(await state(engine, columns=("title",))) == {
            "1": {"name": "cup"},
            "2": {"title": "mug"},
        }
        assert await rows_of(await state(engine, columns=("name",))) == {
            "1": {},
            "2": {"name": "other"},
        }
        before = await state(engine, columns=("name",), at_version=1)
        assert await rows_of(before) == {"1": {"name": "cup"}}
        with pytest.raises(InvalidRequest, match="no column 'title' at version 1"):
            await state(engine, columns=("title",), at_version=1)
        # A table that begins behind the version has no rows there, and is asked by its columns of now.
        assert await rows_of(await state(engine, columns=("title",), at_version=0)) == {}


async def test_an_unknown_type_names_those_that_are_granted(
    log_root: Path, writer: ModelWriter
) -> None:
    shop(writer)
    some = Holder({"shop": Grant((Allowance(frozenset({"order", "later"})),))})
    async with Engine(log_root) as engine:
        with pytest.raises(EntityTypeUnknown) as caught:
            await state(engine, some, "later")
        assert caught.value.known == ("order",)
        with pytest.raises(CatalogUnknown):
            await engine.state(ANONYMOUS, "ship", StateRequest(entity_type="order"), codec=JSON)


async def test_contract_47_a_read_of_state_ends_when_a_policy_no_longer_grants_it(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([row(str(key), text="x" * 1000) for key in range(300)])
    caller = Holder({"shop": EVERYTHING})
    async with Engine(log_root) as engine:
        with await state(engine, caller) as read:
            messages = aiter(read)
            await anext(messages)
            caller.grants = {"shop": Grant((Allowance(ORDERS),))}
            await engine.end_what_is_not_granted()
            with pytest.raises(NotPermitted, match="the policy has changed"):
                await anext(messages)


async def test_reads_of_state_are_recorded_and_charged_as_those_of_history_are(
    log_root: Path, writer: ModelWriter, tmp_path: Path
) -> None:
    shop(writer)
    quotas = Quotas(QuotaSettings(quota_history_reads=1))
    path = tmp_path / "audit"
    with closing(Audit(AuditSettings(audit=path))) as audit:
        async with Engine(log_root, admissions=RecordedAdmissions(audit, quotas)) as engine:
            read = await state(engine, primary_keys=("1", "2"), columns=("id",))
            assert quotas.used["history_reads", "anonymous"] == 1
            assert len(await rows_of(read)) == 2
            with pytest.raises(InvalidRequest, match="newest published version is 2"):
                await state(engine, at_version=99)
            assert not any(quotas.used.values())
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    [begun] = [line for line in lines if line["event"] == "history_begun"]
    [ended] = [line for line in lines if line["event"] == "history_ended"]
    assert (begun["start"], begun["content"]) == ("state at version 2", "AFTER")
    [asked] = begun["asked"]
    assert asked.startswith("product, area DATA, key 1 or 2, ")
    assert asked.endswith(", column id")
    assert (ended["captures"], ended["code"]) == (2, "")
    assert [line["code"] for line in lines if line["event"] == "refused"] == ["INVALID_REQUEST"]


async def test_contract_13_48_a_reader_that_stalls_keeps_no_block_and_misses_nothing(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([row(str(key), text="x" * 1000) for key in range(400)])
    async with Engine(log_root) as engine:
        with await state(engine) as read:
            keys = []
            async for frames in read:
                keys += [each["primaryKey"] for each in objects(frames)]
                read._let_go()  # as of each reader that has not moved for a moment
                engine._cache._evict_down_to(0)
                engine._cache.scans._scans.clear()
        assert len(keys) == len(set(keys)) == 400


async def test_contract_48_a_read_of_state_goes_on_in_a_compacted_log(
    log_root: Path, writer: ModelWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_reader, "_OPEN_FILES_MAX", 1)  # what is open can be read on
    for start in range(0, 400, 40):
        writer.write([row(str(key), text="x" * 1000) for key in range(start, start + 40)])
    async with Engine(log_root) as engine:
        with await state(engine) as read:
            messages = aiter(read)
            found = objects(await anext(messages))
            compact(log_root, writer)
            engine._cache._evict_down_to(0)
            read._let_go()
            engine._cache.scans._scans.clear()
            async for frames in messages:
                found += objects(frames)
        assert {each["primaryKey"] for each in found} == {*map(str, range(400))}
        assert len(found) == 400


async def test_contract_16_a_large_row_of_a_table_waits_for_room_and_comes(
    log_root: Path, writer: ModelWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.write([row("1", text="1" * LARGE), row("2", text="2" * LARGE)])
    monkeypatch.setattr(batch_cache, "anonymous_bytes", lambda: 0)
    async with Engine(log_root, ROOM_FOR_ONE) as engine:
        with await state(engine) as stalled, await state(engine) as other:
            told: list[TailraceError] = []
            stalled.on_end = told.append
            await anext(aiter(stalled))
            waiting = asyncio.ensure_future(rows_of(other))
            await until(lambda: engine.statistics(ANONYMOUS).waiting_for_memory == 1)
            page = str(stalled.resume_cursor())
            stalled.end(SubscriberTooSlow("stalled", page))
            assert len(await waiting) == 2
            assert told
        again = await state(engine, page=stalled.resume_cursor())
        assert len(await rows_of(again)) == 1


@pytest.mark.parametrize(
    ("ends", "error"),
    [
        (lambda engine, root: engine.stop_subscriptions(), ServerStopping),
        (lambda engine, root: drop_catalog(root, "shop"), CatalogReplaced),
    ],
)
async def test_who_waits_for_a_version_is_told_when_none_comes_any_more(
    log_root: Path,
    writer: ModelWriter,
    ends: Callable[[Engine, Path], None],
    error: type[TailraceError],
) -> None:
    shop(writer)
    async with Engine(log_root) as engine:
        waits = observer_of(engine, "shop").log.waits
        waiting = asyncio.ensure_future(state(engine, wait_for_version=9, wait_s=600.0))
        await until(lambda: len(waits) == 1)
        ends(engine, log_root)
        with pytest.raises(error):
            await waiting
        assert not len(waits)


async def test_readers_of_one_table_share_its_scan(log_root: Path, writer: ModelWriter) -> None:
    writer.write([row(str(key), text="x" * 20) for key in range(9_000)])
    async with Engine(log_root) as engine:
        before = engine.statistics(ANONYMOUS).cache.misses
        found = await asyncio.gather(*[rows_of(await state(engine)) for _ in range(5)])
        assert {len(each) for each in found} == {9_000}
        # The table, and its blocks once.
        assert engine.statistics(ANONYMOUS).cache.misses - before < 10
