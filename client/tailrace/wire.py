"""Between values and messages: requests are built, responses are read.

Reading is the client's hot path: under 3 µs a capture (``bench/client_decoding.py``). The C parser takes a
whole message at once. Then one step without Python code reads a field of all captures, field by field, and one
more makes the tuples. Capture by capture takes half as long again.
"""

from __future__ import annotations

from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Literal, TypeVar, cast
from uuid import UUID

from google.protobuf.message import DecodeError

from tailrace.acknowledgement import Acknowledgement, Limits
from tailrace.capture import Capture, Heartbeat
from tailrace.criteria import After, Area, ContainerType, Content, FromTime, Operation, Since
from tailrace.cursor import Cursor
from tailrace.errors import TransportError, Unsupported
from tailrace.position import Position
from tailrace.schema import Column, Origin, Schema
from tailrace.v1 import capture_pb2, catalog_pb2, change_capture_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from google.protobuf.message import Message

    from tailrace.criteria import Criteria, Start

    _Request = (
        change_capture_pb2.SubscribeRequest
        | change_capture_pb2.SubscribeSystemRequest
        | change_capture_pb2.ReadChangesRequest
    )

_M = TypeVar("_M", bound="Message")

_BODIES: Final[tuple[tuple[Content, capture_pb2.Body.ValueType], ...]] = (
    (Content.CHANGE, capture_pb2.BODY_CHANGE),
    (Content.BEFORE, capture_pb2.BODY_BEFORE),
    (Content.AFTER, capture_pb2.BODY_AFTER),
)
_AREAS: Final = (Area.DATA, *Area)
_OPERATIONS: Final = (Operation.UPSERT, *Operation)
_CONTAINER_TYPES: Final = (None, *ContainerType)
"""By number; 0 never comes but for entity-level captures, whose container type is None."""

_version, _index, _ordinal, _timestamp, _area, _operation, _omitted_bytes = map(
    attrgetter,
    ("version", "index", "ordinal", "commit_timestamp", "area", "operation", "omitted_bytes"),
)
_BODY_READERS: Final = {
    Content.CHANGE: attrgetter("change"),
    Content.BEFORE: attrgetter("before"),
    Content.AFTER: attrgetter("after"),
}
"""In the order of a capture's fields."""
_has: Final = cast("Callable[[capture_pb2.Capture, str], bool]", capture_pb2.Capture.HasField)
"""Of the class: a message looks among its fields first for every method that it is asked for."""
_new: Final = cast("Callable[[type[Capture], tuple[object, ...]], Capture]", tuple.__new__)


def parsed(kind: type[_M], data: bytes) -> _M:
    """Parse a message of the server.

    Raises:
        TransportError: It is none of this kind.
    """
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise TransportError(f"not a message of this protocol: {error}") from error


def subscribe_response(data: bytes | None) -> change_capture_pb2.SubscribeResponse:
    """Parse what came of a subscription; None says that the server ended it.

    Raises:
        TransportError: It is none, or there is no more.
    """
    if data is None:
        raise TransportError("the server completed a subscription, which has no end")
    return parsed(change_capture_pb2.SubscribeResponse, data)


def captures(
    messages: Iterable[capture_pb2.Capture], catalog_uuid: UUID, content: Content = Content.BODY
) -> tuple[Capture, ...]:
    """Return the captures of a message, in its order.

    Args:
        messages: As they were parsed.
        catalog_uuid: Of the catalog that they are of.
        content: The bodies that were asked for; no other is looked at.

    Raises:
        Unsupported: An enum value that this client does not know; the server is newer.
    """
    try:
        return _captures([*messages], catalog_uuid, content)
    except IndexError:
        raise Unsupported(
            "captures", "an area, operation or container type of a newer server; update this client"
        ) from None


def _captures(
    messages: Sequence[capture_pb2.Capture], catalog_uuid: UUID, content: Content
) -> tuple[Capture, ...]:
    ordinals = [*map(_ordinal, messages)]
    container_types: Iterable[ContainerType | None] = repeat(None)
    container_names: Iterable[str | None] = repeat(None)
    if any(ordinals):
        of_columns = [*zip(messages, ordinals, strict=True)]
        container_types = [_CONTAINER_TYPES[m.container_type] if n else None for m, n in of_columns]
        container_names = [m.container_name if n else None for m, n in of_columns]
    bodies = [
        [*map(read, messages)] if flag in content else [] for flag, read in _BODY_READERS.items()
    ]
    columns = (
        repeat(catalog_uuid),
        map(_version, messages),
        map(_index, messages),
        ordinals,
        map(_timestamp, messages),
        map(_AREAS.__getitem__, map(_area, messages)),
        map(_OPERATIONS.__getitem__, map(_operation, messages)),
        _texts("entity_type", messages),
        _texts("primary_key", messages),
        _changed(messages),
        container_types,
        container_names,
        *map(_present, bodies),
        # A capture whose bodies were left out has none.
        repeat(0) if any(map(_all, bodies)) else map(_omitted_bytes, messages),
    )
    return tuple(map(_new, repeat(Capture), zip(*columns, strict=False)))


def _all(bodies: Sequence[bytes]) -> bool:
    return bool(bodies) and all(bodies)


def _present(bodies: Sequence[bytes]) -> Iterable[bytes | None]:
    """Return bodies, None where one is absent: none is empty."""
    if _all(bodies):
        return bodies
    return [body or None for body in bodies] if any(bodies) else repeat(None)


def _texts(
    name: Literal["entity_type", "primary_key"], messages: Sequence[capture_pb2.Capture]
) -> Iterable[str | None]:
    """Return a text of each; None where it is absent, which an empty one is not."""
    found = [*map(attrgetter(name), messages)]
    if all(found):
        return found
    present = map(_has, messages, repeat(name))
    return [text if has else None for text, has in zip(found, present, strict=True)]


def _changed(messages: Sequence[capture_pb2.Capture]) -> Iterable[tuple[str, ...] | None]:
    present = [*map(_has, messages, repeat("changed"))]
    if not any(present):
        return repeat(None)
    return [
        tuple(message.changed.names) if has else None
        for message, has in zip(messages, present, strict=True)
    ]


def acknowledgement(message: change_capture_pb2.Acknowledgement) -> Acknowledgement:
    """Read the first message of a subscription."""
    limits = message.limits
    return Acknowledgement(
        subscription_id=message.subscription_id,
        catalog=message.catalog,
        catalog_uuid=UUID(message.catalog_uuid),
        start=Position(message.start.version, message.start.index),
        resume_cursor=Cursor.parse(message.resume_cursor),
        published=message.published_version,
        heartbeat_interval_s=message.heartbeat_interval_ms / 1000,
        limits=Limits(
            queue_captures=limits.queue_captures,
            message_bytes=limits.message_bytes,
            max_message_bytes=limits.max_message_bytes,
            send_deadline_s=limits.send_deadline_ms / 1000,
            request_bytes=limits.request_bytes,
        ),
        features=frozenset(message.features),
        unknown_names=tuple(message.unknown_names),
        unknown_changes=tuple(message.unknown_changes),
    )


def heartbeat(message: change_capture_pb2.Heartbeat) -> Heartbeat:
    """Read a heartbeat."""
    return Heartbeat(
        published=message.published_version,
        cursor=Cursor.parse(message.resume_cursor),
        records_scanned=message.records_scanned,
        records_matched=message.records_matched,
        next_within_s=message.next_within_ms / 1000,
    )


def schema(message: catalog_pb2.GetSchemaResponse) -> Schema:
    """Read a schema."""
    return Schema(
        id=message.schema_id,
        entity_types={
            entity_type.name: tuple(
                Column(
                    name=column.name,
                    role=ContainerType(column.role),
                    sql_type=column.sql_type or None,
                    encoding=column.encoding,
                    nullable=column.nullable,
                    key=column.key,
                    origin=Origin(column.origin or Origin.INFERRED),
                    id=column.id,
                    dropped=column.dropped,
                )
                for column in entity_type.columns
            )
            for entity_type in message.entity_types
        },
    )


def criteria_messages(criteria: Iterable[Criteria]) -> list[capture_pb2.Criteria]:
    """Write criteria."""
    return [
        capture_pb2.Criteria(
            area=cast("capture_pb2.Area.ValueType", one.area),
            entity_type=one.entity_type,
            primary_key=one.primary_key,
            operation=cast("list[capture_pb2.Operation.ValueType]", one.operation),
            container_type=cast("list[capture_pb2.ContainerType.ValueType]", one.container_type),
            container_name=one.container_name,
        )
        for one in criteria
    ]


def body_numbers(content: Content) -> Sequence[capture_pb2.Body.ValueType]:
    """Write a content as the bodies of a request."""
    if content is Content.BODY:
        return (capture_pb2.BODY_ALL,)
    return tuple(number for flag, number in _BODIES if flag & content)


def content_of(numbers: Iterable[capture_pb2.Body.ValueType]) -> Content:
    """Return the content that the bodies of a request ask for."""
    numbers = {*numbers}
    if capture_pb2.BODY_ALL in numbers:
        return Content.BODY
    found = Content.HEADER
    for flag, number in _BODIES:
        if number in numbers:
            found |= flag
    return found


def set_start(request: _Request, start: Start | None) -> None:
    """Write a start, or the lower bound of a read, into a request; None leaves it out."""
    match start:
        case Since(position):
            request.since_version = position.version
            if position.index:
                request.since_index = position.index
        case After(cursor, from_time):
            request.after = str(cursor)
            if from_time is not None:
                request.from_time = from_time
        case FromTime(timestamp):
            request.from_time = timestamp
