"""Which columns a partition reports. That rows and batches of any cut report the same: `test_sink`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tailrace_server.pipeline.dataframe.input_rows import columns_named, input_table
from tailrace_server.pipeline.dataframe.new_columns import NewColumns
from tailrace_server.pipeline.dataframe.transactions import Transactions

if TYPE_CHECKING:
    from tailrace_server.pipeline.catalog.columns import Sighting


def observe(
    columns: NewColumns, *rows: tuple[str, str, str | None, list[str] | None], version: int = 0
) -> list[Sighting]:
    """Observe upserts, each a transaction, as (entity type, after, change, changed)."""
    types, after, change, changed = zip(*rows, strict=True)
    table = input_table(
        pa.RecordBatch.from_pydict(
            {
                "transaction_id": pa.nulls(len(rows), pa.string()),
                "operation": pa.array([1] * len(rows)),
                "entity_type": pa.array(types),
                "primary_key": pa.array(["1"] * len(rows)),
                "after": pa.array(after, pa.string()),
                "change": pa.array(change, pa.string()),
                "changed": pa.array(changed, pa.list_(pa.string())),
            }
        )
    )
    column = {name: table.column(name).chunk(0) for name in table.column_names}
    operations = np.ones(len(rows), np.int64)
    named = columns_named(table, column["changed"])
    before = len(columns.sightings)
    columns.observe(column, operations, Transactions(table), named, version)
    return columns.sightings[before:]


def test_each_column_is_reported_once_with_the_first_version_that_shows_it() -> None:
    columns = NewColumns({"known": ("a",)}, ())
    found = observe(
        columns,
        ("known", '{"a":1}', None, None),
        ("new", '{"a":1}', None, None),
        ("known", '{"a":1,"b":2}', None, None),
        ("new", '{"a":1}', '{"c":1}', None),
        ("known", '{"a":1}', None, ["d"]),
        version=10,
    )
    assert [(each.version, each.entity_type, each.name) for each in found] == [
        (11, "new", None),
        (11, "new", "a"),
        (12, "known", "b"),
        (13, "new", "c"),
        (14, "known", "d"),
    ]
    assert observe(columns, ("new", '{"a":1,"c":2}', None, None), version=20) == []


def test_a_declared_type_is_not_inspected_and_a_multiplicity_names_no_column() -> None:
    columns = NewColumns({"given": ("a",), "counted": ("a",)}, ("given",))
    rows = [("given", '{"z":1}', None, None), ("counted", '{"a":1}', '{"diff":2}', None)]
    assert observe(columns, *rows) == []
