"""What a request can have wrong, each named, none ignored."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest

import tailrace
from tailrace.transport.grpc import SERVICE
from tailrace.v1 import capture_pb2
from tailrace.v1.catalog_pb2 import GetSchemaRequest, ListCatalogsRequest
from tailrace.v1.change_capture_pb2 import (
    DemandRequest,
    ReadChangesRequest,
    SubscribeRequest,
    SubscribeSystemRequest,
)
from tailrace_server.api.grpc import GrpcSettings
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.wal.state.commit_log import CommitLog
from tests.support.inprocess import PATIENCE_S
from tests.support.model import ModelMutation
from tests.support.raw_http2 import RawCall

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from google.protobuf.message import Message

    from tests.server.api.grpc.conftest import Served
    from tests.support.inprocess import ModelWriter

    Serve = Callable[..., Awaitable[Served]]

UNKNOWN_FIELD = bytes([0xA2, 0x06, 1, 0x78])
"""Field 100 of the message that it is put behind."""

METHODS: dict[str, Message] = {
    "Subscribe": SubscribeRequest(catalog="shop"),
    "SubscribeSystem": SubscribeSystemRequest(),
    "SubscribeWithDemand": DemandRequest(subscribe=SubscribeRequest(catalog="shop")),
    "ReadChanges": ReadChangesRequest(catalog="shop"),
    "ListCatalogs": ListCatalogsRequest(),
    "GetSchema": GetSchemaRequest(catalog="shop"),
}


@pytest.mark.parametrize("method", METHODS)
async def test_an_unknown_field_is_refused_by_number(serve: Serve, method: str) -> None:
    served = await serve()
    error = await served.refused(method, METHODS[method].SerializeToString() + UNKNOWN_FIELD)
    assert isinstance(error, tailrace.Unsupported)
    assert error.field == "field 100"
    assert served.server.statistics().errors == {"UNSUPPORTED": 1}


@pytest.mark.parametrize("method", ["Subscribe", "SubscribeWithDemand", "ReadChanges"])
async def test_more_criteria_than_one_request_may_have_are_refused_by_name(
    serve: Serve, method: str
) -> None:
    """Before any of them is looked at: each has a field that is refused by itself."""
    served = await serve()
    one = capture_pb2.Criteria.FromString(UNKNOWN_FIELD)
    subscribe = SubscribeRequest(catalog="shop", criteria=[one] * 1_001)
    request = {
        "Subscribe": subscribe,
        "SubscribeWithDemand": DemandRequest(subscribe=subscribe),
        "ReadChanges": ReadChangesRequest(catalog="shop", criteria=[one] * 1_001),
    }[method]
    error = await served.refused(method, request)
    assert isinstance(error, tailrace.InvalidRequest)
    assert "1001 in one request, the limit is 1000 (criteria)" in str(error)


async def test_an_unknown_field_in_a_part_is_refused_with_its_path(serve: Serve) -> None:
    served = await serve()
    criteria = capture_pb2.Criteria.FromString(UNKNOWN_FIELD)
    request = SubscribeRequest(catalog="shop", criteria=[capture_pb2.Criteria(), criteria])
    error = await served.refused("Subscribe", request)
    assert isinstance(error, tailrace.Unsupported)
    assert error.field == "criteria[1].field 100"


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (SubscribeRequest(catalog="shop", body=[99]), "body"),  # type: ignore[list-item]
        (
            SubscribeRequest(
                catalog="shop",
                criteria=[capture_pb2.Criteria(operation=[1, 42])],  # type: ignore[list-item]
            ),
            "criteria[0].operation",
        ),
        (
            SubscribeRequest(
                catalog="shop",
                criteria=[capture_pb2.Criteria(area=9)],  # type: ignore[arg-type]
            ),
            "criteria[0].area",
        ),
    ],
    ids=["body", "operation", "area"],
)
async def test_an_unknown_enum_value_is_refused_with_its_path(
    serve: Serve, request_: SubscribeRequest, field: str
) -> None:
    served = await serve()
    error = await served.refused("Subscribe", request_)
    assert isinstance(error, tailrace.Unsupported)
    assert error.field == field


def subscribe(**fields: Any) -> SubscribeRequest:
    return SubscribeRequest(**{"catalog": "shop", **fields})


def criteria(**fields: Any) -> SubscribeRequest:
    return subscribe(criteria=[capture_pb2.Criteria(**fields)])


REFUSED: dict[str, tuple[SubscribeRequest, str]] = {
    "no catalog": (subscribe(catalog=""), "catalog"),
    "two starts": (subscribe(since_version=1, from_time=1), "since_version and from_time"),
    "index alone": (subscribe(since_index=3), "since_index"),
    "index of the oldest": (subscribe(since_version=0, since_index=3), "since_index"),
    "negative version": (subscribe(since_version=-1), "since_version -1"),
    "negative index": (subscribe(since_version=1, since_index=-1), "since_index -1"),
    "garbage cursor": (subscribe(after="41:0"), "not a cursor: '41:0'"),
    "empty cursor": (subscribe(after=""), "not a cursor"),
    "empty entity type": (criteria(entity_type=[""]), r"criteria\[0\]\.entity_type"),
    "empty column": (criteria(container_name=[""]), r"criteria\[0\]\.container_name"),
    "key of a lead": (criteria(area=3, primary_key=["1"]), r"criteria\[0\].*INFRASTRUCTURE"),
    "upsert of a lead": (criteria(area=3, operation=[1]), "only the operation TRANSACTION"),
    "lead among rows": (criteria(area=2, operation=[3]), "belongs to area INFRASTRUCTURE"),
    "column of the catalog": (
        criteria(container_type=[1], container_name=["price"]),
        "does not include any of",
    ),
    "unspecified operation": (criteria(operation=[0]), r"criteria\[0\]\.operation: UNSPECIFIED"),
    "unspecified body": (subscribe(body=[0]), "body: UNSPECIFIED"),
    "heartbeats too often": (subscribe(heartbeat_interval_ms=9), "heartbeat_interval_ms 9"),
    "messages too small": (subscribe(max_message_bytes=1023), "max_message_bytes 1023"),
    "messages too large": (subscribe(max_message_bytes=(64 << 20) + 1), "max_message_bytes"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_subscribe_without_meaning_is_refused_and_costs_nobody_anything(
    serve: Serve, name: str
) -> None:
    served = await serve()
    request, message = REFUSED[name]
    error = await served.refused("Subscribe", request)
    assert isinstance(error, tailrace.InvalidRequest)
    with pytest.raises(tailrace.InvalidRequest, match=message):
        raise error
    assert served.engine.statistics(ANONYMOUS).subscriptions_opened == 0


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (DemandRequest(request=5), "exactly one of"),
        (
            DemandRequest(subscribe=subscribe(), subscribe_system=SubscribeSystemRequest()),
            "exactly one of",
        ),
        (DemandRequest(subscribe=subscribe(), request=0), "3.9"),
        (DemandRequest(subscribe=subscribe(), request=-1), "3.9"),
        (b"\xff", "not a tailrace.v1.DemandRequest"),
    ],
    ids=["none", "both", "zero", "negative", "garbage"],
)
async def test_a_first_demand_message_without_meaning_is_refused(
    serve: Serve, first: DemandRequest | bytes, message: str
) -> None:
    served = await serve()
    with pytest.raises(tailrace.InvalidRequest, match=message):
        raise await served.refused("SubscribeWithDemand", first)


@pytest.mark.parametrize(
    "later",
    [
        DemandRequest(request=0),
        DemandRequest(subscribe=SubscribeRequest(catalog="shop")),
        DemandRequest(subscribe_system=SubscribeSystemRequest()),
        UNKNOWN_FIELD,
        b"\xff",
    ],
    ids=["zero", "second subscribe", "second system", "unknown field", "garbage"],
)
async def test_a_later_demand_message_without_meaning_ends_the_subscription(
    serve: Serve, later: DemandRequest | bytes
) -> None:
    served = await serve()
    call, (first, second) = served.both(DemandRequest(subscribe=subscribe()), later)
    await call.write(first)
    await call.read()
    await call.write(second)
    with pytest.raises(Exception, match=r"3\.9|only the first|does not know|not a tailrace"):  # noqa: PT012
        while isinstance(await call.read(), bytes):
            pass
    assert served.engine.statistics(ANONYMOUS).subscriptions == 0


async def test_no_subscribe_in_time_or_at_all_is_refused(serve: Serve) -> None:
    served = await serve(GrpcSettings(subscribe_deadline_s=0.05))
    call, _ = served.both()
    with pytest.raises(Exception, match=r"no subscribe was received within 0.05 s"):
        await call.read()
    call, _ = served.both()
    await call.done_writing()
    with pytest.raises(Exception, match=r"ended without a subscribe"):
        await call.read()


async def test_bytes_that_are_no_request_are_refused(serve: Serve) -> None:
    served = await serve()
    for method in METHODS:
        error = await served.refused(method, b"\xff\xff")
        with pytest.raises(tailrace.InvalidRequest, match=r"not a tailrace\.v1\."):
            raise error


async def test_a_request_that_is_too_large_is_refused_with_the_limit(serve: Serve) -> None:
    served = await serve(GrpcSettings(request_bytes=1000))
    for size in (1001, 100_000):
        with pytest.raises(tailrace.InvalidRequest, match=r"larger than max \(\d+ vs\. 1000\)"):
            raise await served.refused("Subscribe", criteria(primary_key=["k" * size]))


async def test_a_request_is_refused_by_the_length_that_it_claims(serve: Serve) -> None:
    """None of it has to come, so that there is nothing to keep."""
    served = await serve()
    claim = b"\0" + (GrpcSettings().request_bytes + 1).to_bytes(4, "big")
    method = f"/{SERVICE}/Subscribe"
    async with (
        RawCall(served.port, method, claim, whole=False, window=65_535) as call,
        asyncio.timeout(PATIENCE_S),
    ):
        assert b"larger than max" in await call.until_ended()


async def test_contract_16_a_compressed_request_is_refused_before_it_is_unpacked(
    serve: Serve,
) -> None:
    served = await serve()
    method = f"/{SERVICE}/Subscribe"
    call = served.channel.unary_stream(method, None, None)
    message = criteria(primary_key=["k" * 1_000_000]).SerializeToString()
    with pytest.raises(grpc.aio.AioRpcError, match="gzip") as error:
        await call(message, compression=grpc.Compression.Gzip).read()
    assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_method_that_does_not_exist_is_unsupported(serve: Serve) -> None:
    served = await serve()
    assert isinstance(await served.refused("SubscribeToEverything", b""), tailrace.Unsupported)


async def test_schemas_are_of_a_version_and_say_what_is_inferred(
    serve: Serve, writer: ModelWriter, log_root: Path
) -> None:
    def upsert(**columns: object) -> ModelMutation:
        return ModelMutation("box", "1", tailrace.Operation.UPSERT, None, columns)

    writer.write([upsert(id=1)])
    writer.write([upsert(id=1, name="chair")])
    served = await serve()
    async with tailrace.connect(served.target) as client:
        names = {
            version: [
                column.name
                for column in (await client.get_schema("shop", version)).entity_types["box"]
            ]
            for version in (None, 1, 2, 99)
        }
        assert names == {None: ["id", "name"], 1: ["id"], 2: ["id", "name"], 99: ["id", "name"]}
        schema = await client.get_schema("shop")
        kept = writer.writer.state
        assert CommitLog.open(log_root / "shop").view.schema_of(kept.last_version) == schema
        assert schema.entity_types["box"][0].inferred
        assert schema.entity_types["box"][0].role is tailrace.ContainerType.ATTRIBUTE
        with pytest.raises(tailrace.CatalogUnknown):
            await client.get_schema("ship")
        with pytest.raises(tailrace.InvalidRequest, match="count from 1"):
            await client.get_schema("shop", 0)
        (catalog,) = await client.list_catalogs()
        assert (catalog.name, catalog.uuid) == ("shop", writer.writer.uuid)
        assert (catalog.published, catalog.committed, catalog.oldest) == (2, 2, (1, 0))
        assert catalog.newest_timestamp > 1_600_000_000_000_000
