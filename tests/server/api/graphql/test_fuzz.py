"""Ten thousand subscribes that mean nothing: no crash, no task and no memory left behind."""

from __future__ import annotations

import asyncio
import json
import random
from typing import TYPE_CHECKING, Any

import pytest
import structlog
import websockets

from tailrace_server.grants.principal import ANONYMOUS
from tests.conformance.shop import SHOP
from tests.server.api.graphql.conftest import PATH, client
from tests.server.api.rest.test_guards import anonymous_bytes
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.server.api.rest.conftest import Served
    from tests.support.inprocess import ModelWriter

    Serve = Callable[..., Awaitable[Served]]

PEERS = 10
VALID = (
    "subscription S($v: Long, $c: [Criteria!]) "
    "{ onCatalogChange(sinceVersion: $v, criteria: $c) { ...F after } } "
    "fragment F on Change { version cursor @include(if: true) }",
    'subscription { onProductChange(after: "1.0.0.0.0") { before { id } after { ... { id } } } }',
    "query Q { changes(first: 2, reverse: true) { edges { node { after } } pageInfo { endCursor } } }",
    "{ schema { entityTypes { columns { name } } } __schema { types { name } } }",
)
PIECES = (
    "{",
    "}",
    "(",
    ")",
    "...",
    "@skip(if: $v)",
    '"',
    '"""',
    "$",
    ":",
    "\x00",
    "é",
    "on",
    "fragment F",
    "a:",
)


def value(chance: random.Random, depth: int = 0) -> Any:
    """Return a JSON value."""
    match chance.randrange(7 if depth < 3 else 5):
        case 0:
            return None
        case 1:
            return chance.choice((True, 0, -1, 2**31, 2**63, -(2**64), 1.5, 1e300))
        case 2 | 3 | 4:
            return chance.choice(("", "x", "UPSERT", "1.x", "\x1e", "é" * 50))
        case 5:
            return [value(chance, depth + 1) for _ in range(chance.randrange(3))]
        case _:
            names = chance.sample(("entityType", "area", "operation", "primaryKey", "x"), 2)
            return {name: value(chance, depth + 1) for name in names}


def document(chance: random.Random) -> str:
    """Return a document with a few things put in, taken out or doubled."""
    text = chance.choice(VALID)
    for _ in range(chance.choice((0, 1, 1, 2, 5))):
        start = chance.randrange(len(text) + 1)
        stop = min(len(text), start + chance.choice((0, 0, 1, 8)))
        text = text[:start] + chance.choice(("", *PIECES, text[start:stop] * 2)) + text[stop:]
    return text


def payload(chance: random.Random) -> Any:
    """Return the payload of a subscribe."""
    if chance.random() < 0.02:
        return value(chance)
    found = {"query": document(chance)}
    if chance.random() < 0.7:
        found["variables"] = {"v": value(chance), "c": value(chance)}  # type: ignore[assignment]
    if chance.random() < 0.1:
        found["operationName"] = value(chance)
    return found


async def talk(served: Served, chance: random.Random, count: int) -> None:
    """Send so many subscribes, over as many sockets as it takes, completing what began."""
    while count:
        async with client(served) as one:
            try:
                while count:
                    count -= 1
                    message = {"type": "subscribe", "id": "1", "payload": payload(chance)}
                    await one.socket.send(json.dumps(message))
                    await one.socket.send('{"type":"complete","id":"1"}')
                    await one.socket.send('{"type":"ping","payload":{}}')
                    async for text in one.socket:
                        if '"pong"' in str(text):
                            break
                    else:
                        break
            except websockets.ConnectionClosed:
                continue


async def post(served: Served, chance: random.Random, count: int) -> None:
    """Send so many requests by HTTP; each has an answer of its own."""
    for _ in range(count):
        answer = await served.http.post(PATH, json=payload(chance))
        assert answer.status_code in (200, 400), answer.text
        assert "data" in answer.json() or answer.json()["errors"]


@pytest.mark.slow
async def test_contract_45_ten_thousand_malformed_subscribes_leave_nothing_behind(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write(*SHOP)
    served = await serve()
    tasks = len(asyncio.all_tasks())
    chances = [random.Random(seed) for seed in range(PEERS)]

    async def round(count: int) -> None:
        await asyncio.gather(
            *(talk(served, chance, count) for chance in chances), post(served, chances[0], count)
        )

    with structlog.testing.capture_logs() as logs:
        await round(100)
        before = anonymous_bytes()
        await round(850)
        await until(lambda: served.face.sockets.statistics().open == 0)
    assert anonymous_bytes() - before < 16 << 20
    assert not [entry for entry in logs if entry["log_level"] == "error"]
    assert served.engine.statistics(ANONYMOUS).subscriptions == 0
    await until(lambda: len(asyncio.all_tasks()) <= tasks + 1)  # the connection that httpx keeps
