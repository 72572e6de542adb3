"""Ten thousand messages that mean nothing: no crash, no task and no memory left behind."""

from __future__ import annotations

import asyncio
import json
import random
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from tailrace_server.grants.principal import ANONYMOUS
from tests.conformance.shop import SHOP
from tests.server.api.rest.test_guards import anonymous_bytes
from tests.support.inprocess import PATIENCE_S
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.server.api.rest.conftest import RawSocket, Served
    from tests.support.inprocess import ModelWriter

    Serve = Callable[..., Awaitable[Served]]

PEERS = 10
WORDS = (
    *(
        "type",
        "id",
        "payload",
        "ping",
        "pong",
        "subscribe",
        "complete",
        "request",
        "connection_init",
    ),
    *(
        "criteria",
        "after",
        "sinceVersion",
        "body",
        "area",
        "DATA",
        "n",
        "1",
        "",
        "\x00",
        "é",
        "x" * 300,
    ),
)


def value(chance: random.Random, depth: int = 0) -> Any:
    """Return a JSON value of words that mean something elsewhere."""
    match chance.randrange(9 if depth < 4 else 6):
        case 0:
            return None
        case 1:
            return chance.choice((True, False))
        case 2:
            return chance.choice((0, -1, 1, 2**31, 2**63, -(2**64), 1.5, 1e300))
        case 3 | 4 | 5:
            return chance.choice(WORDS)
        case 6:
            return [value(chance, depth + 1) for _ in range(chance.randrange(4))]
        case _:
            names = chance.sample(WORDS, chance.randrange(5))
            return {name: value(chance, depth + 1) for name in names}


def message(chance: random.Random) -> bytes:
    """Return what may look like a message from near or far."""
    found = {"type": chance.choice(WORDS), "id": "1", "payload": value(chance)}
    if chance.random() < 0.3:
        found[chance.choice(WORDS)] = value(chance)
    data = bytearray(json.dumps(found if chance.random() < 0.8 else value(chance)).encode())
    for _ in range(chance.choice((0, 0, 0, 1, 3))):
        if data:
            data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


async def talk(served: Served, chance: random.Random, count: int) -> None:
    """Send so many messages, over as many sockets as it takes; two of them reach each socket at least."""
    raw: RawSocket | None = None
    for _ in range(count):
        if raw is None:
            raw = await served.raw()
            raw.writer.write(raw.frame(1, b'{"type":"connection_init"}'))
        frame = raw.frame(chance.choice((1, 1, 1, 1, 2, 9)), message(chance)[:60_000])
        cut = frame if chance.random() < 0.95 else frame[:-1]
        raw.writer.write(cut + raw.frame(9, b"answer"))
        try:
            async with asyncio.timeout(PATIENCE_S):
                more = await raw.reader.read(1 << 16)
        except ConnectionError:
            more = b""
        if not more:
            raw.close()
            raw = None
    if raw is not None:
        raw.close()


@pytest.mark.slow
async def test_contract_45_ten_thousand_malformed_messages_leave_nothing_behind(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write(*SHOP)
    served = await serve()
    chances = [random.Random(seed) for seed in range(PEERS)]
    with structlog.testing.capture_logs() as logs:
        await asyncio.gather(*(talk(served, chance, 100) for chance in chances))
        await until(lambda: served.face.sockets.statistics().open == 0)
        # What the engine watches from its first reader on is among them now.
        tasks = len(asyncio.all_tasks())
        before = anonymous_bytes()
        await asyncio.gather(*(talk(served, chance, 900) for chance in chances))
        await until(lambda: served.face.sockets.statistics().open == 0)
    assert anonymous_bytes() - before < 16 << 20
    assert not [entry for entry in logs if entry["log_level"] == "error"]
    assert served.engine.statistics(ANONYMOUS).subscriptions == 0
    await until(lambda: len(asyncio.all_tasks()) <= tasks)
    assert served.guards["close_4400"] > 100
