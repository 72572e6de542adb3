"""That the environment's proxy is named where it is why nothing is reached."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import pytest

import tailrace
from tailrace.transport.target import EnvironmentProxy, proxy_to
from tests.client.scripted import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

PROXY = "http://ada:secret@proxy.example:3128"
FAR = "192.0.2.1"
"""An address that is nobody's (RFC 5737); here it is only ever asked for through a proxy of the test."""
PATIENT = tailrace.Timeouts(connect_s=PATIENCE_S, request_s=PATIENCE_S)


@pytest.fixture(autouse=True)
def no_other_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield found


def test_the_first_variable_counts_and_no_password_is_shown() -> None:
    environment = {"http_proxy": "http://later:1", "grpc_proxy": PROXY, "https_proxy": ""}
    found = proxy_to("db", environment)
    assert found == EnvironmentProxy("grpc_proxy", "proxy.example:3128", "db")
    assert "secret" not in str(found)


@pytest.mark.parametrize(
    ("host", "around", "goes_through"),
    [
        ("db.example.com", "", True),
        ("db.example.com", "other, .example.com", False),
        ("db.example.com", "DB.example.com", False),
        ("db.example.org", ".example.com", True),
        ("192.0.2.7", "192.0.2.0/24", False),
        ("192.0.3.7", "192.0.2.0/24", True),
        ("localhost", "", False),
        ("127.0.0.9", "", False),
        ("::1", "", False),
        ("", "", False),
    ],
)
def test_some_hosts_are_reached_without_it(host: str, around: str, goes_through: bool) -> None:
    found = proxy_to(host, {"http_proxy": PROXY, "no_proxy": around})
    assert (found is not None) == goes_through


@pytest.mark.parametrize(
    "value", ["", "proxy:3128", "https://proxy:3128", "http://", "http://[::1"]
)
def test_what_core_cannot_use_is_no_proxy(value: str) -> None:
    assert proxy_to("db", {"http_proxy": value}) is None


async def failure(target: str, timeouts: tailrace.Timeouts = PATIENT) -> str:
    """Return what a subscriber is told who is never tried again."""
    async with tailrace.connect(
        target, timeouts=timeouts, retry=tailrace.Retry(attempts_max=0)
    ) as client:
        with pytest.raises(tailrace.TailraceError) as raised:
            async with client.subscribe("shop"):
                pass
    return str(raised.value)


async def test_a_proxy_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, listener: socket.socket
) -> None:
    port = listener.getsockname()[1]
    listener.close()
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
    assert await failure(f"{FAR}:7411") == (
        f"cannot reach {FAR}: 127.0.0.1:{port}: connection refused; that is the proxy 127.0.0.1:{port} "
        f"from the variable https_proxy (to bypass it: no_proxy={FAR})"
    )


async def test_a_proxy_that_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
        told = await failure(f"{FAR}:7411")
    assert told.startswith(
        f"cannot reach {FAR}: refused with HTTP status 403 by the proxy 127.0.0.1:"
    )


async def test_a_proxy_that_says_nothing_is_named(
    monkeypatch: pytest.MonkeyPatch, listener: socket.socket
) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{listener.getsockname()[1]}")
    timeouts = tailrace.Timeouts(connect_s=0.3, request_s=0.3)
    assert "from the variable http_proxy" in await failure(f"{FAR}:7411", timeouts)
    async with tailrace.connect(f"{FAR}:7411", timeouts=timeouts) as client:
        with pytest.raises(tailrace.TransportError, match="from the variable http_proxy"):
            await client.list_catalogs()


async def test_loopback_is_reached_whatever_the_proxy(
    monkeypatch: pytest.MonkeyPatch, listener: socket.socket
) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.invalid:3128")
    port = listener.getsockname()[1]
    listener.close()
    assert await failure(f"127.0.0.1:{port}") == (
        f"cannot reach 127.0.0.1:{port}: connection refused"
    )
