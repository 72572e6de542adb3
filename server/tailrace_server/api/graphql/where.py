"""The input types of the argument ``where``: one for each entity type, with a field for each column.

::

    where: {price: {gte: "9.90", lt: "100"}, state: {in: ["paid"]}, or: [{…}, {…}], not: {…}}

    input ProductWhere { price: DecimalTests  state: StringTests  and: [ProductWhere!] … }

The fields of an input type are created on first use, so that unused types cost almost nothing.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from graphql import (
    GraphQLArgument,
    GraphQLBoolean,
    GraphQLFloat,
    GraphQLInputField,
    GraphQLInputObjectType,
    GraphQLInt,
    GraphQLList,
    GraphQLNonNull,
    GraphQLString,
)

from tailrace_server.api.graphql import names
from tailrace_server.api.graphql.arguments import INVERTED, JOINED, LIKE, WHERE, WhereType
from tailrace_server.api.graphql.scalars import (
    BigInt,
    Date,
    Decimal,
    Json,
    Time,
    Timestamp,
    column_form,
)
from tailrace_server.filters.constants import family_of
from tailrace_server.filters.tree import Family
from tailrace_server.typed.forms import form_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import strawberry
    from graphql.type import GraphQLInputType, GraphQLScalarType

    from tailrace.schema import Column
    from tailrace_server.api.graphql.arguments import Scope
    from tailrace_server.api.graphql.catalog_schema import RowType

_ORDER: Final = ("gt", "gte", "lt", "lte")
_NUMBERS: Final[Mapping[object, str]] = {int: "Int", BigInt: "BigInt", float: "Float"}
"""Scalar → kind of tests, for columns of numbers; other numbers have the kind Decimal."""
_KINDS: Final = {
    Family.TEXT: "String",
    Family.BOOLEAN: "Boolean",
    Family.DATE: "Date",
    Family.TIME: "Time",
    Family.TIMESTAMP: "Timestamp",
    Family.INSTANT: "Timestamp",
}
_ALL_KINDS: Final = (
    "Int",
    "BigInt",
    "Float",
    "Decimal",
    *dict.fromkeys(_KINDS.values()),
    "JSON",
    "Null",
)
TEST_TYPES: Final = tuple(f"{kind}Tests" for kind in _ALL_KINDS)
"""Names of the input types of tests, which all entity types share."""


def add_conditions(
    made: strawberry.Schema,
    rows: Mapping[str, RowType],
    scopes: Mapping[str, Scope],
    histories: Mapping[str, Scope],
    tables: Mapping[str, str],
) -> dict[str, WhereType]:
    """Add the input types of conditions to a schema, and give its fields their argument ``where``.

    Args:
        made: The schema. Its fields have a placeholder argument ``where``, which is replaced, or removed from
            fields that do not belong to one entity type.
        rows: Type of a change → type of its row.
        scopes: Subscription field → part of the catalog that it covers.
        histories: Field of history → part of the catalog that it covers.
        tables: Field of a table or of one row → entity type.

    Returns:
        Entity type → fields of its ``where``. An entity type without columns has no entry.
    """
    core, scalar = made._schema, made.schema_converter.from_scalar
    assert core.query_type is not None
    assert core.subscription_type is not None
    # 1. Add the input types. All entity types share the types of tests.
    tests = _test_types(scalar)
    for kind in (*tests.values(), *_scalars(scalar)):
        core.type_map.setdefault(kind.name, kind)
    found: dict[str, WhereType] = {}
    arguments: dict[str, GraphQLArgument] = {}
    for row in rows.values():
        if columns := _columns_of(row):
            kind = _where_type(names.where_type(row.name), columns, tests)
            core.type_map[kind.name] = kind
            found[row.entity_type] = WhereType(columns)
            arguments[row.entity_type] = GraphQLArgument(kind, description=_DESCRIPTION)
    # 2. Replace the argument of each field. All fields share a few resolvers, so the resolvers cannot declare
    #    the input type of each entity type themselves.
    of_field = {name: scope.rows_of for name, scope in {**scopes, **histories}.items()}
    of_field |= tables
    for name, field in {**core.query_type.fields, **core.subscription_type.fields}.items():
        if WHERE in field.args:
            own = arguments.get(of_field.get(name) or "")
            others = {each: argument for each, argument in field.args.items() if each != WHERE}
            field.args = others if own is None else {**others, WHERE: own}
    return found


_OURS: Final = (BigInt, Decimal, Date, Time, Timestamp, Json)
_DESCRIPTION: Final = (
    "A condition on the values of rows; its members are joined by AND. The field `transition` of a change "
    "says how the change moved its row."
)


def _columns_of(row: RowType) -> dict[str, tuple[str, str]]:
    """Return field of ``where`` → column, and kind of the tests on that column."""
    # A column may be named `and`, `or` or `not`: its field then gets another name.
    fields = names.beside(row.fields, (*JOINED, INVERTED))
    return {
        field: (row.fields[of][0][0], _kind_of(row.fields[of][1].now))
        for field, of in fields.items()
    }


def _kind_of(column: Column) -> str:
    form = form_of(column)
    if form.is_json:
        return "JSON"
    family = family_of(form)
    # Values of this column cannot be compared: only `isNull` can be tested.
    if family is None:
        return "Null"
    if family is Family.NUMBER:
        return _NUMBERS.get(column_form(column).scalar, "Decimal")
    return _KINDS[family]


def _where_type(
    name: str, columns: Mapping[str, tuple[str, str]], tests: Mapping[str, GraphQLInputObjectType]
) -> GraphQLInputObjectType:
    def fields() -> dict[str, GraphQLInputField]:
        of_columns = {
            field: GraphQLInputField(tests[kind], description=f"Column {column!r}.")
            for field, (column, kind) in columns.items()
        }
        # The type refers to itself, which is possible because `fields` runs only when the type exists.
        many = GraphQLList(GraphQLNonNull(made))
        return {
            **of_columns,
            **{each: GraphQLInputField(many) for each in JOINED},
            INVERTED: GraphQLInputField(made),
        }

    made = GraphQLInputObjectType(name, fields, description="A condition on rows.")
    return made


def _scalars(scalar: Callable[[Any], GraphQLScalarType]) -> list[GraphQLScalarType]:
    """Return the scalars of the values in tests; every schema has all of them."""
    standard = (GraphQLInt, GraphQLFloat, GraphQLString, GraphQLBoolean)
    return [*standard, *map(scalar, _OURS)]


def _test_types(
    scalar: Callable[[Any], GraphQLScalarType],
) -> dict[str, GraphQLInputObjectType]:
    """Return the input types of tests by kind; the tests of one column are joined by AND."""
    values = {each.name: each for each in _scalars(scalar)}
    return {
        kind: GraphQLInputObjectType(
            f"{kind}Tests",
            partial(_test_fields, kind, values.get(kind)),
            description="Tests of a column; all of them must hold.",
        )
        for kind in _ALL_KINDS
    }


def _test_fields(kind: str, value: GraphQLInputType | None) -> dict[str, GraphQLInputField]:
    found: dict[str, GraphQLInputType] = {}
    if value is not None:
        order = () if kind == "Boolean" else _ORDER
        found = dict.fromkeys(("eq", "ne", *order), value)
        found["in"] = GraphQLList(GraphQLNonNull(value))
        if kind in ("String", "JSON"):
            found |= dict.fromkeys(LIKE, GraphQLString)
        found |= dict.fromkeys(("isDistinctFrom", "isNotDistinctFrom"), value)
    found["isNull"] = GraphQLBoolean
    return {name: GraphQLInputField(each) for name, each in found.items()}
