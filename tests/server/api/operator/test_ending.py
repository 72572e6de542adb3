"""The end of a subscription over HTTP. What its client is told, on each transport: tests/conformance."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from starlette.requests import Request
from structlog.testing import capture_logs

from tailrace.errors import EndedByOperator, NotPermitted
from tailrace_server.api.operator.routes import refuse_strangers
from tailrace_server.api.settings import HttpSettings
from tailrace_server.codecs import JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.grant import READ_ALL
from tailrace_server.grants.principal import ANONYMOUS, NOBODY, Peer
from tests.conformance.http_drivers import listening
from tests.support.inprocess import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tailrace_server.live.subscription import Subscription
    from tests.support.inprocess import ModelWriter
from tests.support.principals import Holder

AS_JSON = {"content-type": "application/json"}
REASON = '{"reason": "  it asks\\tfor everything "}'


@asynccontextmanager
async def subscribed(
    log_root: Path, **settings: Any
) -> AsyncIterator[tuple[Subscription, httpx.AsyncClient, str]]:
    """Serve a subscription; gives it, a client, and the path that ends it."""
    async with (
        Engine(log_root) as engine,
        listening(engine, settings=HttpSettings(**settings)) as face,
        httpx.AsyncClient(base_url=f"http://{face.address}", timeout=PATIENCE_S) as http,
    ):
        held = await engine.subscribe(
            ANONYMOUS, "shop", codec=JSON, peer=Peer("grpc", "10.0.0.7:5", "")
        )
        yield held, http, f"/subscriptions/{held.acknowledgement.subscription_id}/end"


async def test_a_subscription_ends_with_the_reason_and_the_log_says_by_whom(
    log_root: Path, writer: ModelWriter
) -> None:
    async with subscribed(log_root) as (held, http, path):
        with capture_logs() as lines:
            answer = await http.post(path, content=REASON, headers=AS_JSON)
        assert answer.status_code == 200, answer.text
        assert isinstance(held.error, EndedByOperator)
        assert "ended the subscription: it asks for everything;" in str(held.error)
        assert answer.json()["resume_cursor"] == held.error.resume_cursor
        [line] = [each for each in lines if each["event"] == "subscription ended by an operator"]
        assert (line["operator"], line["principal"]) == ("anonymous", "anonymous")
        assert (line["peer"], line["reason"]) == ("10.0.0.7:5", "it asks for everything")
        again = await http.post(path, content=REASON, headers=AS_JSON)
    assert (again.status_code, again.json()["code"]) == (400, "INVALID_REQUEST")


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({}, REASON, 415),
        ({"content-type": "text/plain"}, REASON, 415),
        ({**AS_JSON, "origin": "https://evil.example"}, REASON, 403),
        ({**AS_JSON, "origin": "null"}, REASON, 403),
        (AS_JSON, "{}", 400),
        (AS_JSON, '{"reason": ""}', 400),
        (AS_JSON, '{"reason": 7}', 400),
        (AS_JSON, '{"reason": "%s"}' % ("x" * 201), 400),
        (AS_JSON, '{"reason": "x", "force": true}', 400),
        (AS_JSON, "", 400),
    ],
)
async def test_what_is_no_such_request_ends_nothing(
    log_root: Path, writer: ModelWriter, headers: dict[str, str], body: str, status: int
) -> None:
    async with subscribed(log_root) as (held, http, path):
        answer = await http.post(path, content=body, headers=headers)
        assert (answer.status_code, answer.json()["status"]) == (status, status)
        assert (await http.get(path)).status_code == 405
        assert held.error is None


@pytest.mark.parametrize(
    ("origins", "status"),
    [("https://ops.example", 200), ("*", 403), ("https://*.example", 200)],
)
async def test_another_page_has_to_be_allowed_by_its_name(
    log_root: Path, writer: ModelWriter, origins: str, status: int
) -> None:
    headers = {**AS_JSON, "origin": "https://ops.example"}
    if "*." in origins:
        headers["origin"] = "https://ops.of.example"
    async with subscribed(log_root, ws_origins=origins) as (_, http, path):
        answer = await http.post(path, content=REASON, headers=headers)
    assert answer.status_code == status


async def test_a_caller_that_leaves_while_it_sends_is_no_error_of_the_server(
    log_root: Path, writer: ModelWriter
) -> None:
    with capture_logs() as lines:
        async with Engine(log_root) as engine, listening(engine, settings=HttpSettings()) as face:
            _, out = await asyncio.open_connection(face.address.host, face.address.port)
            head = f"POST /subscriptions/x/end HTTP/1.1\r\nhost: {face.address}\r\n"
            out.write(
                f'{head}content-type: application/json\r\ncontent-length: 99\r\n\r\n{{"r'.encode()
            )
            await out.drain()
            out.close()
            await out.wait_closed()
    assert [each for each in lines if each["log_level"] == "error"] == []


async def test_our_own_page_may(log_root: Path, writer: ModelWriter) -> None:
    async with subscribed(log_root) as (_, http, path):
        headers = {**AS_JSON, "origin": str(http.base_url).rstrip("/")}
        assert (await http.post(path, content=REASON, headers=headers)).status_code == 200


@pytest.mark.parametrize("host", ["192.0.2.7", "testclient", None])
def test_who_is_anonymous_on_another_machine_may_not(host: str | None) -> None:
    client = None if host is None else (host, 5)
    request = Request({"type": "http", "client": client})
    with pytest.raises(NotPermitted):
        refuse_strangers(request, ANONYMOUS)


def test_others_are_judged_by_what_they_have_been_granted() -> None:
    refuse_strangers(Request({"type": "http", "client": ("192.0.2.7", 5)}), NOBODY)


async def test_who_has_no_such_right_is_refused(log_root: Path, writer: ModelWriter) -> None:
    async with Engine(log_root) as engine:
        held = await engine.subscribe(ANONYMOUS, "shop", codec=JSON)
        reader = Holder({"shop": READ_ALL})
        with pytest.raises(NotPermitted):
            engine.end_subscription(reader, held.acknowledgement.subscription_id, "for fun")
        assert held.error is None
