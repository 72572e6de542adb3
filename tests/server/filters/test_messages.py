"""Conditions as trees: what messages and JSON forms say is what a text says; errors name their path."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings

from tailrace.conditions import ConditionTree, fill
from tailrace.errors import InvalidRequest, Unsupported
from tailrace.v1.capture_pb2 import Condition
from tailrace_server.filters.binding import bind
from tailrace_server.filters.messages import message_of, tree_of
from tailrace_server.filters.parsing import parse
from tailrace_server.filters.tree import words_of
from tests.server.filters.test_filters import COLUMNS, OTHERS, conditions


def through_json(tree: ConditionTree) -> ConditionTree:
    """Return a tree as its JSON text says it."""
    message = Condition()
    fill(message, json.loads(str(tree)), "whereTree")
    return ConditionTree.of_message(message)


@settings(max_examples=50)
@given(text=conditions)
def test_a_text_a_message_and_a_json_form_are_one_tree(text: str) -> None:
    tree = parse(text)
    message = message_of(tree)
    assert tree_of(message) == tree_of(through_json(message)) == parse(words_of(tree)) == tree


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"column": "price", "gte": 100, "lte": Decimal("2.50")}, "price BETWEEN 100 AND 2.50"),
        ({"column": "name", "in": ["paid", "it's"]}, "name IN ('paid', 'it''s')"),
        ({"column": "name", "ilike": "a!%", "escape": "!"}, "name ILIKE 'a!%' ESCAPE '!'"),
        ({"column": "name", "isNull": False}, "name IS NOT NULL"),
        ({"column": "active", "isNotDistinctFrom": True}, "active IS TRUE"),
        ({"column": "name", "isDistinctFrom": "x"}, "name IS DISTINCT FROM 'x'"),
        ({"column": "price", "eq": {"null": True}}, "price = NULL"),
        (
            {"column": "day", "lt": {"text": "2024-02-29", "type": "DATE"}},
            "day < DATE '2024-02-29'",
        ),
        ({"column": "price", "gt": {"parameter": "a", "type": "NUMBER"}}, "price > :a::INT"),
        ({"column": "active", "ne": {"text": "x", "type": "BOOLEAN"}}, "active <> 'x'::BOOLEAN"),
        ({"column": "weight", "eq": {"number": "1 OR 1=1"}}, "weight = CAST('1 OR 1=1' AS INT)"),
        (
            {
                "or": [
                    {"not": {"column": "stock", "eq": 1}},
                    {"and": [{"column": "name", "like": "%"}]},
                ]
            },
            "NOT stock = 1 OR name LIKE '%'",
        ),
    ],
)
def test_a_form_says_what_a_text_says(form: dict[str, Any], text: str) -> None:
    """And words of a tree are no other condition than the tree."""
    found = tree_of(ConditionTree.of(form))
    assert found == parse(text) == parse(words_of(found))
    assert tree_of(ConditionTree.of(ConditionTree.of(form).form)) == found


@pytest.mark.parametrize(
    ("form", "told"),
    [
        ([], "where: must be an object, not a list"),
        ({}, "where, at the whole: a condition is one of and, or, not, and a column"),
        ({"and": []}, r"where.and: the list is empty"),
        ({"and": {"column": "stock"}}, r"where.and: must be a list, not an object"),
        ({"greater": 1}, "where.greater: there is and, or, not, column, eq"),
        (
            {"or": [{"column": "stock", "eq": 1}, {"not": {}}]},
            r"where, at or\[1\].not: a condition is",
        ),
        ({"column": "stock", "not": {"column": "stock", "eq": 1}}, "a condition is one of"),
        ({"eq": 1}, "a condition is one of"),
        ({"column": "stock"}, "where, at column: the column 'stock' has no test"),
        ({"column": "stock", "eq": None}, "where.eq: NULL is equal to no value; use isNull"),
        ({"column": "stock", "in": 5}, "where.in: must be a list, not 5"),
        ({"column": "stock", "isNull": "yes"}, "where.isNull: must be true or false, not 'yes'"),
        ({"column": "stock", "eq": {"text": "1", "number": "1"}}, "where.eq: give exactly one of"),
        (
            {"column": "stock", "eq": {"number": "1", "type": "DATE"}},
            "where, at eq: a value is one of",
        ),
        (
            {"column": "stock", "eq": {"text": "1", "type": "DAY"}},
            "where.eq.type: must be one of NUMBER,",
        ),
        ({"column": "stock", "eq": {"null": False}}, "where.eq.null: must be true, not false"),
        ({"column": "stock", "eq": {"parameter": ""}}, "where, at eq: a value is one of"),
        ({"column": "\ud800", "eq": 1}, "where.column: the text cannot be encoded as UTF-8"),
        (
            {"column": "name", "like": "a", "escape": "ab"},
            "where, at escape: must be one character",
        ),
        (
            {"and": [{"column": "stock", "eq": 1}, {"column": "stocks", "eq": 1}]},
            r"where, at and\[1\].column: there is no column 'stocks'; did you mean stock",
        ),
        (
            {"column": "stock", "in": [1, "x"]},
            r"where, at in\[1\]: 'stock' is compared with a number",
        ),
        (
            {"column": "stock", "eq": {"number": "1 OR 1=1"}},
            "where, at eq: '1 OR 1=1' is not a number",
        ),
        (
            {"column": "stock", "eq": {"parameter": "b"}},
            "where, at eq: the parameter 'b' has no value",
        ),
        ({"column": "name", "like": "a\\"}, "where, at like: the pattern ends with its escape"),
        (
            {"column": "stock", "in": [1] * 10_001},
            r"in\[9999\]: a filter may have at most 10000 columns and values",
        ),
        (
            {"column": "name", "eq": "a" * (64 << 10)},
            "where: the condition is longer than 65536 bytes",
        ),
    ],
)
def test_what_is_wrong_with_a_tree_is_told_with_its_path(form: Any, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        bind(tree_of(ConditionTree.of(form)), (*COLUMNS, *OTHERS), {})


def test_a_tree_is_as_deep_as_a_text_may_be() -> None:
    """A message that is deeper, which no client of ours makes, is refused like a form."""
    form: dict[str, Any] = {"column": "active", "eq": True}
    for _ in range(64):
        form = {"not": form}
    assert bind(tree_of(ConditionTree.of(form)), COLUMNS, {}).columns
    with pytest.raises(InvalidRequest, match=r"where\.not\.not.*nested at most 64 deep"):
        ConditionTree.of({"not": form})
    deeper = Condition(negated=ConditionTree.of(form).message)
    with pytest.raises(InvalidRequest, match="nested at most 64 deep"):
        tree_of(ConditionTree.of_message(deeper))
    with pytest.raises(InvalidRequest, match="no condition can be read"):
        tree_of(ConditionTree(b"\x1a\xff"))


def test_a_number_that_came_through_json_is_whole() -> None:
    """Another one may have lost digits on its way."""
    with pytest.raises(InvalidRequest, match=r'whereTree.gt: .* write \{"number": "0.1"\}'):
        fill(Condition(), {"column": "price", "gt": 0.1}, "whereTree")


def test_what_another_version_knows_is_refused_with_its_path() -> None:
    """Left out, it would be another condition."""
    unknown = b"\xfa\x01\x01x"  # field 31
    good = ConditionTree.of({"column": "stock", "eq": {"text": "1", "type": "NUMBER"}})
    for of_value, data, told in (
        (False, unknown, "the whole: .* field 31 of Condition"),
        (True, unknown, "eq: .* field 31 of ConditionValue"),
        (True, b"\x30\x63", r"eq.type: .* the type 99"),
    ):
        message = good.message
        (message.eq if of_value else message).MergeFromString(data)
        with pytest.raises(Unsupported, match=rf"where_tree.{told}"):
            tree_of(ConditionTree.of_message(message))
