"""Schemas of a registry that answers over HTTP, one that is away, and one that refuses."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Any

import fastavro
import pytest

from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.feed.source import SourceRefused, SourceUnreachable
from tailrace_server.pipeline.kafka.schema_registry import (
    SchemaRegistry,
    UnreadableMessage,
    framed,
    registry_of,
)
from tests.support.schema_registry import Registry, avro

if TYPE_CHECKING:
    from collections.abc import Iterator

CITY = {"type": "record", "name": "geo.City", "fields": [{"name": "zip", "type": "string"}]}
ADDRESS = {
    "type": "record",
    "name": "shop.Address",
    "fields": [
        {"name": "city", "type": ["null", "geo.City"]},
        {"name": "street", "type": "string"},
    ],
}
ORDER = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "to", "type": "Address"},  # in the namespace of the record
        {"name": "others", "type": {"type": "array", "items": "shop.Address"}},
    ],
}


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry().up() as up:
        up.add(3, '{"type":"record"', kind="AVRO")
        up.add(4, {"type": "object"}, kind="JSON")
        yield up


def test_a_schema_is_asked_for_once_and_has_the_types_that_it_refers_to(registry: Registry) -> None:
    """Also those of a schema that it refers to."""
    registry.add(1, CITY)
    registry.add(2, ADDRESS, **{"geo.City": "s1"})
    registry.add(9, ORDER, **{"shop.Address": "s2"})
    address = {"city": {"zip": "1"}, "street": "a"}
    known: dict[str, Any] = {}
    for each in (CITY, ADDRESS):
        fastavro.parse_schema(each, known)
    whole = fastavro.parse_schema(ORDER, known)
    message = avro(9, whole, {"to": address, "others": [address]})
    number, body = framed(message)
    client = registry_of(registry.url, (("basic.auth.user.info", "me:hidden"),))
    for _ in range(2):
        schema = fastavro.parse_schema(client.definition(number))
        assert fastavro.schemaless_reader(BytesIO(body), schema, None) == {
            "to": address,
            "others": [address],
        }
    assert len(registry.asked) == 3
    assert (registry.authorization or "").startswith("Basic ")
    assert registry_of(registry.url, (("basic.auth.user.info", "me:hidden"),)) is client


@pytest.mark.parametrize(
    ("number", "error", "reason"),
    [
        (3, UnreadableMessage, "schema 3 is damaged"),
        (4, UnreadableMessage, "schema 4 is JSON, not Avro"),
        (5, SourceRefused, "Schema not found .status 404.; give the registry of the producers"),
    ],
)
def test_a_schema_that_cannot_be_used_says_so(
    registry: Registry, number: int, error: type[Exception], reason: str
) -> None:
    client = SchemaRegistry(registry.url, {})
    client.check()
    with pytest.raises(error, match=reason):
        client.definition(number)


def test_a_registry_that_is_away_is_named_without_its_secrets() -> None:
    url = Registry().url.replace("//", "//me:hidden@")
    with pytest.raises(
        SourceUnreachable, match=r"registry http://127.0.0.1:\d+: .*refused"
    ) as caught:
        SchemaRegistry(url, {}).check()
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "settings", "reason"),
    [
        ("hidden:80", {}, "--schema-registry: write http://HOST"),
        ("http://a", {"basic.auth.user": "hidden"}, "--registry: .*basic.auth.user"),
        ("http://a", {"basic.auth.user.info": "hidden"}, "--registry: basic.auth.user.info must"),
        ("http://a", {"timeout": "hidden"}, "--registry: could not"),
        ("http://a", {"ssl.ca.location": "/hidden"}, "--registry: "),
    ],
)
def test_settings_that_the_client_does_not_take_are_named_without_their_values(
    url: str, settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=reason) as caught:
        SchemaRegistry(url, settings)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("message", [b"", b"{}", b"\0\0\0\1"])
def test_a_message_without_a_frame_is_undecodable(message: bytes) -> None:
    with pytest.raises(UnreadableMessage, match="does not begin with 0 and the id"):
        framed(message)
