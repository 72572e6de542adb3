"""Statements that create, alter or drop views and change tables, and the answers of SHOW, DESCRIBE and EXPLAIN.

`Definer` checks a definition against the log before it writes the definition.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa

from tailrace.errors import InvalidRequest
from tailrace.errors.requests import nearest
from tailrace_server.filters.binding import bind
from tailrace_server.filters.parsing import parse, sql_text
from tailrace_server.sql.ddl import (
    AlterChangeTable,
    CreateChangeTable,
    CreateView,
    Drop,
    WrittenName,
)
from tailrace_server.sql.defined_names import DefinedNames, kind_of, matching
from tailrace_server.sql.shown import CDC_JSON
from tailrace_server.sql.view_conditions import with_columns
from tailrace_server.units import counted, format_seconds
from tailrace_server.wal.files.sequence_documents import ChangeTableDocument, ViewDocument
from tailrace_server.wal.sequences.definitions import change_definitions
from tailrace_server.wal.sequences.settings import MAX_LOOKBACK, newest_settings
from tailrace_server.wal.sequences.subscriptions import SubscriptionSequences

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tailrace.schema import Column
    from tailrace_server.sql.ddl import Show
    from tailrace_server.sql.defined_names import Definition
    from tailrace_server.sql.scans import StatementScan
    from tailrace_server.wal.files.object_store import ObjectStore
    from tailrace_server.wal.sequences.definitions import Definitions
    from tailrace_server.wal.state.view import LogView

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*", re.ASCII)
_NAME_MAX: Final = 128
_MICROS: Final = 1_000_000


class Definer:
    """Runs the statements that change definitions, for one catalog. Its methods block."""

    def __init__(
        self,
        store: ObjectStore,
        view: LogView,
        now: int,
        readers_of: Callable[[str], int] = lambda name: 0,
    ) -> None:
        """Bind to a catalog.

        Args:
            store: The catalog's objects.
            view: The catalog's log.
            now: The time, in µs since the epoch.
            readers_of: Returns the number of subscriptions that read a view now; a view with readers is not
                dropped.
        """
        self._store, self._view, self._now = store, view, now
        self._readers_of = readers_of

    def run(self, statement: CreateView | CreateChangeTable | AlterChangeTable | Drop) -> str:
        """Run a statement; return a sentence that says what was done.

        Raises:
            InvalidRequest: The definition is not possible; the message says why.
            LogError: The definitions could not be read or written.
        """

        # Called again with newer definitions if another process has changed them at the same time.
        def decide(definitions: Definitions) -> Definitions:
            names = DefinedNames(self._view, self._view.schema_of, definitions)
            match statement:
                case CreateView():
                    return self._with_view(statement, names)
                case CreateChangeTable():
                    return self._with_change_table(statement, names)
                case AlterChangeTable():
                    return self._altered(statement, names)
                case Drop():
                    return self._without(statement, names)

        before, after = change_definitions(self._store, self._view.uuid, decide, self._now)
        is_view = isinstance(statement, CreateView) or (
            isinstance(statement, Drop) and statement.is_view
        )
        what = f"{'view' if is_view else 'change table'} {statement.name}"
        if before == after:
            return f"nothing to do: {what} is {'not ' * isinstance(statement, Drop)}there"
        done = {Drop: "dropped", AlterChangeTable: "altered"}.get(type(statement), "created")
        return f"{what} {done}"

    def _with_view(self, statement: CreateView, names: DefinedNames) -> Definitions:
        if statement.if_not_exists and statement.name in names.definitions.views:
            return names.definitions
        _check_new(statement.name, names)
        entity_type = names.entity_type(statement.of.text, quoted=statement.of.quoted)
        if entity_type is None:
            other = names.definition(statement.of.text, quoted=statement.of.quoted)
            if other is None:
                raise names.unknown(statement.of.text)
            raise InvalidRequest(
                f"a view must be on an entity type, but {statement.of.text} is a {kind_of(other)}: name its "
                "entity type, and write its columns and its condition here"
            )
        columns = names.schema.columns(entity_type)
        shown = [_column(each, columns, entity_type) for each in statement.columns]
        if repeated := [each for each in shown if shown.count(each) > 1]:
            raise InvalidRequest(f"column {repeated[0]!r} is given twice")
        where = statement.where
        if where:
            # SQL ignores the case of names and filters do not: store the names as the schema writes them.
            tree = with_columns(
                where,
                lambda name, quoted: _column(WrittenName(name, quoted), columns, entity_type),
            )
            where = sql_text(tree, "postgres")
            # Refuse now a condition that no reader of the view could evaluate.
            bind(parse(where), columns, {})
        view = ViewDocument(
            statement.name, entity_type, self._view.published, shown, where, self._now
        )
        return names.definitions.with_view(view)

    def _with_change_table(self, statement: CreateChangeTable, names: DefinedNames) -> Definitions:
        known = names.definitions.change_tables.get(statement.name)
        if known is not None and statement.if_not_exists:
            return names.definitions
        _check_new(statement.name, names)
        source, of_view = self._source(statement.on, names)
        images, lookback = statement.options.images, statement.options.lookback_us
        self._check_lookback(lookback or 0)
        table = ChangeTableDocument(
            statement.name,
            source,
            of_view,
            self._view.published,
            list(("CHANGE",) if images is None else images),
            lookback or 0,
            self._now,
            statement.options.salt_buckets or 1,
        )
        return names.definitions.with_change_table(table)

    def _source(self, on: WrittenName, names: DefinedNames) -> tuple[str, bool]:
        """Return the name of the table below a change table, and True if that is a view."""
        definition = names.definition(on.text, quoted=on.quoted)
        if isinstance(definition, ViewDocument):
            return definition.name, True
        if definition is not None:
            raise InvalidRequest(
                f"{definition.name} is a change table: create this one on an entity type or a view"
            )
        entity_type = names.entity_type(on.text, quoted=on.quoted)
        if entity_type is None:
            raise names.unknown(on.text)
        return entity_type, False

    def _altered(self, statement: AlterChangeTable, names: DefinedNames) -> Definitions:
        table = names.change_tables.get(statement.name)
        if table is None:
            raise _unknown("change table", statement.name, names.change_tables)
        options = statement.options
        if options.images is not None:
            table = msgspec.structs.replace(table, images=list(options.images))
        if options.salt_buckets is not None:
            table = msgspec.structs.replace(table, salt_buckets=options.salt_buckets)
        if options.lookback_us is not None:
            self._check_lookback(options.lookback_us)
            table = msgspec.structs.replace(table, lookback_us=options.lookback_us)
        return names.definitions.with_change_table(table)

    def _without(self, statement: Drop, names: DefinedNames) -> Definitions:
        kind = "view" if statement.is_view else "change table"
        known: Mapping[str, Definition] = names.views if statement.is_view else names.change_tables
        found = known.get(statement.name)
        if found is None:
            # A hint at the other kind helps more than "there is no view".
            taken = names.taken_by(statement.name)
            if taken is not None and taken != f"a {kind}":
                raise InvalidRequest(f"{statement.name} is {taken}, not a {kind}")
            if statement.if_exists:
                return names.definitions
            raise _unknown(kind, statement.name, known)
        if isinstance(found, ViewDocument):
            _refuse_needed(found.name, names)
            self._refuse_read(found.name)
        elif statement.on is not None:
            on = found.source if found.of_view else names.entity_type_of(found)
            if statement.on.text.lower() != on.lower():
                raise InvalidRequest(f"{found.name} is on {on}, not on {statement.on.text}")
        return names.definitions.without(found.name)

    def _refuse_read(self, view: str) -> None:
        """Raise if subscriptions read a view now, or if a named subscription needs the view."""
        if readers := self._readers_of(view):
            raise InvalidRequest(
                f"view {view} is in use by {counted(readers, 'subscription')}: end them before it"
            )
        # A named subscription needs the view even while it has no reader.
        sequences = SubscriptionSequences(Path(self._view.name), self._view.uuid, self._store)
        users = [
            each.name
            for each in sequences.all()
            if any(view in one.entity_type for one in each.criteria)
        ]
        if users:
            raise InvalidRequest(
                f"view {view} is needed by the named subscription {', '.join(users)}: delete it before the view"
            )

    def _check_lookback(self, lookback: int) -> None:
        """Raise if a lookback exceeds the catalog's ``max_lookback``.

        The log does not retain changes for longer.
        """
        kept = newest_settings(self._store, self._view.uuid).settings.get(MAX_LOOKBACK)
        if kept is not None and lookback > kept:
            raise InvalidRequest(
                f"MAX_LOOKBACK is {format_seconds(lookback / _MICROS)}, but the catalog allows at most "
                f"{format_seconds(kept / _MICROS)}: use less, or raise its limit with tailrace catalog set "
                f"{self._view.name} {MAX_LOOKBACK}=…"
            )


def _refuse_needed(view: str, names: DefinedNames) -> None:
    """Raise if a change table is on a view that is to be dropped."""
    tables = names.definitions.change_tables.values()
    users = [each.name for each in tables if each.of_view and each.source == view]
    if users:
        raise InvalidRequest(
            f"view {view} is needed by {', '.join(users)}: DROP CDC {users[0]} before it"
        )


def _check_new(name: str, names: DefinedNames) -> None:
    if _NAME.fullmatch(name) is None or len(name) > _NAME_MAX:
        raise InvalidRequest(
            f"{name[:80]!r} is not a valid name: use letters, digits and underscores, begin with a letter or "
            f"underscore, and use at most {_NAME_MAX} characters; dots may join such names"
        )
    taken = names.taken_by(name)
    if taken is not None:
        raise InvalidRequest(f"{name} is already the name of {taken}: choose another name")


def _column(written: WrittenName, columns: Sequence[Column], entity_type: str) -> str:
    """Return the schema's name of a column that a view names."""
    known = [each.name for each in columns]
    found = matching("column", written.text, known, quoted=written.quoted)
    if found is None:
        raise InvalidRequest(
            f"{entity_type} has no column {written.text!r}{nearest(written.text, known)}"
        )
    return found


def _unknown(kind: str, name: str, known: Iterable[str]) -> InvalidRequest:
    return InvalidRequest(f"there is no {kind} {name!r}{nearest(name, known)}")


_TIME: Final = pa.timestamp("us", "UTC")


def shown(statement: Show, names: DefinedNames) -> pa.Table:
    """Return the answer of a SHOW statement."""
    return {"TABLES": _tables, "VIEWS": _views, "CDC": _change_tables}[statement.what](names)


def described(
    fields: pa.Schema, columns: Iterable[Column], table: ChangeTableDocument | None
) -> pa.Table:
    """Return the columns of a table, and for a change table its options.

    Args:
        fields: The columns as a statement returns them.
        columns: The columns of the entity type.
        table: The change table; None: another table.
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
    """Return the options in a CREATE CDC statement that makes an equal change table."""
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
            # A grant on only the view must not reveal names of columns that the view does not show.
            shown = names.columns_of(view, names.view.published).shown
            outer = {inside: name for name, inside in shown.items()}
            key_columns = tuple(outer[name] for name in key_columns if name in outer)
        found.append((view.name, "view", count, ", ".join(key_columns)))
    for table in names.change_tables.values():
        key = keys[names.entity_type_of(table)]
        # Its columns are the time, the JSON, and those of the key.
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
            # The condition of a view that is granted by its own name may name hidden columns.
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
    """Return the line of EXPLAIN about a scan: the table, the part that is read, and the fraction of the log.

    Raises:
        TailraceError: The log could not be read: without key files this reads the heads of batches.
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
