"""History with a content coding; the same captures without one: tests/conformance."""

from __future__ import annotations

import asyncio
import gzip
import io
from typing import TYPE_CHECKING

import httpx
import pyarrow as pa
import pytest

from tailrace_server.api.http.compression import Encoders, accepted_coding
from tailrace_server.engine.engine import Engine
from tailrace_server.resources.memory import MemoryBook
from tailrace_server.resources.settings import EngineSettings
from tests.conformance.http_drivers import listening
from tests.conformance.shop import SHOP

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.inprocess import ModelWriter

CHANGES = "/v1/catalogs/shop/changes?sinceVersion=0"
TYPES = ("application/json", "application/x-ndjson", "application/vnd.apache.arrow.stream")


def decoded(coding: str, data: bytes) -> bytes:
    """Return what was compressed."""
    if coding == "gzip":
        return gzip.decompress(data)
    found: bytes = pa.CompressedInputStream(pa.BufferReader(data), "zstd").read()
    return found


@pytest.mark.parametrize(
    ("text", "coding"),
    [
        ("", None),
        ("identity", None),
        ("gzip, deflate, br, zstd", "zstd"),
        ("gzip, deflate", "gzip"),
        ("zstd;q=0.5, gzip", "gzip"),
        ("GZIP; q=1", "gzip"),
        ("*", "zstd"),
        ("zstd;q=0, *", "gzip"),
        ("gzip;q=0", None),
        ("gzip;q=x", "gzip"),
    ],
)
def test_the_coding_that_the_client_likes_best(text: str, coding: str | None) -> None:
    assert accepted_coding(text) == coding


@pytest.mark.parametrize("coding", ["zstd", "gzip"])
def test_each_part_can_be_read_before_the_next_is_there(coding: str) -> None:
    encoder = Encoders(MemoryBook(1 << 30)).make(coding)
    assert encoder is not None
    sent = io.BytesIO(encoder.encode(b"first" * 100))
    reader = (
        gzip.GzipFile(fileobj=sent) if coding == "gzip" else pa.CompressedInputStream(sent, "zstd")
    )
    assert reader.read(500) == b"first" * 100
    whole = sent.getvalue() + encoder.encode(b"second") + encoder.end()
    assert decoded(coding, whole) == b"first" * 100 + b"second"


def test_encoders_have_a_share_of_the_memory_for_as_long_as_they_are_there() -> None:
    encoders = Encoders(MemoryBook(32 << 20))
    two = [encoders.make("gzip"), encoders.make("zstd")]
    assert None not in two
    assert encoders.make("zstd") is None
    two.pop()
    assert encoders.make("zstd") is not None
    assert encoders.open == 1


@pytest.mark.parametrize("media_type", TYPES)
async def test_history_is_compressed_for_who_asks(
    log_root: Path, writer: ModelWriter, media_type: str
) -> None:
    writer.write(*SHOP)
    async with (
        Engine(log_root) as engine,
        listening(engine) as face,
        httpx.AsyncClient(base_url=f"http://{face.address}") as http,
    ):
        head = {"accept": media_type}
        plain = await http.get(CHANGES, headers={**head, "accept-encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert plain.headers["vary"] == "Accept, Accept-Encoding, Authorization"
        for coding in ("zstd", "gzip"):
            async with http.stream(
                "GET", CHANGES, headers={**head, "accept-encoding": coding}
            ) as answer:
                assert answer.headers["content-encoding"] == coding
                data = b"".join([each async for each in answer.aiter_raw()])
            assert decoded(coding, data) == plain.content
        assert face.sockets.encoders.open == 0


async def test_without_room_for_an_encoder_the_answer_comes_as_it_is(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write(*SHOP)
    async with (
        Engine(log_root, EngineSettings(memory_bytes=8 << 20)) as engine,
        listening(engine) as face,
        httpx.AsyncClient(base_url=f"http://{face.address}") as http,
        asyncio.timeout(20),
    ):
        answer = await http.get(CHANGES, headers={"accept-encoding": "gzip"})
        assert "content-encoding" not in answer.headers
        assert answer.json()["count"] == len(writer.log.expected(()))
