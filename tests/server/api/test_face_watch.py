"""Faces that stop accepting: each is noticed, told and put right, and what is open goes on."""

from __future__ import annotations

import asyncio
import errno
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from structlog.testing import capture_logs

import tailrace
from tailrace import Operation
from tailrace_server.api.face_watch import FaceWatch
from tailrace_server.api.grpc import GrpcServer
from tailrace_server.api.server import metrics
from tailrace_server.api.server.http import HttpFace
from tailrace_server.engine.engine import Engine
from tailrace_server.resources.settings import EngineSettings
from tailrace_server.units import Address
from tests.support import failpoints
from tests.support.inprocess import PATIENCE_S, ModelWriter
from tests.support.model import ModelMutation
from tests.support.polling import until
from tests.support.raw_http2 import RawCall

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

INTERVAL_S = 0.05
ANYWHERE = Address("127.0.0.1", 0)


def write(writer: ModelWriter, key: str) -> None:
    writer.write([ModelMutation("product", key, Operation.REMOVE, None, None)])


@asynccontextmanager
async def watched(*faces: GrpcServer | HttpFace | Deaf) -> AsyncIterator[FaceWatch]:
    """Watch faces for the time of the block."""
    watch = FaceWatch(INTERVAL_S)
    for each in faces:
        watch.add(each)
    task = asyncio.ensure_future(watch.run())
    yield watch
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()


@pytest.fixture
async def engine(log_root: Path, writer: ModelWriter) -> AsyncIterator[Engine]:
    write(writer, "first")
    async with Engine(log_root, EngineSettings(heartbeat_interval_s=0.05)) as engine:
        yield engine


@pytest.fixture
def unguarded() -> Iterator[None]:
    """Let the first call to a method that there is not end the loop that accepts calls, as in grpc.aio."""
    failpoints.arm("grpc.unknown_method=error@1")
    yield
    failpoints.arm("")


@pytest.mark.usefixtures("unguarded")
async def test_contract_13_22_grpc_that_has_ended_listens_again_and_open_streams_go_on(
    engine: Engine, writer: ModelWriter
) -> None:
    server = GrpcServer(engine)
    port = await server.start("127.0.0.1:0")
    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.stop, 1.0)
        watch = await stack.enter_async_context(watched(server))
        await stack.enter_async_context(asyncio.timeout(PATIENCE_S))
        never = tailrace.Retry(first_s=PATIENCE_S)
        open_client = await stack.enter_async_context(
            tailrace.connect(f"127.0.0.1:{port}", retry=never)
        )
        stream = await stack.enter_async_context(open_client.subscribe("shop", since=0))
        await anext(stream)
        with capture_logs() as lines:
            async with RawCall(port, b"/x\x92", b"", window=65_535):
                await until(lambda: watch.statistics()[0].renewed == 1)
            await until(lambda: not watch.not_accepting())
        told = [(each["event"], each["log_level"]) for each in lines if each.get("face")]
        assert told == [
            ("face does not accept connections", "error"),
            ("face accepts connections again", "info"),
        ]
        client = await stack.enter_async_context(tailrace.connect(f"127.0.0.1:{port}", retry=never))
        late = await stack.enter_async_context(client.subscribe("shop", since=0))
        await anext(late)
        write(writer, "second")
        for each in (stream, late):
            while (await anext(each)).version < 2:
                pass


async def test_contract_22_http_whose_socket_is_gone_listens_again_and_open_streams_go_on(
    engine: Engine, writer: ModelWriter
) -> None:
    registry = CollectorRegistry()
    faults: dict[str, str] = {}
    face = HttpFace(engine, registry, ANYWHERE, not_accepting=lambda: faults)
    serving = asyncio.ensure_future(face.serve())
    async with (
        watched(face) as watch,
        httpx.AsyncClient(base_url=f"http://{face.address}", trust_env=False) as http,
        asyncio.timeout(PATIENCE_S),
    ):
        metrics.register(registry, metrics.faces, watch.statistics)
        events = {"accept": "text/event-stream"}
        path = "/v1/catalogs/shop/changes/live?sinceVersion=0"
        async with http.stream("GET", path, headers=events) as stream:
            lines = stream.aiter_lines()

            async def version(number: int) -> None:
                async for line in lines:
                    if f'"version":{number},' in line:
                        return

            await version(1)
            for listener in face._server.servers:
                listener.close()
            face._socket.close()
            await until(lambda: watch.statistics()[0].renewed == 1)
            await until(lambda: not watch.not_accepting())
            assert (await http.get("/health")).json()["status"] == "serving"
            assert b'tailrace_face_listeners_renewed_total{face="http"} 1' in generate_latest(
                registry
            )
            write(writer, "second")
            await version(2)
        faults["grpc"] = "gone"
        health = await http.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "degraded")
        told = {"kind": "face_not_accepting", "subject": "grpc", "reason": "gone"}
        assert health.json()["faults"] == [told]
    face.stop()
    await serving


class Deaf:
    """A face whose answers a test decides."""

    name = "deaf"

    def __init__(
        self, *errors: Exception | None, listen: tuple[Exception | None, ...] = ()
    ) -> None:
        self._knocks = list(errors)
        self._listen = list(listen)
        self.ended = asyncio.Event()
        self.listened = 0

    async def knock(self) -> None:
        if self._knocks and (error := self._knocks.pop(0)) is not None:
            raise error

    async def listen_again(self) -> None:
        if self._listen and (error := self._listen.pop(0)) is not None:
            raise error
        self.listened += 1

    @property
    def done(self) -> bool:
        return not self._knocks


async def test_one_probe_without_an_answer_is_told_and_replaces_nothing() -> None:
    face = Deaf(None, TimeoutError(), None, OSError("gone"))
    async with watched(face) as watch:
        await until(lambda: face.done and not watch.not_accepting())
        (figures,) = watch.statistics()
        assert (figures.unanswered, figures.renewed) == (2, 0)
        assert not face.listened


async def test_without_descriptors_the_listener_stays() -> None:
    full = OSError(errno.EMFILE, "too many open files")
    face = Deaf(*[full] * 5)
    async with watched(face) as watch:
        await until(lambda: bool(watch.not_accepting()))
        assert "too many open files" in watch.not_accepting()["deaf"]
        await until(lambda: face.done and not watch.not_accepting())
        assert watch.statistics()[0].unanswered == 5
        assert not face.listened


async def test_a_listener_that_cannot_be_had_is_tried_again_until_it_can() -> None:
    gone = OSError("connection refused")
    face = Deaf(*[gone] * 4, listen=(OSError("in use"), None))
    with capture_logs() as lines:
        async with watched(face) as watch:
            await until(lambda: face.listened == 1 and not watch.not_accepting())
    assert [each["event"] for each in lines] == [
        "face does not accept connections",
        "listener not reopened",
        "face accepts connections again",
    ]
