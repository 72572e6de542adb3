"""What the tests of Delta tables share: a shop with typed columns, tables read back, and what they must be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
from deltalake import DeltaTable

from tailrace.criteria import Operation
from tailrace_server.export.delta.export import DeltaExport, DeltaProgress, DeltaSettings
from tailrace_server.wal.base.reading import table_state
from tailrace_server.wal.catalog import open_catalog
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import SchemaMapping
from tailrace_server.wal.segment.reader import BatchReader

if TYPE_CHECKING:
    from pathlib import Path

MAPPING = SchemaMapping.parse(
    """
    [entity_types.item]
    key = ["id"]
    [entity_types.item.columns.id]
    type = "BIGINT"
    nullable = false
    [entity_types.item.columns.price]
    type = "INTEGER"
    """
)
Rows = list[dict[str, Any]]


def item(id: int, price: int | None, **more: Any) -> Mutation:
    return Mutation("item", str(id), after=orjson.dumps({"id": id, "price": price, **more}))


def gone(id: int) -> Mutation:
    """Return a row's removal, or its expiry, which is one to a table."""
    return Mutation("item", str(id), Operation.EXPIRE if id % 2 else Operation.REMOVE)


TRUNCATE = Mutation("item", None, Operation.REMOVE)


def open_shop(root: Path) -> LogWriter:
    return LogWriter.open(root, "shop", mapping=MAPPING)


def put(writer: LogWriter, *mutations: Mutation) -> None:
    """Write one transaction; its commit publishes it, unless a gate stands."""
    writer.append(list(mutations))
    writer.commit(publish=True)


def settings(root: Path, lake: Path, **more: Any) -> DeltaSettings:
    return DeltaSettings(**{"log": root, "catalog": "shop", "target": lake, **more})


def export(root: Path, lake: Path, **more: Any) -> DeltaProgress:
    """Bring the tables to what is published."""
    with DeltaExport.begin(settings(root, lake, **more)) as exporting:
        return exporting.advance()


def hows(progress: DeltaProgress) -> dict[str, str]:
    return {step.entity_type: step.how for step in progress.steps}


def lake_rows(folder: Path, version: int | None = None) -> Rows:
    """Return the rows of a Delta table, by key."""
    table = pa.table(DeltaTable(str(folder), version=version).scan())
    return sorted(table.to_pylist(), key=lambda row: row["_tailrace_key"])


def state_rows(root: Path, entity_type: str = "item", version: int | None = None) -> Rows:
    """Return the state of an entity type as its table must have it, for values that JSON has as they are."""
    view = open_catalog(root, "shop").view
    version = view.published if version is None else version
    names = [
        column.name
        for column in view.schema_of(version).entity_types[entity_type]
        if not column.dropped
    ]
    found: Rows = []
    with BatchReader(root / "shop") as reader:
        state = table_state(view, reader, entity_type, version)
        for rows in state.parts():
            for row, image in enumerate(rows.images.to_pylist()):
                values = orjson.loads(image)
                found.append(
                    {
                        "_tailrace_key": rows.primary_keys[row].as_py(),
                        "_tailrace_version": int(rows.versions[row]),
                        **({"_tailrace_count": int(rows.counts[row])} if state.counted else {}),
                        **{name: values.get(name) for name in names},
                    }
                )
    return sorted(found, key=lambda row: row["_tailrace_key"])
