"""The plan of a read against a log: its range, columns, cursor and parts, and what goes wrong."""

from __future__ import annotations

import pickle
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tailrace.log
from tailrace import Operation
from tailrace.cursor import Cursor
from tailrace.errors import (
    CatalogReplaced,
    CursorAhead,
    EntityTypeUnknown,
    InvalidRequest,
    PositionCompacted,
)
from tailrace.position import Position
from tailrace_server.log_read import row_columns
from tailrace_server.log_read.opened import OpenLog
from tailrace_server.log_read.plan import plan, read_part, versions_within
from tailrace_server.log_read.request import Deduplication, ReadRequest, Shape
from tailrace_server.typed.misfits import OnMisfit
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import SchemaMapping
from tailrace_server.wal.segment import reader as segment_reader
from tailrace_server.wal.upkeep.retention import delete_unnamed, trim
from tests.server.log_read.histories import read

if TYPE_CHECKING:
    from pathlib import Path

TYPED = """
[entity_types.product]
key = ["id"]
[entity_types.product.columns]
id = { type = "BIGINT" }
name = { type = "VARCHAR" }
price = { type = "DECIMAL(10,2)" }
"""


def image(key: int, name: str, price: str) -> bytes:
    return b'{"id":%d,"name":"%s","price":%s}' % (key, name.encode(), price.encode())


def inserted(key: int, name: str, price: str) -> Mutation:
    return Mutation("product", str(key), after=image(key, name, price))


def updated(key: int, old: tuple[str, str], new: tuple[str, str]) -> Mutation:
    return Mutation("product", str(key), before=image(key, *old), after=image(key, *new))


def removed(key: int, old: tuple[str, str] | None) -> Mutation:
    before = None if old is None else image(key, *old)
    return Mutation("product", str(key), Operation.REMOVE, before=before)


CUP, DEAR = ("cup", "9.90"), ("cup", "12.50")
HISTORY = [
    [inserted(1, *CUP), inserted(2, "jug", "4")],
    [updated(1, CUP, DEAR), inserted(3, "pan", "20")],
    [removed(2, None)],
    [Mutation("product", "3", Operation.EXPIRE, before=image(3, "pan", "20"))],
]


@pytest.fixture
def log(log_root: Path) -> Path:
    with LogWriter.open(log_root, "shop", mapping=SchemaMapping.parse(TYPED)) as writer:
        for mutations in HISTORY:
            writer.append(mutations)
            writer.commit(publish=True)
    return log_root


def short(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        (each["_change_type"], each["_commit_version"], each["id"], each["price"]) for each in rows
    ]


def test_changes_have_the_columns_of_the_table_and_four_of_their_own(log: Path) -> None:
    found = tailrace.log.read(log, "shop", "product").read_all()
    assert found.schema.names == [
        *("id", "name", "price"),
        *("_change_type", "_commit_version", "_commit_timestamp", "_position"),
    ]
    assert found.schema.field("price").type == pa.decimal128(10, 2)
    assert found.schema.field("_commit_timestamp").type == pa.timestamp("us", "UTC")
    assert short(found.to_pylist()) == [
        ("insert", 1, 1, Decimal("9.90")),
        ("insert", 1, 2, Decimal("4.00")),
        ("update_preimage", 2, 1, Decimal("9.90")),
        ("update_postimage", 2, 1, Decimal("12.50")),
        ("insert", 2, 3, Decimal("20.00")),
        # A removal without a row before has the key; an expiry is a delete.
        ("delete", 3, 2, None),
        ("delete", 4, 3, Decimal("20.00")),
    ]


def test_a_read_continues_at_each_position_and_at_the_cursor_of_the_plan(log: Path) -> None:
    rows = read(log, "product")
    for place, row in enumerate(rows):
        rest = read(log, "product", starting=Cursor.parse(row["_position"]))
        # Both rows of an update have one position: a read continues after the record.
        others = [each for each in rows[place:] if each["_position"] != row["_position"]]
        assert rest == others
    request = ReadRequest(log=log, catalog="shop", entity_type="product", ending=2)
    cursor = plan(request).cursor
    assert plan(request).schema.metadata == {b"tailrace.cursor": cursor.encode()}
    assert read(log, "product", starting=Cursor.parse(cursor)) == rows[5:]
    state = tailrace.log.read(log, "shop", "product", shape="state", at=3)
    start = Cursor.parse(state.schema.metadata[b"tailrace.cursor"].decode())
    assert sorted(each["id"] for each in state.read_all().to_pylist()) == [1, 3]
    assert short(read(log, "product", starting=start)) == [("delete", 4, 3, Decimal("20.00"))]


def test_times_bound_a_range_as_versions_do(log: Path) -> None:
    stamps = {each["_commit_version"]: each["_commit_timestamp"] for each in read(log, "product")}
    for first, last in ((2, 3), (1, 1), (4, 4)):
        by_time = {"starting": stamps[first], "ending": stamps[last]}
        assert read(log, "product", **by_time) == read(log, "product", starting=first, ending=last)
    at = {"shape": Shape.STATE}
    assert read(log, "product", at=stamps[2], **at) == read(log, "product", at=2, **at)


def test_columns_are_returned_in_the_order_of_the_request(log: Path) -> None:
    names = ("_commit_version", "price", "_change_type")
    found = tailrace.log.read(log, "shop", "product", columns=names, ending=1).read_all()
    assert found.to_pydict() == {
        "_commit_version": [1, 1],
        "price": [Decimal("9.90"), Decimal("4.00")],
        "_change_type": ["insert", "insert"],
    }
    assert read(log, "product", columns=("_change_type",), starting=4) == [
        {"_change_type": "delete"}
    ]
    assert read(log, None, shape=Shape.CAPTURES, columns=("index", "area"), ending=1) == [
        {"index": 0, "area": "infrastructure"},
        {"index": 1, "area": "schema"},
        {"index": 2, "area": "data"},
        {"index": 3, "area": "data"},
    ]


def test_hints_leave_out_what_nobody_wants(log: Path) -> None:
    wanted = frozenset({"delete", "update_preimage"})
    assert [row[0] for row in short(read(log, "product", change_types=wanted))] == [
        *("update_preimage", "delete", "delete")
    ]
    state = {"shape": Shape.STATE, "columns": ("id",), "at": 2}
    assert read(log, "product", keys=("3", "9"), **state) == [{"id": 3}]


def test_a_condition_turns_moves_into_inserts_and_deletes(log: Path) -> None:
    assert short(read(log, "product", where="price > 10", ending=2)) == [
        ("insert", 2, 1, Decimal("12.50")),
        ("insert", 2, 3, Decimal("20.00")),
    ]
    assert short(read(log, "product", where="price < 10", ending=2)) == [
        ("insert", 1, 1, Decimal("9.90")),
        ("insert", 1, 2, Decimal("4.00")),
        ("delete", 2, 1, Decimal("9.90")),
    ]
    found = read(log, "product", where="price < 10", shape=Shape.STATE, at=1)
    assert sorted(each["id"] for each in found) == [1, 2]


rows_of_a_model = st.lists(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from("123"), st.one_of(st.none(), st.integers(0, 3))),
            st.just(("", None)),
        ),
        max_size=3,
        unique_by=lambda each: each[0],
    ),
    max_size=6,
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(steps=rows_of_a_model, net=st.booleans(), data=st.data())
def test_with_a_condition_the_changes_keep_the_state_with_that_condition(
    steps: list[list[tuple[str, int | None]]],
    net: bool,
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Rows are set to a price, removed (None) or truncated (""); all images are whole."""
    root = tmp_path_factory.mktemp("log")
    prices: dict[str, int] = {}
    with LogWriter.open(root, "shop", mapping=SchemaMapping.parse(TYPED)) as writer:
        writer.append([inserted(0, "first", "0")])
        for step in steps:
            mutations = []
            for key, price in step:
                old = None if key not in prices else ("x", str(prices[key]))
                if not key:
                    mutations.append(Mutation("product", None, Operation.REMOVE))
                    prices.clear()
                elif price is None and old is not None:
                    mutations.append(removed(int(key), old))
                    del prices[key]
                elif price is not None and old is None:
                    mutations.append(inserted(int(key), "x", str(price)))
                    prices[key] = price
                elif price is not None and old is not None:
                    mutations.append(updated(int(key), old, ("x", str(price))))
                    prices[key] = price
            writer.append(mutations)
            writer.commit(publish=True)
        newest = len(steps) + 1
    first = data.draw(st.integers(1, newest))
    where = {"where": "price >= 2"}
    table, after = (
        {
            each["id"]: each["price"]
            for each in read(root, "product", shape=Shape.STATE, at=at, **where)
        }
        for at in (first, newest)
    )
    if first < newest:
        kind = Deduplication.NET_CHANGES if net else Deduplication.NONE
        for row in read(root, "product", starting=first + 1, deduplication=kind, **where):
            assert row["price"] >= 2
            if row["_change_type"] == "delete":
                assert table.pop(row["id"]) == row["price"]
            elif row["_change_type"] == "update_preimage":
                assert table[row["id"]] == row["price"]
            else:
                table[row["id"]] = row["price"]
    assert table == after


STRANGER = Cursor(UUID(int=5), 1, 0)


@pytest.mark.parametrize(
    ("more", "kind", "said"),
    [
        ({"entity_type": "products"}, EntityTypeUnknown, "did you mean product?"),
        (
            {"columns": ("pric",)},
            InvalidRequest,
            "product has no column 'pric'; did you mean price",
        ),
        ({"columns": ("before",), "shape": Shape.CAPTURES}, None, ""),
        (
            {"columns": ("beforeimage",), "shape": Shape.CAPTURES},
            InvalidRequest,
            "did you mean before",
        ),
        ({"columns": ("id", "id")}, InvalidRequest, "the columns 'id' and 'id'"),
        ({"where": "prise > 1"}, InvalidRequest, "did you mean price"),
        ({"where": "price >"}, InvalidRequest, "where"),
        ({"starting": 6}, InvalidRequest, "begins with version 6, but the newest version .* is 4"),
        ({"starting": 5}, None, ""),
        ({"ending": 5}, InvalidRequest, "version 5: the log has versions from 1 to 4"),
        ({"shape": Shape.STATE, "at": 5}, InvalidRequest, "version 5: the log has versions"),
        ({"schema_version": 5}, InvalidRequest, "schemaVersion 5: the newest version"),
        (
            {"ending": datetime(2999, 1, 1, tzinfo=UTC)},
            InvalidRequest,
            "this time is in the future",
        ),
        ({"starting": STRANGER}, CatalogReplaced, "shop"),
    ],
)
def test_a_request_that_does_not_fit_the_log_is_refused(
    log: Path, more: dict[str, Any], kind: type[Exception] | None, said: str
) -> None:
    fields: dict[str, Any] = {"log": log, "catalog": "shop", "entity_type": "product"}
    request = ReadRequest(**fields | more)
    if kind is None:
        plan(request)
        return
    with pytest.raises(kind, match=said):
        plan(request)


def test_a_start_after_the_end_is_refused_and_a_start_just_after_it_reads_nothing(
    log: Path,
) -> None:
    rows = read(log, "product")
    first, second, last = (Cursor.parse(rows[each]["_position"]) for each in (0, 1, -1))
    assert read(log, "product", starting=last) == []
    with pytest.raises(InvalidRequest, match="the start 1:4 is after the end 1:2"):
        read(log, "product", starting=second, ending=first)
    stamp = read(log, "product")[-1]["_commit_timestamp"]
    with pytest.raises(InvalidRequest, match="is after the end"):
        read(log, "product", starting=stamp, ending=2)
    with pytest.raises(CursorAhead):
        read(log, "product", starting=replace(last, version=9, commit_timestamp=None))


def test_columns_that_differ_by_case_only_are_refused_unless_one_is_named(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([Mutation("t", "1", after=b'{"id":1,"Name":"a","name":"b","_position":3}')])
    with pytest.raises(InvalidRequest, match="the columns 'Name' and 'name'"):
        read(log_root, "t")
    assert read(log_root, "t", columns=("id", "Name")) == [{"id": 1, "Name": "a"}]
    with pytest.raises(InvalidRequest, match="the columns '_position' and '_position'"):
        read(log_root, "t", columns=("id", "_position"))


def test_old_values_have_the_names_and_types_of_the_newest_schema(log_root: Path) -> None:
    mapping = '[entity_types.t]\nkey = ["id"]\n[entity_types.t.columns]\n'
    first = mapping + 'id = { type = "INTEGER" }\nold = { type = "INTEGER" }'
    later = mapping + 'id = { type = "INTEGER" }\nnew = { type = "BIGINT", renamed_from = "old" }'
    for number, text in enumerate((first, later)):
        with LogWriter.open(log_root, "shop", mapping=SchemaMapping.parse(text)) as writer:
            name = b"new" if number else b"old"
            writer.append([Mutation("t", str(number), after=b'{"id":%d,"%b":7}' % (number, name))])
    expected = [{"id": 0, "new": 7}, {"id": 1, "new": 7}]
    assert read(log_root, "t", columns=("id", "new")) == expected
    assert read(log_root, "t", columns=("id", "new"), shape=Shape.STATE) == expected
    # A stream keeps the columns of its start.
    pinned = read(log_root, "t", columns=("id", "old"), schema_version=1)
    assert pinned == [{"id": 0, "old": 7}, {"id": 1, "old": 7}]


def test_a_value_that_does_not_fit_is_an_error_or_null_with_its_text(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([Mutation("t", "1", after=b'{"id":1,"n":"x"}')])
    mapping = SchemaMapping.parse('[entity_types.t.columns]\nn = { type = "INTEGER" }')
    with LogWriter.open(log_root, "shop", mapping=mapping) as writer:
        writer.append([Mutation("t", "2", after=b'{"id":2,"n":5}')])
    with pytest.raises(InvalidRequest, match="t at 1:2"):
        read(log_root, "t")
    found = read(log_root, "t", on_misfit=OnMisfit.NULL, columns=("n", "_misfits"))
    assert found == [{"n": None, "_misfits": '{"n":"x"}'}, {"n": 5, "_misfits": None}]


def test_a_delete_that_names_no_row_is_an_error(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([Mutation("t", "1", after=b'{"id":1}')])
        writer.append([Mutation("t", "1", Operation.REMOVE)])
    with pytest.raises(InvalidRequest, match="t at 2:1: the log has no row before"):
        read(log_root, "t")


def test_parts_travel_and_refuse_another_log_and_an_older_copy(log: Path, tmp_path: Path) -> None:
    found = plan(ReadRequest(log=log, catalog="shop", entity_type="product", rows_per_part=1))
    assert len(found.parts) > 2
    parts = pickle.loads(pickle.dumps(found.parts))
    assert [
        row for part in parts for batch in read_part(part) for row in batch.to_pylist()
    ] == read(log, "product")
    with pytest.raises(CatalogReplaced):
        list(read_part(replace(parts[0], uuid=UUID(int=5))))
    with pytest.raises(InvalidRequest, match="on this machine the log ends with version 4"):
        list(read_part(replace(parts[0], version=9)))


@pytest.mark.parametrize("shape", ["changes", "state", "captures"])
def test_a_compaction_during_a_read_is_invisible(
    log_root: Path, monkeypatch: pytest.MonkeyPatch, shape: Any
) -> None:
    monkeypatch.setattr(segment_reader, "_OPEN_FILES_MAX", 1)
    with LogWriter.open(log_root, "shop", mapping=SchemaMapping.parse(TYPED)) as writer:
        for number in range(12):
            writer.append([inserted(number, "a", "1"), inserted(number + 100, "b", "2")])
            writer.commit(publish=True)
        wanted = tailrace.log.read(log_root, "shop", "product", shape=shape).read_all()
        reader = tailrace.log.read(log_root, "shop", "product", shape=shape, threads=1)
        batches = [reader.read_next_batch()]
        assert writer.compact() is not None
        assert delete_unnamed(log_root / "shop", 2**62)
        found = pa.Table.from_batches([*batches, *reader])
        if shape == "state":  # its rows have no order
            found, wanted = found.sort_by("id"), wanted.sort_by("id")
        assert found.equals(wanted)


def test_a_trim_during_a_read_ends_it_with_the_oldest_position(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_reader, "_OPEN_FILES_MAX", 1)
    readers = [
        tailrace.log.read(log, "shop", "product", shape=shape, threads=threads)
        for shape in ("changes", "captures")
        for threads in (1, 2)
    ]
    for reader in readers[::2]:
        reader.read_next_batch()
    trim(log / "shop", 4, 10**15)
    delete_unnamed(log / "shop", 2**62)
    for reader in readers:
        with pytest.raises(PositionCompacted) as caught:
            reader.read_all()
        assert caught.value.oldest == Position(4, 0)
    with pytest.raises(PositionCompacted):
        read(log, "product", starting=2)
    assert [row[1] for row in short(read(log, "product", starting=0))] == [4]
    assert [row[1] for row in short(read(log, "product"))] == [4]


def test_a_batch_of_a_stream_has_whole_versions_up_to_its_limits(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop", mapping=SchemaMapping.parse(TYPED)) as writer:
        writer.append([inserted(0, "a", "1")])
        for version in range(2, 7):
            writer.append([inserted(version * 10 + each, "a", "1") for each in range(version)])
            if version % 2:
                writer.commit(publish=True)
    sizes = {1: 3} | {
        version: version + 1 for version in range(2, 7)
    }  # with lead and schema records
    with OpenLog(log_root, "shop") as opened:
        for after in range(7):
            for rows in (1, 5, 8, 12, 100):
                expected, size = after, 0
                for version in range(after + 1, 7):
                    size += sizes[version]
                    if size > rows and version > after + 1:
                        break
                    expected = version
                assert versions_within(opened, after, rows) == expected
                assert versions_within(opened, after, rows, 2) == min(expected, after + 2)
        assert versions_within(opened, 2) == 6
        assert versions_within(opened, 2, None, 3) == 5
        assert versions_within(opened, 2, 10, None, "product") >= 3


def test_a_time_between_two_versions_gives_an_empty_range(log: Path) -> None:
    stamps = sorted({each["_commit_timestamp"] for each in read(log, "product")})
    between = stamps[0] + timedelta(microseconds=1)
    assert read(log, "product", starting=between, ending=between) == []


def test_the_texts_of_cursors_are_those_of_each_record_in_both_ways(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions, indexes = np.array([1, 1, 2, 2, 2, 4]), np.array([0, 2, 0, 1, 70_000, 3], np.int32)
    with OpenLog(log, "shop") as opened:
        view = opened.view
        expected = [
            str(view.cursor(*each))
            for each in zip(versions.tolist(), indexes.tolist(), strict=True)
        ]
        for long_version, numbers in ((16, 1 << 16), (1, 1 << 16), (1, 1 << 17)):
            monkeypatch.setattr(row_columns, "_LONG_VERSION", long_version)
            monkeypatch.setattr(row_columns, "_NUMBERS", numbers)
            row_columns._numbers.cache_clear()
            found = row_columns.cursor_texts(view, versions, indexes)
            found.validate(full=True)
            assert found.to_pylist() == expected
            assert row_columns.cursor_texts(view, versions[:0], indexes[:0]).to_pylist() == []
        row_columns._numbers.cache_clear()
