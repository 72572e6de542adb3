"""Errors in GraphQL's form. On real answers: test_http.py, test_socket.py; codes: rules/test_errors_page.py."""

from __future__ import annotations

from graphql import GraphQLError, Source

from tailrace.errors import CatalogUnknown
from tailrace_server.api.graphql.errors import (
    DocumentRefused,
    error_list,
    field_error,
    omitted,
)


def test_a_document_with_many_faults_is_told_the_first_twenty() -> None:
    faults = [GraphQLError(f"fault {number}") for number in range(1_000)]
    found = error_list(DocumentRefused(faults))
    assert [each["message"] for each in found] == [f"fault {number}" for number in range(20)]
    assert found[0]["extensions"]["code"] == "INVALID_REQUEST"
    assert "locations" not in found[0]


def test_a_fault_of_a_document_says_where_it_is() -> None:
    fault = GraphQLError("no such field", source=Source("{\n  nothing }"), positions=[4])
    (found,) = error_list(DocumentRefused([fault]))
    assert found["locations"] == [{"line": 2, "column": 3}]


def test_an_error_of_ours_keeps_its_code_and_figures() -> None:
    (found,) = error_list(CatalogUnknown("ship", ["shop"]))
    assert found["extensions"] == {
        "code": "CATALOG_UNKNOWN",
        "retriable": False,
        "figures": {"catalog": "ship", "known": "shop"},
    }


def test_an_error_of_a_field_keeps_its_path_and_is_a_bug_only_where_it_is_one() -> None:
    path: list[str | int] = ["products", 3, "after"]
    expected = {
        "BODIES_OMITTED": GraphQLError("", path=path, original_error=omitted(70_000)),
        "VALUE_INVALID": GraphQLError("not a Long", path=path),
        "INTERNAL": GraphQLError("", path=path, original_error=KeyError("k")),
    }
    for code, fault in expected.items():
        found = field_error(fault)
        assert (found["path"], found["extensions"]["code"]) == (path, code)
