"""One SQL statement: the tables of the log that it reads, the needed part of each, and the text for DuckDB.

=========================================  ==========================================================
``product``                                the newest state
``product FOR VERSION AS OF 12``           the state of an earlier version
``product FOR TIMESTAMP AS OF '…'``        the state of the last version up to a time
``CHANGES('product', from, to)``           the changes of these versions or times, both inclusive;
                                           each bound may be left out
=========================================  ==========================================================

Each place that reads the log becomes a separate table for DuckDB, with only the columns that the statement can
name. A column is read if its name is anywhere in the statement: the scan may read too many columns, but never
too few.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple

from sqlglot import exp
from sqlglot.optimizer.scope import traverse_scope

from tailrace.errors import InvalidRequest
from tailrace_server.filters.parsing import sql_text
from tailrace_server.sql.conditions import (
    comparisons_of,
    conditions_of,
    log_order_of,
    match_as_conditions,
    refuse_texts,
)
from tailrace_server.sql.defined_names import matching
from tailrace_server.sql.parsing import named_parameters
from tailrace_server.sql.pushdown import (
    EVERYTHING,
    Span,
    change_types_in,
    keys_in,
    timestamps_in,
    versions_in,
)
from tailrace_server.sql.shown import OF_VIEW, ROWS_MET, SHOWN, THROUGH
from tailrace_server.wal.state.entity_names import EntityNames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tailrace.schema import Column, Schema
    from tailrace_server.sql.conditions import ColumnComparison
    from tailrace_server.sql.pushdown import Evaluate
    from tailrace_server.sql.shown import RowsMet, ShownChanges, ViewShown
    from tailrace_server.wal.files.sequence_documents import ViewDocument

_DIALECT: Final = "duckdb"
_FUNCTIONS: Final = frozenset({"range", "generate_series", "unnest"})
"""Table functions that compute and read nothing."""
SPANS: Final = frozenset({"FROM", "BETWEEN", "CONTAINED IN", "ALL"})
"""Words after FOR VERSION or FOR TIMESTAMP that ask for more than one version."""
_CHANGES: Final = "changes"


class Bounds(NamedTuple):
    """A range of versions whose changes are read; both ends are inclusive."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class TableUse:
    """One place in a statement that reads the log."""

    alias: str
    """The table's name in the text that DuckDB runs."""
    entity_type: str
    version: int
    """The version whose schema gives the columns; for a state, the version of the state."""
    changes: Bounds | None
    """The versions whose changes are read; None: a state is read."""
    names: frozenset[str] | None
    """Names that may be columns of the table, in lower case; None: all columns may be read."""
    keys: tuple[str, ...] | None
    """The only primary keys that can be in the answer; None: any."""
    versions: Span = EVERYTHING
    """The only versions among ``changes`` that can be in the answer; unused for a state."""
    newest_first: bool = False
    """True if the scan returns the changes in reverse order."""
    change_types: frozenset[str] | None = None
    """The only kinds of changes that can be in the answer; None: any, or a state is read."""
    form: ShownChanges | None = None
    """The change table that is read, with its form of the changes; None: another table."""
    view: ViewDocument | None = None
    """The view whose changes are read by ``CHANGES``; None: another table, also a change table on a view."""
    rows_met: RowsMet | None = None
    """The condition that selects the rows of a state read through a view; None: all rows."""
    shown: ViewShown | None = None
    """The view whose grant allows this read; None: the read needs no such grant."""
    excluded: frozenset[str] = frozenset()
    """Column names, in lower case, that are only in an EXCLUDE: the values of these columns are not needed."""
    asked_us: int = 0
    """The earliest commit time, in µs, of changes that the statement reads; 0: it does not say one."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement that is ready to run."""

    text: str
    """The SQL text for DuckDB."""
    uses: tuple[TableUse, ...]
    parameters: set[str]
    """Names of the parameters that are still in the text.

    Parameters in the bounds of CHANGES are already replaced.
    """


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables that a statement may name, and functions to look them up."""

    newest: int
    """The version that the statement reads by default."""
    schema_of: Callable[[int], Schema]
    version_of: Callable[[exp.Expr], int]
    """Returns the version that a constant names: a version number, or the last version up to a time."""
    first_version_of: Callable[[exp.Expr], int]
    """Returns the version that a constant names: a version number, or the first version from a time on."""
    oldest: int
    """The first version whose changes are retained."""
    schemas: Callable[[], Iterable[Schema]]
    """Returns all schemas up to ``newest``."""
    version_at: Callable[[int], int]
    """Returns the first version that was committed at or after a time, in µs."""
    constant: Evaluate
    """Computes the constants that columns are compared with."""
    unknown: Callable[[str], InvalidRequest]
    """Returns the error for an unknown table name."""
    pushes: bool = True
    """True to let conditions narrow the scans; False gives the same answer, only slower."""
    through: Callable[[str], ViewShown | None] = lambda name: None
    """Returns what a grant on a view, by the view's name, makes visible; None: there is no such grant."""
    is_poll: bool = False
    """True for a poll: its range may begin above the newest version, on a server that is behind another."""


def bound(query: exp.Query, tables: Tables) -> Statement:
    """Look up the tables of a query, and return the statement to run. This changes the query.

    Raises:
        InvalidRequest: A table is unknown, or the query calls a function that reads elsewhere.
    """
    uses: list[TableUse] = []
    names, excluded = names_in(query), _excluded_in(query)
    conditions = conditions_of(query) if tables.pushes else {}
    order = log_order_of(query) if tables.pushes else None
    aliases = _free_names(query)
    comparisons = [*comparisons_of(query)]  # before the tables have other names
    by_table: dict[int, TableUse] = {}
    for table in _tables_in(query):
        shown = tables.through(table.meta.get(THROUGH, ""))
        known = tables if shown is None else replace(tables, schema_of=shown.schema_of)
        use = replace(_use(table, next(aliases), names, known), shown=shown, excluded=excluded)
        use = _narrowed(use, conditions.get(id(table), ()), known)
        if order is not None and order.table is table and use.changes is not None:
            use = replace(use, newest_first=order.newest_first)
            # The scan returns the rows in this order already, so that a LIMIT in DuckDB ends the scan early.
            order.select.set("order", None)
        uses.append(use)
        by_table[id(table)] = use
        _rename(table, use.alias)
    # Refuse comparisons before LIKE is rewritten: the rewritten nodes are not the ones collected above.
    for table, comparison in comparisons:
        if (read := by_table.get(id(table))) is not None:
            columns = tables.schema_of(read.version).entity_types.get(read.entity_type, ())
            refuse_texts(columns, comparison, tables.constant)
    match_as_conditions(query, tables.constant)
    return Statement(sql_text(query, _DIALECT), tuple(uses), named_parameters(query))


def _narrowed(use: TableUse, comparisons: Sequence[ColumnComparison], tables: Tables) -> TableUse:
    """Return a use that leaves out keys, versions and kinds whose rows cannot meet the conditions."""
    if not comparisons:
        return use
    # A change table has the key's columns at its top level, like a state; CHANGES has them in its images.
    of_state = use.changes is None
    is_flat = of_state or use.form is not None
    # A key is compared as text: this is right only if its columns and types never changed.
    if _has_one_key(use, tables):
        columns = tables.schema_of(use.version).entity_types.get(use.entity_type, ())
        use = replace(use, keys=keys_in(comparisons, columns, tables.constant, state=is_flat))
    if of_state:
        return use
    # Timestamps rise with versions, so a range of times is a range of versions.
    versions = versions_in(comparisons, tables.constant)
    times = timestamps_in(comparisons, tables.constant)
    if times != EVERYTHING:
        first = tables.version_at(times.first)
        versions = versions.both((first, tables.version_at(times.last + 1) - 1))
    kinds = change_types_in(comparisons, tables.constant)
    return replace(use, versions=versions, change_types=kinds, asked_us=times.first)


def _has_one_key(use: TableUse, tables: Tables) -> bool:
    """Return True if the key of an entity type has had the same columns and types in all versions."""
    schema = tables.schema_of(use.version)
    if use.entity_type not in schema.entity_types:
        schema = tables.schema_of(tables.newest)
    names = EntityNames(schema, use.entity_type)
    found = {
        tuple((each.id, each.sql_type, each.key) for each in columns if each.key)
        for columns in map(names.columns_in, tables.schemas())
        if columns
    }
    return len(found) < 2


def _free_names(query: exp.Query) -> Iterator[str]:
    """Yield names for tables that are unused in the query.

    DuckDB would read a WITH of the same name in their place.
    """
    taken = {each.name.lower() for each in query.find_all(exp.Identifier)}
    return (name for name in (f"t{number}" for number in count()) if name not in taken)


def _tables_in(query: exp.Query) -> list[exp.Table]:
    """Return the places in a query that read the log, each place once."""
    scopes = traverse_scope(query)
    # A table before LATERAL, UNNEST or VALUES is also a source of their scopes: count it once.
    known = {
        id(each): each
        for scope in scopes
        for each in scope.sources.values()
        if isinstance(each, exp.Table) and not _is_computed(each)
    }
    found = [*known.values()]
    # Some places are in no scope, such as the right side of some set operations: refuse functions there too.
    for table in query.find_all(exp.Table):
        if id(table) not in known and isinstance(table.this, exp.Func) and not _is_computed(table):
            raise _unknown_function(table)
    return found


def _is_computed(table: exp.Table) -> bool:
    function = table.this
    if not isinstance(function, exp.Func):
        return False
    name = (function.name if isinstance(function, exp.Anonymous) else function.sql_name()).lower()
    if name == _CHANGES:
        return False
    if name in _FUNCTIONS or isinstance(function, exp.Unnest | exp.GenerateSeries):
        return True
    raise _unknown_function(table)


def _unknown_function(table: exp.Table) -> InvalidRequest:
    name = sql_text(table.this, _DIALECT).partition("(")[0].lower()
    return InvalidRequest(
        f"{name}(…) is not a table: read an entity type, a view, a change table, CHANGES('entity type', from, "
        f"to), or one of {', '.join(sorted(_FUNCTIONS))}"
    )


def _excluded_in(query: exp.Query) -> frozenset[str]:
    """Return the names, in lower case, that are in the EXCLUDE of the query's only star and nowhere else."""
    stars = _stars_in(query)
    # A PIVOT groups by all columns that it does not name.
    if len(stars) != 1 or _means_unnamed(query) or query.find(exp.Pivot) is not None:
        return frozenset()
    left_out: list[exp.Expr] = [*(stars[0].args.get("except_") or ())]
    inside = {id(each) for tree in left_out for each in tree.find_all(exp.Identifier)}
    others = (each for each in query.find_all(exp.Identifier) if id(each) not in inside)
    return frozenset(each.name.lower() for each in left_out) - {
        each.name.lower() for each in others
    }


def names_in(query: exp.Query) -> frozenset[str] | None:
    """Return all names in a query, in lower case; None if the query reads columns without naming them."""
    if _stars_in(query) or _means_unnamed(query):
        return None
    return frozenset(each.name.lower() for each in query.find_all(exp.Identifier))


def _stars_in(query: exp.Query) -> list[exp.Star]:
    """Return the stars that mean columns; the star of ``count(*)`` does not."""
    return [each for each in query.find_all(exp.Star) if not isinstance(each.parent, exp.Count)]


def _means_unnamed(query: exp.Query) -> bool:
    """Return True if a query reads columns without naming them, other than by a star."""
    if query.find(exp.Columns) is not None:
        return True
    if any(
        (join.args.get("method") or "").upper() == "NATURAL" for join in query.find_all(exp.Join)
    ):
        return True
    if any(each.args.get("columns") for each in query.find_all(exp.TableAlias)):
        return True  # columns under other names, by their place
    aliases = {each.alias_or_name.lower() for each in query.find_all(exp.Table)}
    columns = [each for each in query.find_all(exp.Column) if not each.table]
    if any(each.name.lower() in aliases for each in columns):
        return True  # a row as one value
    # An image as one value. In `after.price` the column's name is `price`, so that is not one.
    return any(each.name.lower() in ("before", "after") for each in query.find_all(exp.Column))


def _use(table: exp.Table, alias: str, names: frozenset[str] | None, tables: Tables) -> TableUse:
    if isinstance(table.this, exp.Func):
        arguments = table.this.expressions
        if not 1 <= len(arguments) <= 3 or not arguments[0].is_string:
            raise InvalidRequest(
                "CHANGES needs the name of an entity type in quotes, and two optional bounds: "
                "CHANGES('product', 12, 40)"
            )
        first = tables.first_version_of(arguments[1]) if len(arguments) > 1 else tables.oldest
        last = tables.newest
        if len(arguments) > 2:
            last = tables.version_of(arguments[2])
            # An empty range is allowed: it begins right after its end, or both times lie between two versions.
            if first > last + 1 and not tables.is_poll:
                begin, end = (sql_text(each, _DIALECT) for each in arguments[1:])
                raise InvalidRequest(
                    f"CHANGES from {begin} to {end} is reversed: it would begin at version {first}, and end at "
                    f"{last}; give the earlier bound first"
                )
        name = _known(arguments[0].name, tables.newest, tables, quoted=True)
        form: ShownChanges | None = table.meta.get(SHOWN)
        if form is not None:
            names = form.names
        view = table.meta.get(OF_VIEW)
        bounds = Bounds(first, last)
        return TableUse(alias, name, tables.newest, bounds, names, None, form=form, view=view)
    version = tables.newest
    at = table.args.get("version") or table.args.get("when")
    if at is not None:
        if at.args.get("kind") in SPANS:
            raise InvalidRequest(
                "a table can be read as of one version only: FOR VERSION AS OF 12, or FOR TIMESTAMP AS OF "
                "'…'; to read its changes, write CHANGES('entity type', from, to)"
            )
        version = tables.version_of(at.expression)
    written = ".".join(part.name for part in table.parts)
    quoted = any(part.args.get("quoted") for part in table.parts)
    name = _known(written, version, tables, quoted=quoted)
    return TableUse(alias, name, version, None, names, None, rows_met=table.meta.get(ROWS_MET))


def _known(written: str, version: int, tables: Tables, *, quoted: bool) -> str:
    """Return the name of an entity type as of a version, or as of now: it may have been renamed."""
    for number in (version, tables.newest):
        types = tables.schema_of(number).entity_types
        if found := matching("table", written, types, quoted=quoted):
            return found
    raise tables.unknown(written)


def refuse_alike(use: TableUse, columns: Iterable[Column]) -> None:
    """Raise if some columns have names that differ only by case: DuckDB would confuse these columns.

    Raises:
        InvalidRequest: Two of the columns have such names.
    """
    found: dict[str, str] = {}
    # Only the key's columns are columns of a change table. The others are in its JSON, which keeps the case.
    keys = None if use.form is None else use.form.keys
    for name in (each.name for each in columns if keys is None or each.name in keys):
        first = found.setdefault(name.lower(), name)
        if first != name:
            raise InvalidRequest(
                f"{use.entity_type} has the columns {first!r} and {name!r}, but SQL ignores case in names: use "
                "neither of them (and no star), or read the table with `tailrace state`"
            )


def _rename(table: exp.Table, alias: str) -> None:
    """Point a place in the query to DuckDB's table, with the statement's name for the place as its alias."""
    if table.alias:
        name = table.args["alias"]
    else:
        shown = (
            table.parts[-1] if not isinstance(table.this, exp.Func) else exp.to_identifier(_CHANGES)
        )
        name = exp.TableAlias(this=shown.copy())
    table.set("this", exp.to_identifier(alias))
    for each in ("db", "catalog", "version", "when"):
        table.set(each, None)
    table.set("alias", name)
