"""Rows of a DataFrame as records, against rows put together one by one."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.dataframe.sink import ROWS_AT_ONCE, RecordSink
from tailrace_server.wal.segment.writer import SegmentWriter
from tests.server.wal.logs import segment_path

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace_server.pipeline.dataframe.sink import SinkResult

Rows = list[dict[str, Any]]

INPUT = pa.schema(
    [
        ("transaction_id", pa.string()),
        ("operation", pa.string()),
        ("entity_type", pa.string()),
        ("primary_key", pa.string()),
        ("before", pa.string()),
        ("after", pa.string()),
    ]
)


def row(
    transaction: str | None,
    key: str | None = "1",
    entity_type: str | None = "t",
    operation: str = "upsert",
    before: str | None = None,
    after: str | None = '{"id":1}',
) -> dict[str, Any]:
    return {
        "transaction_id": transaction,
        "operation": operation,
        "entity_type": entity_type,
        "primary_key": key,
        "before": before,
        "after": after,
    }


def sink(
    folder: Path,
    *batches: Rows,
    schema: pa.Schema = INPUT,
    known: dict[str, tuple[str, ...]] | None = None,
) -> tuple[Rows, SinkResult | None]:
    """Write batches, one by one and gathered; return the records and what was reported."""
    path = segment_path(folder, "a.arrow")
    outcomes: list[tuple[Rows, SinkResult | None]] = []
    for rows_at_once in (1, ROWS_AT_ONCE):
        path.unlink(missing_ok=True)
        with SegmentWriter(path, fsync=False) as segment:
            writing = RecordSink(segment, known or {}, rows_at_once=rows_at_once)
            for batch in batches:
                writing.write(pa.RecordBatch.from_pylist(batch, schema=schema))
            result = writing.finish()
        records: Rows = (
            pa.ipc.open_file(path.read_bytes()).read_all().to_pylist() if path.exists() else []
        )
        outcomes.append((records, result))
    (records, result), (gathered, same) = outcomes
    assert gathered == records
    assert (same and same.sightings) == (result and result.sightings)
    return records, result


def leads(records: Rows) -> list[dict[str, Any]]:
    return [orjson.loads(record["after"]) for record in records if record["index"] == 0]


def by_hand(rows: Rows) -> Rows:
    """Return the records that rows should become, made the slow way."""
    records: Rows = []
    groups: list[Rows] = []
    for transaction, part in groupby(rows, key=lambda r: r["transaction_id"]):
        whole = list(part)
        groups += [whole] if transaction is not None else [[each] for each in whole]
    for version, group in enumerate(groups):
        counts: dict[str, int] = {}
        for each in group:
            counts[each["entity_type"]] = counts.get(each["entity_type"], 0) + 1
        body = {
            "transaction_id": group[0]["transaction_id"],
            "mutation_count": len(group),
            "counts": counts,
            "source_count": len(group),
        }
        records.append({"version": version, "index": 0, "operation": 3, "after": body})
        for index, each in enumerate(group, 1):
            operation = {"upsert": 1, "remove": 2}[each["operation"]]
            records.append(each | {"version": version, "index": index, "operation": operation})
    return records


TYPES = st.sampled_from(["t", "u", "größe", *(f"type{n}" for n in range(20))])
TRANSACTIONS = st.lists(
    st.lists(
        st.builds(
            row,
            st.none(),
            st.text(max_size=12),
            TYPES,
            st.just("upsert"),
            st.sampled_from([None, '{"id":1,"x":"ü"}', '{"old":1}']),
            st.sampled_from(['{"id":1}', '{"id":1,"y":{"z":[1]}}', '{"b":0.10}']),
        )
        | st.builds(
            row,
            st.none(),
            st.text(max_size=12),
            TYPES,
            st.just("remove"),
            st.sampled_from([None, '{"id":1,"x":"ü"}', '{"old":1}']),
            st.none(),
        )
        | st.builds(row, st.none(), st.none(), TYPES, st.just("remove"), after=st.none()),
        min_size=1,
        max_size=5,
        unique_by=lambda each: (each["entity_type"], each["primary_key"]),
    ),
    max_size=8,
)


@given(TRANSACTIONS, st.data())
def test_records_are_those_made_by_hand(
    tmp_path_factory: pytest.TempPathFactory, transactions: list[Rows], data: st.DataObject
) -> None:
    rows: Rows = []
    for number, group in enumerate(transactions):
        name = data.draw(st.sampled_from([None, f"{number}", f'"{number}\\\n']))
        rows.extend(each | {"transaction_id": name} for each in group)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    bounds = [0, *cuts, len(rows)]
    batches = [rows[a:b] for a, b in pairwise(bounds)]
    records, result = sink(tmp_path_factory.mktemp("sink"), *batches)
    wanted = by_hand(rows)
    assert (result is None) == (not rows)
    assert len(records) == len(wanted)
    for record, other in zip(records, wanted, strict=True):
        assert record["version"] == other["version"]
        assert record["index"] == other["index"]
        assert record["operation"] == other["operation"]
        if record["index"] == 0:
            assert orjson.loads(record["after"]) == other["after"]
            assert (record["entity_type"], record["before"]) == (None, None)
        else:
            assert (record["entity_type"], record["primary_key"]) == (
                other["entity_type"],
                other["primary_key"],
            )
            for name in ("before", "after"):
                assert (record[name] or b"").decode() == (other[name] or "")
    columns: dict[str, list[str]] = {}
    for each in rows:
        seen = columns.setdefault(each["entity_type"], [])
        image = each["after"] if each["after"] is not None else each["before"]
        names = list(orjson.loads(image or "{}"))
        if each["operation"] == "upsert" and each["after"] is not None:
            names += orjson.loads(each["before"] or "{}")  # what is there no more has changed
        seen.extend(name for name in dict.fromkeys(names) if name not in seen)
    found: dict[str, list[str]] = {}
    for sighting in result.sightings if result else ():
        names = found.setdefault(sighting.entity_type, [])
        if sighting.name is not None:
            names.append(sighting.name)
    assert found == columns


def test_the_difference_of_images_is_told_where_it_is_not_given(tmp_path: Path) -> None:
    records, _ = sink(
        tmp_path,
        [
            row("1", before='{"id":1,"n":0.10,"s":"a"}', after='{"id":1,"n":1e2,"s":"a"}'),
            row("1", "2"),
        ],
    )
    assert (records[1]["changed"], records[1]["change"]) == (["n"], b'{"n":1e2}')
    assert (records[2]["changed"], records[2]["change"]) == (None, None)


def test_what_is_given_as_changed_is_taken(tmp_path: Path) -> None:
    schema = INPUT.append(pa.field("changed", pa.list_(pa.string())))
    rows = [
        row("1") | {"changed": ["a", "b"]},
        row("2") | {"changed": None},
        row("3") | {"changed": []},
    ]
    records, _ = sink(tmp_path, rows, schema=schema)
    assert [r["changed"] for r in records] == [None, ["a", "b"], None, None, None, []]


def test_a_lead_that_is_given_is_taken_as_it_is(tmp_path: Path) -> None:
    text = '{"mine":true,"counts": {"t":1,"u":0}, "mutation_count":1}'
    given_lead = row("1", None, None, "transaction", after=text)
    records, _ = sink(tmp_path, [given_lead, row("1"), row("2")])
    assert [(r["version"], r["index"]) for r in records] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert records[0]["after"] == text.encode()
    assert records[0]["area"] == 3


def test_a_transaction_goes_on_over_batches(tmp_path: Path) -> None:
    records, result = sink(
        tmp_path, [row("1")], [row("1", "2"), row("1", "3")], [row("1", "4"), row("2")]
    )
    assert [body["mutation_count"] for body in leads(records)] == [4, 1]
    assert result is not None
    assert len(result.transactions) == 2


@pytest.mark.parametrize("cuts", [(), (1,), (2,), (1, 2), (1, 2, 3)])
def test_a_transaction_that_comes_back_behind_others_is_refused(
    tmp_path: Path, cuts: tuple[int, ...]
) -> None:
    """Else it would become two versions."""
    rows = [row("A"), row("B"), row("A"), row(None), row(None)]
    batches = [rows[a:b] for a, b in pairwise([0, *cuts, len(rows)])]
    with pytest.raises(
        InvalidRequest,
        match=r"transaction 'A' continues after other transactions in its partition.*sortWithinPartitions",
    ):
        sink(tmp_path, *batches)


def test_known_columns_are_not_reported(tmp_path: Path) -> None:
    _, result = sink(tmp_path, [row("1"), row("2", after='{"id":1,"n":2}')], known={"t": ("id",)})
    assert result is not None
    assert [(s.version, s.entity_type, s.name) for s in result.sightings] == [(1, "t", "n")]


@pytest.mark.parametrize(
    ("rows", "schema", "message"),
    [
        ([row("1", operation="upset")], INPUT, "column operation"),
        ([row("1"), row("1", None, None, "transaction")], INPUT, "must be the first"),
        ([row("1", after="[1]")], INPUT, "not a UTF-8 JSON object"),
        ([row("1", after='{"id":')], INPUT, "not a UTF-8 JSON object"),
        (
            [row("1"), row("A", "7", entity_type=None)],
            INPUT,
            "column entity_type is null in a row of transaction 'A', key '7'",
        ),
        (
            [row(None, None)],
            INPUT,
            "primary_key of a row without .*, t is null, and its operation is UPSERT: only",
        ),
        (
            [row("1", None, operation="expire", after=None)],
            INPUT,
            "primary_key of .* is null, .* EXPIRE",
        ),
        ([row("1")], INPUT.remove(0), "no column 'transaction_id'"),
        ([row("1") | {"x": 1}], INPUT.append(pa.field("x", pa.int64())), "a column 'x'"),
        (
            [row("1")],
            INPUT.set(0, pa.field("transaction_id", pa.list_(pa.int64()))),
            "transaction_id",
        ),
    ],
)
def test_what_is_no_record_is_refused(
    tmp_path: Path, rows: Rows, schema: pa.Schema, message: str
) -> None:
    if "transaction_id" in schema.names and pa.types.is_list(schema.field(0).type):
        rows = [each | {"transaction_id": [1]} for each in rows]
    with pytest.raises(InvalidRequest, match=message):
        sink(tmp_path, rows, schema=schema)


FULL = pa.schema(
    [
        *((name, pa.string()) for name in INPUT.names[:4]),
        ("changed", pa.list_(pa.string())),
        *((name, pa.binary()) for name in ("change", "before", "after")),
    ]
)
NO_OBJECTS = [
    b"garbage",
    b'gar"bage',
    b'{"id":"\xff"}',
    b'{"id":1},"primaryKey":"666"',
    b'{"id":1}{"id":2}',
    b'{"id":1',
    b'{"id":NaN}',
    b'{"id":"a\nb"}',
    b'{"id":"\\ud800"}',
    b'{"id":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b"null",
    b"",
]


@pytest.mark.parametrize("body", NO_OBJECTS, ids=range(len(NO_OBJECTS)))
@pytest.mark.parametrize("name", ["change", "before", "after"])
def test_a_body_that_is_no_object_is_refused_by_name(
    tmp_path: Path, name: str, body: bytes
) -> None:
    """Also where its columns are known, so that nobody looks for more."""
    bodies = {"change": b'{"id":2}', "before": b'{"id":1}', "after": b'{"id":2}'}
    rows = [row("1") | bodies, row("A", "7") | bodies | {name: body}]
    with pytest.raises(
        InvalidRequest, match=f"column {name} of transaction 'A', t, key '7' is not"
    ):
        sink(tmp_path, rows, schema=FULL, known={"t": ("id",)})


def test_an_object_is_taken_however_it_is_written(tmp_path: Path) -> None:
    texts = ['{ "id" :\n1e999}\t', '{"a":"\\u0000ü\x7f"}', "{}", '{"a":{"b":1,"b":2}}']
    records, _ = sink(tmp_path, [row(str(n), after=text) for n, text in enumerate(texts)])
    assert [record["after"].decode() for record in records[1::2]] == texts


@pytest.mark.parametrize("names", [["a", None], ["a", "b", "a"]])
def test_changed_names_each_column_once(tmp_path: Path, names: list[str | None]) -> None:
    rows = [row("1") | {"changed": ["b", "a"]}, row("A", "7") | {"changed": names}]
    with pytest.raises(InvalidRequest, match="column changed of transaction 'A', t, key '7' has a"):
        sink(tmp_path, rows, schema=INPUT.append(FULL.field("changed")))


@pytest.mark.parametrize(
    ("lead", "message"),
    [
        ({"after": None}, "after of the lead of transaction 'A' is null"),
        ({"after": b"nonsense"}, "not a UTF-8 JSON object"),
        ({"after": b"[1]"}, "not a UTF-8 JSON object"),
        ({"after": b"{}"}, "has counts None and mutation_count None, but .* {'t': 2}, 2 in total"),
        ({"after": b'{"mutation_count":2,"counts":{"t":1,"u":1}}'}, "the rows after it"),
        ({"after": b'{"mutation_count":3,"counts":{"t":2}}'}, "the rows after it"),
        ({"after": b'{"mutation_count":2,"counts":[["t",2]]}'}, "the rows after it"),
        ({"entity_type": "t"}, "entity_type of the lead of transaction 'A', t is 't'"),
        ({"primary_key": "7"}, "primary_key of the lead"),
        ({"changed": []}, "changed of the lead"),
        ({"before": b"{}"}, "before of the lead"),
    ],
)
def test_a_lead_that_says_something_else_is_refused(
    tmp_path: Path, lead: dict[str, Any], message: str
) -> None:
    right = {"after": b'{"mutation_count":2,"counts":{"t":2}}'}
    first = row("A", None, None, "transaction") | right
    rest = [row("A", key) | {"after": b"{}"} for key in "12"]
    assert sink(tmp_path, [first, *rest], schema=FULL)[1] is not None
    with pytest.raises(InvalidRequest, match=message):
        sink(tmp_path, [row("0") | {"after": b"{}"}, first | lead, *rest], schema=FULL)


def test_a_lead_counts_rows_of_later_batches(tmp_path: Path) -> None:
    text = '{"mutation_count":2,"counts":{"t":1,"u":1}}'
    first = row("A", None, None, "transaction", after=text)
    records, _ = sink(tmp_path, [first], [row("A")], [row("A", entity_type="u")])
    assert len(records) == 3


def test_columns_that_only_changed_or_change_show_are_reported_in_order(tmp_path: Path) -> None:
    """Else the schema has none of them, and nobody can subscribe to them."""
    rows = [
        row("1") | {"changed": ["zz"], "change": b'{"price":1}', "after": b'{"id":1}'},
        row("2") | {"changed": ["price", "stock"], "change": b'{"price":1}', "after": b"{}"},
        row("3") | {"changed": ["a"], "change": None, "after": b'{"b":1,"a":2}'},
        row("4", entity_type="u") | {"changed": ["zz"], "change": None, "after": b"{}"},
        row("5") | {"change": b'{"diff":2}', "after": b'{"id":1}'},
        row("6", None, operation="remove") | {"change": b'{"truncate": true}', "after": None},
    ]
    wanted = [
        *((0, "t", name) for name in (None, "id", "price", "zz")),
        (1, "t", "stock"),
        *((2, "t", name) for name in ("b", "a")),
        *((3, "u", name) for name in (None, "zz")),
    ]
    for batches in ([rows], [[each] for each in rows]):
        _, result = sink(tmp_path, *batches, schema=FULL)
        assert result is not None
        assert [tuple(sighting)[:3] for sighting in result.sightings] == wanted


def test_of_declared_types_only_changed_names_more(tmp_path: Path) -> None:
    path = segment_path(tmp_path, "a.arrow")
    rows = [row("1") | {"changed": ["a", "zz"], "after": b'{"a":1,"more":2}'}]
    with SegmentWriter(path, fsync=False) as segment:
        writing = RecordSink(segment, {"t": ("a",)}, ("t",))
        writing.write(pa.RecordBatch.from_pylist(rows, schema=FULL))
        result = writing.finish()
    assert result is not None
    assert [tuple(sighting)[:3] for sighting in result.sightings] == [(0, "t", "zz")]


@pytest.mark.parametrize("name", ["transaction_id", "entity_type", "primary_key", "operation"])
def test_a_text_that_is_not_utf8_is_refused_by_its_column(tmp_path: Path, name: str) -> None:
    """Spark takes any bytes for a string."""
    batch = pa.RecordBatch.from_pylist([row("1")], schema=INPUT)
    bad = pa.array([b"\xff"]).view(pa.string())
    batch = batch.set_column(INPUT.names.index(name), name, bad)
    path = segment_path(tmp_path, "a.arrow")
    with (
        SegmentWriter(path, fsync=False) as segment,
        pytest.raises(InvalidRequest, match=f"column {name} holds text that is not UTF-8"),
    ):
        RecordSink(segment, {}, rows_at_once=1).write(batch)


def test_a_segment_ends_behind_the_first_rows_with_new_columns(tmp_path: Path) -> None:
    """Which is written again for its schema records, and is small so; further columns end no other."""
    names = ["a", "a", "b", "a", "c"]
    batches = [
        pa.RecordBatch.from_pylist(
            [row(f"{place}{part}", after=f'{{"{name}":{place}}}') for part in "xy"], schema=INPUT
        )
        for place, name in enumerate(names)
    ]

    def write(name: str, known: dict[str, tuple[str, ...]], *, may_split: bool) -> SinkResult:
        with (
            SegmentWriter(segment_path(tmp_path, f"{name}.arrow"), fsync=False) as segment,
            SegmentWriter(segment_path(tmp_path, f"{name}-rest.arrow"), fsync=False) as rest,
        ):
            next_segment = (lambda: rest) if may_split else None
            writing = RecordSink(segment, known, next_segment=next_segment, rows_at_once=1)
            for batch in batches:
                writing.write(batch)
            result = writing.finish()
        assert result is not None
        return result

    def records(result: SinkResult) -> Rows:
        found: Rows = []
        start = 0
        for receipt in result.receipts:
            part = pa.ipc.open_file((tmp_path / receipt.path).read_bytes()).read_all().to_pylist()
            assert part[0]["version"] == 0
            found += [each | {"version": start + each["version"]} for each in part]
            start += receipt.transactions
        return found

    split = write("split", {}, may_split=True)
    whole = write("whole", {}, may_split=False)
    known = write("known", {"t": ("a", "b", "c")}, may_split=True)
    # What begins with a batch ends with the next, as more of its last transaction may follow.
    assert [each.transactions for each in split.receipts] == [1, 9]
    assert [len(each.receipts) for each in (whole, known)] == [1, 1]
    assert records(split) == records(whole) == records(known)
    assert split.sightings == whole.sightings
    assert [sighting.name for sighting in split.sightings] == [None, "a", "b", "c"]
    assert np.array_equal(split.transactions, whole.transactions)
