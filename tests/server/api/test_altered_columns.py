"""Columns that the source alters, from Debezium's lines to every face: typed, raw, live, and as history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pytest

import tailrace
from tailrace.criteria import Area, Content, Criteria
from tailrace_server.api.grpc import GrpcServer
from tests.conformance import json_captures
from tests.server.api.graphql.conftest import ask, client
from tests.server.api.rest.conftest import pytest_asyncio_loop_factories, serve
from tests.server.pipeline.feeds import Feed
from tests.server.pipeline.shapes import envelope, postgres, with_listing
from tests.support.column_kinds import (
    FINE_MONEY,
    INT,
    MICROS,
    MILLIS,
    MONEY,
    TEXT,
    Kind,
    kind_of,
    meaning_of,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.server.api.rest.conftest import Served

    Serve = Callable[..., Awaitable[Served]]

__all__ = ["pytest_asyncio_loop_factories", "serve"]

CHANGES = "/v1/catalogs/shop/changes?body=before,after&area=DATA"
PAIRS = [
    # kinds before and after, values of two rows before the change and of their updates behind it, the
    # scalar of the field, and what it shows
    (MONEY, FINE_MONEY, ("AfQ=", "Ag=="), ("AMNQ", "HoQ="), "Decimal", ("5.00", "0.02", "5.0000", "0.7812")),
    (
        *(MILLIS, MICROS),
        (1_700_000_000_123, 0),
        (1_700_000_000_123_000, 1),
        "Timestamp",
        (
            *("2023-11-14T22:13:20.123000", "1970-01-01T00:00:00"),
            *("2023-11-14T22:13:20.123000", "1970-01-01T00:00:00.000001"),
        ),
    ),
    (INT, TEXT, (5, 70_000), ("5", "seven"), "String", ("5", "70000", "5", "seven")),
    (TEXT, INT, ("5", "seven"), (5, 7), "String", ("5", "seven", "5", "7")),
]  # fmt: skip


def row(lsn: int, op: str, key: int, kind: Kind, before: Any, after: Any) -> bytes:
    images = {
        name: None if value is None else {"id": key, "c": value}
        for name, value in (("before", before), ("after", after))
    }
    return with_listing({"c": kind.field}, envelope(op, postgres(lsn), **images))


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new", "was", "now", "scalar", "shown"), PAIRS)
async def test_both_sides_of_a_change_are_read_on_every_face(
    serve: Serve,
    log_root: Path,
    old: Kind,
    new: Kind,
    was: tuple[Any, Any],
    now: tuple[Any, Any],
    scalar: str,
    shown: tuple[str, ...],
) -> None:
    """A client that was connected before goes on; the first update has ``before`` as the new side writes it."""
    feed = Feed(log_root)
    feed.batch(row(1, "c", 1, old, None, was[0]), row(2, "c", 2, old, None, was[1]))
    served = await serve()
    live = "subscription { onProductChange(sinceVersion: 1) { before { c } after { c } } }"
    told = "subscription { onProductSchemaChange(sinceVersion: 2) { change } }"
    async with client(served) as early, client(served) as warned:
        before = await early.subscribe(live)
        first = await early.payloads(before, 2)
        schema_changes = await warned.subscribe(told)
        feed.batch(
            row(3, "u", 1, new, now[0], now[1]),
            row(4, "d", 2, new, now[0], None),
            row(5, "c", 3, new, None, now[0]),
        )
        later = await early.payloads(before, 3)
        (change,) = (await warned.payload(schema_changes))["data"].values()
    assert [each["what"] for each in change["change"]["changes"]] == ["column_changed"]
    (early_before, early_after) = (
        later[0]["data"]["onProductChange"][body]["c"] for body in ("before", "after")
    )
    if scalar == "String" and old is INT:
        assert (early_before, early_after) == (None, None)
        codes = {each["extensions"]["code"] for each in later[0]["errors"]}
        assert codes == {"VALUE_INVALID"}
    else:
        assert (early_before, early_after) == (shown[2], shown[3])
    assert [each["data"]["onProductChange"]["after"]["c"] for each in first] == [
        5 if old is INT else shown[0],
        70_000 if old is INT else shown[1],
    ]

    # Whoever comes now has one type for both sides, live and in a page of history.
    async with client(served) as one:
        found = await one.payloads(await one.subscribe(live), 5)
    history = "{ productChanges { edges { node { before { c } after { c } } } } }"
    edges = (await ask(served, history))["productChanges"]["edges"]
    typed = [each["data"]["onProductChange"] for each in found]
    assert typed == [edge["node"] for edge in edges]
    rows = [(None, shown[0]), (None, shown[1]), (shown[2], shown[3]), (shown[2], None)]
    rows.append((None, shown[2]))
    assert [tuple(each[b] and each[b]["c"] for b in ("before", "after")) for each in typed] == rows
    asked = await ask(served, '{ __type(name: "Product") { fields { name type { name } } } }')
    assert {"name": "c", "type": {"name": scalar}} in asked["__type"]["fields"]

    # The bytes are the source's on every other face, and the schema of their version reads them.
    written = [(None, was[0]), (None, was[1]), (now[0], now[1]), (now[0], None), (None, now[0])]
    await check_raw(served, written)
    for version, (_, after) in enumerate(written, 1):
        answer = await served.http.get(f"/v1/catalogs/shop/schema?version={version}")
        (column,) = (
            each
            for entity_type in answer.json()["entityTypes"]
            for each in entity_type["columns"]
            if each["name"] == "c"
        )
        kind = kind_of(column["sqlType"], column["encoding"])
        assert kind == (old if version < 3 else new)
        if after is not None:
            meaning_of(after, kind)
    assert feed.quarantine() == []


async def check_raw(served: Served, written: list[tuple[Any, Any]]) -> None:
    """Compare what the faces give that decode nothing: NDJSON, CloudEvents, Arrow and the gRPC client."""
    accepted = ("application/x-ndjson", "application/vnd.apache.arrow.stream")
    lines, arrow = [
        (await served.http.get(CHANGES, headers={"accept": each})).content for each in accepted
    ]
    *texts, _ = lines.splitlines()
    captures = [json_captures.capture(text) for text in texts]
    assert [(value(each.before), value(each.after)) for each in captures] == written
    events = (await served.http.get(f"{CHANGES}&format=cloudevents")).json()
    bodies = [[event["data"].get(body) for body in ("before", "after")] for event in events]
    assert [tuple(body and body["c"] for body in pair) for pair in bodies] == written
    with pa.ipc.open_stream(arrow) as stream:
        rows = stream.read_all().to_pylist()
    assert [(value(each["before"]), value(each["after"])) for each in rows] == written
    server = GrpcServer(served.engine)
    port = await server.start("127.0.0.1:0")
    try:
        async with tailrace.connect(f"127.0.0.1:{port}") as connection:
            async with connection.read_changes(
                "shop", Criteria(area=Area.DATA), content=Content.BEFORE | Content.AFTER
            ) as history:
                found = [capture async for capture in history]
            schema = await connection.get_schema("shop", version=1)
    finally:
        await server.stop(0)
    assert [(value(each.before), value(each.after)) for each in found] == written
    assert "c" in [each.name for each in schema.columns("product")]


def value(image: bytes | None) -> Any:
    return None if image is None else orjson.loads(image)["c"]
