"""Conditions that every row in the answer of a query must meet: comparisons of columns with constants.

They are taken from the WHERE of the SELECT that names the table, and from the WHERE of each SELECT around it::

    SELECT … FROM (SELECT _commit_timestamp AS at, … FROM CHANGES('order') WHERE _change_type = 'delete') d
    JOIN … WHERE d.at >= now() - INTERVAL 15 MINUTE

    CHANGES('order')    _change_type = 'delete',  _commit_timestamp >= now() - INTERVAL 15 MINUTE

DuckDB evaluates all of WHERE again, so this module may miss conditions: it takes only those that are certain.
These are terms of an AND whose column can belong to this table only. Each of them is false or unknown for NULL.
So a scan may apply it before an outer join too: if the join then writes NULL for a row that the scan left out,
WHERE removes the joined row.

The functions at the end of the module give comparisons in SQL the meaning that they have in conditions:
`match_as_conditions` rewrites LIKE, and `refuse_texts` refuses comparisons in which DuckDB would cast texts.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Final, Literal

import pyarrow as pa
from sqlglot import exp
from sqlglot.optimizer.scope import Scope, traverse_scope

from tailrace.errors import InvalidRequest
from tailrace_server.filters.evaluation import pattern_of
from tailrace_server.filters.parsing import sql_text
from tailrace_server.machine_code.loops.codes import Notation
from tailrace_server.typed.forms import narrow_form_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from tailrace.schema import Column

Operator = Literal["=", "<>", "<", "<=", ">", ">="]
"""A comparison operator. ``=`` with several values means IN, ``<>`` with several means NOT IN."""

_OPERATORS: Final[Mapping[type[exp.Expr], Operator]] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_COMPARISONS: Final = (
    *(*_OPERATORS, exp.NullSafeEQ, exp.NullSafeNEQ),
    *(exp.Between, exp.In, exp.Case),
)
_BACKSLASH: Final = "\\"
_MIRRORED: Final[Mapping[Operator, Operator]] = {
    "=": "=",
    "<>": "<>",
    "<": ">",
    "<=": ">=",
    ">": "<",
    ">=": "<=",
}
_COMPUTED: Final = frozenset(
    {"now", "get_current_timestamp", "strptime", "make_timestamp", "make_timestamptz", "make_date"}
    | {f"to_{unit}" for unit in ("seconds", "minutes", "hours", "days", "weeks", "milliseconds")}
)
"""Functions that sqlglot has no class for and that return the same result everywhere in one statement."""
_NO_CONSTANTS: Final = (
    *(exp.Column, exp.Query, exp.Star, exp.AggFunc, exp.Window, exp.Lambda),
    # Parts of a comparison, such as ANY, and expressions with several values.
    *(exp.SubqueryPredicate, exp.UDTF),
    # Functions with a new value at each call, and COLLATE, which changes how values compare.
    *(exp.Rand, exp.Uuid, exp.NextValueFor, exp.Collate),
)
_WHOLE: Final = ("group", "distinct", "having", "qualify", "windows", "limit", "offset", "sample")
"""Clauses whose result depends on rows that a condition outside would remove."""
_IMAGES: Final = ("before", "after")
_LOG_ORDERS: Final = (
    ("_commit_version", "_index"),
    ("_commit_timestamp", "_commit_version", "_index"),
)
"""Columns of changes that give the order of the log; the first columns of each tuple do so too."""


@dataclass(frozen=True, slots=True)
class ColumnComparison:
    """A column compared with constants."""

    column: str
    """The column's name in the table, in lower case."""
    image: str | None
    """The structure that has the column, ``before`` or ``after``; None: the table itself has the column."""
    operator: Operator
    values: tuple[exp.Expr, ...]
    """The constant expressions that the column is compared with."""


Conditions = dict[int, list[ColumnComparison]]
"""The comparisons with the columns of a table, by the ``id`` of its ``exp.Table``."""


def conditions_of(query: exp.Query) -> Conditions:
    """Return, for each reference to a table in a query, the conditions on its rows."""
    found: Conditions = defaultdict(list)
    # A sample is taken before WHERE, so that fewer rows would change it. A pivot turns values into columns.
    if next(query.find_all(exp.TableSample, exp.Pivot), None) is not None:
        return found
    scopes = traverse_scope(query)
    readers: dict[int, int] = defaultdict(int)
    for scope in scopes:
        for _, source in scope.selected_sources.values():
            if isinstance(source, Scope):
                readers[id(source)] += 1
    # From outside in: the conditions on a sub-query's columns are complete before the sub-query is visited.
    around: Conditions = defaultdict(list)
    for scope in reversed(scopes):
        if not isinstance(scope.expression, exp.Select) or _joins_by_place(scope.expression):
            continue
        for alias, comparison in _in_scope(scope, around[id(scope)]):
            node, source = scope.selected_sources[alias]
            names = node.args.get("alias")
            if names is not None and names.args.get("columns"):
                continue  # it has other names for its columns
            if isinstance(source, exp.Table):
                found[id(source)].append(comparison)
            # A sub-query with two readers is computed once for both: a condition of one must not narrow it.
            elif readers[id(source)] == 1 and _passes_through(source):
                around[id(source)].append(comparison)
    return found


@dataclass(frozen=True, slots=True)
class LogOrder:
    """An ORDER BY that asks for the order of the log, in a query that reads only one table."""

    select: exp.Select
    """The SELECT that has the ORDER BY."""
    table: exp.Table
    newest_first: bool


def log_order_of(query: exp.Query) -> LogOrder | None:
    """Return the ORDER BY of a query if a scan of changes returns its rows in that order; else None.

    Then DuckDB need not sort, and a LIMIT ends the scan early: DuckDB keeps the order of rows that it only
    filters.
    """
    if not isinstance(query, exp.Select) or not query.args.get("order"):
        return None
    scope = traverse_scope(query)[-1]
    ordered = query.args["order"].expressions
    # The scan has one direction, so all terms must have it too.
    if len({bool(each.args.get("desc")) for each in ordered}) != 1 or not _only_filters(scope):
        return None
    found = [_column_of_table(scope, each.this) for each in ordered]
    tables = {id(each[0]): each[0] for each in found if each is not None}
    names = tuple(each[1] for each in found if each is not None)
    if len(names) < len(found) or len(tables) != 1:
        return None
    if not any(names == order[: len(names)] for order in _LOG_ORDERS):
        return None
    (table,) = tables.values()
    return LogOrder(query, table, bool(ordered[0].args.get("desc")))


def _only_filters(scope: Scope) -> bool:
    """Return True if a query only selects rows of one table, without joining, grouping or combining them."""
    select, count = scope.expression, 1
    if any(select.args.get(each) for each in _WHOLE if each not in ("limit", "offset")):
        return False
    while _reads_one(scope):
        ((_, source),) = scope.selected_sources.values()
        if isinstance(source, exp.Table):
            no_more = (exp.AggFunc, exp.Window, exp.TableSample, exp.Pivot)
            return (
                # Any further query, for example in an expression, is not one of the nested SELECTs that were
                # checked.
                len([*select.find_all(exp.Query)]) == count
                and next(select.find_all(*no_more), None) is None
            )
        if not _passes_through(source) or source.expression.args.get("order"):
            return False
        scope, count = source, count + (1 if source.is_cte else 2)  # a sub-query is one more
    return False


def _column_of_table(scope: Scope, written: exp.Expr) -> tuple[exp.Table, str] | None:
    """Return the table and the column that a term of ORDER BY names; None if it is another expression."""
    selected = scope.expression.expressions
    if isinstance(written, exp.Literal) and written.is_int:
        place = int(written.name) - 1
        if not 0 <= place < len(selected) or any(each.is_star for each in selected[: place + 1]):
            return None
        written = selected[place].unalias()
    elif isinstance(written, exp.Column) and not written.table:
        # A name in the SELECT list takes precedence over a column of the table. A star may have the name too,
        # and its REPLACE may give the name to another value.
        named = [each for each in selected if each.alias_or_name.lower() == written.name.lower()]
        stars = [each for each in selected if each.is_star]
        if stars and (named or any(any(each.find(exp.Star).args.values()) for each in stars)):
            return None
        written = named[0].unalias() if named else written
    if not isinstance(written, exp.Column):
        return None
    found = _origin(scope, written, ColumnComparison("", None, "=", ()))
    return None if found is None or found[1].image is not None else (found[0], found[1].column)


def _origin(
    scope: Scope, written: exp.Column, comparison: ColumnComparison
) -> tuple[exp.Table, ColumnComparison] | None:
    """Return the table that a column comes from, and the comparison with the table's column.

    None if unclear.
    """
    found = [*_resolved(scope, written, comparison)]
    while found:
        ((alias, comparison),) = found
        node, source = scope.selected_sources[alias]
        names = node.args.get("alias")
        if names is not None and names.args.get("columns"):
            return None
        if isinstance(source, exp.Table):
            return source, comparison
        scope, found = source, [*_projected(source, comparison)]
    return None


def comparisons_of(query: exp.Query) -> Iterator[tuple[exp.Table, ColumnComparison]]:
    """Yield all comparisons of columns with constants anywhere in a query, each with the operator ``=``.

    If a column has no table name and several tables are read, the comparison is yielded for each of these
    tables.
    """
    for scope in traverse_scope(query):
        if not isinstance(scope.expression, exp.Select):
            continue
        node: exp.Expr
        for node in scope.find_all(*_COMPARISONS):
            for column, values in _beside(node):
                comparison = ColumnComparison("", None, "=", values)
                found = _origin(scope, column, comparison)
                if found is not None:
                    yield found
                elif len(column.parts) == 1 and not _reads_one(scope):
                    for source in scope.sources.values():
                        if isinstance(source, exp.Table):
                            yield source, replace(comparison, column=column.name.lower())


def _beside(node: exp.Expr) -> Iterator[tuple[exp.Column, tuple[exp.Expr, ...]]]:
    """Yield the columns in a comparison, each with the constants that it is compared with."""
    if isinstance(node, exp.In):
        pairs = [(node.this, node.expressions)]
    elif isinstance(node, exp.Between):
        pairs = [(node.this, [node.args["low"], node.args["high"]])]
    elif isinstance(node, exp.Case):
        pairs = [(node.this, [each.this for each in node.args["ifs"]])]
    else:
        pairs = [(node.this, [node.expression]), (node.expression, [node.this])]
    for column, values in pairs:
        constants = tuple(filter(is_constant, values))
        if isinstance(column, exp.Column) and constants:
            yield column, constants


def is_constant(value: exp.Expr) -> bool:
    """Return True if an expression has one value for the whole statement, independent of rows."""
    for node in value.walk():
        if isinstance(node, _NO_CONSTANTS):
            return False
        if isinstance(node, exp.Anonymous) and node.name.lower() not in _COMPUTED:
            return False
    return True


def _joins_by_place(select: exp.Select) -> bool:
    """Return True if a join chooses rows depending on which other rows exist."""
    methods = {(join.args.get("method") or "").upper() for join in select.args.get("joins") or ()}
    return bool(methods & {"ASOF", "POSITIONAL"})


def _in_scope(
    scope: Scope, around: list[ColumnComparison]
) -> Iterator[tuple[str, ColumnComparison]]:
    """Yield the conditions on the sources of a SELECT, each with the source's alias there.

    Args:
        scope: The SELECT.
        around: Conditions on the columns that the SELECT returns, from the SELECTs around it.
    """
    select = scope.expression
    where = select.args.get("where")
    for condition in () if where is None else conjuncts(where.this):
        for column, operator, values in _compared(condition):
            yield from _resolved(scope, column, ColumnComparison("", None, operator, values))
    for comparison in around:
        yield from _projected(scope, comparison)


def _projected(
    scope: Scope, comparison: ColumnComparison
) -> Iterator[tuple[str, ColumnComparison]]:
    """Yield a comparison with a column that a SELECT returns as a comparison with the column of its source."""
    if comparison.image is not None:
        return
    selected = scope.expression.expressions
    chosen = [each for each in selected if each.alias_or_name.lower() == comparison.column]
    if len(chosen) == 1:
        # The first of several columns of one name is meant, and a star before it may have that name.
        if any(each.is_star for each in selected[: selected.index(chosen[0])]):
            return
        inner = chosen[0].unalias()
        if isinstance(inner, exp.Column):
            yield from _resolved(scope, inner, comparison)
    elif not chosen and _gives_all(scope):
        yield next(iter(scope.selected_sources)), comparison


def _gives_all(scope: Scope) -> bool:
    """Return True if a SELECT returns all columns of its only source, unrenamed."""
    stars = [each for each in scope.expression.expressions if each.is_star]
    return _reads_one(scope) and len(stars) == 1 and not any(stars[0].find(exp.Star).args.values())


def _resolved(
    scope: Scope, column: exp.Column, comparison: ColumnComparison
) -> Iterator[tuple[str, ColumnComparison]]:
    """Yield the comparison with the alias of the column's source, if that source is certain."""
    names = {alias.lower(): alias for alias in scope.selected_sources}
    parts = [part.name.lower() for part in column.parts]
    if len(parts) > 1 and parts[0] in names:
        alias = names[parts.pop(0)]
    elif _reads_one(scope):
        (alias,) = scope.selected_sources
    else:
        # There are several sources, and the column may belong to any of them.
        return
    if len(parts) == 1:
        yield alias, replace(comparison, column=parts[0])
    elif len(parts) == 2 and parts[0] in _IMAGES:
        yield alias, replace(comparison, column=parts[1], image=parts[0])


def _reads_one(scope: Scope) -> bool:
    select = scope.expression
    return (
        len(scope.selected_sources) == 1
        and not select.args.get("joins")
        and not select.args.get("laterals")
    )


def _passes_through(scope: Scope) -> bool:
    """Return True if a sub-query returns or drops each row independently of the other rows."""
    select = scope.expression
    if not isinstance(select, exp.Select) or any(select.args.get(each) for each in _WHOLE):
        return False
    parent = select.parent
    if isinstance(parent, exp.CTE | exp.Subquery):
        names = parent.args.get("alias")
        if names is not None and names.args.get("columns"):
            return False
    return next(select.find_all(exp.Window), None) is None


def conjuncts(condition: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the terms of an AND."""
    waiting = [condition]
    while waiting:
        each = waiting.pop()
        if isinstance(each, exp.Paren):
            waiting.append(each.this)
        elif isinstance(each, exp.And):
            waiting += (each.right, each.left)
        else:
            yield each


def _compared(
    condition: exp.Expr,
) -> Iterator[tuple[exp.Column, Operator, tuple[exp.Expr, ...]]]:
    """Yield the comparisons that are all true if a condition is true."""
    negated = isinstance(condition, exp.Not)
    inner = condition.this if isinstance(condition, exp.Not) else condition
    operator = _OPERATORS.get(type(inner))
    if operator is not None and isinstance(inner, exp.Binary) and not negated:
        for column, value, seen in (
            (inner.left, inner.right, operator),
            (inner.right, inner.left, _MIRRORED[operator]),
        ):
            if isinstance(column, exp.Column) and is_constant(value):
                yield column, seen, (value,)
    elif isinstance(inner, exp.Between) and not negated and isinstance(inner.this, exp.Column):
        bounds: tuple[tuple[Operator, exp.Expr], ...] = (
            (">=", inner.args["low"]),
            ("<=", inner.args["high"]),
        )
        if not inner.args.get("symmetric"):
            for seen, value in bounds:
                if is_constant(value):
                    yield inner.this, seen, (value,)
    elif isinstance(inner, exp.In) and isinstance(inner.this, exp.Column):
        values = tuple(inner.expressions)
        if values and not inner.args.get("query") and all(map(is_constant, values)):
            yield inner.this, "<>" if negated else "=", values


def match_as_conditions(
    query: exp.Query, evaluate: Callable[[exp.Expr, str | None], object]
) -> None:
    """Rewrite LIKE and ILIKE in a query to match as they do in conditions. This changes the query.

    In conditions a backslash escapes. DuckDB has no escape character unless the statement gives one, and its
    ILIKE maps some letters to two.

    Args:
        query: The query.
        evaluate: Returns the value of a constant.

    Raises:
        InvalidRequest: A pattern is too long or ends with its escape character, or the pattern of an ILIKE
            depends on the row.
    """
    for node in [*query.find_all(exp.Like, exp.ILike)]:
        outer = node.parent if isinstance(node.parent, exp.Escape) else node
        escape = outer.expression if outer is not node else exp.Literal.string(_BACKSLASH)
        parts = (node.expression, escape)
        text, character = (evaluate(each, None) if is_constant(each) else None for each in parts)
        pattern = None  # NULL, or a value that DuckDB refuses with a reason of its own
        if isinstance(text, str) and isinstance(character, str):
            try:
                pattern = pattern_of(text, character)
            except ValueError as error:
                raise InvalidRequest(f"{sql_text(outer, 'duckdb')}: {error}") from None
        if not isinstance(node, exp.ILike):
            if outer is node:
                outer.replace(exp.Escape(this=node.copy(), expression=escape))
        elif pattern is not None:
            # A regular expression, as DuckDB's ILIKE would map some letters to two.
            found = exp.func("regexp_matches", node.this, exp.Literal.string(f"(?i){pattern}"))
            outer.replace(exp.paren(exp.not_(found)) if node.args.get("negate") else found)
        elif not all(map(is_constant, parts)):
            raise InvalidRequest(
                f"{sql_text(outer, 'duckdb')}: ILIKE needs a text or a parameter; to compare with the value of "
                "a column, write lower(…) LIKE lower(…)"
            )


def refuse_texts(
    columns: Iterable[Column],
    comparison: ColumnComparison,
    evaluate: Callable[[exp.Expr, str | None], object],
) -> None:
    """Refuse comparisons of text columns with numbers, and of columns of JSON or digits with texts.

    DuckDB would cast the text to the type of the number, so that '0.1' equals 0. The text of a JSON value is in
    quotes, so it never equals the text inside. Texts of digits have another order than their numbers.

    Args:
        columns: The columns of the table.
        comparison: The comparison with one of them.
        evaluate: Returns the value of a constant.

    Raises:
        InvalidRequest: The comparison is refused.
    """
    for column in columns:
        if column.dropped or column.name.lower() != comparison.column:
            continue
        form = narrow_form_of(column)
        if form.type != pa.string():
            continue
        for each in comparison.values:
            value, name, text = evaluate(each, None), column.name, sql_text(each, "duckdb")
            is_digits = form.notation is not Notation.TEXT and not form.is_json
            is_number = isinstance(value, int | float | Decimal)  # and TRUE or FALSE
            if is_number or (is_digits and isinstance(value, str)):
                raise InvalidRequest(
                    f"{name} is {form.label}, which SQL reads as text, so it cannot be compared with {text}; "
                    f"DESCRIBE shows the types: cast it, as {name}::DECIMAL(38,6), or declare its type for the "
                    "ingest (--schema)"
                )
            if form.is_json and isinstance(value, str):
                raise InvalidRequest(
                    f"{name} is JSON, and {text} is a text: compare the text in it, {name}->>'$' = {text}"
                )
