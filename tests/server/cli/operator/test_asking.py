"""Where ``ps`` and ``top`` ask, and what they say where there is no answer."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import InvalidRequest, TransportError
from tailrace.tls import Tls
from tailrace_server.cli.operator.commands import OverviewAddress, address_of, ask, context_of
from tailrace_server.engine.engine import Engine
from tests.conformance.http_drivers import listening

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.inprocess import ModelWriter

HOME = "127.0.0.1:7411"


@pytest.mark.parametrize(
    ("server", "http", "tls", "address"),
    [
        (HOME, None, False, "http://127.0.0.1:7412/"),
        ("prod", None, False, "http://prod:7412/"),
        ("[::1]:7411", None, False, "http://[::1]:7412/"),
        ("::1", None, False, "http://[::1]:7412/"),
        ("grpcs://prod:7411", None, False, "https://prod:7412/"),
        ("prod:17411", "prod:17412", False, "http://prod:17412/"),
        ("prod", None, True, "https://prod:7412/"),
        (HOME, "prod:80", False, "http://prod:80/"),
        (HOME, "prod", False, "http://prod:7412/"),
        (HOME, "prod:1", True, "https://prod:1/"),
        (HOME, "https://example.org/tailrace", False, "https://example.org:443/tailrace/"),
        (HOME, "http://example.org/", False, "http://example.org:80/"),
    ],
)
def test_the_address_is_the_one_at_hand(
    server: str, http: str | None, tls: bool, address: str
) -> None:
    found = str(address_of(server, http, tls=tls))
    assert found.rstrip("/") == address.rstrip("/")


@pytest.mark.parametrize(
    ("server", "http", "tls"),
    [
        ("", None, False),
        ("unix:/run/socket", None, False),
        ("127.0.0.1:17411", None, False),
        ("[::1]:9", None, False),
        ("grpcs://prod", None, False),
        (HOME, "", False),
        (HOME, "ftp://prod", False),
        (HOME, "prod:99999", False),
        (HOME, "http://prod/?a=b", False),
        (HOME, "http://prod", True),
    ],
)
def test_what_is_no_address_is_refused_by_the_name_of_its_option(
    server: str, http: str | None, tls: bool
) -> None:
    with pytest.raises(InvalidRequest, match="--server" if http is None else "--http"):
        address_of(server, http, tls=tls)


async def test_the_figures_come_as_the_server_sent_them(
    log_root: Path, writer: ModelWriter
) -> None:
    async with Engine(log_root) as engine, listening(engine) as face:
        body, found = await asyncio.to_thread(ask, _address(face.address), "a token", None)
    assert json.loads(body) == found
    assert [each["catalog"] for each in found["catalogs"]] == ["shop"]


async def test_what_is_there_instead_is_told(log_root: Path) -> None:
    async def not_http(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x00\x00\x18\x04\x00\x00\x00\x00\x00 as HTTP/2 begins\r\n\r\n")
        await writer.drain()
        writer.close()

    other = await asyncio.start_server(not_http, "127.0.0.1", 0)
    place = other.sockets[0].getsockname()
    async with other, Engine(log_root) as engine, listening(engine) as face:
        for address, tls, said in (
            (_address(place), None, "does not speak HTTP; if it is the gRPC address"),
            (_address(face.address), context_of(Tls()), "TLS: "),
            (
                _address(face.address, "/elsewhere/"),
                None,
                "answers 404: there is no path /elsewhere/",
            ),
        ):
            with pytest.raises(TransportError, match=said):
                await asyncio.to_thread(ask, address, None, tls)
        gone = _address(face.address)
    with pytest.raises(
        TransportError,
        match=r"refused; if the server has another HTTP address, give --http HOST:PORT",
    ):
        await asyncio.to_thread(ask, gone, None, None)


def _address(place: tuple[str, int], path: str = "/") -> OverviewAddress:
    return OverviewAddress(place[0], place[1], path)
