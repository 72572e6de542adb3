"""What SHOW answers: the tables of a log, its views and its change tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tailrace_server.units import format_seconds

if TYPE_CHECKING:
    from tailrace_server.sql.ddl import Show
    from tailrace_server.sql.defined_names import DefinedNames

_MICROS: Final = 1_000_000
_TIME: Final = pa.timestamp("us", "UTC")


def shown(statement: Show, names: DefinedNames) -> pa.Table:
    """Return what there is of a kind."""
    return {"TABLES": _tables, "VIEWS": _views, "CDC": _change_tables}[statement.what](names)


def _tables(names: DefinedNames) -> pa.Table:
    types = names.schema.entity_types
    keys = {name: ", ".join(names.schema.key_columns(name)) for name in types}
    found = [(name, "entity type", len(columns), keys[name]) for name, columns in types.items()]
    for view in names.views.values():
        entity_type = names.entity_type_of(view)
        count = len(view.columns) or len(names.schema.columns(entity_type))
        found.append((view.name, "view", count, keys[entity_type]))
    for table in names.change_tables.values():
        key = keys[names.entity_type_of(table)]
        found.append((table.name, "change table", 2 + len(key.split(", ")), key))
    columns = [*zip(*found, strict=True)] or [()] * 4
    return pa.table(
        {
            "table": pa.array(columns[0], pa.string()),
            "kind": pa.array(columns[1], pa.string()),
            "columns": pa.array(columns[2], pa.int32()),
            "key": pa.array(columns[3], pa.string()),
        }
    )


def _views(names: DefinedNames) -> pa.Table:
    views = names.views.values()
    return pa.table(
        {
            "view": pa.array([each.name for each in views], pa.string()),
            "of": pa.array([names.entity_type_of(each) for each in views], pa.string()),
            "columns": pa.array([", ".join(each.columns) or "*" for each in views], pa.string()),
            "where": pa.array([each.where for each in views], pa.string()),
            "created": pa.array([each.created for each in views], _TIME),
        }
    )


def _change_tables(names: DefinedNames) -> pa.Table:
    tables = names.change_tables.values()
    on = [each.source if each.of_view else names.entity_type_of(each) for each in tables]
    lookback = [
        format_seconds(each.lookback_us / _MICROS) if each.lookback_us else "" for each in tables
    ]
    return pa.table(
        {
            "change_table": pa.array([each.name for each in tables], pa.string()),
            "on": pa.array(on, pa.string()),
            "include": pa.array([", ".join(each.images) for each in tables], pa.string()),
            "max_lookback": pa.array(lookback, pa.string()),
            "salt_buckets": pa.array([each.salt_buckets for each in tables], pa.int32()),
            "created": pa.array([each.created for each in tables], _TIME),
        }
    )
