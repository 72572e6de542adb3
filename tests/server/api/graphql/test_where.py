"""``where`` by types: what it says as a tree, and what is wrong with it at its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from graphql import (
    GraphQLError,
    build_client_schema,
    execute_sync,
    get_introspection_query,
    parse,
    validate,
    validate_schema,
)
from graphql.execution.values import get_argument_values

from tailrace.conditions import ConditionTree
from tailrace.errors import InvalidRequest
from tailrace.schema import Column, Schema
from tailrace_server.api.graphql.schema import build
from tailrace_server.filters.binding import bind
from tailrace_server.filters.messages import tree_of
from tailrace_server.filters.parsing import parse as parse_text
from tests.conformance.shop import update, upsert
from tests.server.api.graphql.conftest import PATH, ask, client

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tailrace_server.api.graphql.arguments import TypedCondition
    from tailrace_server.api.graphql.catalog_schema import CatalogSchema
    from tests.server.api.rest.conftest import Served
    from tests.support.inprocess import ModelWriter

    Serve = Callable[..., Awaitable[Served]]

COLUMNS = (
    Column("stock", sql_type="INTEGER", id=1),
    Column("sold", sql_type="BIGINT", id=2),
    Column("price", sql_type="DECIMAL(10,2)", id=3),
    Column("weight", sql_type="DOUBLE", id=4),
    Column("name", sql_type="VARCHAR", id=5),
    Column("not", sql_type="BOOLEAN", id=6),
    Column("day", sql_type="DATE", id=7),
    Column("unit price", id=8),
    Column("image", sql_type="VARBINARY", encoding="base64", id=9),
)


@pytest.fixture(scope="module")
def built() -> CatalogSchema:
    return build(Schema(1, {"product": COLUMNS, "bare": ()}))


def condition(built: CatalogSchema, where: str) -> TypedCondition:
    """Return what the text of an argument says.

    Raises:
        GraphQLError: The schema refuses it.
    """
    document = parse(f"{{ products(where: {where}) {{ version }} }}")
    if faults := validate(built.core, document):
        raise faults[0]
    node = document.definitions[0].selection_set.selections[0]  # type: ignore[attr-defined]
    assert built.core.query_type is not None
    found = built.condition(
        "product", get_argument_values(built.core.query_type.fields["products"], node)
    )
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ('{price: {gt: "100"}}', "price > 100"),
        ('{price: {gte: "9.90", lt: 100}, name: {in: ["paid"]}}', None),
        ("{stock: {ne: -3}}", "stock <> -3"),
        ('{sold: {eq: "9007199254740993"}}', "sold = 9007199254740993"),
        ("{weight: {lte: 0.1}}", "weight <= 0.1"),
        ('{name: {like: "A%"}}', "name LIKE 'A%'"),
        ("{not_2: {isNotDistinctFrom: true}}", '"not" IS TRUE'),
        (
            '{day: {gte: "2024-02-29", lte: "2024-03-01"}}',
            "day BETWEEN '2024-02-29' AND '2024-03-01'",
        ),
        ("{unit_price: {eq: 1.5}}", '"unit price" = 1.5'),
        ('{unit_price: {ilike: "x"}}', "\"unit price\" ILIKE 'x'"),
        ("{image: {isNull: true}}", "image IS NULL"),
        (
            '{or: [{name: {eq: "x"}}, {not: {stock: {isNull: false}}}], stock: {in: [1, 2]}}',
            "stock IN (1, 2) AND (name = 'x' OR NOT stock IS NOT NULL)",
        ),
    ],
)
def test_an_argument_says_what_a_text_says(
    built: CatalogSchema, where: str, text: str | None
) -> None:
    """So that they share a publisher, too; and each of it can be judged by the columns."""
    tree = tree_of(ConditionTree.of(condition(built, where).tree))
    assert tree == parse_text(text or "(price >= 9.90 AND price < 100) AND name IN ('paid')")
    assert bind(tree, COLUMNS, {}).columns


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("{prise: {gt: 1}}", "unknown field 'prise'. Did you mean 'price'"),
        ("{stock: {gt: 1.5}}", "Int cannot represent non-integer value"),
        ("{price: {gt: 1.5}}", "Decimal cannot represent '1.5': must be a string of its digits"),
        ('{sold: {eq: "1 OR 1=1"}}', "BigInt cannot represent '1 OR 1=1'"),
        ("{day: {eq: 20240229}}", "Date cannot represent '20240229': must be a string"),
        ("{image: {eq: 1}}", "unknown field 'eq'"),
        ("{stock: {in: [null]}}", "Int"),
        ("{}", "^where: it has no test"),
        ("{price: {}}", "^where.price: it has no test"),
        ("{or: []}", "^where.or: the list is empty"),
        ("{or: [{price: {in: []}}]}", r"^where.or\[0\].price.in: the list is empty"),
        ("{price: {eq: null}}", "^where.price.eq: NULL is equal to no value; use isNull"),
        ("{not: null}", "^where.not: null is not a test"),
        ('{day: {eq: "2023-02-29"}}', "^where.day.eq: .* this day does not exist"),
        (
            '{stock: {eq: 1}, not: {name: {like: "\\\\"}}}',
            "^where.not.name.like: the pattern ends",
        ),
        (
            '{or: [{unit_price: {in: [1, "x"]}}]}',
            r"^where.or\[0\].unit_price: the type of 'unit price'",
        ),
        ("{unit_price: {eq: [1]}}", "must be a text, a whole number, true, false or an object"),
    ],
)
def test_what_is_wrong_with_an_argument_is_told_at_its_place(
    built: CatalogSchema, where: str, told: str
) -> None:
    with pytest.raises((GraphQLError, InvalidRequest), match=told):  # noqa: PT012  # either may raise
        found = condition(built, where)
        with found.told():
            bind(tree_of(ConditionTree.of(found.tree)), COLUMNS, {})


@pytest.mark.parametrize(
    "columns",
    [*((each,) for each in COLUMNS), COLUMNS, (), None],
    ids=[*(each.name for each in COLUMNS), "all", "an entity type without columns", "empty"],
)
def test_tools_can_build_the_schema_from_its_introspection(
    columns: tuple[Column, ...] | None,
) -> None:
    """Each type that a test of ``where`` refers to is listed, whatever types the columns have."""
    built = build(Schema(1, {} if columns is None else {"product": columns}))
    answer: Any = execute_sync(built.core, parse(get_introspection_query()))
    assert validate_schema(build_client_schema(answer.data)) == []


async def test_tools_can_build_the_schema_that_a_server_has_of_itself(
    serve: Serve, writer: ModelWriter
) -> None:
    served = await serve()
    found: Any = await ask(served, get_introspection_query(), path="/v1/system/graphql")
    assert validate_schema(build_client_schema(found)) == []


def test_the_types_are_in_the_schema_and_fields_without_rows_have_no_argument(
    built: CatalogSchema,
) -> None:
    """Tools that read the schema see them."""
    answer: Any = execute_sync(built.core, parse(get_introspection_query()))
    assert answer.errors is None
    made = {each["name"]: each for each in answer.data["__schema"]["types"]}
    assert [each["name"] for each in made["ProductWhere"]["inputFields"]] == [
        *("stock", "sold", "price", "weight", "name", "not_2", "day", "unit_price", "image"),
        *("and", "or", "not"),
    ]
    having = [
        each["name"]
        for root in ("Query", "Subscription")
        for each in made[root]["fields"]
        if "where" in [argument["name"] for argument in each["args"]]
    ]
    assert having == ["productChanges", "products", "onProductChange"]


async def test_live_history_and_tables_give_the_rows_that_meet_it(
    serve: Serve, writer: ModelWriter
) -> None:
    """Over a socket; mistakes are told where they stand in the argument."""
    writer.write([upsert("1", name="a"), upsert("2", name="b")])
    writer.write(
        [update("1", {"name": "a"}, {"name": "b"}), update("2", {"name": "b"}, {"name": "c"})]
    )
    served = await serve()
    where = {"or": [{"name": {"eq": "b"}}, {"name": {"in": ["x"]}}]}
    async with client(served) as one:
        text = (
            "subscription ($w: ProductWhere) { onProductChange(sinceVersion: 1, where: $w)"
            " { version primaryKey transition } }"
        )
        id = await one.subscribe(text, w=where)
        live = [each["data"]["onProductChange"] for each in await one.payloads(id, 3)]
        wrong = await one.subscribe(text, w={"not": {"name": {"like": "\\"}}})
        (error,) = await one.error(wrong)
    assert error["message"] == "where.not.name.like: the pattern ends with its escape character"
    assert [(each["primaryKey"], each["transition"]) for each in live] == [
        ("2", "ENTER"),
        ("1", "ENTER"),
        ("2", "LEAVE"),
    ]
    query = """
        query ($w: ProductWhere) {
          products(where: $w) { edges { node { primaryKey } } }
          productChanges(where: $w) { edges { node { version primaryKey transition } } }
        }
    """
    found = await ask(served, query, w=where)
    assert [each["node"]["primaryKey"] for each in found["products"]["edges"]] == ["1"]
    assert [each["node"] for each in found["productChanges"]["edges"]] == live
    both = '{ productChanges(where: {name: {eq: "b"}}, criteria: [{where: "id = 1"}]) { anchor } }'
    answer = await served.http.post(PATH, json={"query": both})
    assert "criteria[0].where: the field also has where" in answer.text
