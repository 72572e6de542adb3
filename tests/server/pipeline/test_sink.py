"""Rows of a DataFrame as records, against rows put together one by one."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.sink import RecordSink
from tailrace_server.wal.segment import SegmentWriter

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace_server.pipeline.sink import SinkResult

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
    """Write batches; return the records and what was reported."""
    path = folder / "segments" / "1" / "a.arrow"
    path.unlink(missing_ok=True)
    with SegmentWriter(path, fsync=False) as segment:
        writing = RecordSink(segment, known or {})
        for batch in batches:
            writing.write(pa.RecordBatch.from_pylist(batch, schema=schema))
        result = writing.finish()
    if result is None:
        return [], None
    records: Rows = pa.ipc.open_file(path.read_bytes()).read_all().to_pylist()
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


TRANSACTIONS = st.lists(
    st.lists(
        st.builds(
            row,
            st.none(),
            st.none() | st.text(max_size=12),
            st.sampled_from(["t", "u", "größe", *(f"type{n}" for n in range(20))]),
            st.sampled_from(["upsert", "remove"]),
            st.none() | st.just('{"id":1,"x":"ü"}'),
            st.sampled_from([None, '{"id":1}', '{"id":1,"y":{"z":[1]}}', '{"b":0.10}']),
        ),
        min_size=1,
        max_size=5,
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
        seen.extend(name for name in orjson.loads(image or "{}") if name not in seen)
    found: dict[str, list[str]] = {}
    for sighting in result.sightings if result else ():
        names = found.setdefault(sighting.entity_type, [])
        if sighting.name is not None:
            names.append(sighting.name)
    assert found == columns


def test_the_difference_of_images_is_told_where_it_is_not_given(tmp_path: Path) -> None:
    records, _ = sink(
        tmp_path,
        [row("1", before='{"id":1,"n":0.10,"s":"a"}', after='{"id":1,"n":1e2,"s":"a"}'), row("1")],
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
    given_lead = row("1", None, None, "transaction", after='{"mine":true}')
    records, _ = sink(tmp_path, [given_lead, row("1"), row("2")])
    assert [(r["version"], r["index"]) for r in records] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert records[0]["after"] == b'{"mine":true}'
    assert records[0]["area"] == 3


def test_a_transaction_goes_on_over_batches(tmp_path: Path) -> None:
    records, result = sink(tmp_path, [row("1")], [row("1"), row("1")], [row("1"), row("2")])
    assert [body["mutation_count"] for body in leads(records)] == [4, 1]
    assert result is not None
    assert (result.first_id, result.last_id) == ("1", "2")


def test_known_columns_are_not_reported(tmp_path: Path) -> None:
    _, result = sink(tmp_path, [row("1"), row("2", after='{"id":1,"n":2}')], known={"t": ("id",)})
    assert result is not None
    assert [tuple(s) for s in result.sightings] == [(1, "t", "n", None, None)]


@pytest.mark.parametrize(
    ("rows", "schema", "message"),
    [
        ([row("1", operation="upset")], INPUT, "column operation"),
        ([row("1"), row("1", operation="transaction")], INPUT, "must be the first"),
        ([row("1", after="[1]")], INPUT, "not a JSON object"),
        ([row("1", after='{"id":')], INPUT, "not a JSON object"),
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
