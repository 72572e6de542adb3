"""Names of tables: two tables never have one, and a name is read as it is written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.pipeline.sources.debezium.names import full_name, levels_in, mapped_name

_LEVEL = st.text(alphabet='ab."= é', min_size=1, max_size=4)
_NAMES = st.lists(_LEVEL, min_size=1, max_size=3).map(tuple) | st.sampled_from(
    [("", "", "a"), ("", "a", "b")]
)


@given(_NAMES)
def test_levels_come_back_from_the_name_that_is_made_of_them(levels: tuple[str, ...]) -> None:
    name = full_name(levels)
    assert levels_in(name) == levels
    assert mapped_name(f'{name}=a=b."') == (name, 'a=b."')


def test_only_what_could_be_mistaken_is_quoted() -> None:
    assert full_name(("shop", "public", "order line")) == "shop.public.order line"
    assert full_name(("", "public", 'a"b')) == '.public."a""b"'


@pytest.mark.parametrize(
    "text", ["", ".", "..", "a.", ".a", "a..b", "..a.b", 'a"b"', '"a', '"a"b', "a.b.c.d"]
)
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a valid name of a table"):
        levels_in(text)


@pytest.mark.parametrize("text", ["orders", "orders=", "=old"])
def test_a_map_without_one_of_its_sides_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write TABLE=NAME"):
        mapped_name(text)
