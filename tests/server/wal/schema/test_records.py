"""Schema records put into segments that were written without them."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pytest

from tailrace.criteria import Area, Operation
from tailrace.schema import Column, Schema
from tailrace_server.wal.schema.records import insert_schema_records
from tailrace_server.wal.segment import writer as segment_writer
from tailrace_server.wal.segment.writer import SegmentReceipt, SegmentWriter
from tests.server.wal.logs import segment_path

if TYPE_CHECKING:
    from pathlib import Path

Record = dict[str, Any]

TRANSACTIONS = 9_000
"""Of three records and a lead: five batches."""
ROWS = 4
BATCH_ROWS = 2_048 * ROWS
SCHEMAS = [Schema(n, {"t": tuple(Column(f"c{i}", id=i + 1) for i in range(n))}) for n in range(4)]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_writer, "BATCH_ROWS_MAX", BATCH_ROWS)


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    count = TRANSACTIONS * ROWS
    is_lead = [row % ROWS == 0 for row in range(count)]
    lead = b'{"mutation_count":3,"counts":{"t":3},"source_count":3}'
    return pa.table(
        {
            "version": pa.array([row // ROWS for row in range(count)], pa.int64()),
            "index": pa.array([row % ROWS for row in range(count)], pa.int32()),
            "area": pa.array(
                [Area.INFRASTRUCTURE if each else Area.DATA for each in is_lead], pa.uint8()
            ),
            "operation": pa.array(
                [Operation.TRANSACTION if each else Operation.UPSERT for each in is_lead],
                pa.uint8(),
            ),
            "entity_type": pa.array([None if each else "t" for each in is_lead]),
            "primary_key": pa.array([None if is_lead[r] else str(r) for r in range(count)]),
            "after": pa.array(
                [lead if is_lead[row] else b'{"id":%d}' % row for row in range(count)], pa.binary()
            ),
        }
    )


def written(catalog: Path, rows: pa.Table) -> SegmentReceipt:
    with SegmentWriter(segment_path(catalog, "a.arrow"), fsync=False) as writer:
        writer.write(rows)
        return writer.close()


def records(path: Path) -> list[Record]:
    with pa.OSFile(str(path)) as file, pa.ipc.open_file(file) as reader:
        assert reader.num_record_batches > 4
        table: pa.Table = reader.read_all()
    found: list[Record] = table.to_pylist()
    return found


@pytest.mark.parametrize(
    "versions",
    [[0], [TRANSACTIONS - 1], [2_047, 2_048], [2_048, 4_095, 4_096], [1, 2, 3], [5_000]],
    ids=str,
)
def test_they_stand_behind_the_leads_of_their_versions_and_nothing_else_has_moved(
    tmp_path: Path, rows: pa.Table, versions: list[int]
) -> None:
    before = written(tmp_path, rows)
    told = [(version, SCHEMAS[n]) for n, version in enumerate(versions, 1)]
    [receipt] = insert_schema_records(tmp_path, [before], SCHEMAS[0], told)

    assert receipt.rows == before.rows + len(versions)
    assert receipt.counts == {"t": 3 * TRANSACTIONS + len(versions)}
    assert not (tmp_path / before.path).exists()
    original = rows.to_pylist()
    for version, group in groupby(records(tmp_path / receipt.path), key=lambda r: r["version"]):
        lead, *others = group
        own = 1 if version in versions else 0
        assert [each["index"] for each in others] == list(range(1, ROWS + own))
        document = orjson.loads(lead["after"])
        assert (document["mutation_count"], document["counts"]) == (3 + own, {"t": 3 + own})
        assert document.get("schema_changes", 0) == own
        if own:
            record = others.pop(0)
            assert (record["area"], record["entity_type"]) == (Area.SCHEMA, "t")
            columns = [column["name"] for column in orjson.loads(record["after"])["columns"]]
            assert columns == [f"c{i}" for i in range(versions.index(version) + 1)]
        texts = [(each["primary_key"], each["after"]) for each in others]
        first = version * ROWS + 1
        assert texts == [
            (each["primary_key"], each["after"]) for each in original[first : first + 3]
        ]


def test_a_segment_in_which_no_schema_begins_is_left_as_it_is(
    tmp_path: Path, rows: pa.Table
) -> None:
    receipt = written(tmp_path, rows)
    later = [(TRANSACTIONS, SCHEMAS[1])]
    assert insert_schema_records(tmp_path, [receipt], SCHEMAS[0], later) == [receipt]
    assert (tmp_path / receipt.path).exists()
