"""The async iterator, against a server that follows a script."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import grpc
import pytest

import tailrace
from tailrace import Cursor, Heartbeat, Position, Retry, Timeouts
from tailrace.v1.change_capture_pb2 import SubscribeResponse
from tests.client.scripted import CATALOG_UUID, PATIENCE_S, Call, ScriptedServer, committed_at, lead

if TYPE_CHECKING:
    from tailrace.link import Disconnected, Reconnected

pytestmark = pytest.mark.timeout(60)


async def take(subscription: tailrace.Subscription, count: int) -> list[int]:
    """Return the versions of the next captures."""
    async with asyncio.timeout(PATIENCE_S):
        return [(await anext(subscription)).version for _ in range(count)]


async def test_captures_come_in_order_and_one_by_one() -> None:
    async def script(call: Call) -> None:
        await call.begin()
        await call.captures(1, 2, 3)
        await call.captures(4)
        await call.silence()

    async with (
        ScriptedServer(script) as server,
        tailrace.connect(server.target) as client,
        client.subscribe("shop", since=Position(1, 0)) as captures,
    ):
        assert captures.acknowledgement.catalog == "shop"
        assert captures.cursor == Cursor(CATALOG_UUID, 0, tailrace.END)
        assert await take(captures, 4) == [1, 2, 3, 4]
        assert captures.cursor == Cursor(CATALOG_UUID, 4, 0, 0)
        assert captures.statistics().taken == 4
    assert server.calls[0].first.subscribe.since_version == 1


async def test_batches_and_messages_see_what_iteration_left() -> None:
    async def script(call: Call) -> None:
        await call.begin()
        await call.captures(1, 2, 3)
        await call.heartbeat(3)
        await call.heartbeat(4)
        await call.captures(5)
        await call.silence()

    async with (
        ScriptedServer(script) as server,
        tailrace.connect(server.target) as client,
        client.subscribe("shop") as captures,
        asyncio.timeout(PATIENCE_S),
    ):
        assert await take(captures, 1) == [1]
        messages = captures.messages()
        batch = await anext(messages)
        assert isinstance(batch, tuple)
        assert [each.version for each in batch] == [2, 3]
        beat = await anext(messages)
        while isinstance(beat, Heartbeat) and beat.published < 4:
            beat = await anext(messages)
        assert isinstance(beat, Heartbeat)
        assert captures.cursor == beat.cursor
        assert [each.version for each in await anext(captures.batches())] == [5]


async def test_contract_10_demand_is_topped_up_at_half_and_never_exceeded() -> None:
    async def script(call: Call) -> None:
        await call.begin()
        assert call.demand == 8
        await call.captures(*range(1, 9))
        await call.demanded(12)
        await call.captures(*range(9, 13))
        await call.silence()

    async with (
        ScriptedServer(script) as server,
        tailrace.connect(server.target) as client,
        client.subscribe("shop", demand=8) as captures,
    ):
        assert await take(captures, 3) == [1, 2, 3]
        assert captures.statistics().outstanding == 5
        assert await take(captures, 1) == [4]
        assert captures.statistics().outstanding == 8
        assert await take(captures, 8) == [5, 6, 7, 8, 9, 10, 11, 12]


@pytest.mark.parametrize("code", ["CANCELLED", "ABORTED", "DEADLINE_EXCEEDED", "DATA_LOSS"])
async def test_a_status_without_details_is_the_networks_and_is_tried_again(
    code: str, quick_retry: Retry
) -> None:
    """A proxy or server that stops cancels its calls; nobody here did."""

    async def refused(call: Call) -> None:
        await call.abort(grpc.StatusCode[code], "")

    async def cut(call: Call) -> None:
        await call.begin()
        await call.captures(1)
        await call.abort(grpc.StatusCode[code], "")

    async def last(call: Call) -> None:
        await call.begin()
        await call.captures(2)
        await call.silence()

    async with (
        ScriptedServer(refused, cut, last) as server,
        tailrace.connect(server.target, retry=quick_retry) as client,
        client.subscribe("shop", since=1, demand=100) as captures,
    ):
        assert await take(captures, 2) == [1, 2]


async def test_contract_26_a_broken_subscription_resumes_after_the_last_capture(
    quick_retry: Retry,
) -> None:
    async def first(call: Call) -> None:
        await call.begin()
        await call.captures(1, 2)
        await call.abort(grpc.StatusCode.UNAVAILABLE, "cut")

    async def second(call: Call) -> None:
        await call.begin()
        await call.captures(3)
        await call.fail(tailrace.ServerStopping("stopping", call.first.subscribe.after))

    async def third(call: Call) -> None:
        await call.begin()
        await call.heartbeat(7)
        await call.abort(grpc.StatusCode.INTERNAL, "stream removed")

    async def fourth(call: Call) -> None:
        await call.begin()
        await call.captures(8)
        await call.silence()

    lost: list[Disconnected] = []
    back: list[Reconnected] = []
    async with (
        ScriptedServer(first, second, third, fourth) as server,
        tailrace.connect(server.target, retry=quick_retry) as client,
        client.subscribe(
            "shop", since=1, demand=100, on_disconnect=lost.append, on_reconnect=back.append
        ) as captures,
    ):
        assert await take(captures, 4) == [1, 2, 3, 8]
        assert captures.statistics().reconnects == 3
    after = [call.first.subscribe.after for call in server.calls]
    assert after == [
        "",
        str(Cursor(CATALOG_UUID, 2, 0, 0, committed_at(2))),
        str(Cursor(CATALOG_UUID, 3, 0, 0, committed_at(3))),
        str(Cursor(CATALOG_UUID, 7, tailrace.END)),
    ]
    assert [call.first.subscribe.HasField("since_version") for call in server.calls] == [
        *(True, False, False, False)
    ]
    assert [call.first.request for call in server.calls] == [100, 98, 97, 97]
    assert [type(each.error) for each in lost] == [
        tailrace.TransportError,
        tailrace.ServerStopping,
        tailrace.TransportError,
    ]
    assert [str(each.cursor) for each in back] == after[1:]


@pytest.mark.slow
async def test_contract_26_a_start_by_time_stays_until_the_first_capture(
    quick_retry: Retry,
) -> None:
    """A cursor alone would go on at what was committed meanwhile, too early."""

    async def waiting(call: Call) -> None:
        await call.begin()
        await call.heartbeat(7)
        await call.abort(grpc.StatusCode.UNAVAILABLE, "cut")

    async def begun(call: Call) -> None:
        await call.begin()
        await call.captures(9)
        await call.abort(grpc.StatusCode.UNAVAILABLE, "cut")

    async def going_on(call: Call) -> None:
        await call.begin()
        await call.captures(10)
        await call.silence()

    async with (
        ScriptedServer(waiting, begun, going_on) as server,
        tailrace.connect(server.target, retry=quick_retry) as client,
        client.subscribe("shop", from_time=1_000) as captures,
    ):
        assert await take(captures, 2) == [9, 10]
    asked = [call.first.subscribe for call in server.calls]
    assert [(each.after, each.from_time) for each in asked] == [
        ("", 1_000),
        (str(Cursor(CATALOG_UUID, 7, tailrace.END)), 1_000),
        (str(Cursor(CATALOG_UUID, 9, 0, 0, committed_at(9))), 0),
    ]
    assert [each.HasField("from_time") for each in asked] == [True, True, False]


async def test_silence_beyond_the_announced_interval_is_a_missed_heartbeat(
    quick_retry: Retry,
) -> None:
    async def silent(call: Call) -> None:
        await call.begin(heartbeat_interval_ms=10)
        await call.silence()

    async def speaking(call: Call) -> None:
        await call.begin()
        await call.captures(1)
        await call.silence()

    lost: list[Disconnected] = []
    async with (
        ScriptedServer(silent, speaking) as server,
        tailrace.connect(server.target, retry=quick_retry) as client,
        client.subscribe("shop", on_disconnect=lost.append) as captures,
    ):
        assert await take(captures, 1) == [1]
    assert [type(each.error) for each in lost] == [tailrace.HeartbeatMissed]


async def test_an_error_that_no_retry_helps_ends_iteration_after_what_came() -> None:
    error = tailrace.PositionCompacted(Position(3), Position(9), Position(12, tailrace.END))

    async def script(call: Call) -> None:
        await call.begin()
        await call.captures(1, 2)
        await call.fail(error)

    async with (
        ScriptedServer(script) as server,
        tailrace.connect(server.target) as client,
        client.subscribe("shop") as captures,
    ):
        assert await take(captures, 2) == [1, 2]
        for _ in range(2):
            with pytest.raises(tailrace.PositionCompacted) as raised:
                await take(captures, 1)
        assert raised.value.figures() == error.figures()


async def test_a_refusal_is_raised_on_entering() -> None:
    async def script(call: Call) -> None:
        await call.read()
        await call.fail(tailrace.CatalogUnknown("shop", ["crm", "erp"]))

    async with ScriptedServer(script) as server, tailrace.connect(server.target) as client:
        with pytest.raises(tailrace.CatalogUnknown, match="crm, erp") as raised:
            await client.subscribe("shop").__aenter__()
        assert raised.value.known == ("crm", "erp")


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xff", b"\x1a\x00"], ids=["empty", "garbage", "heartbeat"]
)
async def test_a_server_that_does_not_speak_the_protocol_is_a_transport_error(
    data: bytes, quick_retry: Retry
) -> None:
    async def script(call: Call) -> None:
        await call.read()
        await call.send_bytes(data)
        await call.silence()

    retry = Retry(attempts_max=0)
    async with (
        ScriptedServer(script) as server,
        tailrace.connect(server.target, retry=retry) as client,
    ):
        with pytest.raises(tailrace.TransportError):
            await client.subscribe("shop").__aenter__()


async def test_a_completed_subscription_is_resumed(quick_retry: Retry) -> None:
    """Change streams have no end: whoever completes one is a proxy, or wrong."""

    async def completing(call: Call) -> None:
        await call.begin()
        await call.captures(1)

    async def going_on(call: Call) -> None:
        await call.begin()
        await call.captures(2)
        await call.silence()

    async with (
        ScriptedServer(completing, going_on) as server,
        tailrace.connect(server.target, retry=quick_retry) as client,
        client.subscribe("shop") as captures,
    ):
        assert await take(captures, 2) == [1, 2]


async def test_attempts_run_out_with_the_cause_and_the_cursor() -> None:
    async def script(call: Call) -> None:
        await call.begin()
        await call.captures(1)
        await call.abort(grpc.StatusCode.UNAVAILABLE, "cut")

    async with (
        ScriptedServer(script) as server,
        tailrace.connect(server.target, retry=Retry(attempts_max=0)) as client,
        client.subscribe("shop") as captures,
    ):
        assert await take(captures, 1) == [1]
        with pytest.raises(tailrace.SubscriptionBroken) as raised:
            await take(captures, 1)
        assert raised.value.resume_cursor == str(Cursor(CATALOG_UUID, 1, 0, 0, committed_at(1)))
        assert isinstance(raised.value.__cause__, tailrace.TransportError)


async def test_nobody_there_is_a_connect_timeout(quick_retry: Retry) -> None:
    async with ScriptedServer() as server:
        gone = server.target
    async with tailrace.connect(
        gone, retry=quick_retry, timeouts=Timeouts(connect_s=0.1)
    ) as client:
        with pytest.raises(tailrace.ConnectTimeout):
            await client.subscribe("shop").__aenter__()


async def test_attempts_that_end_at_any_moment_of_connecting_leave_no_task() -> None:
    async with ScriptedServer() as server:
        gone = server.target

    async def attempt(connect_s: float) -> None:
        async with tailrace.connect(gone, timeouts=Timeouts(connect_s=connect_s)) as client:
            with pytest.raises(tailrace.TransportError):
                await client.subscribe("shop").__aenter__()

    # What looks for leftover tasks after every test is what judges.
    await asyncio.gather(*(attempt(0.001 * number) for number in range(50) for _ in range(4)))


async def test_a_server_that_never_acknowledges_is_a_connect_timeout() -> None:
    async def script(call: Call) -> None:
        await call.silence()

    async with (
        ScriptedServer(script) as server,
        tailrace.connect(server.target, timeouts=Timeouts(connect_s=0.1)) as client,
    ):
        with pytest.raises(tailrace.ConnectTimeout):
            await client.subscribe("shop").__aenter__()


async def test_a_cancelled_iteration_has_taken_nothing() -> None:
    release = asyncio.Event()

    async def script(call: Call) -> None:
        await call.begin()
        await release.wait()
        await call.captures(1, 2)
        await call.silence()

    async with (
        ScriptedServer(script) as server,
        tailrace.connect(server.target) as client,
        client.subscribe("shop") as captures,
    ):
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(take(captures, 1))
            await asyncio.sleep(0)
            waiting.cancel()
        release.set()
        assert await take(captures, 2) == [1, 2]
    assert len(server.calls) == 1


async def test_closing_the_client_ends_iteration_and_use_after_it() -> None:
    async def script(call: Call) -> None:
        await call.begin()
        await call.silence()

    async with ScriptedServer(script) as server:
        async with tailrace.connect(server.target) as client:
            captures = await client.subscribe("shop").__aenter__()
        with pytest.raises(tailrace.SubscriptionClosed):
            await take(captures, 1)
        with pytest.raises(tailrace.SubscriptionClosed):
            await client.subscribe("shop").__aenter__()
        with pytest.raises(tailrace.SubscriptionClosed):
            await client.list_catalogs()


async def test_an_error_in_the_body_passes_unwrapped() -> None:
    async def script(call: Call) -> None:
        await call.begin()
        await call.silence()

    async with ScriptedServer(script) as server:
        with pytest.raises(KeyError, match="theirs"):
            async with tailrace.connect(server.target) as client, client.subscribe("shop"):
                raise KeyError("theirs")


async def test_a_callback_that_raises_ends_its_subscription_alone(quick_retry: Retry) -> None:
    async def breaking(call: Call) -> None:
        await call.begin()
        await call.abort(grpc.StatusCode.UNAVAILABLE, "cut")

    def refuse(_: Disconnected) -> None:
        raise ValueError("theirs")

    async with (
        ScriptedServer(breaking) as server,
        tailrace.connect(server.target, retry=quick_retry) as client,
        client.subscribe("shop", on_disconnect=refuse) as captures,
    ):
        with pytest.raises(tailrace.InternalError, match="ValueError: theirs"):
            await take(captures, 1)


async def test_what_makes_no_sense_is_refused_before_anything_is_sent() -> None:
    async with tailrace.connect("127.0.0.1:1") as client:
        with pytest.raises(tailrace.InvalidRequest, match="since alone"):
            client.subscribe("shop", since=1, from_time=2)
        with pytest.raises(tailrace.InvalidRequest, match="must not be negative"):
            client.subscribe("shop", demand=-1)
        with pytest.raises(TypeError, match="whole number"):
            client.subscribe("shop", demand=1.5)  # type: ignore[arg-type]
        with pytest.raises(tailrace.CursorInvalid):
            client.subscribe("shop", after="41:0")
        with pytest.raises(tailrace.InvalidRequest, match="count from 1"):
            client.subscribe("shop", since=-1)
        with pytest.raises(tailrace.InvalidRequest, match="at most one of until"):
            client.read_changes("shop", until=3, to_time=4)
        with pytest.raises(tailrace.InvalidRequest, match=r"subscribe: .*out of range"):
            client.subscribe("shop", since=2**63)
        with pytest.raises(tailrace.InvalidRequest, match=r"read_changes: .*out of range"):
            client.read_changes("shop", until=2**63)
        with pytest.raises(tailrace.InvalidRequest, match="until '7': write a version"):
            client.read_changes("shop", until="7")  # type: ignore[arg-type]
        with pytest.raises(tailrace.InvalidRequest, match="up to 33554432 bytes"):
            client.subscribe("shop", max_message_bytes=(32 << 20) + 1)
        with pytest.raises(tailrace.InvalidRequest, match=r"subscribe: .*surrogates"):
            client.subscribe("sh\udcffop")


async def test_what_is_not_taken_is_bounded_in_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the bound nothing is read, so the server waits; what was sent comes once it is taken."""
    monkeypatch.setattr("tailrace.subscription.BUFFER_BYTES_MAX", 10_000)

    async def script(call: Call) -> None:
        await call.begin()
        for version in range(1, 201):
            capture = lead(version)
            capture.after = b"x" * 5_000
            await call.send(SubscribeResponse(captures=[capture]))
        await call.silence()

    async with (
        ScriptedServer(script) as server,
        tailrace.connect(server.target) as client,
        client.subscribe("shop") as captures,
    ):
        for version in range(1, 201):
            assert await take(captures, 1) == [version]
            for _ in range(3):
                await asyncio.sleep(0)
            assert captures.statistics().buffered_bytes < 16_000


async def test_demand_by_hand_asks_for_nothing_by_itself() -> None:
    async def script(call: Call) -> None:
        await call.begin()
        assert call.demand == 0
        await call.demanded(3)
        await call.captures(1, 2, 3)
        await call.demanded(4)
        await call.captures(4)
        await call.silence()

    async with (
        ScriptedServer(script) as server,
        tailrace.connect(server.target) as client,
        client.subscribe("shop", demand=0) as captures,
    ):
        captures.request(1)
        captures.request(2)
        assert await take(captures, 3) == [1, 2, 3]
        for nonsense in (1.5, "1", None):
            with pytest.raises(TypeError, match="whole number of captures"):
                captures.request(nonsense)  # type: ignore[arg-type]
        captures.request(1)
        assert await take(captures, 1) == [4]
        with pytest.raises(tailrace.InvalidRequest, match=r"3\.9"):
            captures.request(0)
        with pytest.raises(tailrace.InvalidRequest, match=r"3\.9"):
            await take(captures, 1)


async def test_contract_10_nonsense_demand_ends_it_while_captures_flow() -> None:
    async def script(call: Call) -> None:
        await call.begin()
        await call.demanded(8)
        await call.captures(1, 2, 3, 4, 5, 6, 7, 8)
        await call.silence()

    async with (
        ScriptedServer(script) as server,
        tailrace.connect(server.target) as client,
        client.subscribe("shop", demand=8) as captures,
    ):
        assert await take(captures, 2) == [1, 2]
        with pytest.raises(tailrace.InvalidRequest, match=r"3\.9"):
            captures.request(0)
        assert await take(captures, 6) == [3, 4, 5, 6, 7, 8]
        with pytest.raises(tailrace.InvalidRequest, match=r"3\.9"):
            await take(captures, 1)
        assert captures.statistics().outstanding == 0, "nothing more is asked for"


async def test_what_came_while_the_loop_was_busy_is_no_silence(quick_retry: Retry) -> None:
    sent = asyncio.Event()

    async def script(call: Call) -> None:
        await call.begin(heartbeat_interval_ms=10)
        await call.captures(1)
        await sent.wait()
        await call.captures(2)
        await call.silence()

    lost: list[Disconnected] = []
    async with (
        ScriptedServer(script) as server,
        tailrace.connect(server.target, retry=quick_retry) as client,
        client.subscribe("shop", on_disconnect=lost.append) as captures,
    ):
        assert await take(captures, 1) == [1]
        sent.set()
        await asyncio.sleep(0)
        time.sleep(1.5)  # noqa: ASYNC251 - the loop is to be busy for longer than silence may last
        assert await take(captures, 1) == [2]
    assert lost == []
