"""CloudEvents around messages, in the structured form of JSON.

Debezium's converter takes the envelope apart. The images are in ``data``, the rest are attributes, whose names
are those of the members without their underscores; whole numbers of 64 bits are texts::

    {"specversion": "1.0", "id": …, "source": "/debezium/postgresql/shop", "type": …, "iodebeziumop": "u",
     "iodebeziumtable": "a", "iodebeziumlsn": "29274832", "iodebeziumtxId": "565",
     "iodebeziumtxid": "565", "iodebeziumtxtotalorder": "1",
     "data": {"before": …, "after": …}}                               or {"schema": …, "payload": {…}}

Others put a whole message into ``data``, or in base64 into ``data_base64``.

Source: Debezium documentation, exporting CloudEvents; CloudEvents specification 1.0, JSON event format.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import orjson

from tailrace_server.pipeline.images import members
from tailrace_server.pipeline.sources.debezium.refusals import Unusable
from tailrace_server.pipeline.sources.debezium.shapes import AVRO_EVENT, EVENT_WITHOUT_ATTRIBUTES
from tailrace_server.pipeline.sources.debezium.source_attributes import envelope_of

if TYPE_CHECKING:
    from collections.abc import Mapping

_PREFIX: Final = "iodebezium"
_IMAGES: Final = frozenset(("before", "after"))


class EventContent(NamedTuple):
    """The content of an event: the members of an envelope, or a message as text."""

    envelope: dict[str, Any] | None
    message: bytes
    """If there is no envelope."""
    schema: bytes
    """Block of the images, beside an envelope; empty where there is none."""


def is_event(names: Mapping[str, msgspec.Raw]) -> bool:
    """Whether an object with these members is a CloudEvent."""
    return "specversion" in names and ("data" in names or "data_base64" in names)


def content_of(event: Mapping[str, msgspec.Raw]) -> EventContent:
    """Return what an event holds.

    Raises:
        Unusable: Data that is not JSON, or images without the attributes that say what they are.
    """
    data, schema = _data_of(event), b""
    if data[:1] != b"{":
        return EventContent(None, data, b"")
    found = members(data)
    if "payload" in found and found.keys() <= {"schema", "payload"}:
        inner = bytes(found["payload"])
        images = members(inner) if inner[:1] == b"{" else {}
        schema = bytes(found.get("schema", b""))
    else:
        images = found
    if not images or not images.keys() <= _IMAGES:
        return EventContent(None, data, b"")
    operation = event.get(f"{_PREFIX}op")
    if operation is None:
        raise Unusable(EVENT_WITHOUT_ATTRIBUTES)
    envelope = envelope_of(
        event,
        lambda name: _names(name, ""),
        lambda name: _names(name, "tx"),
        op=msgspec.json.decode(operation),
        before=images.get("before", msgspec.Raw()),
        after=images.get("after", msgspec.Raw()),
    )
    return EventContent(envelope, b"", schema)


def _names(member: str, prefix: str) -> tuple[str, ...]:
    name = f"{_PREFIX}{prefix}{member.replace('_', '')}"
    return name, name.lower()


def _data_of(event: Mapping[str, msgspec.Raw]) -> bytes:
    kind = bytes(event.get("datacontenttype", b""))
    if b"avro" in kind or b"protobuf" in kind:
        raise Unusable(AVRO_EVENT)
    text = bytes(event.get("data", b""))
    if "data_base64" in event:
        try:
            return base64.b64decode(orjson.loads(bytes(event["data_base64"])), validate=True)
        except (binascii.Error, TypeError, orjson.JSONDecodeError) as error:
            raise Unusable(f"data_base64 of a CloudEvent is not base64: {error}") from None
    return orjson.loads(text).encode() if text[:1] == b'"' else text
