"""The state machine of a socket, and every message that it refuses: contract 44."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
import websockets
from websockets.asyncio.client import connect

from tailrace_server.api.rest.live import SUBPROTOCOL
from tailrace_server.api.settings import HttpSettings
from tailrace_server.grants.principal import ANONYMOUS
from tests.conformance.shop import SHOP, upsert
from tests.server.api.rest.conftest import closed, hear, say
from tests.support.inprocess import PATIENCE_S
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.server.api.rest.conftest import Served
    from tests.support.inprocess import ModelWriter

    Serve = Callable[..., Awaitable[Served]]


def subscribe(id: str = "1", **payload: Any) -> dict[str, Any]:
    return {"type": "subscribe", "id": id, "payload": payload}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "nonsense",
        "[]",
        "null",
        '"ping"',
        "{}",
        '{"type": 1}',
        '{"type": null}',
        '{"type": "nothing"}',
        '{"type": "ping", "more": 1}',
        '{"type": "ping", "payload": 1}',
        '{"type": "pong", "payload": []}',
        '{"type": "subscribe", "payload": {}}',
        '{"type": "subscribe", "id": "", "payload": {}}',
        '{"type": "subscribe", "id": 7, "payload": {}}',
        '{"type": "subscribe", "id": "1"}',
        '{"type": "subscribe", "id": "1", "payload": "text"}',
        '{"type": "complete"}',
        r'{"type": "\ud800"}',
        r'{"type": "subscribe", "id": "\udfff", "payload": {}}',
        r'{"type": "ping", "\ud800": 1}',
        '{"type": "request", "payload": {"n": 1}}',
        '{"type": "subscribe", "id": "%s", "payload": {}}' % ("x" * 257),
        "[" * 100_000,
        '{"type":"ping","payload":' + '{"a":' * 20_000,
    ],
    ids=lambda text: repr(text[:60]),
)
async def test_contract_44_what_is_no_message_closes_with_4400(serve: Serve, text: str) -> None:
    """With what was wrong; nobody else's socket is touched."""
    served = await serve(HttpSettings(ws_init_message_bytes=1 << 20))
    async with served.socket() as neighbour, served.socket() as socket:
        await socket.send(text)
        code, reason = await closed(socket)
        assert code == 4400
        assert reason
        await say(neighbour, {"type": "ping"})
        assert await hear(neighbour) == {"type": "pong"}
    assert served.guards == {"close_4400": 1}


async def test_contract_44_a_binary_frame_closes_with_4400(serve: Serve) -> None:
    served = await serve()
    async with served.socket() as socket:
        await socket.send(b'{"type":"ping"}')
        assert (await closed(socket))[0] == 4400


async def test_contract_44_without_init_in_time_it_closes_with_4408(serve: Serve) -> None:
    """Pings do not put it off."""
    served = await serve(HttpSettings(ws_init_timeout_s=0.1))
    async with served.socket(init=False) as silent, served.socket(init=False) as busy:
        await say(busy, {"type": "ping"})
        assert await hear(busy) == {"type": "pong"}
        assert (await closed(silent))[0] == 4408
        assert (await closed(busy))[0] == 4408
    async with served.socket() as socket:
        await until(lambda: served.guards == {"close_4408": 2})
        await say(socket, {"type": "ping", "payload": {"any": 1}})
        assert await hear(socket) == {"type": "pong", "payload": {"any": 1}}


async def test_contract_44_a_second_init_closes_with_4429(serve: Serve) -> None:
    served = await serve()
    async with served.socket() as socket:
        await say(socket, {"type": "connection_init"})
        assert (await closed(socket))[0] == 4429


async def test_contract_44_a_subscribe_before_the_acknowledgement_closes_with_4401(
    serve: Serve,
) -> None:
    served = await serve()
    async with served.socket(init=False) as socket:
        await say(socket, subscribe())
        assert (await closed(socket))[0] == 4401


@pytest.mark.parametrize("offered", [(), ("graphql-transport-ws",), ("tailrace.v2", "x")])
async def test_contract_44_another_sub_protocol_closes_with_4406(
    serve: Serve, offered: tuple[str, ...]
) -> None:
    served = await serve()
    async with served.socket(subprotocols=offered, init=False) as socket:
        code, reason = await closed(socket)
    assert code == 4406
    assert "tailrace.v1" in reason


async def test_contract_44_an_id_in_use_closes_with_4409_also_for_two_in_flight(
    serve: Serve,
) -> None:
    served = await serve()
    async with served.socket() as socket:
        text = json.dumps(subscribe())
        await asyncio.gather(socket.send(text), socket.send(text))
        assert (await closed(socket))[0] == 4409
    await until(lambda: served.engine.statistics(ANONYMOUS).subscriptions == 0)


async def test_contract_44_complete_ends_one_frees_its_id_and_is_ignored_when_unknown(
    serve: Serve, writer: ModelWriter
) -> None:
    served = await serve(heartbeat_interval_s=60)
    async with served.socket() as socket:
        await say(socket, {"type": "complete", "id": "never"})
        for _ in range(3):
            await say(socket, subscribe())
            await say(socket, {"type": "complete", "id": "1"})
        await say(socket, subscribe("2"))
        while (await hear(socket))["id"] != "2":
            pass
        writer.write([upsert("1")])
        seen = [await hear(socket)]
        assert {each["id"] for each in seen if each["type"] == "next"} == {"2"}
        assert served.engine.statistics(ANONYMOUS).subscriptions == 1


async def test_contract_44_complete_while_the_subscribe_is_resolving_cancels_it(
    serve: Serve, writer: ModelWriter
) -> None:
    """Both stand in one write, so that the second is read before the first is served."""
    writer.write(*SHOP)
    served = await serve()
    raw = await served.raw()
    for message in (
        {"type": "connection_init"},
        subscribe(sinceVersion=0),
        {"type": "complete", "id": "1"},
        {"type": "ping"},
    ):
        raw.writer.write(raw.frame(1, json.dumps(message).encode()))
    async with asyncio.timeout(PATIENCE_S):
        answers = await raw.reader.readuntil(b'{"type":"pong"}')
    assert b"next" not in answers
    await until(lambda: served.engine.statistics(ANONYMOUS).subscriptions == 0)
    raw.close()


async def test_several_subscriptions_share_a_socket(serve: Serve, writer: ModelWriter) -> None:
    writer.write(*SHOP)
    served = await serve(heartbeat_interval_s=60)
    async with served.socket() as socket:
        for kind in ("product", "order"):
            await say(socket, subscribe(kind, sinceVersion=0, criteria=[{"entityType": [kind]}]))
        await say(socket, subscribe("bad", sinceVersion=0, after="x"))
        found: dict[str, list[str]] = {}
        for _ in range(5):
            message = await hear(socket)
            found.setdefault(message["id"], []).append(message["type"])
    assert found == {
        "product": ["subscribed", "next"],
        "order": ["subscribed", "next"],
        "bad": ["error"],
    }


async def test_a_socket_takes_so_many_subscriptions_and_no_more(serve: Serve) -> None:
    served = await serve(HttpSettings(ws_subscriptions=2), heartbeat_interval_s=60)
    async with served.socket() as socket:
        for id in "123":
            await say(socket, subscribe(id))
        answers = {(message := await hear(socket))["id"]: message for _ in "123"}
        assert answers["3"]["type"] == "error"
        assert "2 open subscriptions" in answers["3"]["payload"]["detail"]
        await say(socket, {"type": "complete", "id": "1"})
        await say(socket, subscribe("3"))
        assert (await hear(socket))["type"] == "subscribed"


@pytest.mark.parametrize(
    ("payload", "code", "named"),
    [
        ({"extra": 1}, "UNSUPPORTED", "extra"),
        ({"catalog": "shop"}, "UNSUPPORTED", "catalog"),
        ({"since_version": 1}, "UNSUPPORTED", "since_version"),
        ({"criteria": {}}, "INVALID_REQUEST", "criteria"),
        ({"criteria": [1]}, "INVALID_REQUEST", "criteria[0]"),
        ({"criteria": [{"wherever": 1}]}, "UNSUPPORTED", "criteria[0].wherever"),
        ({"criteria": [{}, {"operation": ["DELETE"]}]}, "UNSUPPORTED", "criteria[1].operation[0]"),
        ({"criteria": [{"operation": ["UNSPECIFIED"]}]}, "UNSUPPORTED", "operation[0]"),
        ({"criteria": [{"operation": [1]}]}, "INVALID_REQUEST", "operation[0]"),
        ({"criteria": [{"area": "data"}]}, "UNSUPPORTED", "criteria[0].area"),
        ({"criteria": [{"entityType": [""]}]}, "INVALID_REQUEST", "criteria[0].entityType"),
        ({"criteria": [{"entityType": "a"}]}, "INVALID_REQUEST", "criteria[0].entityType"),
        (
            {"criteria": [{"area": "INFRASTRUCTURE", "primaryKey": ["1"]}]},
            "INVALID_REQUEST",
            "criteria[0]",
        ),
        ({"body": ["all", "rest"]}, "UNSUPPORTED", "body[1]"),
        ({"sinceVersion": "x"}, "INVALID_REQUEST", "sinceVersion"),
        ({"sinceVersion": 1.5}, "INVALID_REQUEST", "sinceVersion"),
        ({"sinceVersion": True}, "INVALID_REQUEST", "sinceVersion"),
        ({"sinceVersion": -1}, "INVALID_REQUEST", "sinceVersion"),
        ({"sinceVersion": 1 << 63}, "INVALID_REQUEST", "sinceVersion"),
        ({"sinceVersion": 10**400}, "INVALID_REQUEST", "sinceVersion"),
        ({"sinceIndex": 1}, "INVALID_REQUEST", "sinceIndex"),
        ({"sinceVersion": 1, "fromTime": 1}, "INVALID_REQUEST", "sinceVersion"),
        ({"after": "garbage"}, "CURSOR_INVALID", "garbage"),
        ({"after": 7}, "INVALID_REQUEST", "after"),
        ({"after": f"1.{'0' * 32}.1.0.0"}, "CATALOG_REPLACED", "shop"),
        ({"heartbeatIntervalMs": 1}, "INVALID_REQUEST", "heartbeatIntervalMs"),
        ({"maxMessageBytes": 0}, "INVALID_REQUEST", "maxMessageBytes"),
        (
            {"request": -1},
            "INVALID_REQUEST",
            "request: must be from 0 to 9223372036854775807, not -1",
        ),
        ({"request": 1 << 63}, "INVALID_REQUEST", " from 0 to 9223372036854775807"),
        ({"request": "x"}, "INVALID_REQUEST", "request"),
    ],
    ids=str,
)
async def test_a_subscribe_without_meaning_ends_with_its_error_and_nothing_else(
    serve: Serve, payload: dict[str, Any], code: str, named: str
) -> None:
    served = await serve()
    async with served.socket() as socket:
        await say(socket, subscribe("mine", **payload))
        message = await hear(socket)
        assert (message["type"], message["id"]) == ("error", "mine")
        assert message["payload"]["code"] == code
        assert named in message["payload"]["detail"]
        await say(socket, {"type": "ping"})
        assert await hear(socket) == {"type": "pong"}
    assert served.guards == {}


@pytest.mark.parametrize("payload", [None, 1, {}, {"n": None}, {"n": 1, "m": 2}, {"n": 1.5}])
async def test_a_request_without_meaning_ends_its_subscription(
    serve: Serve, payload: object
) -> None:
    served = await serve(heartbeat_interval_s=60)
    async with served.socket() as socket:
        await say(socket, subscribe(request=0))
        assert (await hear(socket))["type"] == "subscribed"
        await say(socket, {"type": "request", "id": "gone", "payload": payload})
        await say(socket, {"type": "request", "id": "1", "payload": payload})
        message = await hear(socket)
        assert (message["type"], message["payload"]["code"]) == ("error", "INVALID_REQUEST")
        await until(lambda: served.engine.statistics(ANONYMOUS).subscriptions == 0)


async def test_a_request_for_a_subscription_without_demand_is_refused(serve: Serve) -> None:
    served = await serve(heartbeat_interval_s=60)
    async with served.socket() as socket:
        await say(socket, subscribe())
        await say(socket, {"type": "request", "id": "1", "payload": {"n": 1}})
        while (message := await hear(socket))["type"] != "error":
            assert message["type"] == "subscribed"
        assert "has no demand" in message["payload"]["detail"]


async def test_an_unknown_catalog_is_an_error_of_the_subscription(serve: Serve) -> None:
    served = await serve()
    async with served.socket() as socket:
        await say(socket, subscribe(criteria=[{"entityType": ["never heard of"]}]))
        assert (await hear(socket))["type"] == "subscribed"
    answer = await served.http.get(
        "/v1/catalogs/ship/changes/live", headers={"accept": "text/event-stream"}
    )
    assert (answer.status_code, answer.json()["code"]) == (404, "CATALOG_UNKNOWN")


async def test_the_system_log_is_followed_by_socket_and_as_events(
    serve: Serve, writer: ModelWriter
) -> None:
    """It tells of the catalog."""
    served = await serve()
    path = "/v1/system/changes/live"
    offered = [websockets.Subprotocol(SUBPROTOCOL)]
    async with connect(f"ws://127.0.0.1:{served.port}{path}", subprotocols=offered) as socket:
        await say(socket, {"type": "connection_init"})
        await say(socket, subscribe(sinceVersion=0, body=["after"]))
        while '"shop"' not in json.dumps(message := await hear(socket)):
            assert message["type"] != "error", message
        assert message["type"] == "next"
    events = {"accept": "text/event-stream"}
    url = f"{path}?sinceVersion=0&body=after"
    async with served.http.stream("GET", url, headers=events) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if line.startswith("data: ") and '"shop"' in line:
                break
        else:
            raise AssertionError("no capture of the catalog came")


async def test_a_stop_tells_every_subscription_and_closes_with_1001(serve: Serve) -> None:
    """Sockets without one are closed, too."""
    served = await serve(heartbeat_interval_s=60)
    async with served.socket() as idle, served.socket() as socket:
        await say(socket, subscribe())
        assert (await hear(socket))["type"] == "subscribed"
        served.engine.stop_subscriptions()
        await served.face.drain(PATIENCE_S)
        message = await hear(socket)
        assert message["payload"]["code"] == "SERVER_STOPPING"
        assert message["payload"]["figures"]["resume_cursor"].startswith("1.")
        assert (await closed(socket))[0] == 1001
        assert (await closed(idle))[0] == 1001
