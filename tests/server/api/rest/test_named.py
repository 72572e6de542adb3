"""Named subscriptions over HTTP: resources to create, move and delete them, and readers of a name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.shop import upsert
from tests.server.api.rest.conftest import hear, say
from tests.server.api.rest.test_documents import check, component

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from websockets.asyncio.client import ClientConnection

    from tests.server.api.rest.conftest import Served
    from tests.support.inprocess import ModelWriter

    Serve = Callable[..., Awaitable[Served]]

NAMES = "/v1/catalogs/shop/subscriptions"
BILLING = f"{NAMES}/billing"
PRODUCTS = [{"entityType": ["product"]}]


SUBSCRIBE = {"id": "1", "type": "subscribe"}


async def message(socket: ClientConnection, kind: str) -> dict[str, Any]:
    """Return the payload of the next message of a type; captures and heartbeats before it are passed."""
    while (found := await hear(socket))["type"] != kind:
        assert found["type"] in ("heartbeat", "next"), found
    payload: dict[str, Any] = found["payload"]
    return payload


async def create(served: Served, **asked: Any) -> dict[str, Any]:
    body = {"name": "billing", "criteria": PRODUCTS, "from": "earliest"} | asked
    answer = await served.http.post(NAMES, json=body)
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    check(found, component("NamedSubscription"))
    return found


async def test_a_subscription_is_created_looked_at_moved_and_deleted(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write([upsert("1")])
    writer.write([upsert("2")])
    served = await serve()
    made = await create(served, holdMs=3_600_000, holdBytes=1 << 20)
    assert (made["criteria"], made["needed"]) == (PRODUCTS, {"version": 1, "index": 0})
    assert (made["holdMs"], made["holdBytes"], made["health"]) == (3_600_000, 1 << 20, "HELD")
    listed = (await served.http.get(NAMES)).json()["subscriptions"]
    assert [each["name"] for each in listed] == ["billing"]
    moved = (await served.http.post(f"{BILLING}/reset", json={"to": "2"})).json()
    assert moved["needed"] == {"version": 2, "index": 0}
    assert (await served.http.post(f"{BILLING}/pause")).json()["paused"]
    assert not (await served.http.post(f"{BILLING}/resume")).json()["paused"]
    assert (await served.http.get(BILLING)).json()["needed"] == moved["needed"]
    assert (await served.http.delete(BILLING)).status_code == 204
    assert (await served.http.get(BILLING)).json()["code"] == "SUBSCRIPTION_UNKNOWN"


async def test_contract_51_readers_of_a_name_continue_where_one_has_acknowledged(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write([upsert("1")])
    writer.write([upsert("2")])
    served = await serve()
    await create(served)
    async with served.socket() as first:
        await say(first, {**SUBSCRIBE, "payload": {"name": "billing", "body": []}})
        begun = await message(first, "subscribed")
        check(begun, component("Acknowledgement"))
        assert (begun["name"], begun["epoch"]) == ("billing", 1)
        capture = (await message(first, "next"))["captures"][0]
        done = {"epoch": begun["epoch"], "cursor": capture["cursor"]}
        answer = await served.http.post(f"{BILLING}/acknowledge", json=done)
        assert answer.json() == {"cursor": capture["cursor"]}
        async with served.socket() as second:
            await say(second, {**SUBSCRIBE, "payload": {"name": "billing"}})
            again = await message(second, "subscribed")
            assert again["epoch"] == 2
            key = (await message(second, "next"))["captures"][0]["primaryKey"]
            assert key != capture["primaryKey"]
            ended = await message(first, "error")
            assert (ended["code"], ended["retriable"]) == ("SUBSCRIPTION_TAKEN_OVER", False)
            late = await served.http.post(f"{BILLING}/acknowledge", json=done)
            assert (late.status_code, late.json()["code"]) == (409, "SUBSCRIPTION_TAKEN_OVER")


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        (NAMES, {"name": "billing"}, 409, "already has a named subscription 'billing'"),
        (NAMES, {"name": "a b"}, 400, "is not a valid name of a subscription"),
        (NAMES, {"name": "x", "holdMs": -1}, 400, "must not be negative"),
        (
            NAMES,
            {"name": "x", "holdMs": 1 << 40},
            400,
            "is too large; the maximum of this server is",
        ),
        (NAMES, {"name": "x", "hold": 1}, 400, "this server does not know the field"),
        (NAMES, {"name": "x", "criteria": [{"area": "NONE"}]}, 400, "criteria[0].area"),
        (f"{BILLING}/reset", {"to": "99"}, 400, "the newest published version is 1"),
        (f"{BILLING}/acknowledge", {"cursor": "1"}, 400, "epoch: required; send the epoch"),
        (f"{BILLING}/acknowledge", {"epoch": 1, "cursor": "x"}, 400, "not a cursor"),
        (f"{NAMES}/other/reset", {"to": "latest"}, 404, "it has: billing"),
    ],
)
async def test_what_has_no_meaning_is_refused(
    serve: Serve, writer: ModelWriter, path: str, body: dict[str, Any], status: int, text: str
) -> None:
    writer.write([upsert("1")])
    served = await serve()
    await create(served)
    answer = await served.http.post(path, json=body)
    assert answer.status_code == status
    assert text in answer.json()["detail"]
