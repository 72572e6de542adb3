"""Slow, stopped and hostile peers: contract 13 and 45. The guard has a name, and neighbours go on."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import pytest
from structlog.testing import capture_logs

from tailrace_server.api.http import protocol as http_protocol
from tailrace_server.api.rest.live import SUBPROTOCOL
from tailrace_server.api.settings import HttpSettings
from tailrace_server.api.websocket.protocol import GuardedProtocol
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.live.subscription import Subscription
from tailrace_server.reads.history import HistoryRead
from tests.conformance.entrances import OPEN, guarded
from tests.conformance.http_drivers import listening
from tests.conformance.shop import upsert
from tests.server.api.rest.conftest import LIVE, closed, hear, say
from tests.server.api.rest.test_socket import subscribe
from tests.support.inprocess import PATIENCE_S, observer_of
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from tailrace.capture import Heartbeat, StateComplete
    from tailrace_server.log_cache.frames import Frames
    from tests.server.api.rest.conftest import RawSocket, Served
    from tests.support.inprocess import ModelWriter

    Serve = Callable[..., Awaitable[Served]]

QUERY = "/v1/catalogs/shop/changes/query"
LARGE = 24 << 20
"""Bytes of captures: more than the buffers of both sockets hold."""


HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
HANDSHAKE = {
    "connection": "upgrade",
    "upgrade": "websocket",
    "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
    "sec-websocket-version": "13",
}


def fill(writer: ModelWriter) -> None:
    text = "x" * (1 << 20)
    writer.write(*([upsert(str(number), text=text)] for number in range(LARGE >> 20)))


def stop_reading(raw: RawSocket) -> None:
    raw.writer.transport.pause_reading()  # type: ignore[attr-defined]


async def push(raw: RawSocket, data: bytes) -> None:
    """Write as far as the peer takes it; uvloop writes, and finds out that it cannot, once the loop turns."""
    raw.writer.write(data)
    await asyncio.sleep(0)
    await raw.writer.drain()


def subscription_held(served: Served) -> int:
    (one,) = observer_of(served.engine, "shop").subscriptions
    return one.last.nbytes


def subscription_stalls(served: Served) -> bool:
    """Return whether its message has waited for a while: one that finds room is followed by the next."""
    (one,) = observer_of(served.engine, "shop").subscriptions
    return one.last.stalled_for(asyncio.get_running_loop().time()) > 0.2


def ended_as_too_slow(served: Served, count: int) -> bool:
    return served.guards.get("send_deadline", 0) == count


def anonymous_bytes() -> int:
    """Return the anonymous memory of this process."""
    with open(f"/proc/{os.getpid()}/status") as status:
        for line in status:
            if line.startswith("RssAnon"):
                return int(line.split()[1]) << 10
    raise AssertionError("no RssAnon")


@pytest.mark.slow
@pytest.mark.parametrize("over_tls", [False, True], ids=["plain", "tls"])
async def test_contract_13_45_a_reader_that_stops_is_let_go_after_the_send_deadline(
    serve: Serve, writer: ModelWriter, tmp_path: Path, over_tls: bool
) -> None:
    """By name in the metrics; meanwhile a neighbour gets everything."""
    fill(writer)
    entrance = guarded(tmp_path / "tls") if over_tls else OPEN
    served = await serve(send_deadline_s=0.3, entrance=entrance)
    stalled = await served.raw()
    for message in (b'{"type":"connection_init"}', _everything()):
        stalled.writer.write(stalled.frame(1, message))
    await stalled.reader.readuntil(b"subscribed")
    stop_reading(stalled)
    async with served.socket() as neighbour:
        await say(neighbour, subscribe(sinceVersion=0, body=["after"], request=2**62))
        count = 0
        while count < 2 * (LARGE >> 20):
            heard = await hear(neighbour)
            count += len(heard.get("payload", {}).get("captures", ()))
        await until(lambda: served.guards.get("send_deadline") == 1)
        await until(lambda: served.engine.statistics(ANONYMOUS).subscriptions == 1)
    stalled.close()


@pytest.mark.slow
async def test_contract_13_a_reader_that_comes_back_is_told_why(
    serve: Serve, writer: ModelWriter
) -> None:
    """Behind what it had not read stands close code 1008."""
    fill(writer)
    served = await serve(send_deadline_s=0.2)
    stalled = await served.raw()
    for message in (b'{"type":"connection_init"}', _everything()):
        stalled.writer.write(stalled.frame(1, message))
    await stalled.reader.readuntil(b'"type":"subscribed"')
    stop_reading(stalled)
    await until(lambda: served.engine.statistics(ANONYMOUS).subscriptions == 0)
    stalled.writer.transport.resume_reading()  # type: ignore[attr-defined]
    data = b""
    async with asyncio.timeout(PATIENCE_S):
        while chunk := await stalled.reader.read(1 << 20):
            data = data[-200:] + chunk
    assert (1008).to_bytes(2, "big") + b"SUBSCRIBER_TOO_SLOW" in data
    stalled.close()


@pytest.mark.slow
async def test_contract_13_an_event_stream_that_is_not_read_is_cut_after_the_send_deadline(
    serve: Serve, writer: ModelWriter
) -> None:
    fill(writer)
    served = await serve(send_deadline_s=0.3)
    paths = (f"{LIVE}?sinceVersion=0&body=after", "/v1/catalogs/shop/changes?body=after")
    for count, path in enumerate(paths, 1):
        accept = "text/event-stream" if "live" in path else "application/x-ndjson"
        reader, stalled = await asyncio.open_connection("127.0.0.1", served.port, limit=1 << 16)
        stalled.write(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n".encode()
        )
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        stalled.transport.pause_reading()  # type: ignore[attr-defined]
        await until(partial(ended_as_too_slow, served, count))
        await until(lambda: served.engine.statistics(ANONYMOUS).subscriptions == 0)
        stalled.transport.abort()
    await until(lambda: served.face.sockets.statistics().open == 0)


async def test_contract_13_a_reader_that_leaves_ends_its_stream(serve: Serve) -> None:
    served = await serve()
    headers = {"accept": "text/event-stream"}
    async with served.http.stream("GET", LIVE, headers=headers) as answer:
        await anext(answer.aiter_bytes())
        assert served.engine.statistics(ANONYMOUS).subscriptions == 1
    await until(lambda: served.engine.statistics(ANONYMOUS).subscriptions == 0)
    await until(lambda: served.face.sockets.statistics().open == 0)


@pytest.mark.slow
async def test_contract_45_a_flood_of_pings_by_who_does_not_read_costs_the_connection(
    serve: Serve, writer: ModelWriter
) -> None:
    """What could not be answered is dropped, not kept."""
    fill(writer)
    served = await serve(HttpSettings(ws_pings_unread=500))
    raw = await served.raw()
    for message in (b'{"type":"connection_init"}', _everything()):
        raw.writer.write(raw.frame(1, message))
    await raw.reader.readuntil(b"subscribed")
    stop_reading(raw)
    await until(lambda: subscription_held(served) > 0)
    ping = raw.frame(9, b"x" * 100)
    async with asyncio.timeout(PATIENCE_S):
        with suppress(ConnectionError):
            while True:
                await push(raw, ping * 100)
    assert served.guards == {"pings_unread": 1}
    await until(lambda: served.engine.statistics(ANONYMOUS).subscriptions == 0)
    raw.close()


async def test_contract_45_pings_are_answered_to_who_reads(serve: Serve) -> None:
    served = await serve()
    async with served.socket() as socket:
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(100):
                await (await socket.ping())
    assert served.guards == {}


@pytest.mark.slow
async def test_contract_45_a_flood_of_protocol_pings_makes_the_client_wait(serve: Serve) -> None:
    """Who does not read its pongs is not read from: its own send stands still, then the deadline ends it."""
    served = await serve(send_deadline_s=0.3)
    raw = await served.raw()
    raw.writer.write(raw.frame(1, b'{"type":"connection_init"}'))
    await raw.reader.readuntil(b"connection_ack")
    stop_reading(raw)
    text = b'{"type":"ping","payload":{"x":"%s"}}' % (b"y" * 20_000)
    ping = raw.frame(1, text)
    sent = 0
    async with asyncio.timeout(PATIENCE_S):
        with suppress(ConnectionError):
            while True:
                sent += 10 * len(ping)
                await push(raw, ping * 10)  # stands still until the deadline cuts the connection
    assert served.guards == {"send_deadline": 1}
    assert sent < 64 << 20
    raw.close()


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([(1, b"\xff\xfe", True)], 1007),
        ([(1, b'{"type":"ping', False), (0, b'"}', True), (2, b"x", True)], 4400),
        ([(1, b"", False), *[(0, b"", False)] * 5000], 1009),
        ([(1, b"x" * 60_000, False), (0, b"x" * 60_000, True)], 1009),
        ([(0, b"x", True)], 1002),
        ([(3, b"x", True)], 1002),
        ([(9, b"x" * 126, True)], 1002),
    ],
    ids=["utf-8", "binary", "fragments", "size", "continuation", "opcode", "large ping"],
)
async def test_a_malformed_frame_closes_its_socket(
    serve: Serve, frames: list[tuple[int, bytes, bool]], code: int
) -> None:
    served = await serve()
    raw = await served.raw()
    raw.writer.write(b"".join(raw.frame(opcode, data, fin=fin) for opcode, data, fin in frames))
    assert await raw.close_code() == code
    await until(lambda: served.face.sockets.statistics().open == 0)
    assert served.guards == {f"close_{code}": 1}
    raw.close()


async def test_a_message_in_fragments_is_one_message(serve: Serve) -> None:
    served = await serve()
    raw = await served.raw()
    for opcode, data, fin in ((1, b'{"type":', False), (9, b"", True), (0, b'"ping"}', True)):
        raw.writer.write(raw.frame(opcode, data, fin=fin))
    async with asyncio.timeout(PATIENCE_S):
        await raw.reader.readuntil(b'{"type":"pong"}')
    raw.close()


async def test_a_large_message_is_allowed_only_once_the_peer_is_known(serve: Serve) -> None:
    served = await serve()
    keys = [str(number) for number in range(100_000)]
    async with served.socket() as socket:
        await say(socket, subscribe(criteria=[{"primaryKey": keys}]))
        assert (await hear(socket))["type"] == "subscribed"
    async with served.socket(init=False) as socket:
        await say(socket, subscribe(criteria=[{"primaryKey": keys}]))
        assert (await closed(socket))[0] == 1009


async def test_a_probe_that_is_not_answered_costs_the_connection(serve: Serve) -> None:
    served = await serve(HttpSettings(ws_ping_interval_s=0.05, ws_ping_timeout_s=0.05))
    raw = await served.raw()
    raw.writer.write(raw.frame(1, b'{"type":"connection_init"}'))
    assert await raw.close_code() == 1011
    assert served.guards == {"ping_timeout": 1}
    await until(lambda: served.face.sockets.statistics().open == 0)
    raw.close()


async def test_a_reader_that_pauses_for_less_than_the_send_deadline_gets_everything(
    serve: Serve, writer: ModelWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though a probe, which stands behind all that it has not read, goes unanswered for too long."""
    missed = asyncio.Event()
    timeout = GuardedProtocol.keepalive_timeout

    def told(protocol: GuardedProtocol) -> None:
        if protocol.transport.get_write_buffer_size():
            missed.set()
        timeout(protocol)

    monkeypatch.setattr(GuardedProtocol, "keepalive_timeout", told)
    fill(writer)
    served = await serve(HttpSettings(ws_ping_interval_s=0.1, ws_ping_timeout_s=1))
    async with served.socket() as socket:
        await say(socket, subscribe(sinceVersion=0, body=["after"], request=2**62))
        async with asyncio.timeout(PATIENCE_S):
            await missed.wait()
        count = 0
        while count < 2 * (LARGE >> 20):
            count += len((await hear(socket)).get("payload", {}).get("captures", ()))
        assert served.guards == {}


@pytest.mark.slow
async def test_a_peer_that_vanishes_with_much_unread_is_found_after_the_send_deadline(
    serve: Serve, writer: ModelWriter
) -> None:
    """Also where nothing waits to be written to it, so that only the probe can find it."""
    fill(writer)
    settings = HttpSettings(ws_ping_interval_s=0.05, ws_ping_timeout_s=0.05)
    served = await serve(settings, send_deadline_s=1)
    raw = await served.raw()
    for message in (b'{"type":"connection_init"}', _everything()):
        raw.writer.write(raw.frame(1, message))
    await raw.reader.readuntil(b'"type":"subscribed"')
    stop_reading(raw)
    await until(lambda: subscription_stalls(served))
    raw.writer.write(raw.frame(1, b'{"type":"complete","id":"1"}'))
    await until(lambda: served.engine.statistics(ANONYMOUS).subscriptions == 0)
    await until(lambda: served.guards == {"send_deadline": 1})
    await until(lambda: served.face.sockets.statistics().open == 0)
    raw.close()


async def test_every_refusal_is_counted_by_its_code(serve: Serve) -> None:
    served = await serve()
    for path, headers in (
        ("/v1/catalogs/ship", {}),
        ("/v1/catalogs/shop/changes?after=x", {}),
        (f"{LIVE}?wherever=1", {"accept": "text/event-stream"}),
        (LIVE, {"accept": "image/png"}),
        ("/v1/catalogs/ship/graphql?query={schema{id}}", {}),
    ):
        assert (await served.http.get(path, headers=headers)).status_code >= 400
    async with served.socket() as socket:
        for wish in ({"after": "x"}, {"sinceVersion": -1}):
            await say(socket, subscribe(**wish))
            assert (await hear(socket))["type"] == "error"
    assert served.face.sockets.statistics().errors == {
        ("http", "CATALOG_UNKNOWN"): 2,
        ("http", "CURSOR_INVALID"): 1,
        ("http", "UNSUPPORTED"): 1,
        ("http", "INVALID_REQUEST"): 1,
        ("websocket", "CURSOR_INVALID"): 1,
        ("websocket", "INVALID_REQUEST"): 1,
    }
    metrics = (await served.http.get("/metrics")).text
    assert 'tailrace_http_errors_total{code="UNSUPPORTED",transport="http"} 1.0' in metrics


async def test_our_own_fault_is_told_in_a_line_and_logged_with_its_traceback(
    serve: Serve, writer: ModelWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the head of a stream there is no status to tell it by: the log is where it is found."""

    async def broken(_: Subscription) -> NoReturn:
        raise RuntimeError("a bug")

    async def breaks(history: HistoryRead) -> AsyncIterator[Frames]:
        async for frames in whole(history):
            yield frames
            raise RuntimeError("a bug")

    whole = HistoryRead.__aiter__
    writer.write([upsert("1")])
    served = await serve()
    monkeypatch.setattr(Subscription, "receive", broken)
    monkeypatch.setattr(HistoryRead, "__aiter__", breaks)
    for path, accept in (
        (LIVE, "text/event-stream"),
        ("/v1/catalogs/shop/changes", "application/x-ndjson"),
    ):
        with capture_logs() as logged:
            answer = await served.http.get(path, headers={"accept": accept})
        assert answer.status_code == 200
        assert '"code":"INTERNAL"' in answer.text
        (event,) = (each for each in logged if each["event"] == "internal error")
        assert isinstance(event["exc_info"], RuntimeError)


async def test_a_stop_tells_everybody_while_a_client_is_leaving(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The socket that is gone has an operation that still ends; stopping it once more is no error."""
    leaving, may_leave = asyncio.Event(), asyncio.Event()

    async def held(subscription: Subscription) -> Frames | Heartbeat | StateComplete:
        try:
            return await whole(subscription)
        except asyncio.CancelledError:
            leaving.set()
            await may_leave.wait()
            raise

    whole = Subscription.receive
    monkeypatch.setattr(Subscription, "receive", held)
    served = await serve()
    async with served.socket() as neighbour:
        gone = await served.raw()
        for message in (b'{"type":"connection_init"}', _everything()):
            gone.writer.write(gone.frame(1, message))
        await gone.reader.readuntil(b"subscribed")
        gone.close()
        async with asyncio.timeout(PATIENCE_S):
            await leaving.wait()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(served.face.drain(PATIENCE_S))
                assert (await closed(neighbour))[0] == 1001
                may_leave.set()
    assert served.face.sockets.statistics().open == 0


@pytest.mark.slow
async def test_a_stop_is_no_error_behind_a_close_that_is_not_answered_yet(
    serve: Serve, writer: ModelWriter
) -> None:
    """The answer to the peer's close stands behind what the peer does not read."""
    fill(writer)
    served = await serve()
    async with AsyncExitStack() as stack:
        face = await stack.enter_async_context(listening(served.engine))
        raw = await replace(served, face=face).raw()
        try:
            for message in (b'{"type":"connection_init"}', _everything()):
                raw.writer.write(raw.frame(1, message))
            await raw.reader.readuntil(b"subscribed")
            stop_reading(raw)
            await until(lambda: subscription_held(served) > 0)
            await push(raw, raw.frame(8, (1000).to_bytes(2, "big")))
            await until(lambda: face.sockets.statistics().open == 0)
            await stack.aclose()
        finally:
            raw.close()


async def test_a_handshake_with_parameters_is_refused_by_their_name(serve: Serve) -> None:
    """They would look as if they were obeyed."""
    served = await serve()
    answer = await served.http.get(f"{LIVE}?entityType=product&x=1", headers=HANDSHAKE)
    assert (answer.status_code, answer.json()["status"]) == (400, 400)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"].startswith(
        "entityType: a WebSocket has its arguments in its messages"
    )
    assert served.face.sockets.statistics().errors == {("http", "INVALID_REQUEST"): 1}
    assert served.face.sockets.statistics().opened == 0


@pytest.mark.parametrize(
    "path",
    ["/v1/nope", "/v1/catalogs/shop/changes", "/v1/catalogs/shop/changes/live/", "/", "/health"],
)
async def test_a_handshake_where_no_socket_is_gets_404_in_the_usual_form(
    serve: Serve, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is the client's fault, and no error in the server's log."""
    served = await serve()
    answer = await served.http.get(path, headers=HANDSHAKE)
    assert (answer.status_code, answer.json()["status"]) == (404, 404)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"].startswith(f"there is no WebSocket at {path}")
    assert [each for each in caplog.records if each.levelname == "ERROR"] == []
    assert served.face.sockets.statistics().errors == {("http", "INVALID_REQUEST"): 1}


async def send_before_acceptance(served: Served, frames: bytes) -> None:
    """Open a socket while no handshake is accepted, and send frames until the server ends the connection."""
    fields = HANDSHAKE | {"sec-websocket-protocol": SUBPROTOCOL}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    served.face._accepting.clear()
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(f"GET {LIVE} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode())
    reading = asyncio.create_task(reader.read())
    async with asyncio.timeout(PATIENCE_S):
        while not reading.done():
            writer.write(
                frames
            )  # again and again: the first may come before the upgrade, which drops it
            await asyncio.wait((reading,), timeout=0.01)
    with suppress(ConnectionResetError):
        await reading
    writer.close()
    served.face.accept()


@pytest.mark.parametrize(
    ("frames", "guard"),
    [
        (b"\x83\x80" + bytes(4), "close_1002"),
        (b"\x81\x00", "close_1002"),
        (b"\xff" * 100, "close_1002"),
        (b"\x81\x81" + bytes(4) + b"\xff", "close_1007"),
    ],
)
async def test_a_bad_frame_before_the_handshake_is_accepted_ends_the_connection(
    serve: Serve, caplog: pytest.LogCaptureFixture, frames: bytes, guard: str
) -> None:
    """The server cannot send a close frame then."""
    served = await serve()
    await send_before_acceptance(served, frames)
    assert served.guards == {guard: 1}
    assert (await served.http.get("/health")).status_code == 200
    assert [each for each in caplog.records if each.levelname == "ERROR"] == []


async def test_more_criteria_than_one_request_may_have_are_refused_by_name(serve: Serve) -> None:
    """In every form, and before any of them is looked at: none of these would pass by itself."""
    served = await serve()
    criteria = [{"nonsense": 1}] * 1_001
    text, events = json.dumps(criteria), {"accept": "text/event-stream"}
    expected = "1001 in one request, the limit is 1000 (criteria)"
    body = {"criteria": criteria}
    for answer in (
        await served.http.post(QUERY, json=body),
        await served.http.get("/v1/catalogs/shop/changes", params={"criteria": text}),
        await served.http.post(LIVE, json=body, headers=events),
        await served.http.get(LIVE, params={"criteria": text}, headers=events),
    ):
        assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")
        assert expected in answer.json()["detail"]
    async with served.socket() as socket:
        await say(socket, subscribe(criteria=criteria))
        heard = await hear(socket)
        assert (heard["type"], heard["payload"]["code"]) == ("error", "INVALID_REQUEST")
        assert expected in heard["payload"]["detail"]


async def test_as_many_criteria_as_one_request_may_have_are_served(serve: Serve) -> None:
    served = await serve(criteria=2)
    async with served.socket() as socket:
        keys = [str(number) for number in range(10_000)]
        await say(socket, subscribe(criteria=[{"primaryKey": keys}, {"entityType": ["order"]}]))
        assert (await hear(socket))["type"] == "subscribed"


async def test_above_the_limit_of_connections_a_handshake_is_refused(serve: Serve) -> None:
    served = await serve(HttpSettings(http_connections=1))
    async with served.socket():
        headers = {"accept": "text/event-stream"}
        answer = await served.http.post(LIVE, headers=headers, json={})
        assert (answer.status_code, answer.json()["status"]) == (429, 429)
        assert answer.json()["retriable"]
        answer = await served.http.get(LIVE, headers=HANDSHAKE)
        assert (answer.status_code, answer.json()["status"]) == (429, 429)
        assert answer.json()["retriable"]
        assert "the limit" in answer.json()["detail"]
    assert served.face.sockets.statistics().refused == 2


@pytest.mark.parametrize(
    "said",
    [(b"",), (b"GET /health HTTP/1.1\r\nHost:",), (HEALTH, b"GET /hea")],
    ids=["nothing", "half a request", "half of the next one"],
)
async def test_contract_45_a_connection_without_a_whole_request_is_cut(
    serve: Serve, said: tuple[bytes, ...]
) -> None:
    served = await serve(HttpSettings(request_head_s=0.1))
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    *whole, half = said
    async with asyncio.timeout(PATIENCE_S):
        for request in whole:
            writer.write(request)
            assert b"200" in await reader.readline()
        writer.write(half)
        with suppress(ConnectionResetError):
            await reader.read()
    await until(lambda: served.guards == {"request_head": 1})
    writer.close()


@pytest.mark.parametrize("begun", [False, True], ids=["before its answer", "behind its answer"])
async def test_a_request_whose_body_is_no_http_has_one_answer_at_most(
    serve: Serve, caplog: pytest.LogCaptureFixture, begun: bool
) -> None:
    served = await serve()
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    path = LIVE if begun else f"{LIVE}/x"
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
    async with asyncio.timeout(PATIENCE_S):
        writer.write(head.encode() + b"Accept: text/event-stream\r\n\r\n")
        answer = await reader.readuntil(b"event: subscribed") if begun else b""
        writer.write(b"no chunk\r\n")
        with suppress(ConnectionResetError):
            answer += await reader.read()
    assert answer.count(b"HTTP/1.1 ") == 1
    assert not [each for each in caplog.records if each.levelname == "ERROR"]
    writer.close()


async def test_contract_45_an_answer_that_nobody_reads_is_cut(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is no stream: pipelined requests for a large file fill every buffer."""
    monkeypatch.setattr(http_protocol, "_AFTER_S", 0.1)
    served = await serve(send_deadline_s=0.1)
    _, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=1 << 16)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(b"GET /v1/docs/rapidoc-9.3.8.min.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20)
    await until(lambda: served.guards == {"send_deadline": 1})
    writer.transport.abort()


async def test_a_page_of_another_origin_opens_no_socket_unless_it_is_allowed(serve: Serve) -> None:
    served = await serve()
    allowing = await serve(HttpSettings(ws_origins="https://*.a.example, https://b.example:8443"))
    everybody = await serve(HttpSettings(ws_origins="*"))
    own = f"http://127.0.0.1:{served.port}"
    for server, origin, opens in (
        (served, own, True),
        (served, "https://b.example:8443", False),
        (served, "null", False),
        (served, "http://[", False),
        (allowing, "https://b.example:8443", True),
        (allowing, "https://x.a.example", True),
        (allowing, "https://b.example", False),
        (allowing, own, False),
        (everybody, "https://anything.example", True),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        head = {"host": f"127.0.0.1:{server.port}", "origin": origin, **HANDSHAKE}
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        writer.write(f"GET {LIVE} HTTP/1.1\r\n{lines}\r\n".encode())
        async with asyncio.timeout(PATIENCE_S):
            status = await reader.readuntil(b"\r\n")
            refused = None if opens else await reader.readuntil(b'"retriable":')
        assert status.split()[1] == (b"101" if opens else b"403"), (origin, status)
        assert refused is None or b'"status":403' in refused
        writer.close()
    assert served.face.sockets.statistics().guards["origin"] == 3


async def test_a_page_of_another_origin_reads_no_answer_unless_it_is_allowed(serve: Serve) -> None:
    """`EventSource` and `fetch` obey these headers; a request with a body is asked about first."""
    served = await serve()
    allowing = await serve(HttpSettings(ws_origins="https://*.a.example, https://b.example:8443"))
    everybody = await serve(HttpSettings(ws_origins="*"))
    for server, origin, allowed in (
        (served, "https://b.example:8443", None),
        (allowing, "https://b.example:8443", "https://b.example:8443"),
        (allowing, "https://x.a.example", "https://x.a.example"),
        (allowing, "https://b.example", None),
        (everybody, "https://anything.example", "*"),
    ):
        asked = {"access-control-request-method": "POST"}
        asked["access-control-request-headers"] = "content-type"
        preflight = await server.http.options(QUERY, headers={"origin": origin, **asked})
        assert preflight.is_success == (allowed is not None)
        for answer in (
            await server.http.get("/v1/catalogs", headers={"origin": origin}),
            await server.http.get("/v1/catalogs/none/changes", headers={"origin": origin}),
            preflight,
        ):
            assert answer.headers.get("access-control-allow-origin") == allowed, origin
            shown = answer.headers.get("access-control-expose-headers", "")
            for name in ("Tailrace-Closed-Until", "Tailrace-Version", "Tailrace-Resume-Cursor"):
                assert allowed is None or answer is preflight or name in shown


@pytest.mark.slow
async def test_contract_45_a_thousand_silent_sockets_cost_little_and_are_closed(
    serve: Serve, writer: ModelWriter
) -> None:
    """A neighbour is served meanwhile."""
    served = await serve(HttpSettings(ws_init_timeout_s=10))
    before = anonymous_bytes()
    silent = await asyncio.gather(*(served.raw() for _ in range(1000)))
    assert anonymous_bytes() - before < 160 << 20, "client and server together"
    async with served.socket() as socket:
        await say(socket, subscribe(sinceVersion=0))
        writer.write([upsert("1")])
        while (await hear(socket))["type"] != "next":
            pass
    codes = await asyncio.gather(*(raw.close_code() for raw in silent))
    assert set(codes) == {4408}
    assert served.guards == {"close_4408": 1000}
    for raw in silent:
        raw.close()


def _everything() -> bytes:
    return b'{"type":"subscribe","id":"1","payload":{"sinceVersion":0,"body":["after"]}}'
