"""What hostile peers send: one row for each attack, which test_hostile_peers.py runs against a real server.

An attack opens connections on the stack that it is given, and leaves them open: what the server keeps for them
is looked at then. To add one, write a function and add its row.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tailrace.transport.grpc import SERVICE
from tailrace.v1.capture_pb2 import BODY_AFTER
from tailrace.v1.change_capture_pb2 import ReadChangesRequest
from tailrace_server.api.http.requests import ARROW_TYPE, JSON_TYPE, LINES_TYPE
from tailrace_server.api.send_guard import MEMORY
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tests.support.peers import GRAPHQL, GRPC, REST, Peer, Way, frame, message
from tests.support.raw_http2 import END_HEADERS, HEADERS, call_fields, data_frames, fields, request
from tests.support.raw_http2 import frame as http2_frame
from tests.support.together import together
from tests.support.unfinished import UnfinishedRequests

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.process.commands import ServerProcess

LARGE_ROWS: Final = 40
_MANY: Final = 150
_NEARLY_A_MESSAGE: Final = 4_000_000
"""Bytes: less than the largest message that is taken, and more than all the room if many send so much."""
_WHILE_S: Final = 3.0
"""How long readers stall: those that wait for their room have it by then, or have been let go of."""
_HISTORY: Final = "/v1/catalogs/shop/changes"
_QUERY: Final = "/v1/catalogs/shop/changes/query"
_GRAPHQL: Final = "/v1/catalogs/shop/graphql"


@dataclass(frozen=True)
class Attack:
    """One kind of peers, or of what they send."""

    name: str
    run: Callable[[ServerProcess, ExitStack], Awaitable[None]]
    guard: str | None = None
    """The guard that must have ended some of them; None: they are answered, or refused one by one."""
    needs_large_rows: bool = False
    """Whether the log has ``LARGE_ROWS`` rows of 1 MiB, from version 2 on."""


def _post(path: str, *headers: str) -> bytes:
    lines = (f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers)
    return "\r\n".join((*lines, "", "")).encode()


async def _say_all(peers: list[Peer], *parts: bytes) -> None:
    """Let each peer send the parts, as far as the server takes them."""

    async def say(peer: Peer) -> None:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(5):
                for part in parts:
                    await peer.say(part)

    await together(*map(say, peers))


def _connect(address: str, stack: ExitStack, count: int) -> list[Peer]:
    return [stack.enter_context(Peer(address)) for _ in range(count)]


async def _sockets(address: str, stack: ExitStack, way: Way, count: int) -> list[Peer]:
    """Return WebSockets that have introduced themselves."""
    peers = _connect(address, stack, count)

    async def open(peer: Peer) -> None:
        await peer.open(way)
        await peer.say(message(type="connection_init"))
        await peer.until(b"connection_ack")

    await together(*map(open, peers))
    return peers


async def _unfinished_bodies(server: ServerProcess, stack: ExitStack) -> None:
    head = _post(_QUERY, f"Content-Length: {_NEARLY_A_MESSAGE + 1}")
    peers = _connect(server.http, stack, _MANY)
    await _say_all(peers, head, b" " * _NEARLY_A_MESSAGE)


async def _unfinished_chunks(server: ServerProcess, stack: ExitStack) -> None:
    head = _post(_GRAPHQL, "Transfer-Encoding: chunked")
    peers = _connect(server.http, stack, _MANY)
    await _say_all(peers, head, b"%x\r\n" % (_NEARLY_A_MESSAGE + 1), b" " * _NEARLY_A_MESSAGE)


async def _unfinished_heads(server: ServerProcess, stack: ExitStack) -> None:
    peers = _connect(server.http, stack, 3 * _MANY)
    await _say_all(peers, b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 15_000)


def _large_frame(opcode: int, size: int) -> bytes:
    """Return the head of a client's final frame, masked with zeros."""
    return bytes([0x80 | opcode, 0xFF]) + size.to_bytes(8, "big") + bytes(4)


async def _unfinished_messages(server: ServerProcess, stack: ExitStack) -> None:
    for way in (REST, GRAPHQL):
        peers = await _sockets(server.http, stack, way, _MANY // 2)
        await _say_all(peers, _large_frame(1, _NEARLY_A_MESSAGE + 1), b" " * _NEARLY_A_MESSAGE)


async def _unfinished_fragments(server: ServerProcess, stack: ExitStack) -> None:
    """Fragments of a message that is never finished, and pings between them."""
    part = b"\x00" + _large_frame(0, 1_000_000)[1:] + b" " * 1_000_000
    begin = b"\x01" + part[1:]
    for way in (REST, GRAPHQL):
        peers = await _sockets(server.http, stack, way, _MANY // 2)
        ping = frame(9, b"here")
        await _say_all(peers, begin, ping, part, ping, part, ping, part, ping)


async def _messages_of_strangers(server: ServerProcess, stack: ExitStack) -> None:
    peers = _connect(server.http, stack, 2 * _MANY)
    await together(*(peer.open(REST) for peer in peers))
    await _say_all(peers, _large_frame(1, 64 << 10), b" " * (60 << 10))


async def _values(server: ServerProcess, stack: ExitStack) -> None:
    """Bodies of a megabyte that are a million values."""
    body = b'{"criteria":[' + b",".join([b"[]"] * 1_000_000) + b"]}"
    peers = _connect(server.http, stack, 20)
    await _say_all(peers, _post(_QUERY, f"Content-Length: {len(body)}"), body)


async def _variables(server: ServerProcess, stack: ExitStack) -> None:
    """Subscribes that carry what their documents do not use."""
    wish = {
        "query": "subscription { onCatalogChange(sinceVersion: 9999) { cursor } }",
        "variables": {"x": ["y" * 1_000] * 3_000},
    }
    peers = await _sockets(server.http, stack, GRAPHQL, 10)
    for number in range(30):
        data = json.dumps({"type": "subscribe", "id": str(number), "payload": wish}).encode()
        await _say_all(peers, _large_frame(1, len(data)), data)


async def _large_answers(server: ServerProcess, stack: ExitStack) -> None:
    """Documents of a few kilobytes that ask for the schema thirty times; nobody reads."""
    fields = "types { name description fields { name description type { name } args { name } } }"
    aliases = " ".join(f"a{number}: __schema {{ {fields} }}" for number in range(30))
    body = json.dumps({"query": f"{{ {aliases} }}"}).encode()
    peers = _connect(server.http, stack, _MANY)
    await _say_all(peers, _post(_GRAPHQL, f"Content-Length: {len(body)}"), body)


async def _costly_documents(server: ServerProcess, stack: ExitStack) -> None:
    """Documents that differ and whose fields overlap as often as they may."""
    peers = _connect(server.http, stack, 20)
    for number, peer in enumerate(peers):
        fields = " ".join(["catalog { name }"] * 400)
        body = json.dumps({"query": f"query q{number} {{ {fields} }}"}).encode()
        await _say_all([peer], _post(_GRAPHQL, f"Content-Length: {len(body)}"), body)


def _unfinished_requests(method: str) -> Callable[[ServerProcess, ExitStack], Awaitable[None]]:
    """Return an attack of gRPC calls that send their request but for its last byte."""

    async def run(server: ServerProcess, stack: ExitStack) -> None:
        port = int(server.grpc.rpartition(":")[2])
        path = f"/{SERVICE}/{method}"
        peers = [
            UnfinishedRequests(port, path, streams=20, size=_NEARLY_A_MESSAGE) for _ in range(20)
        ]
        for peer in peers:
            await peer.__aenter__()
            stack.callback(peer.abort)
        with suppress(TimeoutError):
            async with asyncio.timeout(5):
                await together(*(peer.run() for peer in peers))

    return run


async def _packed_requests(server: ServerProcess, stack: ExitStack) -> None:
    """Compressed gRPC requests of 61 KB that unpack to 64 MiB."""
    packed = gzip.compress(bytes(64 << 20))
    head = (*call_fields(f"/{SERVICE}/Subscribe"), ("grpc-encoding", "gzip"))
    data = b"\1" + len(packed).to_bytes(4, "big") + packed
    for peer in _connect(server.grpc, stack, 20):
        call = http2_frame(HEADERS, END_HEADERS, 1, fields(head)) + data_frames(data)
        await _say_all([peer], GRPC.hello, call)


def _versions(peers: list[Peer]) -> list[tuple[Peer, int]]:
    """Return where each reader begins: at different rows, or they would share one."""
    return [(peer, 2 + place % LARGE_ROWS) for place, peer in enumerate(peers)]


def _history_unread(accept: str) -> Callable[[ServerProcess, ExitStack], Awaitable[None]]:
    """Return an attack of clients that ask for history in a format and do not read it."""

    async def run(server: ServerProcess, stack: ExitStack) -> None:
        for peer, version in _versions(_connect(server.http, stack, _MANY)):
            ask = f"GET {_HISTORY}?body=after&sinceVersion={version} HTTP/1.1"
            await _say_all([peer], f"{ask}\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n".encode())
        await asyncio.sleep(_WHILE_S)

    return run


async def _pages_unread(server: ServerProcess, stack: ExitStack) -> None:
    """Pages of history over GraphQL, of three rows each."""
    for peer, version in _versions(_connect(server.http, stack, _MANY)):
        ask = f"{{ changes(sinceVersion: {version}, first: 3) {{ edges {{ node {{ afterText }} }} }} }}"
        body = json.dumps({"query": ask}).encode()
        await _say_all([peer], _post(_GRAPHQL, f"Content-Length: {len(body)}"), body)
    await asyncio.sleep(_WHILE_S)


async def _history_unread_over_grpc(server: ServerProcess, stack: ExitStack) -> None:
    """Connections with wide windows, whose sockets are not read."""
    for peer, version in _versions(_connect(server.grpc, stack, _MANY)):
        ask = ReadChangesRequest(catalog="shop", since_version=version, body=[BODY_AFTER])
        call = request(f"/{SERVICE}/ReadChanges", ask.SerializeToString())
        await _say_all([peer], GRPC.hello, call)
    await asyncio.sleep(_WHILE_S)


async def _keys(server: ServerProcess, stack: ExitStack) -> None:
    """Subscriptions with a megabyte of keys each, which differ."""
    peers = await _sockets(server.http, stack, REST, 5)
    for number in range(200):
        keys = [f"{number}-{place:095}" for place in range(10_000)]
        wish = {"criteria": [{"entityType": ["product"], "primaryKey": keys}]}
        data = json.dumps({"type": "subscribe", "id": str(number), "payload": wish}).encode()
        await _say_all([peers[number % 5]], _large_frame(1, len(data)), data)
    await peers[0].until(b"SERVER_FULL")


async def _paths_of_no_text(server: ServerProcess, stack: ExitStack) -> None:
    """Calls whose path is not UTF-8: one of them used to end gRPC for everybody else."""
    call = request(b"/x\x92", b"")
    for peer in _connect(server.grpc, stack, 50):
        others = [request(b"/x\x92", b"", stream) for stream in range(3, 40, 2)]
        await _say_all([peer], GRPC.hello, call, *others)


async def _sockets_that_close(server: ServerProcess, stack: ExitStack) -> None:
    """Bursts of WebSockets that subscribe and are gone, most of them before they have read anything."""

    async def begin(peer: Peer, way: Way) -> None:
        with suppress(AssertionError, OSError):  # let go of already: a busy machine takes its time
            await peer.open(way)
            for number in range(1, 6):
                await peer.say(way.subscribe(number))

    for way in (REST, GRAPHQL):
        with ExitStack() as burst:
            peers = _connect(server.http, burst, _MANY // 2)
            await together(*(begin(peer, way) for peer in peers))


async def _schemas_that_change(server: ServerProcess, stack: ExitStack) -> None:
    """Forty new columns, a commit each, while sockets of GraphQL look at the catalog's rows."""
    with LogWriter.open(server.root, "wide") as writer:
        writer.append([Mutation("product", "1", after=b'{"id":1}')])
    path = b"/v1/catalogs/wide/graphql"
    peers = _connect(server.http, stack, 50)

    async def subscribe(peer: Peer) -> None:
        with suppress(AssertionError, OSError):  # let go of already: a busy machine takes its time
            await peer.say(GRAPHQL.hello.replace(b"/v1/catalogs/shop/graphql", path))
            await peer.until(GRAPHQL.welcome)
            await peer.say(GRAPHQL.subscribe(1))
            await peer.until(GRAPHQL.begun)

    await together(*map(subscribe, peers))
    with LogWriter.open(server.root, "wide") as writer:
        for number in range(40):
            writer.append([Mutation("product", "1", after=b'{"id":1,"c%d":1}' % number)])
            writer.commit(publish=True)
            await asyncio.sleep(0)
    ask = json.dumps({"query": "{ __typename }"}).encode()
    head = _post(_GRAPHQL, f"Content-Length: {len(ask)}").replace(_GRAPHQL.encode(), path)
    await _say_all(_connect(server.http, stack, 5), head + ask)


INBOUND: Final = "inbound_memory"
"""The guard of the budget for what peers send."""

ATTACKS: Final = (
    Attack("bodies that are not finished", _unfinished_bodies, INBOUND),
    Attack("chunks that are not finished", _unfinished_chunks, INBOUND),
    Attack("heads that are not finished", _unfinished_heads, "request_head"),
    Attack("messages that are not finished", _unfinished_messages, INBOUND),
    Attack("fragments that are not finished", _unfinished_fragments, INBOUND),
    Attack("messages of sockets without an init", _messages_of_strangers, "close_4408"),
    Attack("gRPC requests that are not finished", _unfinished_requests("Subscribe")),
    Attack("gRPC demand that is not finished", _unfinished_requests("SubscribeWithDemand")),
    Attack("gRPC requests that unpack to a thousand times their size", _packed_requests),
    Attack("bodies of a million values", _values),
    Attack("variables that nobody uses", _variables),
    Attack("answers that nobody reads", _large_answers),
    Attack("documents that are costly to validate", _costly_documents),
    Attack("history that nobody reads, as JSON", _history_unread(JSON_TYPE), MEMORY, True),
    Attack("history that nobody reads, as NDJSON", _history_unread(LINES_TYPE), MEMORY, True),
    Attack("history that nobody reads, as Arrow", _history_unread(ARROW_TYPE), MEMORY, True),
    Attack("history that nobody reads, over gRPC", _history_unread_over_grpc, None, True),
    Attack("pages of history that nobody reads", _pages_unread, None, True),
    Attack("criteria of a megabyte", _keys),
    Attack("paths that are no text, over gRPC", _paths_of_no_text),
    Attack("sockets that close in bursts", _sockets_that_close),
    Attack("schemas that change under GraphQL clients", _schemas_that_change),
)
