"""The state machine of a socket as graphql-transport-ws has it: contract 44.

It is that of `tests/server/api/rest/test_socket.py`; GraphQL's own is in `test_operations.py`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import websockets
from websockets.asyncio.client import connect

from tailrace_server.api.settings import HttpSettings
from tailrace_server.api.websocket.messages import Close, CloseCode
from tests.server.api.graphql.conftest import PATH, client
from tests.server.api.rest.conftest import closed, hear, say

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.server.api.rest.conftest import Served
    from tests.support.inprocess import ModelWriter

    Serve = Callable[..., Awaitable[Served]]

INIT = '{"type": "connection_init"}'
SUBSCRIBE = json.dumps(
    {
        "type": "subscribe",
        "id": "1",
        "payload": {"query": "subscription { onCatalogChange { version } }"},
    }
)


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (("{",), 4400),
        (("[]",), 4400),
        (('{"type": "nothing"}',), 4400),
        (('{"type": "subscribed", "id": "1"}',), 4400),
        (('{"type": "ping", "more": 1}',), 4400),
        (("[" * 50_000,), 4400),
        ((b'{"type": "ping"}',), 4400),
        ((SUBSCRIBE,), 4401),
        ((INIT, INIT), 4429),
        ((INIT, SUBSCRIBE, SUBSCRIBE), 4409),
        (('{"type": "ping", "payload": {"x": "%s"}}' % ("x" * 70_000),), 1009),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_contract_44_what_graphql_transport_ws_does_not_allow_closes_with_its_code(
    serve: Serve, writer: ModelWriter, said: tuple[str | bytes, ...], code: int
) -> None:
    """With a reason, counted by the code; nobody else's socket is touched."""
    served = await serve()
    async with client(served) as neighbour, client(served, init=False) as one:
        for each in said:
            await one.socket.send(each)
        found, reason = await closed(one.socket)
        assert found == code
        assert reason
        await say(neighbour.socket, {"type": "ping"})
        assert await hear(neighbour.socket) == {"type": "pong"}
    assert served.guards == {f"close_{code}": 1}


@pytest.mark.parametrize("offered", [(), ("tailrace.v1",)])
async def test_contract_44_graphql_over_another_sub_protocol_closes_with_4406(
    serve: Serve, writer: ModelWriter, offered: tuple[str, ...]
) -> None:
    served = await serve()
    names = [websockets.Subprotocol(name) for name in offered] or None
    async with connect(f"ws://127.0.0.1:{served.port}{PATH}", subprotocols=names) as socket:
        code, reason = await closed(socket)
    assert (code, "graphql-transport-ws" in reason) == (4406, True)


async def test_contract_44_a_graphql_socket_without_init_in_time_closes_with_4408(
    serve: Serve, writer: ModelWriter
) -> None:
    served = await serve(HttpSettings(ws_init_timeout_s=0.1))
    async with client(served, init=False) as one:
        assert (await closed(one.socket))[0] == 4408


async def test_contract_44_a_graphql_complete_for_an_unknown_id_is_ignored(
    serve: Serve, writer: ModelWriter
) -> None:
    served = await serve()
    async with client(served) as one:
        await one.complete("never")
        await one.payload(await one.subscribe("{ catalogs { name } }"))
    assert not served.guards


async def test_contract_44_an_init_that_is_refused_closes_with_4403(
    serve: Serve, writer: ModelWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server without identities refuses no init; here one is made to."""

    async def refuse(_entrance: object, _payload: object) -> None:
        raise Close(CloseCode.FORBIDDEN, "not this one")

    monkeypatch.setattr("tailrace_server.api.websocket.connection.admit_at_init", refuse)
    served = await serve()
    async with client(served, init=False) as one:
        await one.socket.send(INIT)
        assert await closed(one.socket) == (4403, "not this one")
    assert served.guards == {"close_4403": 1}
