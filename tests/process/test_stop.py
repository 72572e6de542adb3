"""SIGTERM ends ``tailrace serve`` inside the stop deadline, whoever is slow or hangs, without a traceback."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tailrace.transport.grpc import SERVICE
from tailrace.v1.capture_pb2 import BODY_AFTER
from tailrace.v1.change_capture_pb2 import ReadChangesRequest
from tests.process.commands import TERMINATE, Command, ServerProcess
from tests.process.test_serve import write
from tests.support import raw_http2
from tests.support.inprocess import know
from tests.support.peers import EVENTS, GRAPHQL, GRPC, REST, Peer, Way, message
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Slow = Callable[[ServerProcess, ExitStack], Awaitable[None]]

pytestmark = pytest.mark.slow

_SHORT_S: Final = 4.0
"""A stop deadline that a test need not wait long for."""
_CHANGES: Final = "/v1/catalogs/shop/changes"
_HISTORY: Final = f"{_CHANGES}?sinceVersion=1&body=after"
_BEGUN: Final = b"HTTP/1.1 200"


def _get(path: str, accept: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n".encode()


def _post(path: str, length: int, body: bytes) -> bytes:
    head = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}"
    return f"POST {path} HTTP/1.1\r\n{head}\r\n\r\n".encode() + body


def _saying(*parts: bytes, until: bytes = b"") -> Slow:
    """A peer that says something over HTTP, hears the beginning of an answer, and no more."""

    async def say(server: ServerProcess, stack: ExitStack) -> None:
        peer = stack.enter_context(Peer(server.http))
        for part in parts:
            await peer.say(part)
        await peer.until(until)

    return say


def _subscribing(way: Way) -> Slow:
    async def subscribe(server: ServerProcess, stack: ExitStack) -> None:
        peer = stack.enter_context(Peer(server.grpc if way is GRPC else server.http))
        await peer.open(way)
        await peer.say(way.subscribe(1))
        await peer.until(way.begun)

    return subscribe


async def _socket_that_answers_no_close(server: ServerProcess, stack: ExitStack) -> None:
    peer = stack.enter_context(Peer(server.http))
    await peer.open(REST)
    await peer.say(message(type="connection_init"))
    await peer.until(b"connection_ack")


async def _history_over_grpc(server: ServerProcess, stack: ExitStack) -> None:
    peer = stack.enter_context(Peer(server.grpc))
    await peer.open(GRPC)
    asked = ReadChangesRequest(catalog="shop", body=[BODY_AFTER]).SerializeToString()
    await peer.say(raw_http2.request(f"/{SERVICE}/ReadChanges", asked, stream=1))
    await peer.until(b"shop")


async def _half_a_message_over_grpc(server: ServerProcess, stack: ExitStack) -> None:
    peer = stack.enter_context(Peer(server.grpc))
    await peer.open(GRPC)
    await peer.say(raw_http2.request(f"/{SERVICE}/SubscribeWithDemand", b"12345678", stream=1)[:-4])


async def _no_word_over_grpc(server: ServerProcess, stack: ExitStack) -> None:
    stack.enter_context(Peer(server.grpc))


_QUERY: Final = json.dumps(
    {"query": "{ changes(sinceVersion: 1, first: 8) { edges { node { afterText } } } }"}
).encode()
_SLOW: Final[tuple[Slow, ...]] = (
    _subscribing(EVENTS),
    _subscribing(REST),
    _subscribing(GRAPHQL),
    _subscribing(GRPC),
    # Histories, pages and answers that nobody reads.
    _saying(_get(_HISTORY, "application/x-ndjson"), until=_BEGUN),
    _saying(_get(_HISTORY, "application/vnd.apache.arrow.stream"), until=_BEGUN),
    _saying(_get(_HISTORY, "application/json"), until=_BEGUN),
    _saying(_post("/v1/catalogs/shop/graphql", len(_QUERY), _QUERY), until=_BEGUN),
    _history_over_grpc,
    # Requests that are half sent.
    _saying(_post(f"{_CHANGES}/query", 1_000, b"{")),
    _half_a_message_over_grpc,
    _no_word_over_grpc,
    _socket_that_answers_no_close,
    # A schema that is being built.
    _saying(_post("/v1/catalogs/wide/graphql", 26, b'{"query":"{ __typename }" }')),
)


async def _stop(command: Command, deadline_s: float) -> int:
    """Return the exit status of a server that must be gone within its deadline."""
    began = time.monotonic()
    command.send(TERMINATE)
    status = await command.end()
    assert time.monotonic() - began < deadline_s
    return status


async def test_contract_26_a_stop_ends_inside_its_deadline_whoever_is_slow(log_root: Path) -> None:
    """By default the process is gone before a service manager kills it."""
    # Rows that no kernel's buffers take, and a GraphQL schema that takes its time.
    know(log_root, "wide", {"product": tuple(f"column_{number}" for number in range(3_000))})
    write(log_root, 8, size=1 << 20)
    server = ServerProcess(log_root)
    with ExitStack() as stack:
        async with server.up() as command:
            for slow in _SLOW:
                await slow(server, stack)
            assert await _stop(command, 8.0) == 0
    assert '"event": "stopped"' in command.notes[-1]
    assert not [line for line in command.notes if "Traceback" in line or '"error"' in line]


_ARMED: Final = (
    "-c",
    "import sys; from tests.support import failpoints; failpoints.arm(sys.argv.pop(1)); "
    "from tailrace_server.cli import main; sys.exit(main())",
)
"""How Python runs ``tailrace`` with failpoints, which come first of its arguments."""


def _serve(root: Path, *before: str) -> tuple[object, ...]:
    deadline = ("--stop-deadline-s", f"{_SHORT_S:g}s")
    addresses = ("--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0")
    return (*before, "serve", "--log", root, *addresses, *deadline)


@pytest.mark.parametrize(("signals", "status"), [(1, 0), (2, 128 + TERMINATE)])
async def test_an_event_loop_that_is_busy_for_ever_ends_nevertheless(
    log_root: Path, tmp_path: Path, signals: int, status: int
) -> None:
    """At the deadline, or with the second signal; the end names what was left."""
    place = f"grpc.unknown_method=pause:{tmp_path}/busy"
    async with Command(*_serve(log_root, place), python=_ARMED) as command:
        grpc = json.loads(await command.note('"event": "serving"'))["grpc"]
        with Peer(grpc) as peer:
            await peer.open(GRPC)
            await peer.say(raw_http2.request("/no.Service/Method", b"", stream=1))
            await until((tmp_path / "busy.paused").exists)
            if signals == 2:
                command.send(TERMINATE)
                await command.note('"event": "stopping"')
            assert await _stop(command, _SHORT_S) == status
    last = json.loads(command.notes[-1])
    assert last["event"] == ("stopped at the stop deadline" if signals == 1 else "stopped at once")
    assert signals == 2 or "MainThread" in last["left"]


async def test_a_storage_that_does_not_answer_holds_up_no_end(log_root: Path) -> None:
    (log_root / "stuck").mkdir()
    os.mkfifo(log_root / "stuck" / "catalog.json")  # whoever opens it waits for a writer
    async with Command(*_serve(log_root), "--opening-patience-s", "100ms") as command:
        await command.note('"event": "serving"')
        assert await _stop(command, _SHORT_S) == 0
    last = json.loads(command.notes[-1])
    assert last["event"] == "stopped at the stop deadline"
    assert [name for name in last["left"] if name.startswith("tailrace-folder")]


async def test_a_log_that_nobody_reads_holds_up_no_end(log_root: Path) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, bytes(1 << 12))
    except BlockingIOError:
        os.set_blocking(writing, True)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tailrace_server"), *map(str, _serve(log_root)), stderr=writing
    )
    try:
        status = Path(f"/proc/{process.pid}/status")

        def listens() -> bool:
            [caught] = (line for line in status.read_text().splitlines() if "SigCgt" in line)
            return bool(int(caught.split()[1], 16) >> (TERMINATE - 1) & 1)

        await until(listens)
        began = time.monotonic()
        process.send_signal(TERMINATE)
        assert await process.wait() == 0
        assert time.monotonic() - began < _SHORT_S
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(reading)
        os.close(writing)
