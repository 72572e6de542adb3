"""Messages of gRPC: request bytes become messages, and values become response bytes.

Captures come from the engine as bytes already. An unknown field or enum value is refused with its name, never
ignored: an old server that ignored a new criterion would send too much, and a new server that ignored an old
field too little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from tailrace.errors import InvalidRequest, Unsupported
from tailrace.v1 import (
    capture_pb2,
    catalog_pb2,
    change_capture_pb2,
    named_subscription_pb2,
    sql_pb2,
)
from tailrace.v1.capture_pb2 import Condition
from tailrace.v1.change_capture_pb2 import ReadChangesResponse, ReadStateResponse, SubscribeResponse
from tailrace.wire import criteria_messages
from tailrace_server.api.requests import refuse_excess, refuse_many_keys
from tailrace_server.reads.sql_request import SqlForm

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tailrace.capture import Heartbeat, StateComplete
    from tailrace.cursor import Cursor
    from tailrace.position import Position
    from tailrace_server.catalogs.catalog_info import CatalogInfo
    from tailrace_server.live.options import SubscribeAcknowledgement
    from tailrace_server.log_cache.frames import Frames
    from tailrace_server.named.requests import NamedView
    from tailrace_server.reads.history import HistoryRead
    from tailrace_server.reads.sql_forms import AnswerColumn
    from tailrace_server.reads.sql_read import SqlRead
    from tailrace_server.reads.state import StateRead
    from tailrace_server.reads.state_place import StatePage
    from tailrace_server.wal.state.view import LogView


_Request = TypeVar("_Request", bound=Message)


def parse(kind: type[_Request], data: bytes, *, criteria_max: int) -> _Request:
    """Return a request message from its bytes.

    Raises:
        InvalidRequest: The bytes are no such message, or there are too many criteria or keys.
        Unsupported: The server does not know a field or enum value; the error names it.
    """
    try:
        request = kind.FromString(data)
    except DecodeError as error:
        raise InvalidRequest(f"not a {kind.DESCRIPTOR.full_name}: {error}") from error
    _refuse_unknown(request, "", criteria_max)
    refuse_many_keys(request)
    return request


def _refuse_unknown(message: Message, path: str, criteria_max: int) -> None:
    unknown_fields: Iterable[Any] = UnknownFieldSet(message)  # type: ignore[assignment]  # a sequence
    for unknown in unknown_fields:
        kind = message.DESCRIPTOR.name
        raise Unsupported(
            f"{path}field {unknown.field_number}", f"this server does not know the field in {kind}"
        )
    for field, value in message.ListFields():
        if field.message_type is Condition.DESCRIPTOR:
            continue  # it may have thousands of messages; they are checked when it is read, in a thread
        values = value if field.is_repeated else (value,)
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            if field.name == "criteria":
                # Before the criteria are visited: there may be very many.
                refuse_excess(len(values), criteria_max)
            for place, part in enumerate(values):
                at = f"[{place}]" if field.is_repeated else ""
                _refuse_unknown(part, f"{path}{field.name}{at}.", criteria_max)
        elif field.type == FieldDescriptor.TYPE_ENUM:
            assert field.enum_type is not None
            known = field.enum_type.values_by_number
            for number in values:
                if number not in known:
                    raise Unsupported(
                        f"{path}{field.name}",
                        f"this server does not know value {number} of {field.enum_type.name}",
                    )


def acknowledgement(
    value: SubscribeAcknowledgement, *, send_deadline_s: float, request_bytes: int
) -> bytes:
    """Return the first message of a subscription."""
    message = change_capture_pb2.Acknowledgement(
        subscription_id=value.subscription_id,
        catalog=value.catalog,
        catalog_uuid=str(value.catalog_uuid),
        start=_position(value.start),
        resume_cursor=str(value.resume_cursor),
        published_version=value.published,
        heartbeat_interval_ms=milliseconds(value.heartbeat_interval_s),
        catch_up=change_capture_pb2.CatchUp.ValueType(value.catch_up),
        overrun_policy=change_capture_pb2.OverrunPolicy.ValueType(value.overrun_policy),
        limits=change_capture_pb2.Limits(
            queue_captures=value.queue_captures,
            message_bytes=value.message_bytes,
            max_message_bytes=value.max_message_bytes,
            send_deadline_ms=milliseconds(send_deadline_s),
            request_bytes=request_bytes,
        ),
        unknown_names=value.unknown_names,
        unknown_changes=value.unknown_changes,
        effective_criteria=criteria_messages(value.effective_criteria),
        name=value.name or None,
        epoch=value.epoch or None,
        state_version=value.state_version,
        where_version=value.where_version,
    )
    return SubscribeResponse(acknowledgement=message).SerializeToString()


def heartbeat(value: Heartbeat) -> bytes:
    """Return a heartbeat message."""
    message = change_capture_pb2.Heartbeat(
        published_version=value.published,
        resume_cursor=str(value.cursor),
        records_scanned=value.records_scanned,
        records_matched=value.records_matched,
        next_within_ms=milliseconds(value.next_within_s),
        expires_in_ms=(None if value.expires_in_s is None else milliseconds(value.expires_in_s)),
        lost_in_ms=None if value.lost_in_s is None else round(value.lost_in_s * 1000),
        lost_in_bytes=value.lost_in_bytes,
    )
    return SubscribeResponse(heartbeat=message).SerializeToString()


def state_complete(value: StateComplete) -> bytes:
    """Return the message after the last row of a state."""
    message = change_capture_pb2.StateComplete(
        version=value.version, resume_cursor=str(value.cursor)
    )
    return SubscribeResponse(state_complete=message).SerializeToString()


def history_header(history: HistoryRead, *, catalog: str) -> bytes:
    """Return the first message of a read of history."""
    message = change_capture_pb2.HistoryHeader(
        catalog=catalog,
        catalog_uuid=str(history.catalog_uuid),
        anchor=history.anchor,
        closed_until=history.closed_until,
        oldest=_position(history.oldest),
        truncated=history.truncated,
        unknown_changes=history.unknown_changes,
        effective_criteria=criteria_messages(history.use.effective),
    )
    return ReadChangesResponse(header=message).SerializeToString()


def history_end(*, next_cursor: Cursor | None, captures: int) -> bytes:
    """Return the last message of a read of history; a cursor means that another page follows."""
    message = change_capture_pb2.HistoryEnd(
        has_next=next_cursor is not None,
        next_cursor="" if next_cursor is None else str(next_cursor),
        captures=captures,
    )
    return ReadChangesResponse(end=message).SerializeToString()


def state_header(read: StateRead, *, catalog: str) -> bytes:
    """Return the first message of a read of state."""
    message = change_capture_pb2.StateHeader(
        catalog=catalog,
        catalog_uuid=str(read.catalog_uuid),
        entity_type=read.entity_type,
        version=read.version,
        commit_timestamp=read.commit_timestamp,
        resume_cursor=str(read.cursor),
        column=read.columns,
    )
    return ReadStateResponse(header=message).SerializeToString()


def state_end(*, next_page: StatePage | None, rows: int) -> bytes:
    """Return the last message of a read of state."""
    page = "" if next_page is None else str(next_page)
    message = change_capture_pb2.StateEnd(next_page=page, rows=rows)
    return ReadStateResponse(end=message).SerializeToString()


def sql_header(read: SqlRead, *, catalog: str) -> bytes:
    """Return the first message of an answer to SQL."""
    message = sql_pb2.SqlHeader(
        catalog=catalog,
        catalog_uuid=str(read.catalog_uuid),
        version=read.version,
        commit_timestamp=read.commit_timestamp,
        closed_until=read.closed_until,
        resume_cursor=str(read.cursor),
        since_version=read.since_version,
        columns=map(_sql_column, read.columns),
    )
    return sql_pb2.QuerySqlResponse(header=message).SerializeToString()


def _sql_column(column: AnswerColumn) -> sql_pb2.SqlColumn:
    members = map(_sql_column, column.members)
    return sql_pb2.SqlColumn(name=column.name, type=column.type, members=members)


def sql_rows(form: SqlForm, frames: Frames) -> bytes:
    """Return a message with rows of an answer to SQL."""
    if form is SqlForm.ARROW:
        return sql_pb2.QuerySqlResponse(arrow=frames.data).SerializeToString()
    return sql_pb2.QuerySqlResponse(rows=frames.data).SerializeToString()


def sql_end(*, rows: int) -> bytes:
    """Return the last message of an answer to SQL."""
    return sql_pb2.QuerySqlResponse(end=sql_pb2.SqlEnd(rows=rows)).SerializeToString()


def named_subscription(value: NamedView) -> named_subscription_pb2.NamedSubscription:
    """Return a named subscription."""
    document, hold = value.document, value.hold
    return named_subscription_pb2.NamedSubscription(
        catalog=value.catalog,
        name=value.name,
        criteria=criteria_messages(value.criteria),
        cursor=document.cursor,
        needed=_position(hold.needed),
        epoch=document.epoch,
        reader=document.reader,
        hold_ms=document.hold_us // 1000,
        hold_bytes=document.hold_bytes,
        age_ms=hold.age_us // 1000,
        behind_bytes=hold.bytes,
        health=named_subscription_pb2.SubscriptionHealth.ValueType(value.health),
        paused=document.paused,
        owner=document.owner,
        created=document.created,
        moved=document.moved,
    )


def without_bodies(data: bytes) -> bytes:
    """Return a message of one capture without its bodies, with the number of omitted bytes."""
    message = ReadChangesResponse.FromString(data)
    (capture,) = message.captures
    capture.omitted_bytes = len(capture.change) + len(capture.before) + len(capture.after)
    for name in ("change", "before", "after"):
        capture.ClearField(name)
    return message.SerializeToString()


def catalogs(infos: Iterable[CatalogInfo], unreadable: Mapping[str, str]) -> bytes:
    """Return the list of catalogs, and the reasons why other catalogs cannot be read."""
    return catalog_pb2.ListCatalogsResponse(
        catalogs=[
            catalog_pb2.Catalog(
                name=info.name,
                uuid=str(info.uuid),
                oldest=_position(info.oldest),
                published_version=info.published,
                committed_version=info.committed,
                newest_timestamp=info.newest_timestamp,
            )
            for info in infos
        ],
        unreadable=unreadable,
    ).SerializeToString()


def schema(view: LogView, version: int) -> bytes:
    """Return the schema of a published version."""
    value = view.schema_of(version)
    since, until = view.schema_span(version)
    return catalog_pb2.GetSchemaResponse(
        catalog=view.name,
        catalog_uuid=str(view.uuid),
        schema_id=value.id,
        since_version=since,
        until_version=until,
        placeholders=value.placeholders,
        entity_types=[
            catalog_pb2.EntityType(
                name=name,
                columns=[
                    catalog_pb2.Column(
                        name=column.name,
                        role=capture_pb2.ContainerType.ValueType(column.role),
                        sql_type=column.sql_type or "",
                        encoding=column.encoding,
                        inferred=column.inferred,
                        nullable=column.nullable,
                        key=column.key,
                        origin=column.origin.value,
                        id=column.id,
                        dropped=column.dropped,
                    )
                    for column in columns
                ],
            )
            for name, columns in sorted(value.entity_types.items())
        ],
    ).SerializeToString()


def milliseconds(seconds: float) -> int:
    """Return a duration in whole milliseconds, at least one."""
    return max(1, round(seconds * 1000))


def _position(position: Position) -> capture_pb2.Position:
    return capture_pb2.Position(version=position.version, index=position.index)
