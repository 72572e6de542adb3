"""However a stream of the client ends: nothing of it waits for the cycle collector, or for a loop that is gone.

What a cycle keeps, a forked process inherits in the midst of its work, and a later collection ends it on an
event loop that is closed. So each way to end, of each stream, is a row here.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pytest

import tailrace
from tailrace import InvalidRequest, Retry, SubscriptionClosed, Timeouts
from tailrace_server.api.grpc.server import GrpcServer
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.resources.settings import EngineSettings
from tests.conformance.shop import upsert
from tests.process.commands import ServerProcess
from tests.support.held_port import HeldPort
from tests.support.inprocess import PATIENCE_S
from tests.support.living import without_collector
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from tests.support.inprocess import ModelWriter

pytestmark = pytest.mark.timeout(120)

EACH: Final = 3
"""Streams of one row: what so many leave behind is no accident."""
ONCE: Final = Retry(attempts_max=0)
PATIENT: Final = Timeouts(connect_s=PATIENCE_S, request_s=PATIENCE_S)
LIVES: Final = (
    *("tailrace.client", "tailrace.subscription", "tailrace.update_subscription", "tailrace.link"),
    *("tailrace.reads.history", "tailrace.reactive", "tailrace.link", "tailrace.errors"),
    *("tailrace.transport", "grpc.aio"),
)
"""Modules of the client whose objects have a life; the server of the test makes values of the others."""


class Stage:
    """A server, which may go and come again."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._held = HeldPort()
        self.target = self._held.address

    async def begin(self) -> None:
        self._server = GrpcServer(self.engine)
        await self._server.start(self.target)
        # It waits for calls from the first answer on, in a task for each method. Core closes an earlier
        # listener late, which may take what comes to the port.
        while True:
            with suppress(OSError):
                await self._server.knock()
                return

    async def go(self) -> None:
        await self._server.stop(0.0)

    def client(self) -> tailrace.Client:
        return tailrace.connect(self.target, retry=ONCE, timeouts=PATIENT)


@pytest.fixture
async def stage(log_root: Path, writer: ModelWriter) -> AsyncIterator[Stage]:
    writer.write(*([upsert(str(number), text="x")] for number in range(20)))
    async with Engine(log_root, EngineSettings(heartbeat_interval_s=0.05)) as engine:
        stage = Stage(engine)
        await stage.begin()
        yield stage
        await stage.go()


STREAMS: Final[dict[str, Callable[[tailrace.Client], Any]]] = {
    "subscription": lambda client: client.subscribe("shop", since=0),
    "system": lambda client: client.subscribe_system(since=0),
    "updates": lambda client: client.subscribe_cdcv2("shop", since=1),
    "history": lambda client: client.read_changes("shop"),
}


async def exhausted(stream: Any) -> None:
    """Take what there is, and wait for what does not come."""
    with suppress(StopAsyncIteration):
        while True:
            await anext(stream)


async def leaves(stage: Stage, client: tailrace.Client, stream: Any) -> None:
    async with stream:
        pass


async def breaks(stage: Stage, client: tailrace.Client, stream: Any) -> None:
    async with stream:
        async for _ in stream:
            break


async def is_cancelled(stage: Stage, client: tailrace.Client, stream: Any) -> None:
    entered = asyncio.Event()

    async def read() -> None:
        async with stream:
            entered.set()
            await exhausted(stream)

    reading = asyncio.create_task(read())
    await entered.wait()
    reading.cancel()
    with suppress(asyncio.CancelledError):
        await reading


async def times_out(stage: Stage, client: tailrace.Client, stream: Any) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(0.05), stream:
            await exhausted(stream)


async def raises(stage: Stage, client: tailrace.Client, stream: Any) -> None:
    with suppress(ZeroDivisionError):
        async with stream:
            async for _ in stream:
                raise ZeroDivisionError


async def is_ended_by_the_server(stage: Stage, client: tailrace.Client, stream: Any) -> None:
    with suppress(tailrace.TailraceError):
        async with stream:
            for _, subscription in stage.engine.subscriptions(ANONYMOUS):
                subscription.end(InvalidRequest("enough"))
            await exhausted(stream)


async def loses_the_server(stage: Stage, client: tailrace.Client, stream: Any) -> None:
    with suppress(tailrace.TailraceError):
        async with stream:
            await stage.go()
            try:
                await exhausted(stream)
            finally:
                await stage.begin()


async def finds_no_server(stage: Stage, client: tailrace.Client, stream: Any) -> None:
    await stage.go()
    with suppress(tailrace.TailraceError):
        async with stream:
            pass
    await stage.begin()


async def outlives_its_client(stage: Stage, client: tailrace.Client, stream: Any) -> None:
    async with stream:
        await client.__aexit__(None, None, None)
        with suppress(tailrace.TailraceError):
            await exhausted(stream)


ENDS = (
    *(leaves, breaks, is_cancelled, times_out, raises, is_ended_by_the_server),
    *(loses_the_server, finds_no_server, outlives_its_client),
)


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS, ids=[each.__name__ for each in ENDS])
@pytest.mark.parametrize(
    "name",
    [
        "subscription",
        "updates",
        "history",
        pytest.param(
            "system",
            marks=pytest.mark.nightly(
                "tests/client/test_ends.py: a subscription of a catalog, which has the same classes"
            ),
        ),
    ],
)
async def test_contract_20_a_stream_leaves_nothing_for_the_collector(
    stage: Stage, name: str, end: Callable[[Stage, tailrace.Client, Any], Awaitable[None]]
) -> None:
    """Stream, link, task, call, channel, client: each goes with its last reference."""

    async def once() -> None:
        client = await stage.client().__aenter__()
        await end(stage, client, STREAMS[name](client))
        with suppress(SubscriptionClosed):  # one that was closed under its stream
            await client.__aexit__(None, None, None)

    await once()
    with without_collector(*LIVES) as living:
        for _ in range(EACH):
            await once()
        await living.back(EACH)


class Recorder:
    """A subscriber that asks for everything."""

    def __init__(self) -> None:
        self.captures = 0
        self.ended = asyncio.Event()

    def on_subscribe(self, subscription: tailrace.reactive.Subscription) -> None:
        self.subscription = subscription
        subscription.request(1_000)

    def on_next(self, capture: tailrace.Capture) -> None:
        self.captures += 1

    def on_error(self, error: tailrace.TailraceError) -> None:
        self.ended.set()

    def on_complete(self) -> None:
        """It does not come."""


@pytest.mark.slow
@pytest.mark.parametrize("end", ["cancel", "client", "server"])
async def test_contract_20_a_publishers_stream_leaves_nothing_for_the_collector(
    stage: Stage, end: str
) -> None:
    async def once() -> None:
        recorder = Recorder()
        async with stage.client() as client:
            client.publisher("shop", since=0).subscribe(recorder)
            await until(lambda: recorder.captures > 0)
            if end == "cancel":
                recorder.subscription.cancel()
            elif end == "server":
                for _, subscription in stage.engine.subscriptions(ANONYMOUS):
                    subscription.end(InvalidRequest("enough"))
                await recorder.ended.wait()
        if end == "client":
            assert recorder.ended.is_set()
        await until(lambda: not stage.engine.subscriptions(ANONYMOUS))

    await once()
    with without_collector(*LIVES) as living:
        for _ in range(EACH):
            await once()
        await living.back(EACH)


async def used_elsewhere(use: Callable[[], Awaitable[object]]) -> BaseException | None:
    """Return what a use raises on another event loop, in another thread."""

    async def bounded() -> BaseException | None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await use()
        except Exception as error:
            return error
        return None

    return await asyncio.to_thread(asyncio.run, bounded())


async def test_a_client_is_refused_on_another_event_loop_and_goes_on_on_its_own(
    stage: Stage,
) -> None:
    """Each use by name, at once: to wait for the other loop would be for ever."""
    async with (
        stage.client() as client,
        client.subscribe("shop", since=0) as captures,
        client.read_changes("shop") as history,
        client.subscribe_cdcv2("shop", since=1) as updates,
    ):
        await anext(captures)
        uses: tuple[Callable[[], Awaitable[object]], ...] = (
            client.list_catalogs,
            lambda: client.get_schema("shop"),
            client.subscribe("shop").__aenter__,
            client.read_changes("shop").__aenter__,
            client.subscribe_cdcv2("shop").__aenter__,
            lambda: exhausted(captures),
            lambda: exhausted(captures.batches()),
            lambda: exhausted(history),
            lambda: exhausted(updates),
            captures.close,
        )
        for use in uses:
            error = await used_elsewhere(use)
            assert isinstance(error, InvalidRequest), (use, error)
            assert "event loop" in str(error)
        with pytest.raises(InvalidRequest, match="event loop"):
            await asyncio.to_thread(captures.request, 1)
        assert await client.list_catalogs()


async def test_a_client_that_is_left_on_another_event_loop_is_dropped_and_waited_for_by_nobody(
    stage: Stage,
) -> None:
    client = stage.client()
    await client.__aenter__()
    async with client.subscribe("shop", since=0) as captures:
        await anext(captures)
        error = await used_elsewhere(lambda: client.__aexit__(None, None, None))
        assert isinstance(error, InvalidRequest)
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(SubscriptionClosed):
                await exhausted(captures)
    await until(lambda: not stage.engine.subscriptions(ANONYMOUS))


def test_a_client_whose_event_loop_is_closed_says_so(log_root: Path, writer: ModelWriter) -> None:
    """As a fixture that is entered on one loop and used on the next."""
    client = tailrace.connect("127.0.0.1:1")

    async def enter() -> None:
        await client.__aenter__()

    asyncio.run(enter())
    for use in (client.list_catalogs, lambda: client.__aexit__(None, None, None)):
        with pytest.raises(InvalidRequest, match="that is closed"):
            asyncio.run(use())


PROGRAM = """
import asyncio, os, sys
import tailrace

async def use():
    async with tailrace.connect(sys.argv[1]) as client:
        async with client.subscribe("shop", since=0) as captures:
            async for capture in captures:
                break
        async with client.read_changes("shop") as history:
            async for capture in history:
                break
        async with client.subscribe_cdcv2("shop", since=1) as updates:
            async for finished in updates:
                break
"""
LOOPS = "for _ in range(30): asyncio.run(use())"
FORKS = """
import time
lost = 0
for _ in range(6):
    asyncio.run(use())
    time.sleep(0.5)  # core's threads end a closed connection a moment later, and tell nobody; see the page
    child = os.fork()
    if not child:
        asyncio.run(asyncio.wait_for(use(), 20))
        os._exit(0)
    lost += os.waitpid(child, 0)[1] != 0
sys.exit(lost)
"""
FORKS_WITHIN = """
import multiprocessing

def child():
    try:
        asyncio.run(use())
    except tailrace.InvalidRequest as error:
        sys.exit("forked while a client was open" not in str(error))

async def parent():
    async with tailrace.connect(sys.argv[1]) as client:
        async with client.subscribe("shop", since=0) as captures:
            await anext(captures)
            process = multiprocessing.get_context("fork").Process(target=child)
            process.start()
            await asyncio.to_thread(process.join, 20)
            await anext(captures)
    return process.exitcode

sys.exit(asyncio.run(parent()))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [LOOPS, FORKS, FORKS_WITHIN],
    ids=["loop after loop", "fork after use", "fork within use"],
)
async def test_a_program_may_begin_another_loop_or_fork(
    log_root: Path, writer: ModelWriter, body: str
) -> None:
    """Begin another event loop, thirty times, without a word on stderr; fork, and use a client in the child.

    A child that was forked while a client was open is refused another by name: it would hang, or crash.
    """
    writer.write(*([upsert(str(number), text="x")] for number in range(20)))
    server = ServerProcess(log_root)
    async with server.up():
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", PROGRAM + body, server.grpc],
            capture_output=True,
            text=True,
            timeout=100,
            # Without a client that is open, gRPC has to be told of forks. With one its own handlers for them
            # may crash the child before it comes to us.
            env={**os.environ, "GRPC_ENABLE_FORK_SUPPORT": str(int(body is FORKS))},
        )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    if body is LOOPS:
        assert done.stderr == ""
