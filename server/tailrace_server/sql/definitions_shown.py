"""The answers of SHOW, DESCRIBE and EXPLAIN: tables, views, change tables, columns, the cost of a scan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tailrace_server.sql.shown import CDC_JSON
from tailrace_server.units import counted, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace.schema import Column
    from tailrace_server.sql.ddl import Show
    from tailrace_server.sql.defined_names import DefinedNames
    from tailrace_server.sql.scans import StatementScan
    from tailrace_server.wal.files.sequence_documents import ChangeTableDocument

_MICROS: Final = 1_000_000
_TIME: Final = pa.timestamp("us", "UTC")


def shown(statement: Show, names: DefinedNames) -> pa.Table:
    """Return what there is of a kind."""
    return {"TABLES": _tables, "VIEWS": _views, "CDC": _change_tables}[statement.what](names)


def described(
    fields: pa.Schema, columns: Iterable[Column], table: ChangeTableDocument | None
) -> pa.Table:
    """Return what the columns of a table are, and of a change table what its definition says.

    Args:
        fields: The columns as a statement gives them.
        columns: Those of the entity type.
        table: The change table; None: it is none.
    """
    known = {column.name: column for column in columns}
    types = [known[name].sql_type if name in known else None for name in fields.names]
    keys = [name in known and bool(known[name].key) for name in fields.names]
    found = {
        "column": pa.array(fields.names, pa.string()),
        "type": pa.array([str(each.type) for each in fields], pa.string()),
        "sql_type": pa.array(types, pa.string()),
        "key": pa.array(keys, pa.bool_()),
    }
    if table is not None:
        options = [_options(table) if name == CDC_JSON else None for name in fields.names]
        found["options"] = pa.array(options, pa.string())
    return pa.table(found)


def _options(table: ChangeTableDocument) -> str:
    """Return the CREATE CDC statement that makes the same."""
    lookback = f"MAX_LOOKBACK = '{_lookback(table)}', " if table.lookback_us else ""
    return f"INCLUDE ({', '.join(table.images)}), {lookback}SALT_BUCKETS = {table.salt_buckets}"


def _lookback(table: ChangeTableDocument) -> str:
    return format_seconds(table.lookback_us / _MICROS) if table.lookback_us else ""


def _tables(names: DefinedNames) -> pa.Table:
    types = names.schema.entity_types
    keys = {name: ", ".join(names.schema.key_columns(name)) for name in types}
    found = [(name, "entity type", len(columns), keys[name]) for name, columns in types.items()]
    for view in names.views.values():
        entity_type = names.entity_type_of(view)
        schema = names.schema_at(view, names.view.published)
        count = len(view.columns) or len(schema.columns(entity_type))
        key_columns = schema.key_columns(entity_type)
        if view.name in names.through and view.columns:
            # Whoever is granted the view alone learns no name of a column that it does not show.
            shown = names.columns_of(view, names.view.published).shown
            outer = {inside: name for name, inside in shown.items()}
            key_columns = tuple(outer[name] for name in key_columns if name in outer)
        found.append((view.name, "view", count, ", ".join(key_columns)))
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
            # The condition of one that is granted by its name may name what is hidden.
            "where": pa.array(
                [None if each.name in names.through else each.where for each in views], pa.string()
            ),
            "created": pa.array([each.created for each in views], _TIME),
        }
    )


def _change_tables(names: DefinedNames) -> pa.Table:
    tables = names.change_tables.values()
    on = [each.source if each.of_view else names.entity_type_of(each) for each in tables]
    return pa.table(
        {
            "change_table": pa.array([each.name for each in tables], pa.string()),
            "on": pa.array(on, pa.string()),
            "include": pa.array([", ".join(each.images) for each in tables], pa.string()),
            "max_lookback": pa.array([_lookback(each) for each in tables], pa.string()),
            "salt_buckets": pa.array([each.salt_buckets for each in tables], pa.int32()),
            "created": pa.array([each.created for each in tables], _TIME),
        }
    )


def line_of(scan: StatementScan) -> str:
    """Return the line of EXPLAIN about a scan: the table, the part that is read, and its share of the log.

    Raises:
        TailraceError: The log could not be read; without key files this reads heads.
    """
    use = scan.use
    if use.changes is None:
        what = f"state of {use.entity_type} as of version {use.version}"
    else:
        first, last = use.versions.both(use.changes)
        what = f"changes of {use.entity_type}, " + (
            f"versions {first} to {last}" if first <= last else "no versions"
        )
        if use.change_types is not None:
            what += f"; {', '.join(sorted(use.change_types)) or 'none'} alone"
    keys = "all keys" if use.keys is None else counted(len(use.keys), "key")
    columns = ", ".join(scan.schema.names)
    line = f"{use.alias}: {what}; {keys}; columns {columns}"
    if use.form is not None and use.form.salt_buckets > 1:
        line += f"; {use.form.salt_buckets} scans at once"
    amount = scan.amount()
    if amount is None:
        return line
    base = "" if not amount.base else f"a base of version {amount.base} and "
    read = (
        f"reads {base}{amount.batches:,} of {counted(amount.all_batches, 'batch', 'batches')}, "
        f"at most {amount.bytes:,} of {amount.all_bytes:,} bytes"
    )
    return f"{line}; {read}"
