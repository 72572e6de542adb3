"""Rows appended by columns: the log reads as if they had been appended one by one."""

from __future__ import annotations

import json
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.criteria import Operation
from tailrace.errors import InvalidRequest
from tailrace_server.wal import columnar, transaction_writer
from tailrace_server.wal.catalog import open_writer
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.keys import key_hash, type_seed
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import SchemaMapping
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.transaction_writer import TransactionWriter
from tailrace_server.wal.upkeep.verify import verify
from tests.server.wal.logs import SteppingClock, rows_of
from tests.support.compiled_loops import loops_used

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tailrace_server.wal.catalog_writer import CatalogWriter

Transaction = tuple[str | None, list[Mutation]]

MAPPING = SchemaMapping.parse(
    """
    [entity_types.order]
    columns.a = { type = "DECIMAL(6,2)", role = "PRICE" }
    columns.c = { type = "VARCHAR", renamed_from = "b" }
    """
)


@contextmanager
def appended_by(*, columns: bool) -> Iterator[None]:
    """Have rows appended by columns; or one by one, as where there are no compiled loops."""
    with loops_used(columns), pytest.MonkeyPatch.context() as patch:
        patch.setattr(transaction_writer, "COLUMNAR_FROM", 1)
        yield


VALUES = st.sampled_from(
    [
        *("0", "-0", "1", "-12", "1.50", "1e3", "true", "false", "null", '"x"', '"\\u00e9"', '"é"'),
        *('"\\ud800"', '""', "[1, {}]", '{"a": [2]}', "{}", '"__debezium_unavailable_value"'),
        *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "1" * 30),
        '"' + "long " * 9 + '"',
    ]
)
NAMES = st.sampled_from(["a", "b", "c", "id", "é", "a name that is long", "\\u0061", "x\\n"])
SPACES = st.sampled_from(["", "", "", " ", "\n\t"])


@st.composite
def images(draw: st.DrawFn) -> bytes:
    """Draw the text of an object, spaced as it comes; a name may come twice."""
    # A name that comes twice is refused, so it comes rarely.
    once = None if draw(st.integers(0, 40)) == 40 else lambda each: json.loads(f'"{each[0]}"')
    members = draw(st.lists(st.tuples(NAMES, VALUES), max_size=5, unique_by=once))
    space = draw(SPACES)
    inner = f"{space},{space}".join(f'"{name}"{space}:{space}{value}' for name, value in members)
    return f"{space}{{{space}{inner}{space}}}{space}".encode()


@st.composite
def updated(draw: st.DrawFn, image: bytes) -> bytes:
    """Draw an image that differs a little, or altogether."""
    old, new = draw(VALUES).encode(), draw(VALUES).encode()
    return draw(st.sampled_from([image, image.replace(b":" + old, b":" + new)]) | images())


@st.composite
def mutations(draw: st.DrawFn) -> Mutation:
    """Draw a mutation that has a meaning."""
    entity_type = draw(st.sampled_from(["order", "order", "line", "ä"]))
    key = draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=10))
    before, after = draw(st.none() | images()), draw(images())
    if before is not None and draw(st.booleans()):
        after = draw(updated(before))
    change = draw(st.none() | st.none() | images())
    changed = draw(
        st.none() | st.none() | st.lists(st.sampled_from("abz"), max_size=3, unique=True).map(tuple)
    )
    operation = draw(st.sampled_from([Operation.UPSERT, *Operation.__members__.values()]))
    if operation in (Operation.REMOVE, Operation.EXPIRE):
        without_key = operation is Operation.REMOVE and draw(st.booleans())
        if without_key:
            return Mutation(entity_type, None, operation, None, None, change, changed)
        return Mutation(entity_type, key, operation, before, None, change, changed)
    return Mutation(entity_type, key, Operation.UPSERT, before, after, change, changed)


def distinct(rows: list[Mutation]) -> list[Mutation]:
    """Return mutations of one transaction with keys that differ, but for a long transaction's last."""
    keys = [place if place < 5 else 0 for place in range(len(rows))]
    return [
        row if row.primary_key is None else replace(row, primary_key=f"{row.primary_key}-{key}")
        for row, key in zip(rows, keys, strict=True)
    ]


TRANSACTIONS = st.lists(
    st.lists(mutations(), min_size=1, max_size=6)
    | st.lists(mutations(), min_size=1, max_size=2).map(lambda few: (few * 3)[:5]),
    min_size=1,
    max_size=5,
).map(lambda parts: [(f"tx-{place}", distinct(part)) for place, part in enumerate(parts)])


def batch_of(transactions: Sequence[Transaction], **others: pa.Array) -> pa.RecordBatch:
    """Return transactions as the columns that `append_batch` takes."""
    rows = [mutation for _, part in transactions for mutation in part]
    columns = {
        "transaction_id": pa.array([id for id, part in transactions for _ in part], pa.utf8()),
        "entity_type": pa.array([row.entity_type for row in rows], pa.utf8()),
        "primary_key": pa.array([row.primary_key for row in rows], pa.utf8()),
        "operation": pa.array([int(row.operation) for row in rows], pa.int8()),
        "changed": pa.array([row.changed for row in rows], pa.list_(pa.utf8())),
        "change": pa.array([row.change for row in rows], pa.binary()),
        "before": pa.array([row.before for row in rows], pa.binary()),
        "after": pa.array([row.after for row in rows], pa.binary()),
    }
    return pa.RecordBatch.from_pydict(columns | others)


def append(writer: TransactionWriter, transactions: Sequence[Transaction], *, batch: bool) -> None:
    """Append transactions, as one batch or each by itself."""
    if batch:
        writer.append_batch(batch_of(transactions), note="n")
        return
    for id, rows in transactions:
        writer.append(rows, transaction_id=id, note="n")


def appended(writer: TransactionWriter) -> tuple[Any, ...]:
    """Return the records that wait for the commit, and the schemas."""
    buffer = writer._buffer
    records = [record for batch in buffer.all_batches() for record in batch.to_pylist()]
    for record in records:
        type_and_key = record["entity_type"], record["primary_key"]
        without = None in type_and_key
        hashed = 0 if without else key_hash(type_seed(type_and_key[0]), type_and_key[1])
        assert record.pop("key_hash", hashed) == hashed, "the hash that the segment would make"
    return records, buffer.schema_changes, buffer.transactions


@pytest.fixture(scope="module")
def catalog() -> Iterator[CatalogWriter]:
    """A catalog to which nothing is committed."""
    with (
        tempfile.TemporaryDirectory() as root,
        open_writer(Path(root), "shop", writer="test") as writer,
    ):
        yield writer


@settings(max_examples=50)
@given(
    parts=st.lists(TRANSACTIONS, min_size=1, max_size=3),
    mapped=st.booleans(),
)
def test_records_are_the_same_as_of_rows_appended_one_by_one(
    catalog: CatalogWriter, parts: list[list[Transaction]], mapped: bool
) -> None:
    """Refusals too: what is refused by itself is refused in a batch, and leaves nothing behind."""
    mapping = MAPPING if mapped else None
    singly, few, lists, batches = (TransactionWriter(catalog, mapping) for _ in range(4))
    for transactions in parts:
        refused = []
        for writer, columns, batch in (
            (singly, False, False),
            (few, False, True),
            (lists, True, False),
            (batches, True, True),
        ):
            kept = appended(writer)
            with appended_by(columns=columns):
                try:
                    append(writer, transactions, batch=batch)
                except InvalidRequest:
                    refused.append(writer)
                    if batch:
                        assert appended(writer) == kept
        if refused:  # from here on some have transactions that others lack
            assert refused == [singly, few, lists, batches]
            return
        assert appended(few) == appended(singly)
        assert appended(lists) == appended(singly)
        assert appended(batches) == appended(singly)


def test_logs_read_the_same(log_root: Path) -> None:
    """Through commits, with schema changes and updates, into files and read again."""
    image = '{"id":%d,"price":"%d.90","note":"n"}'
    transactions: list[Transaction] = [
        (None if number % 3 else f"tx-{number}", [
            Mutation("order", "1", after=(image % (1, number)).encode()),
            Mutation("order", "2", before=(image % (2, 1)).encode(), after=(image % (2, number)).encode()),
            Mutation("line", None, Operation.REMOVE),
            Mutation("line", "7", after=b'{"c%d":%d}' % (number // 40, number)),
        ])
        for number in range(120)
    ]  # fmt: skip
    transactions = [(f"tx-{place}", rows) for place, (_, rows) in enumerate(transactions)]
    for name, columns in (("rows", False), ("columns", True)):
        with (
            appended_by(columns=columns),
            LogWriter.open(log_root, name, clock=SteppingClock()) as writer,
        ):
            for start in (0, 60):
                append(writer, transactions[start : start + 60], batch=columns)
                writer.commit()
        assert verify(log_root / name).sound
    logs = [CommitLog.open(log_root / name) for name in ("rows", "columns")]
    one, other = [
        (log.state.schemas, log.view.schema_of(120).entity_types, rows_of(log.path)) for log in logs
    ]
    assert one == other
    assert len(one[2]) == 120 * 5 + 4


def columns(**others: object) -> pa.RecordBatch:
    """Return a batch of 60 rows, some of whose columns are others; a dictionary replaces single rows."""
    given: dict[str, list[Any]] = {
        "entity_type": ["order"] * 60,
        "primary_key": [str(row) for row in range(60)],
        "operation": ["upsert"] * 60,
        "before": [b'{"a": 1}'] * 60,
        "after": [b'{"a": 2}'] * 60,
    }
    for name, values in others.items():
        if isinstance(values, dict):
            for row, value in values.items():
                given[name][row] = value
        else:
            given[name] = values  # type: ignore[assignment]
    return pa.RecordBatch.from_pydict(given)


REFUSED = [
    ({"after": {50: b"[1]"}}, r"column after of row 50 \(order '50'\): an image must be a UTF-8 JSON object"),
    ({"before": {7: b'{"a":"\xff"}'}}, r"column before of row 7 \(order '7'\): an image must be"),
    ({"change": [b'{"a" 1}'] * 60}, r"column change of row 0 \(order '0'\): an image must be"),
    ({"entity_type": {3: None}}, "column entity_type of row 3 is null"),
    ({"entity_type": {3: ""}}, "column entity_type of row 3 is empty"),
    ({"primary_key": {9: None}}, r"column primary_key of row 9 \(order\) is null, .* UPSERT"),
    ({"operation": {1: "remove"}}, r"column after of row 1 \(order '1'\) is given, .* REMOVE"),
    ({"operation": {1: "delete"}}, "column operation of row 1 is 'delete'; it must be upsert"),
    ({"operation": [3] * 60}, "column operation of row 0 is 3"),
    ({"operation": {1: None}}, "column operation of row 1 is None"),
    ({"changed": [["a"], [None]] + [["a"]] * 58}, "column changed of row 1 has a null"),
    ({"primary_key": list(range(60))}, "column primary_key is int64; it must be string"),
    ({"after": [1.5] * 60}, "column after is double; it must be binary"),
    ({"source_timestamp": ["now"] * 60}, "column source_timestamp is string; it must be int64 or timestamp"),
    ({"after": {4: None}}, r"column after of row 4 \(order .4.\) is null, .* UPSERT"),
    ({"primary_key": {5: "3", 9: "2"}}, r"column primary_key of row 5 .* equals that of an earlier row"),
    ({"after": {6: b'{"a":1,"b":":","a":2}'}}, r"column after of row 6 \(order '6'\): .* has 'a' twice"),
    ({"before": {6: b'{"a":1, "\\u0061":2}'}}, r"column before of row 6 .* has 'a' twice"),
    ({"change": [b'{"a":1}'] * 30 + [b'{"a":1,"a":1}'] * 30}, r"column change of row 30 .* has 'a' twice"),
    ({"changed": [["a"]] * 59 + [["b", "c", "b"]]}, r"column changed of row 59 .* has a column twice"),
    ({"key": ["1"] * 60}, "the batch has a column 'key'; known are entity_type, primary_key"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "message"), REFUSED)
def test_a_batch_is_refused_with_column_and_row(
    catalog: CatalogWriter, wrong: dict[str, object], message: str
) -> None:
    writer = TransactionWriter(catalog)
    with appended_by(columns=True), pytest.raises(InvalidRequest, match=message):
        writer.append_batch(columns(**wrong))
    assert appended(writer) == ([], [], 0)
    with appended_by(columns=False), pytest.raises(InvalidRequest, match=message):
        writer.append_batch(columns(**wrong))
    assert appended(writer) == ([], [], 0)


def test_a_value_that_its_declared_type_cannot_hold_is_refused_by_name(
    catalog: CatalogWriter,
) -> None:
    writer = TransactionWriter(catalog, MAPPING)
    message = r'column after of row 8 \(order \'8\'\): column a: "x" is not a number'
    for by_columns in (True, False):
        with appended_by(columns=by_columns), pytest.raises(InvalidRequest, match=message):
            writer.append_batch(columns(after={8: b'{"a": "x"}'}))


def test_what_is_no_record_batch_is_refused(catalog: CatalogWriter) -> None:
    writer = TransactionWriter(catalog)
    with pytest.raises(
        InvalidRequest, match="not Table; for a Table, append each of its to_batches"
    ):
        writer.append_batch(pa.Table.from_batches([columns()]))
    with pytest.raises(InvalidRequest, match="the batch has no column entity_type"):
        writer.append_batch(columns().drop_columns(["entity_type"]))
    with pytest.raises(InvalidRequest, match="counts of a lead is counted by the writer"):
        writer.append_batch(columns(), counts={})
    with pytest.raises(InvalidRequest, match="a lead must be JSON"):
        writer.append_batch(columns(), note={1, 2})
    ids = [str(row // 20) for row in range(60)]
    with appended_by(columns=False), pytest.raises(InvalidRequest, match="before of row 45 "):
        writer.append_batch(columns(transaction_id=ids, before={45: b"1"}))
    writer.append_batch(columns().slice(0, 0))
    assert appended(writer) == ([], [], 0)


def test_arrow_may_lay_columns_out_in_other_ways(catalog: CatalogWriter) -> None:
    """Large, views, dictionaries, texts as images, slices of larger columns."""
    plain = columns(source_timestamp=[7] * 60, transaction_id=["t"] * 60)
    kinds = {
        "entity_type": pa.dictionary(pa.int8(), pa.string()),
        "primary_key": pa.large_string(),
        "operation": pa.dictionary(pa.int32(), pa.string()),
        "before": pa.large_binary(),
        "after": pa.string(),
        "source_timestamp": pa.timestamp("us"),
        "transaction_id": pa.string_view(),
    }
    other = pa.RecordBatch.from_pydict(
        {name: plain.column(name).cast(kind) for name, kind in kinds.items()}
    )
    more = pa.concat_batches([other, other, other])
    writers = [TransactionWriter(catalog) for _ in range(3)]
    with appended_by(columns=True):
        for writer, batch in zip(writers, (plain, other, more.slice(60, 60)), strict=True):
            writer.append_batch(batch)
    first, *others = map(appended, writers)
    assert others == [first, first]
    assert first[0][0]["after"].startswith(b'{"transaction_id":"t"')
    assert b'"source_timestamp":7' in first[0][0]["after"]
    assert [each["changed"] for each in first[0][-60:]] == [["a"]] * 60


def test_without_ids_a_batch_is_one_transaction_and_rows_with_null_are_each_one(
    catalog: CatalogWriter,
) -> None:
    with appended_by(columns=True):
        whole, single = TransactionWriter(catalog), TransactionWriter(catalog)
        whole.append_batch(columns())
        single.append_batch(columns(transaction_id=pa.nulls(60, pa.string())))
    assert (appended(whole)[2], appended(single)[2]) == (1, 60)


def test_shapes_are_forgotten_when_there_are_too_many(
    catalog: CatalogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columnar, "_SHAPES_MAX", 4)
    after = [b'{"c%d": %d}' % (row % 20, row) for row in range(60)]
    one, other = TransactionWriter(catalog), TransactionWriter(catalog)
    for writer, by_columns in ((one, True), (other, False)):
        with appended_by(columns=by_columns):
            writer.append_batch(columns(after=after))
            writer.append_batch(columns(after=after))
    assert appended(one) == appended(other)


RARE = {
    "names in another order than in the schema": [
        (None, b'{"a":1,"b":1,"c":1}'),
        (b'{"c":1,"b":1,"a":1}', b'{"c":2,"b":1,"a":2}'),
    ],
    "a placeholder before the first text": [
        (None, b'{"a":"__debezium_unavailable_value"}'),
        (None, b'{"a":"text"}'),
    ],
    "a whole number of more than 64 bits": [
        (None, b'{"a":1}'),
        (None, b'{"a":9223372036854775808}'),
    ],
}


@pytest.mark.parametrize("images", RARE.values(), ids=RARE)
def test_what_is_rare_is_the_same_too(
    catalog: CatalogWriter, images: list[tuple[bytes | None, bytes]]
) -> None:
    rows = [
        Mutation("order", str(place), before=before, after=after)
        for place, (before, after) in enumerate(images)
    ]
    one, other = TransactionWriter(catalog), TransactionWriter(catalog)
    for writer, by_columns in ((one, True), (other, False)):
        with appended_by(columns=by_columns):
            append(writer, [("t", rows), ("u", rows)], batch=True)
    assert appended(one) == appended(other)
