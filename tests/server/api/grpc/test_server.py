"""The server around the service: slow readers, limits, stops, health, reflection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import psutil
import pytest
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import tailrace
from tailrace import Content, Cursor, Operation
from tailrace.transport.grpc import SERVICE
from tailrace.transport.grpc_status import error_of
from tailrace.v1 import capture_pb2
from tailrace.v1.change_capture_pb2 import (
    DemandRequest,
    ReadChangesRequest,
    ReadChangesResponse,
    SubscribeRequest,
    SubscribeResponse,
)
from tailrace_server.api.grpc import GrpcServer, GrpcSettings
from tailrace_server.grants.principal import ANONYMOUS
from tests.support.inprocess import PATIENCE_S, ModelWriter, observer_of
from tests.support.model import ModelMutation
from tests.support.polling import until
from tests.support.raw_http2 import RawCall

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.server.api.grpc.conftest import Served

    Serve = Callable[..., Awaitable[Served]]

BODY_BYTES = 1000
FROM_OLDEST = SubscribeRequest(catalog="shop", since_version=0, body=[capture_pb2.BODY_AFTER])


def write_much(writer: ModelWriter, transactions: int = 40, rows: int = 100) -> None:
    """Write some megabytes."""
    for _ in range(transactions):
        writer.commit(
            [
                ModelMutation(
                    "product", str(row), Operation.UPSERT, None, {"text": "x" * BODY_BYTES}
                )
                for row in range(rows)
            ]
        )
    writer.publish()


def established(port: int) -> int:
    """Count the server's connections."""
    return sum(
        each.status == psutil.CONN_ESTABLISHED and each.laddr.port == port
        for each in psutil.Process().net_connections("tcp")
    )


async def subscriptions(served: Served, count: int) -> None:
    """Wait until the engine has so many."""
    await until(lambda: served.engine.statistics(ANONYMOUS).subscriptions == count)


async def error_of_reading(call: Any) -> tuple[list[Any], tailrace.TailraceError]:
    """Return the captures that still come, and the error that ends the call."""
    captures: list[Any] = []
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                data = await call.read()
            except grpc.aio.AioRpcError as error:
                return captures, error_of(error)
            captures.extend(SubscribeResponse.FromString(data).captures)


async def coordinates_of(call: RawCall, count: int) -> list[tuple[int, int, int]]:
    found: list[tuple[int, int, int]] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            message = SubscribeResponse.FromString(await call.message())
            found.extend((each.version, each.index, each.ordinal) for each in message.captures)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("window", [0, 2**31 - 1], ids=["closed window", "unread socket"])
async def test_contract_13_a_reader_that_stops_costs_its_bound_and_nobody_notices(
    serve: Serve, writer: ModelWriter, window: int
) -> None:
    """When it reads again it gets everything, once, in order."""
    write_much(writer)
    served = await serve()
    expected = writer.log.expected(())
    request = FROM_OLDEST.SerializeToString()
    stalled = RawCall(
        served.port,
        f"/{SERVICE}/Subscribe",
        request,
        window=window,
        connection_window=window // 2,
    )
    async with stalled:
        async with (
            tailrace.connect(served.target) as client,
            client.subscribe("shop", since=0, content=Content.AFTER) as neighbour,
            asyncio.timeout(PATIENCE_S),
        ):
            received = [await anext(neighbour) for _ in expected]
        assert [(each.version, each.index, each.ordinal) for each in received] == expected
        await subscriptions(served, 1)
        (subscription,) = observer_of(served.engine, "shop").subscriptions
        figures = subscription.statistics()
        message_bytes = served.engine.settings.message_bytes
        if window == 0:
            assert figures.delivered_bytes <= 2 * message_bytes
        assert figures.queued <= served.engine.settings.queue_captures
        stalled.open_window()
        assert await coordinates_of(stalled, len(expected)) == expected


@pytest.mark.slow
async def test_contract_13_a_connection_that_nobody_reads_is_cut(
    serve: Serve, writer: ModelWriter
) -> None:
    """The subscription goes with the send deadline, the connection with an unanswered probe."""
    write_much(writer, transactions=80)
    settings = GrpcSettings(keepalive_s=0.5, keepalive_timeout_s=0.5)
    served = await serve(settings, send_deadline_s=0.2)
    request = FROM_OLDEST.SerializeToString()
    async with RawCall(
        served.port, f"/{SERVICE}/Subscribe", request, window=2**31 - 1, connection_window=2**30
    ):
        await until(lambda: served.server.statistics().streams_too_slow == 1)
        await subscriptions(served, 0)
        await until(lambda: not established(served.port))


async def test_contract_13_the_send_deadline_ends_a_stalled_stream_with_its_resume_cursor(
    serve: Serve, writer: ModelWriter
) -> None:
    write_much(writer, transactions=4)
    served = await serve(send_deadline_s=0.1)
    request = FROM_OLDEST.SerializeToString()
    async with RawCall(served.port, f"/{SERVICE}/Subscribe", request, window=0) as stalled:
        await until(lambda: served.server.statistics().streams_too_slow == 1)
        await subscriptions(served, 0)
        stalled.open_window()
        async with asyncio.timeout(PATIENCE_S):
            assert b"grpc-status" in await stalled.until_ended()


@pytest.mark.slow
async def test_a_slow_reader_over_grpc_learns_where_to_resume(
    serve: Serve, writer: ModelWriter
) -> None:
    write_much(writer, transactions=60)
    expected = writer.log.expected(())
    served = await serve(send_deadline_s=0.1)
    call = served.stream("Subscribe", FROM_OLDEST)
    await call.read()
    await until(lambda: served.server.statistics().streams_too_slow == 1)
    await subscriptions(served, 0)
    captures, error = await error_of_reading(call)
    received = [(each.version, each.index, each.ordinal) for each in captures]
    assert isinstance(error, tailrace.SubscriberTooSlow)
    assert error.resume_cursor is not None
    cursor = Cursor.parse(error.resume_cursor)
    assert received == expected[: len(received)]
    assert received[-1] <= (cursor.version, cursor.index, cursor.ordinal)
    async with (
        tailrace.connect(served.target) as client,
        client.subscribe("shop", after=cursor) as rest,
        asyncio.timeout(PATIENCE_S),
    ):
        for wanted in expected[len(received) :]:
            capture = await anext(rest)
            assert (capture.version, capture.index, capture.ordinal) == wanted


@pytest.mark.parametrize("method", ["Subscribe", "SubscribeWithDemand"])
async def test_contract_22_23_clients_that_vanish_in_the_middle_are_no_errors(
    serve: Serve, writer: ModelWriter, method: str
) -> None:
    write_much(writer, transactions=10)
    served = await serve()
    options = (("grpc.use_local_subchannel_pool", 1),)
    with structlog.testing.capture_logs() as logs:
        for _ in range(5):
            async with grpc.aio.insecure_channel(served.target, options) as channel:
                for number in range(8):
                    request = SubscribeRequest.FromString(FROM_OLDEST.SerializeToString())
                    if method == "Subscribe":
                        call: Any = channel.unary_stream(f"/{SERVICE}/{method}", None, None)(
                            request.SerializeToString()
                        )
                    else:
                        call = channel.stream_stream(f"/{SERVICE}/{method}", None, None)()  # type: ignore[call-arg]
                        first = DemandRequest(subscribe=request, request=10**9)
                        await call.write(first.SerializeToString())
                    for _ in range(number):
                        await call.read()
        await subscriptions(served, 0)
    assert logs == []
    assert served.engine.statistics(ANONYMOUS).subscriptions_failed == 0


async def test_contract_13_a_stalled_reader_with_demand_is_told_too(
    serve: Serve, writer: ModelWriter
) -> None:
    write_much(writer, transactions=60)
    served = await serve(send_deadline_s=0.1)
    call, (first,) = served.both(DemandRequest(subscribe=FROM_OLDEST, request=10**9))
    await call.write(first)
    await call.read()
    await until(lambda: served.server.statistics().streams_too_slow == 1)
    _, error = await error_of_reading(call)
    assert isinstance(error, tailrace.SubscriberTooSlow)


async def test_a_slow_reader_with_our_client_misses_nothing(
    serve: Serve, writer: ModelWriter
) -> None:
    """What the client holds back stays within the demand; the rest waits on the server."""
    write_much(writer, transactions=20)
    served = await serve()
    expected = writer.log.expected(())
    async with (
        tailrace.connect(served.target) as client,
        client.subscribe("shop", since=0, demand=100) as captures,
        asyncio.timeout(PATIENCE_S),
    ):
        for taken, wanted in enumerate(expected):
            capture = await anext(captures)
            assert (capture.version, capture.index, capture.ordinal) == wanted
            assert served.engine.statistics(ANONYMOUS).captures_delivered - taken <= 100


@pytest.mark.parametrize("method", ["Subscribe", "ReadChanges"])
async def test_a_capture_above_the_limit_comes_as_its_header_and_is_fetched_by_a_read(
    serve: Serve, writer: ModelWriter, method: str
) -> None:
    image: dict[str, object] = {"text": "x" * 200_000}
    writer.write([ModelMutation("product", "1", Operation.UPSERT, None, image)])
    served = await serve()
    request = ReadChangesRequest(
        catalog="shop", since_version=1, body=[capture_pb2.BODY_AFTER], max_message_bytes=100_000
    )
    if method == "Subscribe":
        call = served.stream(
            "Subscribe",
            SubscribeRequest(
                catalog="shop",
                since_version=1,
                body=[capture_pb2.BODY_AFTER],
                max_message_bytes=100_000,
            ),
        )
    else:
        call = served.stream("ReadChanges", request)
    answer = SubscribeResponse if method == "Subscribe" else ReadChangesResponse
    found: list[capture_pb2.Capture] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < 2:
            found.extend(answer.FromString(await call.read()).captures)
    large = found[1]
    assert not large.HasField("after")
    assert large.omitted_bytes >= 200_000
    async with tailrace.connect(served.target) as client:
        place = tailrace.Position(large.version, large.index)
        read = client.read_changes("shop", since=place, until=place, content=Content.AFTER)
        async with read as history:
            (whole,) = [capture async for capture in history]
    assert whole.after == writer.log.transactions[0][0].image("after")


async def test_contract_26_a_stop_refuses_newcomers_and_tells_everybody_within_its_deadline(
    serve: Serve, writer: ModelWriter
) -> None:
    write_much(writer, transactions=2)
    served = await serve()
    calls = [served.stream("Subscribe", FROM_OLDEST) for _ in range(5)]
    for call in calls:
        await call.read()
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        stop = group.create_task(served.server.stop(5.0))
        for call in calls:
            _, error = await error_of_reading(call)
            assert isinstance(error, tailrace.ServerStopping)
            assert error.resume_cursor is not None
        await stop
    await served.server.stop(5.0)
    late = served.stream("Subscribe", FROM_OLDEST)
    with pytest.raises(grpc.aio.AioRpcError):
        await late.read()


async def test_a_stop_does_not_wait_for_a_stalled_reader(serve: Serve, writer: ModelWriter) -> None:
    write_much(writer, transactions=4)
    served = await serve()
    request = FROM_OLDEST.SerializeToString()
    async with RawCall(served.port, f"/{SERVICE}/Subscribe", request, window=0):
        await subscriptions(served, 1)
        async with asyncio.timeout(PATIENCE_S):
            await served.server.stop(0.1)
        await subscriptions(served, 0)


async def test_contract_35_a_new_server_on_the_port_is_found_and_nothing_is_missed(
    serve: Serve, writer: ModelWriter
) -> None:
    write_much(writer, transactions=2)
    served = await serve()
    port = served.port
    retry = tailrace.Retry(first_s=0.01, longest_s=0.05)
    received = []
    async with (
        tailrace.connect(served.target, retry=retry) as client,
        client.subscribe("shop", since=0, demand=50) as captures,
        asyncio.timeout(PATIENCE_S),
    ):
        received += [await anext(captures) for _ in range(120)]
        await served.server.stop(1.0)
        writer.write([ModelMutation("product", "new", Operation.REMOVE, None, None)])
        again = GrpcServer(served.engine)
        await again.start(f"127.0.0.1:{port}")
        try:
            received += [await anext(captures) for _ in range(84)]
        finally:
            await again.stop(1.0)
    found = [(each.version, each.index, each.ordinal) for each in received]
    assert found == writer.log.expected(())


async def test_a_port_in_use_is_an_error_of_the_system(serve: Serve) -> None:
    served = await serve()
    other = GrpcServer(served.engine)
    with pytest.raises(OSError, match="cannot listen on"):
        await other.start(served.target)


async def test_health_and_reflection_answer(serve: Serve) -> None:
    served = await serve()
    health = health_pb2_grpc.HealthStub(served.channel)
    for name in ("", SERVICE):
        answer = await health.Check(health_pb2.HealthCheckRequest(service=name))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    reflection = reflection_pb2_grpc.ServerReflectionStub(served.channel)
    wanted = reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE)
    call = reflection.ServerReflectionInfo(iter([wanted]))
    (answer,) = [each async for each in call]
    assert b"ChangeCapture" in b"".join(answer.file_descriptor_response.file_descriptor_proto)


async def test_system_subscriptions_tell_of_catalogs(serve: Serve, writer: ModelWriter) -> None:
    served = await serve()
    async with (
        tailrace.connect(served.target) as client,
        client.subscribe_system(since=0) as captures,
        asyncio.timeout(PATIENCE_S),
    ):
        async for capture in captures:
            if capture.primary_key == "shop":
                break
        assert capture.operation is Operation.UPSERT
