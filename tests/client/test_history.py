"""Reads that break, against a server that follows a script; the rest is in the conformance suite."""

from __future__ import annotations

import asyncio

import grpc
import pytest

import tailrace
from tailrace.v1.change_capture_pb2 import HistoryEnd, HistoryHeader, ReadChangesResponse
from tests.client.scripted import CATALOG_UUID, PATIENCE_S, Call, ScriptedServer, committed_at, lead

HEADER = ReadChangesResponse(
    header=HistoryHeader(catalog="shop", catalog_uuid=str(CATALOG_UUID), anchor=3)
).SerializeToString()


def captures(*versions: int) -> bytes:
    return ReadChangesResponse(captures=[lead(each) for each in versions]).SerializeToString()


def end(count: int) -> bytes:
    return ReadChangesResponse(end=HistoryEnd(captures=count)).SerializeToString()


async def read_from(*messages: bytes, cut: bool = False) -> tuple[list[int], BaseException | None]:
    """Return the versions read from a server that sends these messages, and the error at the end."""

    async def script(call: Call) -> None:
        for message in messages:
            await call.send_bytes(message)
        if cut:
            await call.abort(grpc.StatusCode.UNAVAILABLE, "cut")

    found: list[int] = []
    async with (
        ScriptedServer(read=script) as server,
        tailrace.connect(server.target) as client,
        asyncio.timeout(PATIENCE_S),
    ):
        try:
            async with client.read_changes("shop") as history:
                async for capture in history:
                    found.append(capture.version)  # noqa: PERF401 - what came before an error counts
        except tailrace.TailraceError as error:
            return found, error
    return found, None


async def test_a_whole_read_ends_by_itself() -> None:
    assert await read_from(HEADER, captures(1, 2), captures(3), end(3)) == ([1, 2, 3], None)


@pytest.mark.parametrize("cut", [False, True], ids=["completed", "cut"])
async def test_a_read_without_its_end_is_broken_and_says_where(cut: bool) -> None:
    found, error = await read_from(HEADER, captures(1, 2), cut=cut)
    assert found == [1, 2]
    assert isinstance(error, tailrace.SubscriptionBroken)
    assert error.resume_cursor == str(tailrace.Cursor(CATALOG_UUID, 2, 0, 0, committed_at(2)))


async def test_captures_that_are_missing_are_noticed() -> None:
    _, error = await read_from(HEADER, captures(1, 2), end(3))
    assert isinstance(error, tailrace.SubscriptionBroken)
    assert "3 captures, but 2 were received" in str(error)


@pytest.mark.parametrize("first", [b"", b"\xff", captures(1), end(0)])
async def test_a_read_that_does_not_begin_with_its_header_is_refused(first: bytes) -> None:
    _, error = await read_from(first)
    assert isinstance(error, tailrace.TransportError)


async def test_a_read_is_used_under_its_context() -> None:
    async with tailrace.connect("127.0.0.1:1") as client:
        history = client.read_changes("shop")
        with pytest.raises(tailrace.SubscriptionClosed):
            _ = history.header
        with pytest.raises(tailrace.TransportError):
            await history.__aenter__()


async def test_a_long_stretch_without_a_match_is_waited_for() -> None:
    go_on = asyncio.Event()

    async def script(call: Call) -> None:
        await call.send_bytes(HEADER)
        await go_on.wait()
        await call.send_bytes(captures(3))
        await call.send_bytes(end(1))

    async with (
        ScriptedServer(read=script) as server,
        tailrace.connect(server.target, timeouts=tailrace.Timeouts(request_s=0.2)) as client,
        client.read_changes("shop") as history,
        asyncio.timeout(PATIENCE_S),
    ):
        asyncio.get_running_loop().call_later(0.5, go_on.set)  # longer than an answer may take
        assert [capture.version async for capture in history] == [3]


async def test_a_server_that_does_not_begin_to_answer_is_told() -> None:
    async def script(call: Call) -> None:
        await call.silence()

    async with (
        ScriptedServer(read=script) as server,
        tailrace.connect(server.target, timeouts=tailrace.Timeouts(request_s=0.05)) as client,
    ):
        with pytest.raises(tailrace.TransportError, match="no header"):
            async with client.read_changes("shop"):
                pass


@pytest.mark.parametrize("closed", ["read", "client"])
async def test_a_read_that_is_closed_here_is_not_broken(closed: str) -> None:
    async def script(call: Call) -> None:
        await call.send_bytes(HEADER)
        await call.silence()

    async with ScriptedServer(read=script) as server, asyncio.timeout(PATIENCE_S):
        async with tailrace.connect(server.target) as client:
            history = await client.read_changes("shop").__aenter__()
            reader = asyncio.ensure_future(anext(history))
            await asyncio.sleep(0)  # it waits
            if closed == "read":
                await history.__aexit__(None, None, None)
        with pytest.raises(tailrace.SubscriptionClosed):
            await reader
