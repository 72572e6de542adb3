"""Live streams of who is granted a part: no byte outside it is in anything sent, whichever face sends it.

Every entity type, key, column and value has text of its own, so that it is found wherever it appears: in
bodies, leads, names, signals, errors. Cases are generated, the same ones each time.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import httpx
import pytest
from websockets import Subprotocol
from websockets.asyncio.client import connect

from tailrace.criteria import Operation
from tailrace.cursor import Cursor
from tailrace_server.access.configured import Access
from tailrace_server.access.settings import AccessSettings
from tailrace_server.api.graphql.websocket import SUBPROTOCOL as GRAPHQL
from tailrace_server.api.rest.live import SUBPROTOCOL as REST
from tailrace_server.engine.engine import Engine
from tailrace_server.resources.settings import EngineSettings
from tests.conformance.http_drivers import listening
from tests.support.inprocess import PATIENCE_S, ModelWriter
from tests.support.issuer import TokenIssuer
from tests.support.model import ModelLog, ModelMutation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    Receive = Callable[[], Awaitable[bytes]]

CASES: Final = 5
TYPES: Final = ("parcel", "person", "invoice")
COLUMNS: Final = {
    each: tuple(f"{each}_{n}" for n in ("colour", "weight", "price")) for each in TYPES
}
KEYS: Final = {each: (f"{each}-no-1", f"{each}-no-2") for each in TYPES}
CELLS: Final = {
    (kind, key, column) for kind in TYPES for key, column in product(KEYS[kind], COLUMNS[kind])
}
BASE: Final = "/v1/catalogs/shop"
DOCUMENT: Final = """
subscription ($sinceVersion: Long, $after: String, $criteria: [Criteria!]) {
  onCatalogChange(sinceVersion: $sinceVersion, after: $after, criteria: $criteria, signals: true) {
    cursor area operation entityType primaryKey changed containerType containerName change before after
  }
}"""
FACES: Final = ("rest-ws", "rest-sse", "graphql-ws", "graphql-sse")


def value(cell: tuple[str, str, str], version: int) -> str:
    """Return the text of a cell, which stands nowhere else."""
    _, key, column = cell
    return f"{column} of {key} at {version}."


def image(kind: str, key: str, *versions: int) -> dict[str, object]:
    """Return a row whose columns are as of these versions."""
    columns = zip(COLUMNS[kind], versions, strict=True)
    return {name: value((kind, key, name), version) for name, version in columns}


def update(kind: str, key: str) -> ModelMutation:
    before, after = image(kind, key, 1, 1, 1), image(kind, key, 1, 1, 2)
    return ModelMutation(kind, key, Operation.UPSERT, before, after)


ROWS: Final = [(kind, key) for kind in TYPES for key in KEYS[kind]]
WRITTEN: Final = (
    [ModelMutation(*row, Operation.UPSERT, None, image(*row, 1, 1, 1)) for row in ROWS],
    *([update(*row)] for row in ROWS),
    [ModelMutation(*row, Operation.REMOVE, image(*row, 1, 1, 2), None) for row in ROWS],
)
VERSION: Final = len(WRITTEN)


@dataclass
class Case:
    """What somebody is granted."""

    subject: str
    cells: set[tuple[str, str, str]] = field(default_factory=set)
    rows: set[tuple[str, str]] = field(default_factory=set)
    policy: str = ""

    def add(self, kinds: tuple[str, ...], key: str | None, columns: set[str], listed: bool) -> None:
        """Grant some columns of rows."""
        lines = ["[[grant]]", f'who.claims = {{ case = "{self.subject}" }}', 'catalogs = "shop"']
        lines.append(f"entity_types = {json.dumps(kinds)}")
        if columns:
            kind = "columns" if listed else "hidden_columns"
            lines.append(f"{kind} = {json.dumps(sorted(columns))}")
        if key is not None:
            lines.append(f"primary_key = {json.dumps(key)}")
        self.policy += "\n".join([*lines, 'who.issuer = "https://issuer.example"', ""])
        for cell in CELLS:
            if cell[0] in kinds and key in (None, cell[1]):
                self.rows.add(cell[:2])
                if (cell[2] in columns) is listed:
                    self.cells.add(cell)

    def forbidden(self) -> set[str]:
        """Return texts of which none may be told."""
        told = {part for row in self.rows for part in row} | {cell[2] for cell in self.cells}
        names = {part for cell in CELLS for part in cell} - told
        return names | {value(cell, n) for cell in CELLS - self.cells for n in (1, 2, 3)}

    def granted(self) -> set[str]:
        """Return texts that are to come."""
        return {value(cell, 1) for cell in self.cells}


def cases() -> list[Case]:
    """Return the same cases each time."""
    choice = random.Random(47)
    found = []
    for number in range(CASES):
        case = Case(f"case {number}")
        for _ in range(choice.choice((1, 2))):
            kinds = tuple(choice.sample(TYPES, choice.choice((1, 2))))
            key = choice.choice(KEYS[kinds[0]]) if len(kinds) == 1 else None
            columns = {choice.choice(COLUMNS[kind]) for kind in kinds}
            case.add(kinds, key, columns, listed=choice.random() < 0.5)
        assert case.cells, case
        found.append(case)
    return found


@dataclass
class Told:
    """All bytes that a stream sent."""

    receive: Receive
    data: bytes = b""

    async def until(self, version: int) -> None:
        """Take what comes until a heartbeat has passed a version."""
        async with asyncio.timeout(PATIENCE_S):
            while not any(each.version >= version for each in self._cursors("resumeCursor")):
                self.data += await self.receive()

    def captures(self) -> list[str]:
        """Return the cursors of captures, in their order."""
        return [*dict.fromkeys(map(str, self._cursors("cursor")))]

    def _cursors(self, name: str) -> list[Cursor]:
        found = re.findall(rb'"%s": ?"([^"]+)"' % name.encode(), self.data)
        return [Cursor.parse(each.decode()) for each in found]


@dataclass
class Server:
    """The HTTP listener, with a policy."""

    port: int
    issuer: TokenIssuer
    writer: ModelWriter

    @asynccontextmanager
    async def stream(self, face: str, token: str, **asked: Any) -> AsyncIterator[Receive]:
        """Open a stream over a face, and give how the next bytes of it are received."""
        graphql, over_socket = face.startswith("graphql"), face.endswith("ws")
        payload: dict[str, Any] = {"query": DOCUMENT, "variables": asked}
        if not graphql:
            payload = {**asked, "body": ["change", "before", "after"]}
        path = f"{BASE}/graphql" if graphql else f"{BASE}/changes/live"
        async with AsyncExitStack() as stack:
            if over_socket:
                protocol = Subprotocol(GRAPHQL if graphql else REST)
                url = f"ws://127.0.0.1:{self.port}{path}"
                socket = await stack.enter_async_context(
                    connect(url, subprotocols=[protocol], proxy=None)
                )
                init = {"type": "connection_init", "payload": {"token": token}}
                for message in (init, {"type": "subscribe", "id": "1", "payload": payload}):
                    await socket.send(json.dumps(message))

                async def receive() -> bytes:
                    return (await socket.recv(decode=False)) + b"\n"

                receive.socket = socket  # type: ignore[attr-defined]
                yield receive
                return
            headers = {"authorization": f"Bearer {token}", "accept": "text/event-stream"}
            url = f"http://127.0.0.1:{self.port}"
            http = await stack.enter_async_context(
                httpx.AsyncClient(base_url=url, headers=headers, timeout=PATIENCE_S)
            )
            answer = await stack.enter_async_context(http.stream("POST", path, json=payload))
            chunks = answer.aiter_bytes()
            yield chunks.__anext__


@pytest.fixture
async def server(log_root: Path, tmp_path: Path) -> AsyncIterator[Server]:
    issuer = TokenIssuer("https://issuer.example")
    (tmp_path / "jwks.json").write_bytes(issuer.jwks())
    settings = issuer.settings(tmp_path, keys="jwks.json")
    file = tmp_path / "policy.toml"
    file.write_text("\n".join(each.policy for each in (*cases(), WIDE, NARROW)))
    access = Access(AccessSettings(identities=settings, policy=file))
    writer = ModelWriter(log_root, "shop", ModelLog())
    writer.write(*WRITTEN)
    async with AsyncExitStack() as stack:
        stack.callback(writer.writer.close)
        bounds = EngineSettings(heartbeat_interval_s=0.05)
        engine = await stack.enter_async_context(Engine(log_root, bounds))
        watch = asyncio.create_task(access.run(engine))
        stack.callback(watch.cancel)
        face = await stack.enter_async_context(listening(engine, door=access.door))
        yield Server(face.address.port, issuer, writer)


WIDE, NARROW = Case("wide"), Case("narrow")
WIDE.add(("parcel", "person"), None, set(), listed=False)
NARROW.add(("parcel",), None, {"parcel_price"}, listed=False)


def leaks(case: Case, data: bytes) -> set[str]:
    """Return what a stream has told and should not."""
    return {each for each in case.forbidden() if each.encode() in data}


@pytest.mark.parametrize("face", FACES)
async def test_contract_47_no_byte_of_what_is_not_granted_is_in_a_stream(
    server: Server, face: str
) -> None:
    """From the oldest record, and resumed in its middle; records, and columns of records."""
    for number, case in enumerate(cases()):
        token = server.issuer.token(case=case.subject)
        criteria = [{"containerType": ["ENTITY", "ATTRIBUTE"]}] if number % 2 else []
        async with server.stream(face, token, sinceVersion=0, criteria=criteria) as receive:
            told = Told(receive)
            await told.until(VERSION)
        assert leaks(case, told.data) == set(), case
        assert {each for each in case.granted() if each.encode() not in told.data} == set()
        captures = told.captures()
        middle = len(captures) // 2
        async with server.stream(face, token, after=captures[middle], criteria=criteria) as receive:
            resumed = Told(receive)
            await resumed.until(VERSION)
        assert leaks(case, resumed.data) == set(), case
        assert resumed.captures() == captures[middle + 1 :]


@pytest.mark.parametrize("face", [each for each in FACES if each.endswith("ws")])
async def test_contract_47_a_token_with_fewer_claims_ends_a_stream_that_gave_more(
    server: Server, face: str
) -> None:
    """At its cursor the socket gives what is left."""
    wide, narrow = (server.issuer.token(case=each.subject) for each in (WIDE, NARROW))
    async with server.stream(face, wide, sinceVersion=0) as receive:
        told = Told(receive)
        await told.until(VERSION)
        assert leaks(NARROW, told.data) != set()
        assert leaks(WIDE, told.data) == set()
        # 1. The newer token is the same caller's. What it no longer grants ends, by name and with its cursor.
        socket = receive.socket  # type: ignore[attr-defined]
        await socket.send(json.dumps({"type": "ping", "payload": {"token": narrow}}))
        async with asyncio.timeout(PATIENCE_S):
            while b'"error"' not in (ended := await receive()):
                pass
        assert b"NOT_PERMITTED" in ended
        (cursor,) = re.findall(rb'"(?:resumeCursor|resume_cursor)": ?"([^"]+)"', ended)
        # 2. The rest of the life of the socket is that of the narrower token.
        server.writer.write(
            [ModelMutation(*row, Operation.UPSERT, None, image(*row, 3, 3, 3)) for row in ROWS]
        )
        asked: dict[str, Any] = {"after": cursor.decode()}
        payload = {**asked, "body": ["change", "before", "after"]}
        if face.startswith("graphql"):
            payload = {"query": DOCUMENT, "variables": asked}
        await socket.send(json.dumps({"type": "subscribe", "id": "2", "payload": payload}))
        rest = Told(receive)
        await rest.until(VERSION + 1)
    assert leaks(NARROW, ended + rest.data) == set()
    for kind, key, column in NARROW.cells:
        assert value((kind, key, column), 3).encode() in rest.data
