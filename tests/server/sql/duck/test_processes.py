"""Statements in processes answer what they answer here, and end with all they took when they have to."""

from __future__ import annotations

import os
import resource
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.errors import InvalidRequest, ServerFull, TailraceError
from tailrace_server.child_processes import children_of
from tailrace_server.sql.duck.databases import HERE
from tailrace_server.sql.duck.processes import DatabasesBeside
from tailrace_server.sql.interruption import Interruption
from tailrace_server.sql.query import QueryLimits
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import SchemaMapping
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
        ("SELECT name FROM product WHERE _primary_key = $p || ''", {"p": "10"}),
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


def idle_process(log_root: Path, beside: DatabasesBeside) -> int:
    """Return the process that has computed a statement and waits for the next one."""
    before = children_of(os.getpid())
    assert ask(log_root, "SELECT 1", databases=beside) == [(1,)]
    (idle,) = set(children_of(os.getpid())) - set(before)
    return idle


def test_a_process_that_went_while_nobody_had_it_is_replaced(
    log_root: Path, beside: DatabasesBeside
) -> None:
    products(log_root)
    idle = idle_process(log_root, beside)
    os.kill(idle, signal.SIGKILL)
    assert ask(log_root, "SELECT 2", databases=beside) == [(2,)]


def test_one_that_stands_still_while_nobody_has_it_ends_with_the_statement_that_waits_for_it(
    log_root: Path, beside: DatabasesBeside
) -> None:
    products(log_root)
    idle = idle_process(log_root, beside)
    os.kill(idle, signal.SIGSTOP)
    interruption = Interruption()
    nobody_waits = threading.Timer(0.2, interruption.ask, ("nobody waits for it",))
    nobody_waits.start()
    with pytest.raises(InvalidRequest, match="nobody waits"):
        ask(log_root, "SELECT 2", databases=beside, interruption=interruption)
    nobody_waits.join(PATIENCE_S)
    assert ask(log_root, "SELECT 3", databases=beside) == [(3,)]


def test_one_that_somebody_kills_is_no_fault_of_its_statement(
    log_root: Path, beside: DatabasesBeside
) -> None:
    """Nor of another that is under way."""
    products(log_root)
    with opened(log_root, "SELECT * FROM range(99999)", databases=beside) as other:
        before = children_of(os.getpid())
        for number in (signal.SIGKILL, signal.SIGTERM):
            with opened(log_root, "SELECT * FROM range(1000000000000)", databases=beside) as query:
                (mine,) = set(children_of(os.getpid())) - set(before)
                os.kill(mine, number)
                with pytest.raises(ServerFull, match=f"by signal {int(number)}.*; try again"):
                    for _ in query.batches():
                        pass
        assert sum(map(len, other.batches())) == 99_999


def test_one_that_cannot_be_started_is_told_as_that(beside: DatabasesBeside) -> None:
    bounds = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, bounds[1]))
    try:
        with pytest.raises(ServerFull, match=r"cannot start a process .*Too many open files"):
            beside.take(16 << 20, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, bounds)


def test_a_uuid_is_found_whatever_letters_its_key_has(
    log_root: Path, beside: DatabasesBeside
) -> None:
    key = "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"
    mapping = SchemaMapping.parse(
        '[entity_types.part]\nkey = ["id"]\n[entity_types.part.columns]\nid = { type = "UUID" }'
    )
    with LogWriter.open(log_root, "shop", mapping=mapping) as writer:
        writer.append([Mutation("part", key, after=f'{{"id":"{key}"}}'.encode())])
        writer.commit(publish=True)
    for databases in (HERE, beside):
        text = f"SELECT id FROM part WHERE id = '{key}'::UUID"
        assert ask(log_root, text, databases=databases) == [(key,)]
