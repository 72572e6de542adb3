"""What a statement takes before it runs: bounded by its words, and freed at once."""

from __future__ import annotations

import gc
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from sqlglot import exp

from tailrace.errors import InvalidRequest
from tailrace_server.filters.parsing import parse
from tests.server.sql.test_query import ask, products

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def nothing_collected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def nodes() -> int:
    return sum(issubclass(type(each), exp.Expr) for each in gc.get_objects())


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_collected")
@pytest.mark.parametrize(
    "text",
    [
        "SELECT [%s]",
        "SELECT {%s}",
        "SELECT %s FROM nothing",
        "SELECT [%s] FRM product",
        "SELECT [%s",
        "SELECT unknown([%s])",
        "SELECT * FROM product WHERE id IN (%s)",
        "SELECT * FROM product n JOIN product FOR VERSION AS OF 1 o USING (id) WHERE n.id IN (%s)",
        "SELECT name FROM cheap WHERE id IN (%s)",
        "SELECT * FROM CHANGES('product') WHERE _commit_version IN (%s)",
        "SELECT id FROM product_cdc WHERE id IN (%s)",
        "CREATE VIEW other AS SELECT id FROM product WHERE id IN (%s)",
        "CREATE VIEW other AS SELECT [%s] FROM product",
    ],
)
def test_no_tree_of_a_statement_outlives_its_begin(log_root: Path, text: str) -> None:
    """Trees refer to themselves, so one that is only forgotten waits for the collector."""
    products(log_root)
    ask(log_root, "CREATE VIEW cheap AS SELECT * FROM product WHERE price < 5", may_define=True)
    ask(log_root, "CREATE CDC product_cdc ON product", may_define=True)
    values = ",".join(f"'a{each}':{each}" if "{" in text else str(each) for each in range(500))
    found = []
    for _ in range(2):  # what the first one leaves are caches
        with suppress(InvalidRequest):
            ask(log_root, text % values, may_define=True)
        found.append(nodes())
    assert found[1] - found[0] < 100, found


@pytest.mark.usefixtures("nothing_collected")
def test_no_tree_of_a_condition_outlives_it() -> None:
    parse("id IN (1)")
    before = nodes()
    parse(f"id IN ({','.join(map(str, range(1_000)))})")
    assert nodes() == before


def test_a_statement_has_a_bounded_number_of_words(log_root: Path) -> None:
    products(log_root)
    for text in ("SELECT [%s]", "CREATE VIEW v AS SELECT [%s] FROM product"):
        with pytest.raises(InvalidRequest, match=r"60,0\d+ words .* as a parameter"):
            ask(log_root, text % ",".join(["1"] * 30_000))
        with pytest.raises(InvalidRequest, match="longer than 65536 bytes"):
            ask(log_root, text % ",".join(["1"] * 40_000))
    ids = list(range(30_000))
    found = ask(
        log_root, "SELECT id FROM product WHERE id IN $ids ORDER BY 1", parameters={"ids": ids}
    )
    assert found == [(1,), (10,)]
