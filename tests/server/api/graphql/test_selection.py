"""What a selection set asks for. Every valid document against Strawberry: test_equality.py."""

from __future__ import annotations

from graphql.execution.values import VariableValues, get_variable_values

from tailrace_server.api.graphql.documents import read
from tailrace_server.api.graphql.selection import (
    BodyField,
    Collector,
    HeadField,
    RowField,
    SelectionSet,
    TypeName,
    root_of,
    selection_of,
)
from tailrace_server.api.settings import HttpSettings
from tests.server.api.graphql.generated import BUILT


def selected(text: str, **variables: bool) -> SelectionSet:
    """Return the selection of a subscription, with its variables as they were coerced."""
    document = read(BUILT, text, HttpSettings())
    operation = document.operation(None)
    values = get_variable_values(BUILT.core, operation.variable_definitions or (), variables)
    assert isinstance(values, VariableValues)
    collector = Collector(BUILT.core, document.fragments, values)
    return selection_of(root_of(operation, collector), BUILT, collector)


def test_fragments_are_merged_and_directives_evaluated() -> None:
    found = selected(
        "subscription ($x: Boolean!) { live: onCatalogChange "
        "{ a: version ...F index @skip(if: $x) after } } "
        "fragment F on Change { __typename a: version cursor }",
        x=True,
    )
    assert found.key == "live"
    assert found.members == (
        HeadField("a", "version"),
        TypeName("__typename", "CatalogChange"),
        HeadField("cursor", "cursor"),
        BodyField("after", "after", as_text=False),
    )
    assert found.bodies == {"after"}


def test_occurrences_of_a_row_are_merged_into_one() -> None:
    found = selected("subscription { onProductChange { after { id } version after { name id } } }")
    row, head = found.members
    assert isinstance(row, RowField)
    assert [each.key for each in row.cells] == ["id", "name"]
    assert head == HeadField("version", "version")


def test_equal_selections_have_one_identity_and_others_have_not() -> None:
    one = selected("subscription { onCatalogChange { version } }")
    same = selected("subscription Other { onCatalogChange { ... on Change { version } } }")
    renamed = selected("subscription { onCatalogChange { v: version } }")
    assert one.identity == same.identity != renamed.identity
