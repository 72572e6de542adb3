"""Conversion between the client's values and protobuf messages.

Decoding captures is the client's hot path (``bench/client_decoding.py``)::

    response ─ C parser ─▶ captures, each as its bytes ─▶ joined ─ C parser ─▶ a list of each field ─▶ tuples

If the encodings of several messages are joined, a parser reads them as one message in which each repeated field
has the values of all. So protobuf's C parser turns captures into columns (``capture_fields.proto``), and a
column is read by one call. Capture by capture, each field would need a call and a search by name, and each
capture an additional object of the parser.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from uuid import UUID

from google.protobuf.message import DecodeError

from tailrace.capture import Acknowledgement, Capture, Heartbeat, Limits, StateComplete
from tailrace.conditions import read_where, where_fields, where_of
from tailrace.criteria import (
    After,
    Area,
    CaptureKind,
    CatchUp,
    ContainerType,
    Content,
    Criteria,
    FromState,
    FromTime,
    Operation,
    OverrunPolicy,
    Since,
    Transition,
    parameter_texts,
    parameters_in,
)
from tailrace.cursor import Cursor, StateCursor
from tailrace.errors import InvalidRequest, TransportError, Unsupported
from tailrace.position import Position
from tailrace.schema import Column, Origin, Schema, SchemaSpan
from tailrace.v1 import capture_pb2, catalog_pb2, change_capture_pb2
from tailrace.v1.capture_fields_pb2 import CaptureFields, SubscribeResponseParts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from google.protobuf.message import Message

    from tailrace.criteria import Beginning

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
_KINDS: Final = tuple(CaptureKind)
_TRANSITIONS: Final = (None, *Transition)
_CONTAINER_TYPES: Final = (None, *ContainerType)
"""Members of the enums by their number in the protocol. 0 comes only for the container type of entity-level
captures and for the transition of captures without a condition; both are None."""

_BODY_NAMES: Final = {
    Content.CHANGE: "change",
    Content.BEFORE: "before",
    Content.AFTER: "after",
}
"""Name of the field of `Capture` that holds each kind of body, in the order of the fields."""
_BORDER: Final = CaptureFields(border=[0]).SerializeToString()
_GAP: Final = CaptureFields(
    entity_type=[""],
    primary_key=[""],
    changed=[b""],
    container_name=[""],
    change=[b""],
    before=[b""],
    after=[b""],
).SerializeToString()
_new: Final = cast("Callable[[type[Capture], tuple[object, ...]], Capture]", tuple.__new__)


def parsed(kind: type[_M], data: bytes) -> _M:
    """Parse a message of the server.

    Raises:
        TransportError: ``data`` is not a message of this kind.
    """
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise TransportError(f"not a message of this protocol: {error}") from error


def subscribe_response(data: bytes | None) -> change_capture_pb2.SubscribeResponse:
    """Parse a message of a subscription.

    Raises:
        TransportError: ``data`` is not such a message, or None, which means that the server ended the call.
    """
    return parsed(change_capture_pb2.SubscribeResponse, _came(data))


def subscribe_parts(data: bytes | None) -> SubscribeResponseParts:
    """Parse a message of a subscription, but leave its captures encoded, for `captures`.

    Raises:
        TransportError: ``data`` is not such a message, or None, which means that the server ended the call.
    """
    return parsed(SubscribeResponseParts, _came(data))


def _came(data: bytes | None) -> bytes:
    if data is None:
        raise TransportError(
            "the server completed a subscription, although subscriptions have no end"
        )
    return data


def captures(
    encoded: Sequence[bytes],
    catalog_uuid: UUID,
    content: Content = Content.BODY,
    cursor: Cursor | None = None,
) -> tuple[Capture, ...]:
    """Return the captures of a message, in order.

    Args:
        encoded: The encoded captures of a ``SubscribeResponseParts`` or ``ReadChangesResponseParts``.
        catalog_uuid: Identity of the catalog's log.
        content: The bodies that were requested; other bodies are not decoded.
        cursor: Cursor before the captures. If it is a ``StateCursor``, the cursors of rows derive from it.

    Raises:
        TransportError: An element is not a capture.
        Unsupported: A capture has an enum value that this client does not know; the server is newer.
    """
    try:
        return _captures([*encoded], catalog_uuid, content, cursor)
    except IndexError:
        raise Unsupported(
            "captures",
            "an area, operation, kind, transition or container type that this client does not "
            "know; update the client",
        ) from None


def _captures(
    encoded: Sequence[bytes], catalog_uuid: UUID, content: Content, cursor: Cursor | None
) -> tuple[Capture, ...]:
    # Build all tuples by one `map` over columns, without a Python call for each capture. The columns below must
    # be in the order of the fields of `Capture`; `zip` ends with the shortest, since `repeat` has no end.
    columns = _Columns(encoded)
    none = [None] * len(encoded)
    kinds = columns.read("kind", 0)
    state = replace(cursor, row=None) if isinstance(cursor, StateCursor) else None
    ordinals = columns.read("ordinal", 0)
    changed = columns.read("changed", None)
    return tuple(
        map(
            _new,
            repeat(Capture),
            zip(
                repeat(catalog_uuid),
                columns.read("version", 0),
                columns.read("index", 0),
                ordinals,
                columns.read("commit_timestamp", 0),
                map(_AREAS.__getitem__, columns.read("area", 0)),
                map(_OPERATIONS.__getitem__, columns.read("operation", 0)),
                columns.read("entity_type", None),
                columns.read("primary_key", None),
                # Most captures have one of few lists of changed columns: parse each distinct list once.
                map({each: _names(each) for each in {*changed}}.__getitem__, changed),
                *(_containers(columns, ordinals) if any(ordinals) else (none, none)),
                *(
                    _present(columns.read(name, None)) if flag in content else none
                    for flag, name in _BODY_NAMES.items()
                ),
                columns.read("omitted_bytes", 0),
                repeat(None),
                map(_KINDS.__getitem__, kinds),
                [state if kind == CaptureKind.STATE else None for kind in kinds],
                map(_TRANSITIONS.__getitem__, columns.read("transition", 0)),
                strict=False,
            ),
        )
    )


class _Columns:
    """The fields of several captures, each as a list of its values."""

    __slots__ = ("_captures", "_encoded", "_fields", "_with_gaps")

    def __init__(self, encoded: Sequence[bytes]) -> None:
        """Parse captures; raise TransportError if one is invalid."""
        self._encoded = encoded
        self._captures: list[CaptureFields] = []
        self._with_gaps: CaptureFields | None = None
        self._fields = parsed(CaptureFields, _BORDER.join((*encoded, b"")))
        # A border follows each capture. A truncated capture would swallow the border after it.
        if len(self._fields.border) != len(encoded):
            raise TransportError("not a message of this protocol: a capture is truncated")

    def read(self, name: str, absent: Any) -> Sequence[Any]:
        """Return the values of a field, one for each capture; ``absent`` for captures without the field."""
        found: Sequence[Any] = getattr(self._fields, name)[:]
        if len(found) == len(self._encoded):
            return found
        if not found:
            return [absent] * len(self._encoded)
        # Only some captures have the field, and the list does not show which. For bytes and texts, parse again
        # with an empty value after each capture, which separates them. Numbers and empty values cannot be
        # separated like that.
        if isinstance(found[0], int) or not all(found):
            return self._one_by_one(name, absent)
        if self._with_gaps is None:
            self._with_gaps = parsed(CaptureFields, _GAP.join((*self._encoded, b"")))
        values = []
        value = absent
        for item in getattr(self._with_gaps, name):
            if item:
                value = item
            else:  # the gap after a capture
                values.append(value)
                value = absent
        return values

    def _one_by_one(self, name: str, absent: Any) -> Sequence[Any]:
        if not self._captures:
            self._captures = [*map(CaptureFields.FromString, self._encoded)]
        found = map(attrgetter(name), self._captures)
        return [values[-1] if values else absent for values in found]


def _containers(columns: _Columns, ordinals: Sequence[int]) -> Iterable[Sequence[object]]:
    """Return two lists, the column type and the column name of each capture; None for entity-level captures."""
    roles = map(_CONTAINER_TYPES.__getitem__, columns.read("container_type", 0))
    for column in (roles, columns.read("container_name", "")):
        yield [each if ordinal else None for each, ordinal in zip(column, ordinals, strict=True)]


def _names(changed: bytes | None) -> tuple[str, ...] | None:
    return None if changed is None else tuple(parsed(capture_pb2.ChangedColumns, changed).names)


def _present(bodies: Sequence[bytes | None]) -> Sequence[bytes | None]:
    """Return bodies with None for absent ones, which the parser returns as empty; no body is empty."""
    return bodies if all(bodies) else [body or None for body in bodies]


def acknowledgement(message: change_capture_pb2.Acknowledgement) -> Acknowledgement:
    """Convert the acknowledgement of a subscription."""
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
        catch_up=CatchUp(message.catch_up or CatchUp.ALL),
        overrun_policy=OverrunPolicy(message.overrun_policy or OverrunPolicy.RESYNC),
        unknown_names=tuple(message.unknown_names),
        unknown_changes=tuple(message.unknown_changes),
        effective_criteria=criteria_of(message.effective_criteria),
        name=message.name,
        epoch=message.epoch,
        state_version=message.state_version if message.HasField("state_version") else None,
        where_version=message.where_version if message.HasField("where_version") else None,
    )


def heartbeat(message: change_capture_pb2.Heartbeat) -> Heartbeat:
    """Convert a heartbeat."""
    return Heartbeat(
        published=message.published_version,
        cursor=Cursor.parse(message.resume_cursor),
        records_scanned=message.records_scanned,
        records_matched=message.records_matched,
        next_within_s=message.next_within_ms / 1000,
        expires_in_s=message.expires_in_ms / 1000 if message.HasField("expires_in_ms") else None,
        lost_in_s=message.lost_in_ms / 1000 if message.HasField("lost_in_ms") else None,
        lost_in_bytes=message.lost_in_bytes if message.HasField("lost_in_bytes") else None,
    )


def state_complete(message: change_capture_pb2.StateComplete) -> StateComplete:
    """Convert the mark that a state is complete."""
    return StateComplete(message.version, Cursor.parse(message.resume_cursor))


def schema(message: catalog_pb2.GetSchemaResponse) -> Schema:
    """Convert a schema."""
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
        placeholders=tuple(message.placeholders),
    )


def schema_span(message: catalog_pb2.GetSchemaResponse) -> SchemaSpan:
    """Convert a schema and the versions that have it."""
    return SchemaSpan(
        UUID(message.catalog_uuid), schema(message), message.since_version, message.until_version
    )


def criteria_messages(criteria: Iterable[Criteria]) -> list[capture_pb2.Criteria]:
    """Convert criteria to messages."""
    return [
        capture_pb2.Criteria(
            area=cast("capture_pb2.Area.ValueType", one.area),
            entity_type=one.entity_type,
            primary_key=one.primary_key,
            operation=cast("list[capture_pb2.Operation.ValueType]", one.operation),
            container_type=cast("list[capture_pb2.ContainerType.ValueType]", one.container_type),
            container_name=one.container_name,
            **where_fields(read_where(one.where)),
            where_parameter=[f"{name}={value}" for name, value in parameter_texts(one.parameters)],
            where_version=one.where_version,
        )
        for one in criteria
    ]


def condition_members(criteria: capture_pb2.Criteria) -> dict[str, Any]:
    """Return the condition of a criteria message, by the field names of `Criteria`.

    Raises:
        InvalidRequest: A parameter is invalid, or the version is negative.
    """
    version = criteria.where_version if criteria.HasField("where_version") else None
    if version is not None and version < 0:
        raise InvalidRequest(f"criteria.where_version {version}: must not be negative")
    return {
        "where": where_of(criteria),
        "parameters": parameters_in(criteria.where_parameter),
        "where_version": version,
    }


def has_condition(criteria: capture_pb2.Criteria) -> bool:
    """Return True if a criteria message has a condition on rows."""
    return criteria.HasField("where") or criteria.HasField("where_tree")


def criteria_of(messages: Iterable[capture_pb2.Criteria]) -> tuple[Criteria, ...]:
    """Convert criteria messages of a server's answer."""
    return tuple(
        Criteria(
            area=Area(one.area) if one.area else None,
            entity_type=tuple(one.entity_type),
            primary_key=tuple(one.primary_key),
            operation=tuple(map(Operation, one.operation)),
            container_type=tuple(map(ContainerType, one.container_type)),
            container_name=tuple(one.container_name),
            **condition_members(one),
        )
        for one in messages
    )


def body_numbers(content: Content) -> Sequence[capture_pb2.Body.ValueType]:
    """Convert a content to the bodies of a request."""
    if content is Content.BODY:
        return (capture_pb2.BODY_ALL,)
    return tuple(number for flag, number in _BODIES if flag & content)


def content_of(numbers: Iterable[capture_pb2.Body.ValueType]) -> Content:
    """Convert the bodies of a request to a content."""
    numbers = {*numbers}
    if capture_pb2.BODY_ALL in numbers:
        return Content.BODY
    found = Content.HEADER
    for flag, number in _BODIES:
        if number in numbers:
            found |= flag
    return found


def set_start(request: _Request, start: Beginning | None) -> None:
    """Write a start, or the lower bound of a read, into a request; None leaves it out.

    Raises:
        ValueError: The request cannot begin with a state.
    """
    match start:
        case FromState(after):
            if not isinstance(request, change_capture_pb2.SubscribeRequest):
                raise ValueError("only a subscription to a catalog begins with its state")
            request.initial = change_capture_pb2.INITIAL_STATE
            if after is not None:
                request.after = str(after)
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
