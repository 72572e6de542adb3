"""Views and change tables in a statement, put in terms of entity types before its tables are looked up.

::

    FROM cheap          (SELECT id, name, _primary_key, … FROM product) AS cheap
    FROM product_cdc    (SELECT _commit_timestamp AS "PHOENIX_ROW_TIMESTAMP()", id, "CDC JSON"
                         FROM CHANGES('product')) AS product_cdc

The scan of a view gives the rows that meet its condition and no others, so DuckDB never evaluates one. Beside
that the functions of Apache Phoenix that its change tables are asked with become what DuckDB has.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sqlglot import exp
from sqlglot.optimizer.scope import traverse_scope

from tailrace.errors import InvalidRequest
from tailrace_server.filters.parsing import parse
from tailrace_server.filters.tree import renamed
from tailrace_server.sql.ddl import image_names
from tailrace_server.sql.shown import (
    CDC_JSON,
    OF_VIEW,
    ROW_TIMESTAMP,
    ROWS_MET,
    SHOWN,
    THROUGH,
    RowsMet,
    ShownChanges,
)
from tailrace_server.sql.statements import SPANS
from tailrace_server.sql.typed_rows import MISFITS, own_columns
from tailrace_server.wal.files.sequence_documents import ChangeTableDocument, ViewDocument
from tailrace_server.wal.sequences.settings import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tailrace_server.sql.defined_names import DefinedNames, Definition

_HINT: Final = re.compile(r"\+\s*(\w+)\s*(?:\(([^)]*)\))?\s*", re.ASCII)
_HINT_NAME: Final = "CDC_INCLUDE"
_CHANGES: Final = "CHANGES"
_DATE_PARTS: Final = {
    "yyyy": "%Y",
    "MM": "%m",
    "dd": "%d",
    "HH": "%H",
    "mm": "%M",
    "ss": "%S",
    "SSS": "%g",
}
"""Of Java's patterns, as DuckDB has them."""


def expand(
    query: exp.Query,
    names: DefinedNames,
    wanted: frozenset[str] | None,
    version_of: Callable[[exp.Expr], int],
    now: int,
    *,
    with_misfits: bool,
) -> None:
    """Put what is defined in terms of entity types; changes the query.

    Args:
        query: The statement.
        names: What its names mean.
        wanted: Names in it, in lower case; None: it may mean any column.
        version_of: Returns the version that a constant means: a version, or the last one up to a time.
        now: When it began, µs since the epoch.
        with_misfits: True if tables have the column ``_misfits``.

    Raises:
        InvalidRequest: A view or a change table is asked for what it has not.
    """
    hints = _Hints(query)
    own = own_columns(of_changes=False, with_misfits=with_misfits)
    places = _places(query, names)
    _functions(query, places)
    for table, definition in places:
        if isinstance(definition, ViewDocument):
            _expand_view(table, definition, names, wanted, own, version_of)
        else:
            _expand_change_table(table, definition, names, hints.images_at(table), wanted, now, own)
    hints.refuse_unused()


def _places(query: exp.Query, names: DefinedNames) -> list[tuple[exp.Table, Definition]]:
    """Return the places that read what is defined."""
    found: dict[int, tuple[exp.Table, Definition]] = {}
    for scope in traverse_scope(query):
        for table in scope.sources.values():
            if not isinstance(table, exp.Table):
                continue
            if isinstance(table.this, exp.Func):
                _expand_changes(table, names)
                continue
            parts = table.parts
            written = ".".join(part.name for part in parts)
            quoted = any(part.args.get("quoted") for part in parts)
            definition = names.definition(written, quoted=quoted)
            if definition is not None:
                found[id(table)] = table, definition
    return list(found.values())


def _expand_changes(table: exp.Table, names: DefinedNames) -> None:
    """Put the changes of a view as those of its entity type, with the view beside them."""
    arguments = table.this.expressions
    if table.this.name.upper() != _CHANGES or not arguments or not arguments[0].is_string:
        return
    definition = names.definition(arguments[0].name, quoted=True)
    if isinstance(definition, ChangeTableDocument):
        raise InvalidRequest(
            f"CHANGES is of an entity type or a view, and {definition.name} is a change table: read "
            f"{definition.name} itself"
        )
    if definition is not None:
        found = names.columns_of(definition, names.view.published)  # refuses where one is dropped
        arguments[0].replace(exp.Literal.string(found.entity_type))
        table.meta[OF_VIEW] = definition
        table.meta[THROUGH] = definition.name


class _Hints:
    """The hints in a statement: which images its change tables show."""

    def __init__(self, query: exp.Query) -> None:
        self._images: dict[int, tuple[str, ...]] = {}
        self._used: set[int] = set()
        for node in query.walk():
            for comment in node.comments or ():
                if comment.startswith("+"):
                    self._images[id(node)] = _hint(node, comment)

    def images_at(self, table: exp.Table) -> tuple[str, ...] | None:
        """Return the images that the nearest SELECT around a table asks for; None: those of its definition."""
        node = table.parent
        while node is not None:
            if id(node) in self._images:
                self._used.add(id(node))
                return self._images[id(node)]
            node = node.parent
        return None

    def refuse_unused(self) -> None:
        """Refuse a hint that no change table heeds."""
        if self._images.keys() - self._used:
            raise InvalidRequest(f"{_HINT_NAME} stands in a SELECT that reads no change table")


def _hint(node: exp.Expr, comment: str) -> tuple[str, ...]:
    match = _HINT.fullmatch(comment)
    if match is None or match[1].upper() != _HINT_NAME or match[2] is None:
        raise InvalidRequest(
            f"/*{comment}*/: the one hint that there is, is /*+ {_HINT_NAME}(PRE, POST, CHANGE) */"
        )
    if not isinstance(node, exp.Select):
        raise InvalidRequest(f"/*{comment}*/: a hint stands right behind SELECT")
    return image_names(
        (each.strip() for each in match[2].split(",") if each.strip()), f"/*{comment}*/"
    )


# Views.


def _expand_view(
    table: exp.Table,
    view: ViewDocument,
    names: DefinedNames,
    wanted: frozenset[str] | None,
    own: Iterable[str],
    version_of: Callable[[exp.Expr], int],
) -> None:
    version = names.view.published
    at = table.args.get("version") or table.args.get("when")
    if at is not None and at.args.get("kind") not in SPANS:
        version = version_of(at.expression)
    found = names.columns_of(view, version)
    inner = exp.Table(this=exp.to_identifier(found.entity_type, quoted=True))
    inner.meta[THROUGH] = view.name
    for part in ("version", "when"):
        inner.set(part, table.args.get(part))
    columns = found.shown | {name: name for name in own if name not in found.shown}
    # No value of a column that the statement does not name is looked at, whether it fits its type or not.
    # PHOENIX_ROW_TIMESTAMP() names the time.
    shown = [
        exp.alias_(_column(inside), name, quoted=True)
        for name, inside in columns.items()
        if wanted is None or name == "_commit_timestamp" or name.lower() in wanted
    ]
    select = exp.Select(expressions=shown).from_(inner)
    if view.where:
        inner.meta[ROWS_MET] = RowsMet(view.name, renamed(parse(view.where), found.asked))
    _replace(table, select, view.name)


# Change tables.


def _expand_change_table(
    table: exp.Table,
    defined: ChangeTableDocument,
    names: DefinedNames,
    images: tuple[str, ...] | None,
    wanted: frozenset[str] | None,
    now: int,
    own: Iterable[str],
) -> None:
    if table.args.get("version") or table.args.get("when"):
        raise InvalidRequest(
            f"{defined.name} is a change table, which is not read as of a version: say in WHERE which time of "
            f"{ROW_TIMESTAMP} is asked for"
        )
    entity_type = names.entity_type_of(defined)
    keys = names.schema.key_columns(entity_type)
    chosen = [
        name
        for name in (
            *(keys or ("_primary_key",)),
            CDC_JSON,
            *(each for each in own if each == MISFITS),
        )
        if wanted is None or name.lower() in wanted
    ]
    shown = ShownChanges(
        defined.name,
        keys,
        tuple(defined.images) if images is None else images,
        frozenset(("_commit_timestamp", *map(str.lower, chosen))),
        salt_buckets=defined.salt_buckets,
    )
    if defined.of_view:
        view = names.views[defined.source]
        names.columns_of(view, names.view.published)  # refuses where one has been dropped
        shown = replace(shown, view=view)
    arguments: list[exp.Expr] = [exp.Literal.string(entity_type)]
    if defined.lookback_us:
        oldest = now - defined.lookback_us
        shown = replace(shown, oldest_us=oldest, lookback_us=defined.lookback_us)
        arguments.append(exp.Literal.number(names.view.version_at(oldest)))
    source = exp.Table(this=exp.Anonymous(this=_CHANGES, expressions=arguments))
    source.meta[SHOWN] = shown
    columns = [
        exp.alias_(_column("_commit_timestamp"), ROW_TIMESTAMP, quoted=True),
        *map(_column, chosen),
    ]
    _replace(table, exp.Select(expressions=columns).from_(source), defined.name)


def _column(name: str) -> exp.Expr:
    return exp.Column(this=exp.to_identifier(name, quoted=True))


def _replace(table: exp.Table, select: exp.Select, name: str) -> None:
    """Let a place read a SELECT, under the name that the statement has for it."""
    alias = table.args.get("alias") or exp.TableAlias(this=table.parts[-1].copy())
    subquery = exp.Subquery(this=select, alias=alias.copy())
    for part in ("joins", "laterals", "pivots", "sample"):
        if table.args.get(part):
            subquery.set(part, table.args[part])
    table.replace(subquery)


# Functions of Apache Phoenix.


def _functions(query: exp.Query, places: Sequence[tuple[exp.Table, Definition]]) -> None:
    """Put Phoenix's functions as DuckDB has them."""
    change_tables = {id(table) for table, each in places if isinstance(each, ChangeTableDocument)}
    for call in list(query.find_all(exp.Anonymous)):
        name = str(call.this).upper()
        if f"{name}()" == ROW_TIMESTAMP:
            if call.expressions:
                raise InvalidRequest(f"{ROW_TIMESTAMP} takes nothing in its brackets")
            call.replace(_column(_time_column(call, change_tables)))
        elif name == "TO_DATE":
            call.replace(_to_timestamp(call))


def _time_column(call: exp.Expr, change_tables: set[int]) -> str:
    """Return the column with a change's or a row's time at the place of a call."""
    select = call.find_ancestor(exp.Select)
    sources = [] if select is None else list(_sources(select))
    of_entities = sources and all(
        isinstance(each, exp.Table) and id(each) not in change_tables for each in sources
    )
    return "_commit_timestamp" if of_entities else ROW_TIMESTAMP


def _sources(select: exp.Select) -> Iterator[exp.Expr]:
    if (from_ := select.args.get("from_")) is not None:
        yield from_.this
    for join in select.args.get("joins") or ():
        yield join.this


def _to_timestamp(call: exp.Anonymous) -> exp.Expr:
    """Return a moment that a text says, as ``TO_DATE(text [, pattern])`` does."""
    if not 1 <= len(call.expressions) <= 2:
        raise InvalidRequest("TO_DATE takes a text, and a pattern that may be left out")
    if len(call.expressions) == 1:
        return exp.cast(call.expressions[0], "TIMESTAMPTZ")
    pattern = call.expressions[1]
    if not isinstance(pattern, exp.Literal) or not pattern.is_string:
        raise InvalidRequest("TO_DATE: write its pattern as a text, 'yyyy-MM-dd HH:mm:ss'")
    parts = re.split(r"([A-Za-z]+)", pattern.name.replace("%", "%%"))
    for place in range(1, len(parts), 2):
        part = parts[place]
        if part not in _DATE_PARTS:
            raise InvalidRequest(f"TO_DATE: pattern {part!r}{nearest(part, _DATE_PARTS)}")
        parts[place] = _DATE_PARTS[part]
    return exp.cast(
        exp.Anonymous(
            this="strptime",
            expressions=[call.expressions[0], exp.Literal.string("".join(parts))],
        ),
        "TIMESTAMPTZ",
    )
