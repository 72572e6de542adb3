"""Statements in processes answer what they answer here, and end with all they took when they have to."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.errors import InvalidRequest, TailraceError
from tailrace_server.child_processes import children_of
from tailrace_server.sql.duck.processes import DatabasesBeside
from tailrace_server.sql.interruption import Interruption
from tailrace_server.sql.query import QueryLimits
from tests.server.sql.test_query import ask, opened, products
from tests.support.inprocess import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NEVER_INTERRUPTED = "SELECT list_reduce(range(1000000), lambda a, b: a + b)"
"""One call of a function, which computes for minutes."""


@pytest.fixture
def beside() -> Iterator[DatabasesBeside]:
    before = children_of(os.getpid())
    databases = DatabasesBeside()
    yield databases
    databases.close()
    assert children_of(os.getpid()) == before


def answer(root: Path, text: str, **more: Any) -> Any:
    """Return the rows of an answer, or the error in place of them."""
    try:
        return ask(root, text, **more)
    except TailraceError as error:
        return type(error), str(error)


def test_a_statement_is_answered_there_as_it_is_here(
    log_root: Path, beside: DatabasesBeside
) -> None:
    products(log_root)
    for text, parameters in (
        ("SELECT id, name, price, _commit_timestamp FROM product ORDER BY id", None),
        ("SELECT * FROM product n JOIN product FOR VERSION AS OF 1 o USING (id)", None),
        ("SELECT * FROM CHANGES('product', '2026-01-01', now()) ORDER BY ALL", None),
        ("SELECT i, i::VARCHAR::ENUM('0', '1') FROM range(2) t(i)", None),
        ("SELECT i FROM range(20000) t(i)", None),
        ("SELECT name FROM product WHERE price > $p AND id IN $k", {"p": 1, "k": [1, 2]}),
        ("SELECT name FROM product WHERE _commit_timestamp < 'infinity'::TIMESTAMPTZ", None),
        ("SELECT nme FROM product", None),
        ("SELECT p.nme FROM product p", None),
        ("SELECT after.nme FROM CHANGES('product')", None),
        ("SELECT price + 'x' FROM product", None),
        ("SELECT count(*) FROM product", None),
        ("EXPLAIN SELECT name FROM product", None),
    ):
        here = answer(log_root, text, parameters=parameters)
        assert here
        assert answer(log_root, text, parameters=parameters, databases=beside) == here, text


def test_what_a_function_makes_is_bounded_and_the_next_statement_is_answered(
    log_root: Path, beside: DatabasesBeside
) -> None:
    products(log_root)
    for text in (
        "SELECT len(list_transform(range(20000), lambda x: range(20000)))",
        "SELECT name FROM product FOR VERSION AS OF length(repeat('x', 2000000000))",
    ):
        with pytest.raises(InvalidRequest, match="needs more memory"):
            ask(log_root, text, databases=beside, limits=QueryLimits(memory_bytes=16 << 20))
    assert ask(log_root, "SELECT count(*) FROM product", databases=beside) == [(2,)]


def test_what_cannot_be_interrupted_ends_with_its_process(
    log_root: Path, beside: DatabasesBeside
) -> None:
    products(log_root)
    interruption = Interruption()
    nobody_waits = threading.Timer(0.2, interruption.ask, ("nobody waits for it",))
    nobody_waits.start()
    with pytest.raises(InvalidRequest, match="nobody waits"):
        ask(log_root, NEVER_INTERRUPTED, databases=beside, interruption=interruption)
    nobody_waits.join(PATIENCE_S)


def test_an_answer_that_is_left_is_not_computed_further(
    log_root: Path, beside: DatabasesBeside
) -> None:
    products(log_root)
    with opened(log_root, "SELECT * FROM range(1000000000000)", databases=beside) as query:
        assert len(next(query.batches()))
    assert ask(log_root, "SELECT count(*) FROM product", databases=beside) == [(2,)]
