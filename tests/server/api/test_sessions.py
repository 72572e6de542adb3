"""Sessions of pages: a cookie opens event streams, and is good for nothing else."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.errors import TokenExpired, Unauthenticated
from tailrace_server.access import tickets
from tailrace_server.access.door import Identified
from tailrace_server.access.identity import Credentials
from tailrace_server.api.http.guard import BrowserSessions, handle_of
from tailrace_server.grants.principal import ANONYMOUS
from tests.server.api.guarded import Guarded, guarding
from tests.support.browser import chromium
from tests.support.inprocess import PATIENCE_S, ModelWriter
from tests.support.issuer import TokenIssuer, issuing
from tests.support.polling import until, until_answered

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tailrace_server.access.identity import Identity

LIVE = "/v1/catalogs/shop/changes/live"
STREAM = {"accept": "text/event-stream"}


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


async def begun(guarded: Guarded, **claims: Any) -> str:
    """Begin a session, or go on with that of the client's cookie; return what the cookie says."""
    answer = await guarded.http.post("/v1/session", headers=guarded.headers(**claims))
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    return str(answer.headers["set-cookie"])


async def status(guarded: Guarded, path: str = LIVE, method: str = "GET", **fields: str) -> int:
    headers = STREAM | {name.replace("_", "-"): value for name, value in fields.items()}
    async with guarded.http.stream(method, path, headers=headers) as answer:
        return answer.status_code


async def test_a_session_opens_event_streams_again_and_again(guarded: Guarded) -> None:
    assert await status(guarded) == 401
    told = await begun(guarded, lifetime_s=300)
    handle, *attributes = told.split("; ")
    [age] = [each for each in attributes if each.startswith("Max-Age=")]
    assert 0 < int(age.removeprefix("Max-Age=")) < 300
    assert {*attributes} == {"HttpOnly", age, "Path=/", "SameSite=Strict"}
    for path in (LIVE, "/v1/catalogs/shop/graphql?query=%7Bcatalogs%7Bname%7D%7D"):
        assert [await status(guarded, path) for _ in range(2)] == [200, 200]
    token = guarded.headers()["authorization"].removeprefix("Bearer ")
    assert handle.partition("=")[2] not in token


async def test_a_session_is_good_for_nothing_else(guarded: Guarded) -> None:
    """Whatever another site has a browser send with the cookie changes nothing, and tells nothing."""
    await begun(guarded)
    for method, path in (
        ("GET", "/v1/catalogs"),
        ("GET", "/v1/catalogs/shop/changes"),
        ("GET", "/overview"),
        ("POST", LIVE),
        ("POST", "/v1/tickets"),
        ("POST", "/v1/session"),
        ("POST", "/v1/catalogs/shop/graphql"),
        ("PUT", "/v1/catalogs/shop/graphql"),
        ("POST", "/subscriptions/1/end"),
    ):
        assert await status(guarded, path, method) == 401, (method, path)
    assert await status(guarded, accept="application/json") == 401
    own = f"127.0.0.1:{guarded.face.address.port}"
    for fields in (
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": f"https://{own}"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ):
        assert await status(guarded, **fields) == 401, fields
        assert await status(guarded, "/v1/session", "DELETE", **fields) == 401, fields
    assert await status(guarded, origin=f"http://{own}", sec_fetch_site="same-origin") == 200


async def test_a_page_of_another_origin_is_refused_a_session_that_would_open_nothing(
    guarded: Guarded,
) -> None:
    """Also one of an allowed origin: its cookie counts nowhere."""
    own = f"127.0.0.1:{guarded.face.address.port}"
    for fields in (
        {"origin": "https://pages.example"},
        {"origin": f"https://{own}"},
        {"origin": "https://pages.example", "sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site"},
    ):
        answer = await guarded.http.post("/v1/session", headers=guarded.headers() | fields)
        assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")
        assert f"a session is for pages of 'http://{own}'" in answer.json()["detail"]
        assert "set-cookie" not in answer.headers
    same = {"origin": f"http://{own}", "sec-fetch-site": "same-origin"}
    answer = await guarded.http.post("/v1/session", headers=guarded.headers() | same)
    assert answer.status_code == 200


async def test_of_two_cookies_none_counts(guarded: Guarded) -> None:
    """One of them is of a neighbour, whose session the page would take for its own."""
    mine = (await begun(guarded)).partition(";")[0]
    guarded.http.cookies.clear()
    assert await status(guarded, cookie=f"a=b; {mine}; c") == 200
    for cookies in (f"{mine}; {mine}", f"tailrace=x; {mine}", "tailrace=", "tailrace", "=x", ";;"):
        assert await status(guarded, cookie=cookies) == 401, cookies


def test_over_tls_the_cookie_is_of_this_host_alone() -> None:
    scope = {"type": "http", "scheme": "https", "headers": [(b"cookie", b"tailrace=a")]}
    assert handle_of(scope) is None
    scope["headers"] = [(b"cookie", b"tailrace=a; __Host-tailrace=b")]
    assert handle_of(scope) == "b"


async def test_a_newer_token_renews_a_session_and_its_streams(guarded: Guarded) -> None:
    first = await begun(guarded, lifetime_s=60)
    path = f"{LIVE}?heartbeatIntervalMs=100"
    async with guarded.http.stream("GET", path, headers=STREAM) as answer:
        lines = answer.aiter_lines()
        async with asyncio.timeout(PATIENCE_S):
            assert await _expires_in_ms(lines) <= 60_000
            again = await begun(guarded, lifetime_s=3600)
            assert again.partition(";")[0] == first.partition(";")[0]
            while await _expires_in_ms(lines) <= 60_000:
                pass
            # Somebody else at the same browser gets another one, and the first ends with its streams.
            other = await begun(guarded, sub="bo")
            assert other.partition(";")[0] != first.partition(";")[0]
            async for line in lines:
                if line.startswith("data: ") and '"UNAUTHENTICATED"' in line:
                    break
            else:
                pytest.fail("the stream ended without a word")
    assert await status(guarded) == 200


async def _expires_in_ms(lines: AsyncIterator[str]) -> int:
    async for line in lines:
        if line.startswith("data: ") and "expiresInMs" in line:
            return int(json.loads(line.removeprefix("data: "))["expiresInMs"])
    raise AssertionError("the stream ended")


async def test_a_session_ends_by_its_user(guarded: Guarded) -> None:
    mine = (await begun(guarded)).partition(";")[0]
    answer = await guarded.http.delete("/v1/session")
    assert answer.status_code == 204
    assert "Max-Age=0" in answer.headers["set-cookie"]
    assert "tailrace" not in guarded.http.cookies
    assert await status(guarded, cookie=mine) == 401


async def test_a_session_ends_with_its_token_or_its_key(guarded: Guarded) -> None:
    principal = await guarded.door.admit(Credentials(guarded.issuer.token()))
    assert isinstance(principal, Identified)
    sessions = BrowserSessions()
    handle, lifetime_s = sessions.begin(principal, None)
    assert 0 < lifetime_s <= 600
    assert sessions.holder(handle) is principal
    principal.identity = replace(principal.identity, expires_at=time.time() - 1)
    with pytest.raises(TokenExpired):
        sessions.holder(handle)
    # Who comes back with a newer token begins anew: the streams of the first one have ended.
    newer = await guarded.door.admit(Credentials(guarded.issuer.token()))
    assert sessions.begin(newer, handle)[0] != handle
    principal = Identified(replace(principal.identity, expires_at=None, key_id="gone"), NoKeys())
    with pytest.raises(Unauthenticated):
        sessions.holder(sessions.begin(principal, None)[0])


class NoKeys:
    """Has lost all its keys."""

    async def identify(self, credentials: Credentials) -> Identity | None:
        raise AssertionError

    def recognise(self, credentials: Credentials) -> Identity | None:
        raise AssertionError

    def accepts(self, identity: Identity) -> bool:
        return False


@pytest.mark.slow
async def test_an_event_source_comes_back_by_itself_by_its_session(
    guarded: Guarded, writer: ModelWriter
) -> None:
    root = f"http://127.0.0.1:{guarded.face.address.port}"
    async with chromium() as browser:
        page = await browser.new_page()
        await page.goto(f"{root}/v1/docs")
        await page.evaluate(
            """async ([token, path]) => {
                const headers = {authorization: `Bearer ${token}`};
                const answer = await fetch("/v1/session", {method: "POST", headers});
                if (!answer.ok) throw new Error(answer.status);
                window.begun = 0;
                window.stream = new EventSource(path);
                window.stream.addEventListener("subscribed", () => { window.begun += 1; });
            }""",
            [guarded.issuer.token(), LIVE],
        )

        async def holds(condition: str) -> None:
            await until_answered(lambda: page.evaluate(condition))

        await holds("window.begun === 1")
        assert await page.evaluate("document.cookie") == ""
        # The network breaks: nobody has said anything to the page, and its code does nothing.
        for connection in tuple(guarded.face._server.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await holds("window.begun === 2")
        await until(lambda: len(guarded.engine.subscriptions(ANONYMOUS)) == 1)
        await page.evaluate("fetch('/v1/session', {method: 'DELETE'})")
        await holds("window.stream.readyState === EventSource.CLOSED")


async def test_an_extended_handle_outlives_older_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tickets, "_IN_ALL", 3)
    handles = tickets.Handles()
    first, second, third = (handles.make(ANONYMOUS, 60.0) for _ in range(3))
    handles.extend(first, 60.0)
    handles.make(ANONYMOUS, 60.0)
    assert [each for each in (first, second, third) if handles.holder(each)] == [first, third]
