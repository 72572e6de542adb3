"""Names of types and fields: valid in GraphQL, unique, and stable as a schema grows."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.api.graphql.names import field_names, made_of, type_names

NAME = re.compile(r"(?!__)[_A-Za-z][_0-9A-Za-z]*")
TEXTS = st.lists(st.text(st.sampled_from("aB_1 -é"), max_size=6), max_size=8, unique=True)


@given(columns=TEXTS, more=TEXTS)
def test_every_column_has_a_valid_name_of_its_own_which_a_later_column_does_not_change(
    columns: list[str], more: list[str]
) -> None:
    names = field_names(columns)
    assert list(names.values()) == columns
    assert all(NAME.fullmatch(name) for name in names)
    grown = field_names([*columns, *(each for each in more if each not in columns)])
    assert list(grown.items())[: len(columns)] == list(names.items())


@given(entity_types=TEXTS)
def test_nothing_made_of_one_stem_is_made_of_another(entity_types: list[str]) -> None:
    reserved = {"Query", "Change"}
    stems = type_names(entity_types, reserved)
    assert list(stems.values()) == entity_types
    made = [name for stem in stems for name in made_of(stem)]
    assert len({*made, *reserved}) == len(made) + len(reserved)
    assert all(NAME.fullmatch(name) for name in made)


def test_names_stay_near_to_what_they_name() -> None:
    assert field_names(["id", "on sale", "on-sale", "1st", "__x"]) == {
        "id": "id",
        "on_sale": "on sale",
        "on_sale_2": "on-sale",
        "_1st": "1st",
        "_x": "__x",
    }
    assert type_names(["order_line", "orderLine", "query"], ["Query"]) == {
        "OrderLine": "order_line",
        "OrderLine_2": "orderLine",
        "Query_2": "query",
    }
