"""A table is read again while the ingest follows: only wrong rows change, and the end state is right."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tailrace.criteria import Operation
from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.feed.postgres import resnapshot
from tailrace_server.pipeline.feed.postgres.options import ResnapshotOptions
from tailrace_server.pipeline.feed.postgres.resnapshot import request_resnapshot
from tailrace_server.pipeline.feed.source import SourceRefused
from tests.process.ingest.killable import Killable, end
from tests.process.ingest.test_postgres import PRODUCT, Shop, server, shop
from tests.process.ingest.test_postgres_kills import Writer
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.process.ingest.reading import Record

pytestmark = pytest.mark.slow

__all__ = ["server", "shop"]


def ask(shop: Shop, table: str, where: str | None = None, **given: Any) -> bool:
    options: dict[str, Any] = {"dsn": shop.server.dsn(shop.name), "slot": shop.name, **given}
    return request_resnapshot(
        ResnapshotOptions(catalog="shop", table=table, where=where, **options)
    )[1]


def past_the_ingest(shop: Shop, table: str, *statements: str) -> None:
    """Change a table while it is not published."""
    publication = f"ALTER PUBLICATION {shop.name}"
    shop.execute(
        f"{publication} DROP TABLE {table}", *statements, f"{publication} ADD TABLE {table}"
    )


def newest(found: list[Record]) -> dict[str, Any]:
    """Return key → row; also a row that a wrong log lacks may be removed."""
    state: dict[str, Any] = {}
    for each in found:
        assert each.primary_key is not None
        if each.operation == Operation.REMOVE:
            state.pop(each.primary_key, None)
        else:
            assert each.after is not None
            state[each.primary_key] = orjson.loads(each.after)
    return state


def test_a_table_becomes_right_although_writers_go_on_and_the_ingest_is_killed(
    shop: Shop, tmp_path: Path
) -> None:
    """Rows below 200 are written all the time, also with large values that no update sends; others never."""
    shop.execute(
        "CREATE TABLE account (id int PRIMARY KEY, balance int, body text)",
        "ALTER TABLE account ALTER body SET STORAGE EXTERNAL",
        "CREATE TABLE ledger (n serial PRIMARY KEY, note text)",
        "INSERT INTO account SELECT i, 0, repeat('a', 3000) FROM generate_series(1, 4000) i",
    )
    tables = ("account", "ledger")
    shop.ingest(table=tables)
    wrong = "i % 3 = 0 AND (i < 200 OR i > 3900)"
    past_the_ingest(
        shop,
        "account",
        f"UPDATE account SET body = repeat('w', 4000) WHERE {wrong.replace('i', 'id')}",
        "DELETE FROM account WHERE id % 100 = 1",
        "INSERT INTO account SELECT i, 1, repeat('n', 3000) FROM generate_series(4001, 4010) i",
    )
    dsn = shop.server.dsn(shop.name)
    command = Killable(
        *(tmp_path, "tailrace_server", "ingest", "postgres", "--dsn", dsn, "--follow"),
        *("--log", tmp_path, "--catalog", "shop", "--slot", shop.name),
    )
    with Writer(shop.server, seed=5, database=shop.name) as writer:
        process = command.start("postgres.resnapshot_page=kill@3")
        try:
            writer.wait_for_more(20)
            ask(shop, "account")
            assert process.wait(60) == -signal.SIGKILL, command.said()
        finally:
            end(process)
        process = command.start()
        try:
            wait_until(lambda: "account was read again" in command.said())
            writer.wait_for_more(20)
        finally:
            end(process)
    shop.ingest(table=tables)
    found = [each for each in shop.records() if each.entity_type == "account"]
    rows = shop.execute("SELECT id, to_jsonb(t) FROM account t")
    assert newest(found) == {str(key): row for key, row in rows}
    quiet = [
        int(each.primary_key or 0) for each in found[4_000:] if int(each.primary_key or 0) > 200
    ]
    expected = {i for i in range(3_901, 4_001) if i % 3 == 0} | {*range(201, 4_001, 100)}
    assert sorted(quiet) == sorted(expected | {*range(4_001, 4_011)})


def test_a_part_of_a_table_is_read_again_and_requests_queue_up(shop: Shop) -> None:
    shop.execute(PRODUCT, "INSERT INTO product SELECT i, 'n', i FROM generate_series(1, 3000) i")
    shop.ingest(table=("product",))
    past_the_ingest(
        shop,
        "product",
        "UPDATE product SET name = 'wrong' WHERE id IN (5, 2500)",
        "DELETE FROM product WHERE id IN (6, 2600)",
        "UPDATE product SET price = 9000 WHERE id = 7",
    )
    assert not ask(shop, "public.product", "price < 100 AND name <> 'x%y'")
    found = shop.new_records()
    assert sorted((each.operation, each.primary_key) for each in found) == [
        (Operation.UPSERT, "5"),
        (Operation.REMOVE, "2600"),
        (Operation.REMOVE, "6"),
    ]
    ask(shop, "product", "price >= 100")
    ask(shop, "product")
    found = shop.new_records()
    assert sorted(each.primary_key or "" for each in found) == ["2500", "7"]
    assert [each.split(":")[0] for each in shop.notes] == [
        "product where price < 100 AND name <> 'x%y' was read again",
        "product where price >= 100 was read again",
        "product was read again",
    ]
    assert shop.new_records() == []


def test_large_values_that_an_update_does_not_send_come_from_the_snapshot(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Updates come while pages are read, and the log has wrong values of their rows."""
    shop.execute(
        "CREATE TABLE doc (id int PRIMARY KEY, n int, body text)",
        "ALTER TABLE doc ALTER body SET STORAGE EXTERNAL",
        "INSERT INTO doc SELECT i, 0, repeat('a', 3000) FROM generate_series(1, 600) i",
    )
    shop.ingest(table=("doc",))
    past_the_ingest(shop, "doc", "UPDATE doc SET body = repeat('w', 3000) WHERE id > 597")
    updates = ["UPDATE doc SET n = 1 WHERE id = 598", "UPDATE doc SET id = 999 WHERE id = 600"]

    def update(_: str) -> None:
        if updates:
            shop.execute(updates.pop())

    monkeypatch.setattr(resnapshot, "_ROWS", 2)
    monkeypatch.setattr(resnapshot, "reach", update)
    ask(shop, "doc")
    found = shop.new_records()
    assert [each.primary_key for each in found][:3] == ["600", "999", "598"]
    shop.ingest()
    rows = shop.execute("SELECT id, to_jsonb(t) FROM doc t")
    assert newest(shop.records()) == {str(key): row for key, row in rows}


def test_rows_are_found_by_keys_of_several_columns(shop: Shop) -> None:
    shop.execute(
        "CREATE TABLE t (a char(3), b bytea, c numeric, note text, PRIMARY KEY (c, a, b))",
        r"INSERT INTO t VALUES ('x', '\x00ff', 1.50, 'q'), ('y', '\x01', 'NaN', 'r'), ('z', '', 2, 's')",
    )
    shop.ingest(table=("t",))
    past_the_ingest(shop, "t", "DELETE FROM t WHERE a = 'z'")
    ask(shop, "t", "note = 'none'")
    assert [each.operation for each in shop.new_records()] == [Operation.REMOVE]


def test_a_request_that_cannot_be_done_is_refused_or_passed_over(shop: Shop) -> None:
    shop.execute(PRODUCT, "CREATE TABLE other (id int PRIMARY KEY)")
    shop.ingest(table=("product",))
    cases: list[tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]]] = [
        (SourceRefused, "no slot nothing", ("product",), {"slot": "nothing"}),
        (SourceRefused, "has no table public.other", ("other",), {}),
        (InvalidRequest, 'column "colour" does not exist', ("product", "colour = 1"), {}),
        (InvalidRequest, "where", ("product", "pg_sleep(1) IS NULL"), {}),
    ]
    for kind, reason, arguments, options in cases:
        with pytest.raises(kind, match=reason):
            ask(shop, *arguments, **options)
    ask(shop, "product", "price = 1")
    said = "SELECT pg_logical_emit_message(true, 'tailrace.resnapshot', '{}')"
    request = '{{"slot": "{}", "schema": "public", "table": "product", "where": "pg_sleep(9) = 1"}}'
    shop.execute(
        said.format("no JSON"),
        said.format(request.format(shop.name)),
        "ALTER TABLE product DROP price",
    )
    shop.execute("INSERT INTO product VALUES (1, 'a')")
    assert len(shop.new_records()) == 1
    reasons = ["is not a request", 'column "price" does not exist', "is not read again: where"]
    assert all(part in told for part, told in zip(reasons, shop.warnings, strict=True))
    # The keys of the log are not of the column's new type.
    past_the_ingest(
        shop,
        "product",
        "ALTER TABLE product ALTER id TYPE date USING date '2024-01-01'",
    )
    ask(shop, "product", "name = 'none'")
    shop.warnings.clear()
    assert shop.new_records() == []
    assert "invalid input syntax" in shop.warnings.pop()
    assert shop.new_records() == []
    assert shop.warnings == []
