"""Records by columns are those that `RecordBuilder` makes of the same transactions, one row after the other."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.schema import Origin
from tailrace_server.pipeline.catalog.columns import ColumnInference
from tailrace_server.pipeline.catalog.older_rows import OlderRows
from tailrace_server.pipeline.input.change import CHANGE, Change, FileSplit
from tailrace_server.pipeline.input.column_listing import listing
from tailrace_server.pipeline.sources.debezium.source import Debezium
from tailrace_server.pipeline.transactions import record_columns
from tailrace_server.pipeline.transactions.grouping import Released
from tailrace_server.pipeline.transactions.pieces import PLACED, rows_batch
from tailrace_server.pipeline.transactions.record_columns import ColumnarBuilder
from tailrace_server.pipeline.transactions.records import RecordBuilder
from tailrace_server.pipeline.transactions.tally import Tally, tally
from tailrace_server.wal.record.unavailable import PLACEHOLDER
from tests.support.compiled_loops import loops_used

IMAGES = [
    *(b'{"id":1,"n":%d}' % number for number in range(3)),
    *(b'{"id":1,"n":0.5}', b'{ "id":1 , "n":0}', b'{"n":0,"id":1}', b'{"id":1,"m":{"a":[1]}}'),
    *(b'{"id":1,"n":null}', b'{"id":1,"n":"\\u00e9\xc3\xa9"}', b'{"id":1,"\\u006e":1}', b"{}"),
    *(b'{"id":1,"n":0,"n":1}', b'{"id":1,"n":12345678901234567890}'),
    b'{"id":1,"n":"%b"}' % PLACEHOLDER.encode(),
]
LISTINGS = [
    listing([("id", "INTEGER", "json", False), ("n", *kind, True)], ("id",), Origin.DEBEZIUM)
    for kind in (("INTEGER", "json"), ("DECIMAL(9,2)", "decimal.bytes(2)"))
]
usual = st.sampled_from([False] * 9 + [True])


@st.composite
def changes(draw: st.DrawFn, key: str, line: int) -> Change:
    """Draw a change of any form; most are usual ones."""
    operation = draw(st.sampled_from(b"ccuuuudr" if not draw(usual) else b"t"))
    images = st.sampled_from(IMAGES[:3] if not draw(usual) else IMAGES)
    position = (0, line if not draw(usual) else draw(st.integers(0, 9)), 0)
    row = None if operation == ord("t") else draw(st.sampled_from("abc"))
    return Change(
        kind=CHANGE,
        place=FileSplit(draw(st.sampled_from("fffg"))).place(line, position),
        transaction=key,
        total_order=line if not draw(usual) else draw(st.integers(-1, 9)),
        entity_type=draw(st.sampled_from("tu")),
        operation=operation,
        primary_key=row,
        old_key=draw(st.sampled_from("abc")) if operation == ord("u") and draw(usual) else None,
        before=draw(st.none() | images) if operation in b"ud" else None,
        after=draw(images) if operation in b"cru" else None,
        source="pg:shop",
        log="pg:shop" if not draw(usual) else None,
        columns=draw(st.sampled_from(LISTINGS)) if draw(usual) else None,
    )


@st.composite
def commits(draw: st.DrawFn) -> list[tuple[Released, list[Change]]]:
    """Draw the transactions of a commit; some have no row."""
    found = []
    for number in range(draw(st.integers(1, 5))):
        rows = [draw(changes(str(number), 10 * number + n)) for n in range(draw(st.integers(0, 6)))]
        summary = tally(rows, 0.0).get(str(number), Tally(str(number)))
        found.append((Released(summary, draw(st.none() | st.just(1))), rows))
    return found


class Made:
    """A builder, with all that a task reports of its rows."""

    def __init__(self, *, checks_order: bool) -> None:
        self.columns = ColumnInference({"u": {"id": None}})
        older = OlderRows() if checks_order else None
        self.builder = RecordBuilder(self.columns, Debezium(), older=older)

    def reports(self) -> Any:
        """Return everything besides the records."""
        found = self.builder
        return found.updates, found.removals, self.columns.sightings, found.set_aside


@pytest.mark.slow
@given(commits(), st.booleans(), st.integers(1, 7), st.sampled_from([1, 40, 1 << 20]), st.data())
def test_records_by_columns_are_those_of_single_rows(
    commit: list[tuple[Released, list[Change]]],
    checks_order: bool,
    rows_per_table: int,
    slice_bytes: int,
    data: st.DataObject,
) -> None:
    """Also the columns, in their order, and the rows that go to quarantine."""
    single, columnar = Made(checks_order=checks_order), Made(checks_order=checks_order)
    expected = []
    for released, rows in commit:
        single.builder.add(released, rows)
        expected += single.builder.take().to_pylist()
    records = ColumnarBuilder(
        columnar.builder, columnar.columns, Debezium().unavailable, checks_order=checks_order
    )
    found: list[Any] = []
    # Tasks get the rows of chunks of transactions, in tables that are sorted by version.
    cut = data.draw(st.integers(0, len(commit)))
    with loops_used(True), pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_columns, "_SLICE_BYTES", slice_bytes)
        for start, some in ((0, commit[:cut]), (cut, commit[cut:])):
            placed = [
                (change, version + 7)
                for version, (_, rows) in enumerate(some, start)
                for change in data.draw(st.permutations(rows))
            ]
            tables = []
            for at in range(0, len(placed), rows_per_table):
                part, versions = zip(*placed[at : at + rows_per_table], strict=True)
                tables.append(
                    rows_batch(part).append_column(
                        PLACED.field("version"), pa.array(versions, pa.int64())
                    )
                )
            plans = [released for released, _ in some]
            for table in records.tables(plans, tables, start + 7):
                found += table.to_pylist()
    assert found == expected
    assert columnar.reports() == single.reports()
