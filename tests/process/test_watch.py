"""``tailrace watch`` and ``changes`` against a real server and a real log: all of it, once, whatever dies."""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

import tailrace
from tailrace.cursor import Cursor
from tailrace.position import Position
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tests.process.commands import INTERRUPT, KILL, Command, ServerProcess, environment, outcome
from tests.support.inprocess import know
from tests.support.polling import until, until_answered

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

IMAGE = '{"id":%d,"name":"Löffel","price":0.10,"big":9007199254740993}'


def product(number: int, *, before: bool = False) -> Mutation:
    """An insert, or with ``before`` an update of the price."""
    after = (IMAGE % number).encode()
    old = after.replace(b"0.10", b"1e2") if before else None
    return Mutation("product", str(number), before=old, after=after)


def order(number: int) -> Mutation:
    return Mutation("order", str(number), after=b'{"id":%d}' % number)


def publish(root: Path, *transactions: list[Mutation], catalog: str = "shop") -> None:
    if not (root / catalog).exists():
        know(root, catalog, {"product": tuple(json.loads(IMAGE % 1)), "order": ("id",)})
    with LogWriter.open(root, catalog) as writer:
        for transaction in transactions:
            writer.append(transaction)


@pytest.fixture
async def server(log_root: Path) -> AsyncIterator[ServerProcess]:
    """Return a server that runs, over a log with three versions."""
    publish(log_root, [product(1), order(1)], [product(1, before=True)], [product(2), order(2)])
    server = ServerProcess(log_root, ("--heartbeat-interval-s", "200ms"))
    async with server.up():
        yield server


@contextmanager
def closed(descriptor: int) -> Iterator[int]:
    """Close a descriptor in the end."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


PIPE_BYTES = 64 << 10
"""What a pipe of Linux holds."""


def positions(lines: Iterable[bytes]) -> list[tuple[int, int]]:
    found = [json.loads(line) for line in lines]
    return [(each["version"], each["index"]) for each in found]


async def test_watch_shows_what_a_writer_publishes_in_the_json_form(server: ServerProcess) -> None:
    async with Command(
        *("watch", "shop", "--server", server.grpc, "--since", "0", "--json"),
        *("--entity-type", "product"),
    ) as watch:
        first, second, third = [await watch.line() for _ in range(3)]
        assert f'"after":{IMAGE % 1}}}\n'.encode() in first
        update = json.loads(second)
        assert (update["version"], update["changed"]) == (2, ["price"])
        assert b'"before":{"id":1,"name":"L\xc3\xb6ffel","price":1e2,' in second
        assert positions([third]) == [(3, 1)]
        publish(server.root, [order(3)], [product(3)])
        assert positions([await watch.line()]) == [(5, 1)]


async def test_leads_and_heartbeats_come_only_when_asked_for(server: ServerProcess) -> None:
    arguments = ("watch", "shop", "--server", server.grpc, "--since", "3", "--json")
    async with Command(*arguments, "--leads", "--heartbeats") as watch:
        lead, *_, beat = await watch.captures(4)
    assert lead["operation"] == "TRANSACTION"
    assert lead["after"]["counts"] == {"order": 1, "product": 1}
    assert beat["heartbeat"] is True
    assert Cursor.parse(beat["cursor"]).version == 3
    async with Command(*arguments) as watch:
        assert positions([await watch.line()]) == [(3, 1)]


async def test_a_person_sees_aligned_lines_and_everything_else_is_on_stderr(
    server: ServerProcess,
) -> None:
    async with Command("watch", "shop", "--server", server.grpc, "--since", "2:1") as watch:
        line = (await watch.line()).decode()
        assert line.split()[0] == "2:1"
        assert line.split()[2:4] == ["update", "product"]
        assert "price 1e2 → 0.10" in line
        await watch.note(f"watching shop on {server.grpc} from 2:1;", "published so far: 3;")


async def test_ctrl_c_ends_it_with_the_cursor_to_go_on_from(server: ServerProcess) -> None:
    arguments = ("watch", "shop", "--server", server.grpc, "--json")
    async with Command(*arguments, "--since", "0") as watch:
        lines = [await watch.line() for _ in range(5)]
        watch.send(INTERRUPT)
        assert await watch.end() == 130
        note = await watch.note("printed 5; to continue: --after ")
        assert not any("Traceback" in line for line in watch.notes)
    assert positions(lines) == [(1, 1), (1, 2), (2, 1), (3, 1), (3, 2)]
    publish(server.root, [order(9)])
    async with Command(*arguments, "--after", note.rpartition(" ")[2]) as watch:
        assert positions([await watch.line()]) == [(4, 1)]


async def test_the_cursor_to_go_on_from_is_behind_what_was_written_and_nothing_else(
    server: ServerProcess,
) -> None:
    arguments = ("watch", "shop", "--server", server.grpc, "--json")
    with closed(os.open("/dev/full", os.O_WRONLY)) as full:
        watch = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tailrace_server", *arguments, "--since", "0"),
            env=environment(),
            stdout=full,
            stderr=asyncio.subprocess.PIPE,
        )
        _, notes = await watch.communicate()
    assert watch.returncode == 1
    assert b"No space left on device" in notes
    found = re.search(r"printed 0; to continue: --after (\S+)", notes.decode())
    assert found is not None, notes
    async with Command(*arguments, "--after", found[1]) as again:
        assert positions([await again.line()]) == [(1, 1)]


@pytest.mark.parametrize("command", ["watch", "changes"])
async def test_ctrl_c_before_a_reader_that_stopped_leaves_whole_lines_and_the_cursor_behind_them(
    server: ServerProcess, command: str
) -> None:
    """A message is longer than a pipe: of one that is interrupted, what went out counts."""
    publish(server.root, [product(number) for number in range(10, 1_010)])
    arguments = (command, "shop", "--server", server.grpc, "--json")
    reader, writer = os.pipe()
    with closed(reader), closed(writer):
        first = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tailrace_server", *arguments, "--since", "0"),
            env=environment(),
            stdout=writer,
            stderr=asyncio.subprocess.PIPE,
        )
        await until(lambda: not select.select([], [writer], [], 0)[1])
        first.send_signal(INTERRUPT)
        _, notes = await first.communicate()
        got = os.read(reader, PIPE_BYTES)
    assert first.returncode == 130
    lines = got.splitlines(keepends=True)
    assert lines[-1].endswith(b"\n")
    found = re.search(r"printed ([\d,]+); to continue: --after (\S+)", notes.decode())
    assert found is not None, notes
    assert int(found[1].replace(",", "")) == len(lines)
    async with Command(*arguments, "--after", found[2]) as again:
        before, behind = positions([lines[-1], await again.line()])
    assert behind == (before[0], before[1] + 1)


async def test_a_reader_that_has_seen_enough_is_no_error(server: ServerProcess) -> None:
    """As `tailrace watch shop | head -1`: the pipe closes, and watch ends quietly at its next line."""
    async with Command("watch", "shop", "--server", server.grpc, "--since", "0", "--json") as watch:
        await watch.line()
        transport = watch.process._transport  # type: ignore[attr-defined]
        transport.get_pipe_transport(1).close()

        def has_ended() -> bool:
            publish(server.root, [order(9)])
            return watch.process.returncode is not None

        await until(has_ended)
        assert await watch.end() == 0
        assert not any("rror" in line for line in watch.notes), watch.notes


async def test_watch_waits_for_a_server_that_is_not_there_yet(log_root: Path) -> None:
    publish(log_root, [product(1)])
    server = ServerProcess(log_root)
    async with Command("watch", "shop", "--server", server.grpc, "--since", "0", "--json") as watch:
        await watch.note(f"waiting for {server.grpc}", "connection refused")
        async with server.up():
            assert positions([await watch.line()]) == [(1, 1)]


async def test_contract_35_killed_servers_cost_their_subscribers_nothing(log_root: Path) -> None:
    """SIGKILL while a writer publishes and subscribers read, three times: each gets all, once, in order."""
    rounds, each_round = 4, 20
    publish(log_root, [product(0), order(0)])
    server = ServerProcess(log_root)
    everything: list[tuple[int, int]] = []
    products: list[tuple[int, int]] = []
    arguments = ("watch", "shop", "--server", server.grpc, "--since", "0", "--json")
    async with (
        Command(*arguments) as first,
        Command(*arguments, "--entity-type", "product") as second,
    ):
        for number in range(1, rounds):
            async with server.up() as doomed:
                for place in range(each_round):
                    publish(log_root, [product(place), order(place)])
                    if place == each_round // 2:
                        everything += positions([await first.line()])
                        doomed.send(KILL)
                        await doomed.end()
            async with server.up():
                total = 1 + number * each_round
                while len(everything) < 2 * total:
                    everything += positions([await first.line()])
                while len(products) < total:
                    products += positions([await second.line()])
        await first.note("is back after", "nothing was missed")
    versions = range(1, 2 + (rounds - 1) * each_round)
    assert everything == [(version, index) for version in versions for index in (1, 2)]
    assert products == [(version, 1) for version in versions]


async def test_changes_reads_a_closed_range_in_both_directions(server: ServerProcess) -> None:
    arguments = ("changes", "shop", "--server", server.grpc, "--json")
    every = [(1, 1), (1, 2), (2, 1), (3, 1), (3, 2)]
    for options, expected in (
        (("--reverse",), every[::-1]),
        (("--last", "1h"), every),
        (("--since", "2", "--until", "2"), [(2, 1)]),
        (("--since", "1:2", "--until", "3:1"), [(1, 2), (2, 1), (3, 1)]),
        (("--from-time", "2001-01-01", "--to-time", "2002-01-01"), []),
        (("--reverse", "--limit", "2"), [(3, 2), (3, 1)]),
        (("--key", "2"), [(3, 1), (3, 2)]),
    ):
        status, text, _ = await outcome(*arguments, *options)
        assert status == 0
        assert positions(text.encode().splitlines()) == expected, options


async def test_the_system_log_tells_of_catalogs_and_a_dropped_one_ends_its_watchers(
    server: ServerProcess,
) -> None:
    async with (
        Command(
            *("watch", "--system", "--server", server.grpc, "--since", "0", "--json")
        ) as system,
        Command(*("watch", "shop", "--server", server.grpc, "--json")) as watch,
    ):
        [created] = await system.captures(1)
        assert (created["entityType"], created["primaryKey"]) == ("catalog", "shop")
        await watch.note("watching shop")
        found = (await server.get("/subscriptions")).json()
        assert [each["catalog"] for each in found] == ["shop", "system"]
        status, _, _ = await outcome("catalog", "drop", "shop", "--log", server.root, "--yes")
        assert status == 0
        [dropped] = await system.captures(1)
        assert (dropped["operation"], dropped["primaryKey"]) == ("REMOVE", "shop")
        assert await watch.end() == 1
        await watch.note("error: catalog 'shop' was dropped")
    status, text, note = await outcome("catalog", "list", "--server", server.grpc)
    assert (status, text) == (0, "")
    assert note.endswith("no catalogs yet")


async def test_catalogs_are_listed_from_the_folder_and_from_the_server(
    server: ServerProcess,
) -> None:
    """Beside them, one that cannot be read is named in one line."""
    places = (("--log", server.root), ("--server", server.grpc))
    for place in places:
        status, text, _ = await outcome("catalog", "list", *place)
        head, row = text.splitlines()
        assert (status, head.split()[:3]) == (0, ["NAME", "PUBLISHED", "COMMITTED"])
        assert row.split()[:3] == ["shop", "3", "3"]
    bad = server.root / "bad"
    bad.mkdir()
    (bad / "catalog.json").write_text("{")
    async with tailrace.connect(server.grpc) as client:

        async def told() -> bool:
            return [*await client.list_unreadable()] == ["bad"]

        await until_answered(told)
    for place in places:
        status, text, error = await outcome("catalog", "list", *place, "--json")
        assert (status, error.count("\n")) == (1, 0), error
        assert "catalog 'bad': log corrupted: catalog.json" in error
        [found] = map(json.loads, text.splitlines())
        assert (found["name"], found["publishedVersion"]) == ("shop", 3)


async def test_what_cannot_be_asked_for_is_one_clear_line(server: ServerProcess) -> None:
    stranger = str(Cursor.past(UUID(int=1), Position(1)))
    for arguments, status, reason in (
        (("nope",), 2, "no catalog named 'nope'; known catalogs: shop"),
        (("shop", "--after", stranger), 1, "is no longer valid: start again, without a cursor"),
        (("shop", "--area", "schema", "--key", "1"), 2, "area SCHEMA has no primary keys"),
        (("sh\udcffop",), 2, "surrogates not allowed"),
        (("shop", "--key", "\udcff"), 2, "criteria.primary_key: not UTF-8"),
        (("shop", "--system"), 2, "name a catalog, or give --system"),
    ):
        found, _, error = await outcome("watch", *arguments, "--server", server.grpc)
        assert (found, error.count("\n")) == (status, 0), error
        assert error.startswith("error: ")
        assert reason in error
    trim = ("log", "trim", server.root / "shop", "--before", "99")
    found, _, error = await outcome(*trim)
    assert (found, "the newest published version is 3; 4 removes all versions" in error) == (
        2,
        True,
    )
    status_, _, error = await outcome("catalog", "drop", "nope", "--log", server.root, "--yes")
    assert (status_, "known catalogs: shop" in error) == (2, True)
    async with Command("changes", "shop", "--server", "127.0.0.1:1") as unreachable:
        assert await unreachable.end() == 1
        await unreachable.note("error: cannot reach 127.0.0.1:1: connection refused")
    for command in ("changes", "watch"):
        found, _, error = await outcome(command, "shop", "--server", server.http)
        assert (found, f"{server.http} answers in HTTP/1, not in gRPC" in error) == (1, True), error
