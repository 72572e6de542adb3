"""Both listeners over TLS: who is let in, certificates that change, and the probe that asks them."""

from __future__ import annotations

import asyncio
import json
import ssl
from functools import partial
from typing import TYPE_CHECKING

import grpc
import httpx
import pytest
from structlog.testing import capture_logs
from websockets import Subprotocol
from websockets.asyncio.client import connect

import tailrace
from tailrace_server.api.rest.live import SUBPROTOCOL
from tailrace_server.api.settings import HttpSettings
from tests.support.certificates import Authority, Issued
from tests.support.inprocess import PATIENCE_S
from tests.support.model import ModelMutation
from tests.support.polling import until, until_answered

if TYPE_CHECKING:
    from tests.server.api.transport_security.conftest import Secure, Secured
    from tests.support.inprocess import ModelWriter

LIVE = "/v1/catalogs/shop/changes/live"
HANDSHAKE = 22
"""The first byte of an answer that goes on; a refusal is an alert, or the end."""


def hello(version: bytes) -> bytes:
    """Return what a client of that version and no newer one begins with, as clients of its time did."""
    extensions = bytes.fromhex("000a00040002 0017 000b00020100 000d00040002 0403")
    ciphers = bytes.fromhex("c02b c009")
    said = version + bytes(32) + b"\0" + _sized(ciphers, 2) + b"\x01\0" + _sized(extensions, 2)
    return b"\x16\x03\x01" + _sized(b"\x01" + _sized(said, 3), 2)


def _sized(data: bytes, width: int) -> bytes:
    return len(data).to_bytes(width, "big") + data


def reloaded(served: Secured, times: int) -> bool:
    return served.tls.statistics().reloads == times


def change(writer: ModelWriter, key: str) -> None:
    writer.write([ModelMutation("product", key, tailrace.Operation.REMOVE, None, None)])


def credentials(served: Secured, client: Issued | None = None) -> grpc.ChannelCredentials:
    pair = (None, None) if client is None else (client.key, client.certificate)
    return grpc.ssl_channel_credentials(served.authority.certificate, *pair)


async def refused(port: int, context: ssl.SSLContext) -> bool:
    """Return whether a listener lets nobody in who comes so: the connection ends before a byte of an answer."""
    writer = None
    try:
        reader, writer = await asyncio.open_connection("localhost", port, ssl=context)
        async with asyncio.timeout(PATIENCE_S):
            writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return not await reader.read(1)
    except (ssl.SSLError, ConnectionError):
        return True
    finally:
        if writer is not None:
            writer.transport.abort()


@pytest.mark.parametrize(("version", "answered"), [(b"\x03\x02", False), (b"\x03\x03", True)])
async def test_tls_1_1_is_refused_and_1_2_is_not(
    secure: Secure, version: bytes, answered: bool
) -> None:
    served = await secure()
    for port in served.ports:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(hello(version))
        async with asyncio.timeout(PATIENCE_S):
            answer = await reader.read(1)
        assert (answer == bytes([HANDSHAKE])) is answered
        writer.transport.abort()


async def test_plain_text_is_refused(secure: Secure) -> None:
    served = await secure()
    for port in served.ports:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(PATIENCE_S):
            assert b"HTTP" not in await reader.read()
        writer.transport.abort()


@pytest.mark.slow
async def test_a_peer_that_does_not_shake_hands_is_cut(secure: Secure) -> None:
    served = await secure(settings=HttpSettings(request_head_s=0.2))
    reader, writer = await asyncio.open_connection("127.0.0.1", served.face.address.port)
    async with asyncio.timeout(PATIENCE_S):
        assert await reader.read() == b""
    writer.transport.abort()


@pytest.mark.slow
async def test_who_shows_no_certificate_or_that_of_a_stranger_is_not_let_in(secure: Secure) -> None:
    served = await secure(client_ca=True)
    stranger = served.context(Authority("strangers").client("me"))
    for port in served.ports:
        assert await refused(port, served.context())
        assert await refused(port, stranger)
    known = served.clients.client("me")
    context = served.context(known)
    assert not await refused(served.face.address.port, context)
    async with tailrace.connect(
        f"https://localhost:{served.grpc_port}", credentials=credentials(served, known)
    ) as client:
        assert [each.name for each in await client.list_catalogs()] == ["shop"]


@pytest.mark.slow
async def test_a_new_certificate_is_taken_and_streams_that_live_go_on(
    secure: Secure, writer: ModelWriter
) -> None:
    served = await secure()
    broken: list[tailrace.Disconnected] = []
    async with (
        asyncio.timeout(PATIENCE_S),
        tailrace.connect(
            f"https://localhost:{served.grpc_port}", credentials=credentials(served)
        ) as client,
        client.subscribe("shop", since=0, on_disconnect=broken.append) as captures,
        connect(
            f"wss://localhost:{served.face.address.port}{LIVE}",
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            ssl=served.context(),
            proxy=None,
        ) as socket,
    ):
        await socket.send('{"type": "connection_init"}')
        await socket.send('{"type": "subscribe", "id": "1", "payload": {"sinceVersion": 0}}')
        for round_ in (1, 2):
            # 1. What is open brings what comes.
            change(writer, f"of round {round_}")
            while (await anext(captures)).primary_key != f"of round {round_}":
                pass
            async for text in socket:
                if f"of round {round_}" in str(text):
                    break
            # 2. New connections get what is new, on both listeners.
            new = served.issue()
            await until(partial(reloaded, served, round_))
            for port in served.ports:
                assert await served.served_certificate(port) == new
        assert broken == []
        # 3. The probe finds whoever listens now, and a listener that is renewed has the new certificate.
        await served.grpc.knock()
        await served.face.knock()
        await served.face.listen_again()
        await served.grpc.listen_again()
        for port in served.ports:
            assert await served.served_certificate(port) == new


@pytest.mark.slow
async def test_garbage_at_a_reload_keeps_the_earlier_files_and_is_told(secure: Secure) -> None:
    served = await secure()
    before = await served.served_certificate(served.grpc_port)
    good = served.certificate_path.read_bytes()
    async with httpx.AsyncClient(
        verify=served.context(), base_url=f"https://localhost:{served.face.address.port}"
    ) as http:

        async def faults() -> list[str]:
            answer = await http.get("/health")
            assert answer.status_code == 200  # what is served is served
            return [each["kind"] for each in json.loads(answer.text)["faults"]]

        with capture_logs() as lines:
            served.certificate_path.write_text("garbage")
            await until(lambda: served.tls.statistics().reloads_failed == 1)
        assert [each["event"] for each in lines] == [
            "changed TLS files cannot be used; the previous ones remain in use"
        ]
        assert await faults() == ["certificate"]
        for port in served.ports:
            assert await served.served_certificate(port) == before
        served.certificate_path.write_bytes(good)

        async def mended() -> bool:
            return await faults() == []

        await until_answered(mended)


@pytest.mark.slow
async def test_a_ca_that_is_taken_away_lets_nobody_in_any_more(secure: Secure) -> None:
    served = await secure(client_ca=True)
    known = served.context(served.clients.client("me"))
    others = Authority("others")
    port = served.face.address.port
    assert not await refused(port, known)
    others.write(served.folder, "clients")
    await until(lambda: served.tls.statistics().reloads == 1)
    for each in served.ports:
        assert await refused(each, known)
    assert not await refused(port, served.context(others.client("me")))


@pytest.mark.parametrize("client_ca", [False, True], ids=["tls", "mtls"])
async def test_the_probe_asks_over_tls(secure: Secure, client_ca: bool) -> None:
    served = await secure(client_ca=client_ca)
    await served.grpc.knock()
    await served.face.knock()
