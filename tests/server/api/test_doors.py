"""Every route, method and socket asks who is there: the lists come from the applications themselves.

A new route or method has no row below, and fails here until somebody has said what it is for whom.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest
import websockets
from starlette.routing import Route, WebSocketRoute
from websockets.asyncio.client import connect

import tailrace
from tailrace.errors import NotPermitted, TokenExpired, Unauthenticated
from tailrace.transport.grpc_status import error_of
from tailrace_server.grants.principal import ANONYMOUS
from tests.server.api.guarded import Guarded, guarding
from tests.support.browser import chromium
from tests.support.inprocess import PATIENCE_S, ModelWriter
from tests.support.issuer import TokenIssuer, issuing
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tailrace_server.api.server.http import HttpFace

PUBLIC, GUARDED = "public", "guarded"
LIVE = "/v1/catalogs/{catalog}/changes/live"

ROUTES = {
    "/health": PUBLIC,
    "/metrics": GUARDED,
    "/": PUBLIC,
    "/page/{name}": PUBLIC,
    "/overview": GUARDED,
    "/subscriptions": GUARDED,
    "/subscriptions/{id}/end": GUARDED,
    "/publishers": GUARDED,
    "/v1/openapi.json": GUARDED,
    "/v1/docs": PUBLIC,
    "/v1/docs/{name}": PUBLIC,
    "/v1/graphiql/{name}": PUBLIC,
    "/v1/tickets": GUARDED,
    "/v1/session": GUARDED,
    "/v1/catalogs": GUARDED,
    "/v1/catalogs/{catalog}": GUARDED,
    "/v1/catalogs/{catalog}/schema": GUARDED,
    "/v1/catalogs/{catalog}/sql": GUARDED,
    "/v1/catalogs/{catalog}/state/{entityType}": GUARDED,
    "/v1/catalogs/{catalog}/state/{entityType}/{primaryKey:path}": GUARDED,
    "/v1/catalogs/{catalog}/subscriptions": GUARDED,
    "/v1/catalogs/{catalog}/subscriptions/{name}": GUARDED,
    **{
        f"/v1/catalogs/{{catalog}}/subscriptions/{{name}}/{each}": GUARDED
        for each in ("acknowledge", "pause", "reset", "resume")
    },
    **{
        f"{base}/{each}": GUARDED
        for base in ("/v1/catalogs/{catalog}", "/v1/system")
        for each in ("changes", "changes/query", "changes/live", "graphql")
    },
}
"""Every path of the HTTP listener that is no WebSocket."""
SOCKETS = {
    f"{base}/{each}"
    for base in ("/v1/catalogs/{catalog}", "/v1/system")
    for each in ("changes/live", "graphql")
}
METHODS = {
    "tailrace.v1.ChangeCapture": GUARDED,
    "grpc.health.v1.Health": PUBLIC,
    "grpc.reflection.v1alpha.ServerReflection": GUARDED,
}
"""Every service of the gRPC listener; each has one answer for all of its methods."""


@pytest.fixture
def issuer() -> Iterator[TokenIssuer]:
    with issuing() as found:
        yield found


@pytest.fixture
async def guarded(
    log_root: Path, writer: ModelWriter, tmp_path: Path, issuer: TokenIssuer
) -> AsyncIterator[Guarded]:
    async with guarding(log_root, tmp_path, issuer) as found:
        yield found


def paths(face: HttpFace, kind: type[Route] | type[WebSocketRoute]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for route in face.routes:
        assert isinstance(route, Route | WebSocketRoute), "a kind of route that is not known here"
        if isinstance(route, kind):
            methods = getattr(route, "methods", None) or {"GET"}
            found.setdefault(route.path, set()).update(methods)
    return found


def concrete(path: str) -> str:
    name = "docs.css" if "/docs/" in path else "page.css"  # both other folders have one
    path = path.replace(":path", "")
    return path.format(catalog="shop", name=name, id="1", entityType="product", primaryKey="1")


async def test_every_route_is_guarded_or_is_known_to_be_public(guarded: Guarded) -> None:
    routes = paths(guarded.face, Route)
    assert set(routes) == set(ROUTES), "a route without a row, or a row without a route"
    for name, (headers, _, code) in guarded.credentials().items():
        for path, methods in routes.items():
            for method in methods - {"HEAD"}:
                answer = await guarded.http.request(method, concrete(path), headers=headers)
                where = f"{method} {path} with {name}"
                if ROUTES[path] == PUBLIC and method == "GET":
                    assert answer.status_code in (200, 503), where
                    continue
                assert answer.status_code == 401, where
                assert answer.headers["www-authenticate"].startswith("Bearer"), where
                said = answer.json()
                if path.endswith("/graphql"):
                    [said] = [each["extensions"] for each in said["errors"]]
                assert said["code"] == code, where
    for path, methods in routes.items():
        if "GET" in methods and not path.endswith("/live"):
            answer = await guarded.http.get(concrete(path), headers=guarded.headers())
            assert answer.status_code != 401, path


async def test_health_says_its_status_alone_to_who_has_proven_nothing(guarded: Guarded) -> None:
    assert (await guarded.http.get("/health")).json() == {"status": "serving"}
    bad = await guarded.http.get("/health", headers={"authorization": "Bearer x"})
    assert bad.json() == {"status": "serving"}
    full = await guarded.http.get("/health", headers=guarded.headers())
    assert full.json()["catalogs"] == 1


SPELLINGS = (
    "/v1//catalogs",
    "//v1/catalogs",
    "/v1/docs/../catalogs",
    "/v1/docs/%2e%2e/catalogs",
    "/v1/docs/..%2fcatalogs",
    "/health/../v1/catalogs",
    "/health%2f..%2fv1%2fcatalogs",
    "/health/",
    "/health%00",
    "/v1/catalogs/shop%2fgraphql",
    "/v1/catalogs/%73hop/changes",
    "/v1/docs/x/../../catalogs/shop/changes",
    "/v1/docs%3f/../catalogs",
    "/v1/nowhere",
)


async def test_no_spelling_of_a_path_gets_around_the_door(guarded: Guarded) -> None:
    for path in SPELLINGS:
        reader, writer = await asyncio.open_connection("127.0.0.1", guarded.face.address.port)
        request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        writer.write(request.encode())
        async with asyncio.timeout(PATIENCE_S):
            answer = await reader.read()
        writer.close()
        assert answer.split(b" ", 2)[1] in (b"400", b"401", b"404"), answer
        assert b"publishedVersion" not in answer
        assert b"captures" not in answer


async def test_two_credentials_in_one_request_are_none(guarded: Guarded) -> None:
    good = guarded.headers()["authorization"]
    twice = [("authorization", good), ("Authorization", good)]
    assert (await guarded.http.get("/v1/catalogs", headers=twice)).status_code == 401
    async with grpc.aio.insecure_channel(guarded.target) as channel:
        call = channel.unary_unary("/tailrace.v1.ChangeCapture/ListCatalogs", None, None)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call(b"", metadata=tuple(twice_lower(twice)), timeout=PATIENCE_S)
    assert isinstance(error_of(raised.value), Unauthenticated)


def twice_lower(values: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name.lower(), value) for name, value in values]


async def test_every_grpc_method_is_guarded_or_is_known_to_be_public(guarded: Guarded) -> None:
    services = guarded.grpc.services()
    assert set(services) == set(METHODS), "a service without a row, or a row without a service"
    async with grpc.aio.insecure_channel(guarded.target) as channel:
        for service, handlers in services.items():
            for method, handler in handlers.items():
                for name, (headers, kind, _) in guarded.credentials().items():
                    metadata = tuple(headers.items())
                    call = _call(channel, f"/{service}/{method}", handler, metadata)
                    error = await _ended(call)
                    where = f"{service}/{method} with {name}"
                    if METHODS[service] == PUBLIC:
                        assert not isinstance(error, Unauthenticated | TokenExpired), where
                    else:
                        assert isinstance(error, kind), where


def _call(channel: grpc.aio.Channel, path: str, handler: Any, metadata: Any) -> Any:
    if handler.request_streaming:
        return channel.stream_stream(path, None, None)(metadata=metadata)  # type: ignore[call-arg]
    if handler.response_streaming:
        return channel.unary_stream(path, None, None)(b"", metadata=metadata)
    return channel.unary_unary(path, None, None)(b"", metadata=metadata)


async def _ended(call: Any) -> Exception | None:
    """Return what a call ends with; None where it answers."""
    async with asyncio.timeout(PATIENCE_S):
        try:
            if hasattr(call, "read"):
                await call.read()
            else:
                await call
        except grpc.aio.AioRpcError as error:
            return error_of(error)
        finally:
            call.cancel()
    return None


async def test_every_socket_asks_in_the_handshake_or_at_its_init(guarded: Guarded) -> None:
    sockets = set(paths(guarded.face, WebSocketRoute)) - {"/{path:path}"}
    assert sockets == SOCKETS, "a socket without a row, or a row without a socket"
    for path in sockets:
        for name, (headers, _, code) in guarded.credentials().items():
            where = f"{path} with {name}"
            if headers:
                with pytest.raises(websockets.InvalidStatus) as refused:
                    await _connect(guarded, path, headers)
                assert refused.value.response.status_code == 401, where
                token = headers["authorization"].removeprefix("Bearer ")
                said = await _init(guarded, path, {"token": token})
                assert said == (4403, code), where
            else:
                assert await _init(guarded, path, None) == (4401, code), where
        assert await _init(guarded, path, {"token": 7}) == (4400, "connection_init"), path
        assert await _init(guarded, path, {"token": guarded.issuer.token()}) is None, path
        async with await _connect(guarded, path, guarded.headers()) as socket:
            await socket.send(json.dumps({"type": "connection_init"}))
            assert json.loads(await socket.recv())["type"] == "connection_ack"


async def _connect(guarded: Guarded, path: str, headers: dict[str, str]) -> Any:
    name = "graphql-transport-ws" if path.endswith("graphql") else "tailrace.v1"
    url = f"ws://127.0.0.1:{guarded.face.address.port}{concrete(path)}"
    protocol = websockets.Subprotocol(name)
    return await connect(url, subprotocols=[protocol], additional_headers=headers)


async def _init(guarded: Guarded, path: str, payload: object) -> tuple[int, str] | None:
    """Return close code and the first word of the reason; None where the socket is let in."""
    socket = await _connect(guarded, path, {})
    async with socket, asyncio.timeout(PATIENCE_S):
        await socket.send(json.dumps({"type": "connection_init", "payload": payload}))
        try:
            assert json.loads(await socket.recv())["type"] == "connection_ack"
        except websockets.ConnectionClosed:
            assert socket.close_code is not None
            return socket.close_code, (socket.close_reason or "").partition(":")[0]
    return None


async def test_a_client_with_a_token_is_served(guarded: Guarded, writer: ModelWriter) -> None:
    async with tailrace.connect(guarded.target, token=guarded.issuer.token()) as client:
        assert [each.name for each in await client.list_catalogs()] == ["shop"]
    for token, error in ((None, Unauthenticated), (guarded.issuer.token(-1), TokenExpired)):
        async with tailrace.connect(guarded.target, token=token) as client:
            with pytest.raises(error):
                await client.list_catalogs()
            with pytest.raises(error):
                async with client.subscribe("shop"):
                    pass


async def test_a_newer_token_of_somebody_else_ends_the_socket(guarded: Guarded) -> None:
    path = LIVE
    async with await _connect(guarded, path, guarded.headers()) as socket:
        await socket.send(json.dumps({"type": "connection_init"}))
        await socket.recv()
        await socket.send(
            json.dumps({"type": "token", "payload": {"token": guarded.issuer.token(sub="bo")}})
        )
        with pytest.raises(websockets.ConnectionClosed):
            await socket.recv()
        assert socket.close_code == 4403
        assert (socket.close_reason or "").startswith(NotPermitted.code)


async def test_a_ticket_opens_one_event_stream_and_nothing_else(guarded: Guarded) -> None:
    live = LIVE.format(catalog="shop")

    async def ticket() -> str:
        answer = await guarded.http.post("/v1/tickets", headers=guarded.headers())
        assert answer.json()["expiresInMs"] == 30_000
        return str(answer.json()["ticket"])

    async def status(path: str) -> int:
        async with guarded.http.stream("GET", path) as answer:
            return answer.status_code

    for path in (
        f"{live}?heartbeatIntervalMs=100&ticket=",
        "/v1/catalogs/shop/graphql?query=%7Bcatalogs%7Bname%7D%7D&ticket=",
    ):
        first = await ticket()
        assert await status(path + first) == 200
        assert await status(path + first) == 401, "it was used"
    assert await status(f"/v1/catalogs?ticket={await ticket()}") == 401
    assert await status(f"{live}?ticket={await ticket()}&ticket=x") == 401
    assert await status(f"{live}?ticket=x") == 401


@pytest.mark.slow
async def test_the_pages_have_a_place_to_type_a_token(
    guarded: Guarded, writer: ModelWriter
) -> None:
    """It is gone with the page: nothing of it is in an address, or in what the browser keeps."""
    root = f"http://127.0.0.1:{guarded.face.address.port}"
    good, asked = guarded.issuer.token(), list[str]()
    async with chromium() as browser:
        page = await browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        for path, shown in (
            ("/v1/docs", "The catalogs that are served now"),
            ("/v1/catalogs/shop/graphql", "subscription Live"),
        ):
            await page.goto(f"{root}{path}")
            for token in ("garbage", good):
                await page.locator("form.token input").fill(token)
                await page.locator("form.token button").click()
            await page.get_by_text(shown).first.wait_for(state="attached")
            await page.locator("form.token").wait_for(state="detached")
        # A subscription is asked for in a WebSocket, whose first message has the token.
        play = page.get_by_role("button", name="Execute").and_(page.locator("[aria-haspopup=menu]"))
        await play.click()
        await page.get_by_role("menuitem", name="Live").click()
        await until(lambda: bool(guarded.engine.subscriptions(ANONYMOUS)))
        kept = await page.evaluate(
            "JSON.stringify([localStorage, sessionStorage, document.cookie])"
        )
    assert good not in kept
    assert not [url for url in asked if good in url or "garbage" in url]


@pytest.mark.parametrize("path", [LIVE, "/v1/catalogs/{catalog}/graphql"])
async def test_a_newer_token_lets_a_socket_and_its_subscriptions_go_on(
    guarded: Guarded, path: str
) -> None:
    """Over REST by a message of its own, over GraphQL by a ping, whose answer does not have it."""
    is_graphql = path.endswith("graphql")
    headers = guarded.headers(lifetime_s=60)
    query = "subscription { onCatalogChange(signals: true, heartbeatIntervalMs: 100) { version } }"
    wish = {"query": query} if is_graphql else {"heartbeatIntervalMs": 100}
    async with await _connect(guarded, path, headers) as socket, asyncio.timeout(PATIENCE_S):

        async def expires_in_ms() -> int:
            while True:
                message = json.loads(await socket.recv())
                found = message.get("payload", {})
                found = found.get("extensions", {}).get("heartbeat", found) if is_graphql else found
                if "expiresInMs" in found:
                    return int(found["expiresInMs"])

        await socket.send(json.dumps({"type": "connection_init"}))
        await socket.send(json.dumps({"type": "subscribe", "id": "1", "payload": wish}))
        assert await expires_in_ms() <= 60_000
        renewal = {"token": guarded.issuer.token(3600), "other": 1}
        if is_graphql:
            await socket.send(json.dumps({"type": "ping", "payload": renewal}))
            while (message := json.loads(await socket.recv()))["type"] != "pong":
                pass
            assert message["payload"] == {"other": 1}
        else:
            await socket.send(json.dumps({"type": "token", "payload": renewal}))
        while await expires_in_ms() <= 60_000:
            pass


async def test_what_two_may_read_as_two_requests_is_refused(guarded: Guarded) -> None:
    """A proxy that counts by the length sees one request, with a second one in its body."""
    smuggled = b"0\r\n\r\nGET /v1/catalogs HTTP/1.1\r\nHost: localhost\r\n\r\n"
    token = guarded.headers()["authorization"].encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", guarded.face.address.port)
    writer.write(
        b"POST /v1/tickets HTTP/1.1\r\nHost: localhost\r\nAuthorization: %b\r\nContent-Length: %d\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n%b" % (token, len(smuggled), smuggled)
    )
    async with asyncio.timeout(PATIENCE_S):
        answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1


RAW = [
    b"Authorization: Bearer \0x",
    b"Authorization: Bearer " + b"x" * 200_000,
    b"Authorization:\tBearer\tx",
    b"Authorization: Bearer x\r\n y",
    b"Authorization : Bearer x",
    b"\0Authorization: Bearer x",
    b"Authorization: Bearer \xff\xfe",
    b"Authorization: Bearer x,Bearer y",
    b"Proxy-Authorization: Bearer x",
    b"X-Forwarded-For: 127.0.0.1\r\nForwarded: for=127.0.0.1",
]


async def test_no_mangled_header_lets_anybody_in_or_does_harm(guarded: Guarded) -> None:
    for field in RAW:
        reader, writer = await asyncio.open_connection("127.0.0.1", guarded.face.address.port)
        writer.write(b"GET /v1/catalogs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n")
        writer.write(field + b"\r\n\r\n")
        answer = b""
        async with asyncio.timeout(PATIENCE_S):
            with suppress(ConnectionError):  # it was cut while it sent on
                answer = await reader.read()
        writer.close()
        assert answer[:13] in (b"", b"HTTP/1.1 400 ", b"HTTP/1.1 401 ", b"HTTP/1.1 431 "), field
    good = await guarded.http.get("/v1/catalogs", headers=guarded.headers())
    assert good.status_code == 200
