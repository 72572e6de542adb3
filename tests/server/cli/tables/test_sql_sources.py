"""``tailrace sql`` with a server, and ``--follow``: what a log's folder answers, a server does as well."""

from __future__ import annotations

import asyncio
import io
import json
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import CursorAhead, InvalidRequest
from tailrace_server.api.grpc import GrpcServer
from tailrace_server.cli.tables.sql import (
    SourceOptions,
    SqlShell,
    _show_of_server,
    completions,
    sql,
)
from tailrace_server.cli.tables.sql_sources import SqlStatement, local_answers
from tailrace_server.engine.engine import Engine
from tailrace_server.sql.interruption import Interruption
from tailrace_server.sql.query import QueryLimits
from tests.conformance.shop import upsert
from tests.server.cli.command_line import call, made
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.inprocess import ModelWriter

CHANGES = "SELECT _commit_version AS v, _primary_key AS k FROM CHANGES('product', $from, $to)"
VALUES = "SELECT 'b'::ENUM('a', 'b') AS e, 1.50::DECIMAL(4,2) AS d, $x AS x FROM range(3)"


ask = partial(call, sql, catalog="shop")


@pytest.fixture
async def server(log_root: Path, writer: ModelWriter) -> AsyncIterator[SourceOptions]:
    writer.write([upsert("1"), upsert("2")])
    async with Engine(log_root) as engine:
        grpc = GrpcServer(engine)
        port = await grpc.start("127.0.0.1:0")
        try:
            yield made(SourceOptions, server=f"127.0.0.1:{port}")
        finally:
            await grpc.stop(1.0)


async def test_a_server_is_shown_as_a_log_is(
    server: SourceOptions, log_root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for form in ("json", "csv", "text"):
        await _show_of_server(server, SqlStatement("shop", VALUES, {"x": "7"}), form)
        asked, _ = capfd.readouterr()
        in_json, in_csv = form == "json", form == "csv"
        ask(statement=VALUES, log=log_root, parameter=["x=7"], as_json=in_json, csv=in_csv)
        assert asked == capfd.readouterr().out
        assert asked
    with pytest.raises(InvalidRequest, match="did you mean product"):
        await _show_of_server(server, SqlStatement("shop", "TABLE produced", {}), "text")


async def test_what_comes_is_shown_as_it_comes(
    server: SourceOptions, writer: ModelWriter, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = SqlStatement("shop", CHANGES, {}, since=0, every_s=0.01)
    showing = asyncio.create_task(_show_of_server(server, asked, "json"))
    shown: list[object] = []

    def seen(count: int) -> bool:
        shown.extend(map(json.loads, capfd.readouterr().out.splitlines()))
        return len(shown) >= count

    await until(lambda: seen(2))
    writer.write([upsert("3")])
    await until(lambda: seen(3))
    assert shown == [{"v": 1, "k": "1"}, {"v": 1, "k": "2"}, {"v": 2, "k": "3"}]
    showing.cancel()
    with suppress(asyncio.CancelledError):
        await showing


def test_a_log_is_followed_by_its_versions(log_root: Path, writer: ModelWriter) -> None:
    writer.write([upsert("1")])
    asked = SqlStatement("shop", CHANGES, {}, since=0, every_s=0.0)
    answers = local_answers(asked, log_root, QueryLimits(), Interruption())
    for version in (1, 2, 3):
        answer = next(answers)
        rows = [row for batch in answer.batches for row in batch.to_pylist()]
        assert rows == [{"v": version, "k": str(version)}]
        writer.commit([upsert(str(version + 1))])
        writer.publish()
    answers.close()
    ahead = replace(asked, since=6)
    with pytest.raises(CursorAhead):  # and not a wait: the log was restored from an older copy
        next(local_answers(ahead, log_root, QueryLimits(), Interruption()))


def test_a_source_is_named_and_since_is_of_what_follows(log_root: Path) -> None:
    with pytest.raises(InvalidRequest, match="--server HOST:PORT"):
        ask(statement="SELECT 1")
    with pytest.raises(InvalidRequest, match="--since is the start of --follow"):
        ask(statement="SELECT 1", log=log_root, since="3")


def test_a_shell_runs_what_is_typed_and_goes_on_after_errors(
    log_root: Path,
    writer: ModelWriter,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A statement has lines until one ends with a semicolon."""
    writer.write([upsert("1", name="chair")])
    typed = ["SELECT _primary_key", "FROM product;", "SELECT * FROM produce;", r"\d", r"\x", r"\q"]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(typed)))
    assert ask(statement=None, log=log_root, as_json=True) == 0
    out, err = capfd.readouterr()
    first, *tables = map(json.loads, out.splitlines())
    assert first == {"_primary_key": "1"}
    assert "product" in [each["table"] for each in tables]
    assert "INVALID_REQUEST: there is no table 'produce'; did you mean product?" in err
    assert r"\x is not known" in err


def test_names_and_words_are_completed() -> None:
    shell = SqlShell(print, lambda text: ["product"] if text == "SHOW TABLES" else ["price", "id"])
    assert shell.names() == ["product", "price", "id"]
    assert completions(shell.names(), "pr") == ["product", "price"]
    assert completions(shell.names(), "sel") == ["SELECT"]
    assert not completions(shell.names(), "")
