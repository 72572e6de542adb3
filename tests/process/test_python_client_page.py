"""The programs of docs/python-client.md run as they are printed; only the port differs."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tailrace_server.access.api_keys import new_key, write_keys
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tests.process.commands import TERMINATE, ServerProcess, environment
from tests.rules.test_documented_programs import DOCS, blocks
from tests.support.certificates import Authority
from tests.support.polling import until
from tests.support.programs import PATIENCE_S, Program

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.slow

PAGE = "python-client.md"
ADDRESS = "127.0.0.1:7411"
SECTIONS = {
    "In short": 1,
    "Rows as Python values": 1,
    "Live tables": 1,
    "SQL": 1,
    "Resume after a restart": 1,
    "pytest": 2,
    "FastAPI and Starlette": 1,
    "Jupyter": 3,
    "Threads": 1,
    "Processes": 1,
    "Tokens": 1,
    "Errors": 1,
}
"""Sections with programs, and how many each has; each is run by a test below."""
OTHER_BLOCKS = 1
"""What a command answers, in "TLS"."""


def publish(root: Path, *keys: str) -> None:
    """Publish a transaction of a product and an order for each key."""
    with LogWriter.open(root, "shop") as writer:
        for key in keys:
            after = b'{"id":"%b"}' % key.encode()
            writer.append([Mutation(each, key, after=after) for each in ("product", "order")])


@pytest.fixture
async def server(log_root: Path) -> AsyncIterator[ServerProcess]:
    publish(log_root, "1", "2", "3")
    server = ServerProcess(log_root, ("--heartbeat-interval-s", "200ms"))
    async with server.up():
        yield server


def programs(section: str, server: ServerProcess) -> list[str]:
    """Return the programs of a section, for the server of a test."""
    found = blocks(PAGE, section, "python")
    assert len(found) == SECTIONS[section]
    return [each.replace(ADDRESS, server.grpc) for each in found]


@asynccontextmanager
async def running(folder: Path, *arguments: str) -> AsyncIterator[Program]:
    """Run Python in a folder."""
    async with Program(
        sys.executable, *arguments, folder=folder, environment=environment()
    ) as program:
        yield program


async def ended(program: Program) -> int:
    async with asyncio.timeout(PATIENCE_S):
        return await program.process.wait()


def test_every_program_of_the_page_is_run() -> None:
    text = (DOCS / PAGE).read_text()
    assert len(re.findall(r"^```", text, re.M)) == 2 * (sum(SECTIONS.values()) + OTHER_BLOCKS)


async def test_the_shortest_program(server: ServerProcess, tmp_path: Path) -> None:
    (program,) = programs("In short", server)
    async with running(tmp_path, "-u", "-c", program) as shown:
        lines = await shown.printed(3)
        assert [line.partition(" ")[2] for line in lines] == [
            f'UPSERT {key} b\'{{"id":"{key}"}}\'' for key in "123"
        ]


@pytest.mark.nightly("tests/client/typed/test_typed_reads.py: rows as values over every call")
async def test_the_program_of_typed_rows(server: ServerProcess, tmp_path: Path) -> None:
    (program,) = programs("Rows as Python values", server)
    async with running(tmp_path, "-u", "-c", program) as shown:
        lines = await shown.printed(4)
        assert ast.literal_eval(lines[0]) == {key: {"id": key} for key in "123"}
        assert lines[1:] == [f"{key} {{'id': '{key}'}}" for key in "123"]


@pytest.mark.nightly("tests/client/table/test_file.py: a killed program goes on from its file")
async def test_the_program_of_live_tables_goes_on_from_its_file(
    server: ServerProcess, log_root: Path, tmp_path: Path
) -> None:
    (program,) = programs("Live tables", server)
    async with running(tmp_path, "-u", "-c", program) as shown:
        lines = await shown.printed(2)
        assert lines == ["version 3 has ['1', '2', '3']", "{'id': '1'}"]
        publish(log_root, "4")
        assert (await shown.printed(3))[-1] == "4 4 {'id': '4'}"
    async with running(tmp_path, "-u", "-c", program) as shown:
        assert (await shown.printed(1))[0] == "version 4 has ['1', '2', '3', '4']"


@pytest.mark.nightly(
    "tests/client/sql/test_poll.py: polls; tests/process/test_quickstart.py: a statement of SQL"
)
async def test_the_program_that_asks_in_sql(server: ServerProcess, tmp_path: Path) -> None:
    (program,) = programs("SQL", server)
    async with running(tmp_path, "-u", "-c", program) as shown:
        assert await shown.printed(2) == ["insert 2", "insert 3"]


@pytest.mark.nightly(
    "tests/examples/test_examples.py: programs of the client go on where they were cut"
)
async def test_a_program_goes_on_where_it_stopped(
    server: ServerProcess, log_root: Path, tmp_path: Path
) -> None:
    (program,) = programs("Resume after a restart", server)
    saved = tmp_path / "shop.cursor"
    for newest in (3, 4, 5):
        if newest > 3:
            publish(log_root, str(newest))
        async with running(tmp_path, "-c", program) as shown:
            await until(lambda: saved.exists() and f".{newest}." in saved.read_text())  # noqa: B023
            first = (await shown.printed(1))[0]
        assert newest == 3 or first.startswith(f"applied up to {newest}:")


async def test_fixtures_of_both_scopes(server: ServerProcess, tmp_path: Path) -> None:
    for program in programs("pytest", server):
        (tmp_path / program.split()[1]).write_text(program)
    (tmp_path / "test_wrong.py").write_text(
        "import pytest\n\n@pytest.mark.asyncio\nasync def test_wrong(shared_client):\n"
        "    await shared_client.list_catalogs()\n"
    )
    options = ("-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path))
    async with running(tmp_path, *options, "test_shop.py") as shown:
        assert await ended(shown) == 0, shown.lines
        assert "2 passed" in shown.lines[-1]
    async with running(tmp_path, *options, "test_wrong.py") as shown:
        assert await ended(shown) == 1
        assert any("belongs to the event loop that entered it" in line for line in shown.lines)


async def test_an_application_streams_to_browsers_and_stops(
    server: ServerProcess, log_root: Path, tmp_path: Path
) -> None:
    (program,) = programs("FastAPI and Starlette", server)
    (tmp_path / "app.py").write_text(program)
    run = ("-m", "uvicorn", "app:app", "--timeout-graceful-shutdown", "2", "--port", "0")
    async with running(tmp_path, *run) as shown:
        note = await shown.noted("Uvicorn running on ")
        url = note.split("running on ")[1].split()[0]
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            assert "EventSource" in (await client.get("/")).text
            assert await events(client, {}, 3) == ["1", "2", "3"]
            last = {"last-event-id": await last_id(client)}
            publish(log_root, "4")
            assert await events(client, last, 3) == ["2", "3", "4"]
            refused = {"last-event-id": "nothing"}
            async with client.stream("GET", "/products", headers=refused) as answer:
                assert (await answer.aread()).startswith(b"event: refused\ndata: not a cursor")
            async with client.stream("GET", "/products") as answer:
                await anext(answer.aiter_lines())
                shown.process.send_signal(TERMINATE)
                await ended(shown)
    assert not any("never retrieved" in line or "was destroyed" in line for line in shown.notes)


async def events(client: httpx.AsyncClient, headers: dict[str, str], count: int) -> list[str]:
    """Return the keys of the first events."""
    keys: list[str] = []
    async with (
        asyncio.timeout(PATIENCE_S),
        client.stream("GET", "/products", headers=headers) as answer,
    ):
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                keys.append(ast.literal_eval(line.removeprefix("data: "))["key"])
            if len(keys) == count:
                break
    return keys


async def last_id(client: httpx.AsyncClient) -> str:
    """Return the id of the first event."""
    async with asyncio.timeout(PATIENCE_S), client.stream("GET", "/products") as answer:
        return (await anext(answer.aiter_lines())).removeprefix("id: ")


async def test_cells_of_a_notebook(server: ServerProcess) -> None:
    """As IPython runs them: each with await at top level, and shown is what its last line is."""
    names: dict[str, Any] = {}
    shown = []
    for cell in programs("Jupyter", server):
        *body, last = ast.parse(cell).body
        assert isinstance(last, ast.Expr)
        for code in (ast.Module(body, []), ast.Expression(last.value)):
            mode = "eval" if isinstance(code, ast.Expression) else "exec"
            compiled = compile(code, "cell", mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            result = eval(compiled, names)
            if inspect.isawaitable(result):
                result = await result
        shown.append(result)
    assert shown[0] == ["shop"]
    assert str(shown[1]) == "3:2"


@pytest.mark.parametrize("section", ["Threads", "Processes"])
async def test_threads_and_processes(
    server: ServerProcess, log_root: Path, tmp_path: Path, section: str
) -> None:
    (program,) = programs(section, server)
    (tmp_path / "program.py").write_text(program)
    async with running(tmp_path, "program.py") as shown:
        if section == "Threads":
            while len(shown.lines) < 3:  # a batch is what one message brings
                publish(log_root, "4")
                await shown.printed(len(shown.lines) + 1)
        assert await ended(shown) == 0, shown.notes
    if section == "Processes":
        assert shown.lines == ["[3, 3]"]
    else:
        assert shown.lines[-1].split()[1:4] == ["captures", "up", "to"]
    assert not shown.notes


@pytest.mark.nightly("tests/client/test_tokens.py: tokens; tests/client/transport/test_tls.py: TLS")
async def test_a_program_shows_a_token_over_tls(log_root: Path, tmp_path: Path) -> None:
    publish(log_root, "1")
    authority, (secret, made) = Authority(), new_key("reports")
    certificate, key = authority.server().write(tmp_path)
    keys, shown_key = tmp_path / "keys", tmp_path / "token"
    write_keys(keys, {made.name: made})
    shown_key.write_text(f"{secret}\n")
    options = ("--tls-certificate", certificate, "--tls-key", key, "--api-keys", keys)
    server = ServerProcess(log_root, tuple(map(str, options)))
    (program,) = blocks(PAGE, "Tokens", "python")
    program = program.replace("/run/secrets/tailrace", str(shown_key))
    trusted = {**environment(), "SSL_CERT_FILE": str(authority.write(tmp_path))}
    async with server.up():
        program = program.replace("db:7411", server.grpc)
        async with Program(
            sys.executable, "-u", "-c", program, folder=tmp_path, environment=trusted
        ) as shown:
            assert sorted(await shown.printed(2)) == ["order 1", "product 1"]


@pytest.mark.nightly(
    "tests/examples/test_real_clients.py: each program prints a refusal in one line"
)
async def test_errors_are_told(server: ServerProcess, tmp_path: Path) -> None:
    (program,) = programs("Errors", server)
    async with running(tmp_path, "-c", program) as shown:
        await shown.printed(1)
    async with running(tmp_path, "-c", program.replace('"shop"', '"shpo"')) as shown:
        assert await ended(shown) == 1
        await shown.noted("CATALOG_UNKNOWN: no catalog named 'shpo'; known catalogs: shop")
