"""Peers of every transport that misbehave, all at once, against one server process (contract 13 and 45).

Its anonymous memory stays within a bound, a neighbour gets everything, in order, and each guard is counted by
its name. What a peer is told stands in the tests of its transport.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import httpx
import pytest

import tailrace
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tests.process.commands import PATIENCE_S, ServerProcess
from tests.support.peers import EVENTS, GRAPHQL, GRAPHQL_EVENTS, GRPC, REST, Peer, Way, message
from tests.support.polling import until_answered

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path

pytestmark = pytest.mark.slow

MIB: Final = 1 << 20
WAYS: Final = (REST, GRAPHQL, EVENTS, GRAPHQL_EVENTS, GRPC)
EACH: Final = 4
"""Peers of one transport, where each is sent as much as its connection takes."""
TRANSACTIONS: Final = 24
"""Of 1 MiB: more than the kernel's buffers of one connection hold."""
MEANWHILE: Final = 10
"""Transactions that are published once the peers have misbehaved."""
GROWTH_MAX: Final = 5 * TRANSACTIONS * MIB
"""Of the server's memory: its cache keeps the log in the wire forms of four transports more, once; what is
kept for the peers themselves would be four times as much by now if it had no bound."""


@dataclass
class Stage:
    """A server, and what a test looks at while peers misbehave."""

    server: ServerProcess
    http: httpx.AsyncClient
    pid: int
    base: int = 0

    def anonymous_bytes(self) -> int:
        with open(f"/proc/{self.pid}/status") as status:
            (found,) = re.findall(r"^RssAnon:\s+(\d+) kB", status.read(), re.M)
        return int(found) << 10

    def grown(self) -> int:
        return self.anonymous_bytes() - self.base

    async def figure(self, name: str) -> int:
        """Return a metric; 0 where it has not been counted yet."""
        text = (await self.http.get("/metrics")).text
        found = re.findall(rf"^{re.escape(name)} (\S+)", text, re.M)
        return int(float(found[0])) if found else 0

    async def counted(self, name: str, count: int) -> None:
        async def reached() -> bool:
            return await self.figure(name) >= count

        await until_answered(reached)

    def peers(self, stack: ExitStack, ways: Iterable[Way], count: int = EACH) -> list[Peer]:
        return [
            stack.enter_context(Peer(self.server.grpc if way is GRPC else self.server.http))
            for way in ways
            for _ in range(count)
        ]

    async def subscribed(self, stack: ExitStack, ways: Iterable[Way]) -> list[Peer]:
        """Return peers that have subscribed to everything and read no further."""
        ways = tuple(ways)
        peers = self.peers(stack, ways)
        for peer, way in zip(peers, (way for way in ways for _ in range(EACH)), strict=True):
            async with asyncio.timeout(PATIENCE_S):
                await peer.open(way)
                await peer.say(way.subscribe(1))
                await peer.until(way.begun)
        return peers


def ended(guard: str) -> str:
    return f'tailrace_live_connections_ended_total{{guard="{guard}"}}'


def write(root: Path, first: int, count: int, rows: int) -> None:
    """Publish transactions of so many rows of 1 KiB."""
    with LogWriter.open(root, "shop") as writer:
        for number in range(first, first + count):
            image = b'{"id":%d,"text":"%s"}' % (number, b"x" * 1000)
            writer.append(
                [Mutation("product", f"{number}.{row}", after=image) for row in range(rows)]
            )


@asynccontextmanager
async def stage(root: Path, *options: object) -> AsyncIterator[Stage]:
    """Serve a log, let a neighbour read all of it; at the end it must have all of the rest, too."""
    write(root, 0, TRANSACTIONS, 1000)
    server = ServerProcess(root, ("--log-format", "json", *map(str, options)))
    async with (
        server.up() as command,
        httpx.AsyncClient(base_url=f"http://{server.http}", trust_env=False) as http,
        tailrace.connect(server.grpc) as client,
        client.subscribe("shop", since=0, content=tailrace.Content.AFTER) as neighbour,
    ):
        one = Stage(server, http, command.process.pid)
        read: list[int] = []

        async def up_to(version: int) -> None:
            async with asyncio.timeout(PATIENCE_S):
                while not read or read[-1] < version:
                    read.append((await anext(neighbour)).version)

        await up_to(TRANSACTIONS)
        one.base = one.anonymous_bytes()
        yield one
        write(root, TRANSACTIONS, MEANWHILE, 10)
        after = TRANSACTIONS + MEANWHILE
        await up_to(after)
        assert read == sorted(read)
        assert set(read) == set(range(1, after + 1))
        assert one.grown() < GROWTH_MAX


async def test_contract_13_45_peers_that_stop_reading(log_root: Path) -> None:
    async with stage(log_root, "--send-deadline-s", "500ms") as one:
        with ExitStack() as stack:
            await one.subscribed(stack, WAYS)
            await one.counted(ended("send_deadline"), 4 * EACH)
            await one.counted("tailrace_grpc_streams_too_slow_total", EACH)
            assert one.grown() < GROWTH_MAX


async def test_contract_13_45_peers_that_read_a_kilobyte_a_second(log_root: Path) -> None:
    """It is too little to count as reading."""
    async with stage(log_root, "--send-deadline-s", "1s") as one:
        with ExitStack() as stack:
            peers = await one.subscribed(stack, WAYS)

            async def let_go() -> bool:
                for peer in peers:
                    peer.sip(5)  # one look in some five milliseconds
                streams = await one.figure("tailrace_grpc_streams_too_slow_total")
                return streams + await one.figure(ended("send_deadline")) == len(peers)

            await until_answered(let_go)
            assert one.grown() < GROWTH_MAX


async def test_contract_45_peers_that_flood_pings(log_root: Path) -> None:
    """And read none of the answers. Where a transport has no pings they send what it does not ask for."""
    async with stage(log_root, "--send-deadline-s", "5s", "--ws-pings-unread", 500) as one:
        with ExitStack() as stack:
            peers = await one.subscribed(stack, WAYS)
            flooding = dict(zip(peers, (way for way in WAYS for _ in range(EACH)), strict=True))
            over = 0

            async def let_go() -> bool:
                nonlocal over
                for peer, way in tuple(flooding.items()):
                    if not peer.push(way.pings):
                        del flooding[peer]
                over = max(over, one.grown())
                sockets = await one.figure(ended("pings_unread"))
                events = await one.figure(ended("send_deadline"))
                return (
                    sockets == 2 * EACH
                    and events == 2 * EACH
                    and GRPC not in flooding.values()  # C-core's own guard: too_many_pings
                )

            await until_answered(let_go)
            assert over < GROWTH_MAX


async def test_contract_45_peers_that_flood_subscribes(log_root: Path) -> None:
    """What is above the limit is refused, each with the limit's name; nothing else ends."""
    limit, flood = 10, 200
    async with stage(log_root, "--streams-per-connection", limit, "--http-connections", 30) as one:
        with ExitStack() as stack:
            for way, name in ((REST, b"ws_subscriptions"), (GRAPHQL, b"ws_subscriptions")):
                (peer,) = one.peers(stack, (way,), 1)
                await peer.open(way)
                wish = {
                    "sinceVersion": 10_000,
                    "query": "subscription { onCatalogChange { cursor } }",
                }
                wish.pop("query" if way is REST else "sinceVersion")
                await peer.say(message(type="connection_init"))
                await peer.until(b"connection_ack")
                for number in range(flood):
                    await peer.say(message(type="subscribe", id=str(number), payload=wish))
                async with asyncio.timeout(PATIENCE_S):
                    await peer.until(name)
            await one.counted("tailrace_live_subscriptions_refused_total", 2 * (flood - 100))
            (peer,) = one.peers(stack, (GRPC,), 1)
            await peer.say(GRPC.hello)
            for number in range(flood):
                await peer.say(GRPC.subscribe(number + 1))
            await one.counted("tailrace_grpc_streams_refused_total", flood - limit)
            streams = one.peers(stack, (EVENTS,), 50)
            for peer in streams:
                await peer.say(EVENTS.subscribe(1))
            await one.counted("tailrace_live_connections_refused_total", 20)
            async with asyncio.timeout(PATIENCE_S):
                await streams[-1].until(b"http_connections")
            assert one.grown() < GROWTH_MAX


async def test_contract_45_a_thousand_sockets_that_say_nothing(log_root: Path) -> None:
    quiet = 250
    options = ("--ws-init-timeout-s", "2s", "--request-head-s", "2s", "--handshake-s", "2s")
    async with stage(log_root, *options) as one:
        with ExitStack() as stack:
            peers = one.peers(stack, WAYS, quiet)
            for peer, way in zip(peers, (way for way in WAYS for _ in range(quiet)), strict=True):
                if way in (REST, GRAPHQL):
                    await peer.say(way.hello)
            assert one.grown() < GROWTH_MAX
            await one.counted(ended("close_4408"), 2 * quiet)
            await one.counted(ended("request_head"), quiet)
            async with asyncio.timeout(PATIENCE_S):
                for peer in peers:
                    await peer.rest()  # each of them has been closed, those of gRPC too
