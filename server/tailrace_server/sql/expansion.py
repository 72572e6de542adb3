"""Replacement of views and change tables in a statement by queries on their entity types.

::

    FROM cheap          (SELECT id, name, _primary_key, … FROM product) AS cheap
    FROM product_cdc    (SELECT _commit_timestamp AS "PHOENIX_ROW_TIMESTAMP()", id, "CDC JSON"
                         FROM CHANGES('product')) AS product_cdc

The scan of a view returns only the rows that meet the view's condition, so DuckDB never evaluates such a
condition. The module also replaces the functions of Apache Phoenix for change tables by functions of DuckDB.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sqlglot import exp
from sqlglot.optimizer.scope import traverse_scope

from tailrace.errors import InvalidRequest
from tailrace.errors.requests import nearest
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
"""Parts of Java's date patterns, with DuckDB's part for each."""


def expand(
    query: exp.Query,
    names: DefinedNames,
    wanted: frozenset[str] | None,
    version_of: Callable[[exp.Expr], int],
    now: int,
    *,
    with_misfits: bool,
) -> None:
    """Replace views and change tables in a query by queries on their entity types. This changes the query.

    Args:
        query: The statement.
        names: The definitions that the query may use.
        wanted: The names in the query, in lower case; None: the query may read any column.
        version_of: Returns the version that a constant names: a version number, or the last version up to a
            time.
        now: The start of the statement, in µs since the epoch.
        with_misfits: True if tables have the column ``_misfits``.

    Raises:
        InvalidRequest: The query asks a view or a change table for something that it does not have.
    """
    hints = _Hints(query)
    own = own_columns(of_changes=False, with_misfits=with_misfits)
    # Collect the places first: the replacements below add tables that must not be replaced again.
    places = _places(query, names)
    _functions(query, places)
    for table, definition in places:
        if isinstance(definition, ViewDocument):
            _expand_view(table, definition, names, wanted, own, version_of)
        else:
            _expand_change_table(table, definition, names, hints.images_at(table), wanted, now, own)
    hints.refuse_unused()


def _places(query: exp.Query, names: DefinedNames) -> list[tuple[exp.Table, Definition]]:
    """Return the places that read a view or a change table, each with its definition."""
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
                # A table can be a source of several scopes, such as that of a LATERAL join: replace it once.
                found[id(table)] = table, definition
    return list(found.values())


def _expand_changes(table: exp.Table, names: DefinedNames) -> None:
    """Turn CHANGES of a view into CHANGES of its entity type, and attach the view to the place."""
    arguments = table.this.expressions
    if table.this.name.upper() != _CHANGES or not arguments or not arguments[0].is_string:
        return
    definition = names.definition(arguments[0].name, quoted=True)
    if isinstance(definition, ChangeTableDocument):
        raise InvalidRequest(
            f"CHANGES needs an entity type or a view, but {definition.name} is a change table: read "
            f"{definition.name} itself"
        )
    if definition is not None:
        # This raises if the source has dropped a column of the view.
        found = names.columns_of(definition, names.view.published)
        arguments[0].replace(exp.Literal.string(found.entity_type))
        table.meta[OF_VIEW] = definition
        table.meta[THROUGH] = definition.name


class _Hints:
    """The hints in a statement, which choose the images that change tables return."""

    def __init__(self, query: exp.Query) -> None:
        self._images: dict[int, tuple[str, ...]] = {}
        self._used: set[int] = set()
        for node in query.walk():
            for comment in node.comments or ():
                if comment.startswith("+"):
                    self._images[id(node)] = _hint(node, comment)

    def images_at(self, table: exp.Table) -> tuple[str, ...] | None:
        """Return the images in the hint of the nearest SELECT around a table.

        None: no hint, use the definition.
        """
        node = table.parent
        while node is not None:
            if id(node) in self._images:
                self._used.add(id(node))
                return self._images[id(node)]
            node = node.parent
        return None

    def refuse_unused(self) -> None:
        """Raise if a hint applies to no change table."""
        if self._images.keys() - self._used:
            raise InvalidRequest(f"{_HINT_NAME} must be in a SELECT that reads a change table")


def _hint(node: exp.Expr, comment: str) -> tuple[str, ...]:
    match = _HINT.fullmatch(comment)
    if match is None or match[1].upper() != _HINT_NAME or match[2] is None:
        raise InvalidRequest(
            f"/*{comment}*/: the only supported hint is /*+ {_HINT_NAME}(PRE, POST, CHANGE) */"
        )
    if not isinstance(node, exp.Select):
        raise InvalidRequest(f"/*{comment}*/: a hint must come directly after SELECT")
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
    # Leave out columns that the statement does not name: a value in them that does not fit its type must not
    # end the statement. The commit time stays, as PHOENIX_ROW_TIMESTAMP() means it without naming it.
    shown = [
        exp.alias_(_column(inside), name, quoted=True)
        for name, inside in columns.items()
        if wanted is None or name == "_commit_timestamp" or name.lower() in wanted
    ]
    select = exp.Select(expressions=shown).from_(inner)
    # The scan applies the condition, under the column names of the version that is read.
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
            f"{defined.name} is a change table, which cannot be read as of a version: give a range of "
            f"{ROW_TIMESTAMP} in WHERE"
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
        # This raises if the source has dropped a column of the view.
        names.columns_of(view, names.view.published)
        shown = replace(shown, view=view)
    arguments: list[exp.Expr] = [exp.Literal.string(entity_type)]
    if defined.lookback_us:
        # MAX_LOOKBACK bounds the range of versions, whatever the statement asks for.
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
    """Replace a table in a query by a sub-query, with the table's alias or name as its alias."""
    alias = table.args.get("alias") or exp.TableAlias(this=table.parts[-1].copy())
    subquery = exp.Subquery(this=select, alias=alias.copy())
    for part in ("joins", "laterals", "pivots", "sample"):
        if table.args.get(part):
            subquery.set(part, table.args[part])
    table.replace(subquery)


# Functions of Apache Phoenix.


def _functions(query: exp.Query, places: Sequence[tuple[exp.Table, Definition]]) -> None:
    """Replace Phoenix's functions by expressions of DuckDB."""
    change_tables = {id(table) for table, each in places if isinstance(each, ChangeTableDocument)}
    for call in list(query.find_all(exp.Anonymous)):
        name = str(call.this).upper()
        if f"{name}()" == ROW_TIMESTAMP:
            if call.expressions:
                raise InvalidRequest(f"{ROW_TIMESTAMP} takes no arguments")
            call.replace(_column(_time_column(call, change_tables)))
        elif name == "TO_DATE":
            call.replace(_to_timestamp(call))


def _time_column(call: exp.Expr, change_tables: set[int]) -> str:
    """Return the name of the column with the commit time, at the place of a call."""
    select = call.find_ancestor(exp.Select)
    sources = [] if select is None else list(_sources(select))
    # Tables of entity types have the time under our name. Change tables and sub-queries have it under
    # Phoenix's.
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
    """Return the expression that replaces a call of ``TO_DATE(text [, pattern])``."""
    if not 1 <= len(call.expressions) <= 2:
        raise InvalidRequest("TO_DATE takes a text and an optional pattern")
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
