"""Answers of all faces other than captures: values become messages of proto/tailrace/v1, and these JSON.

gRPC sends the messages. The JSON faces send the same fields in protobuf's JSON names, with 64-bit numbers as
numbers and enum values without their prefix; docs/rest.md shows each object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from google.protobuf.descriptor import FieldDescriptor

from tailrace.conditions import ConditionTree
from tailrace.v1 import (
    capture_pb2,
    catalog_pb2,
    change_capture_pb2,
    named_subscription_pb2,
    sql_pb2,
)
from tailrace.v1.capture_pb2 import Condition
from tailrace.wire import criteria_messages
from tailrace_server.api.json_requests import enum_names

if TYPE_CHECKING:
    from google.protobuf.message import Message

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
    from tailrace_server.wal.state.view import LogView


_LEFT_OUT: Final = frozenset(
    {
        *(field.full_name for field in capture_pb2.Criteria.DESCRIPTOR.fields),
        "tailrace.v1.Acknowledgement.features",
        "tailrace.v1.SqlColumn.members",
    }
)
"""Fields that JSON leaves out while they are empty."""
_NULLABLE: Final = "tailrace.v1.Column.sql_type"
"""The text field whose empty value is null in JSON."""


def as_json(message: Message) -> dict[str, Any]:
    """Return an answer as the members of a JSON object; absent fields are left out."""
    found = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        value: Any = getattr(message, field.name)
        if field.is_repeated:
            is_plain = field.type == FieldDescriptor.TYPE_STRING
            value = [*value] if is_plain else [_member(field, each) for each in value]
        else:
            value = _member(field, value)
        if value or field.full_name not in _LEFT_OUT:
            found[field.json_name] = value
    return found


def _member(field: Any, value: Any) -> Any:
    if isinstance(value, Condition):
        return ConditionTree.of_message(value).form
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return as_json(value)
    if field.enum_type is not None:
        names = enum_names(field.enum_type).items()
        return next((name for name, number in names if number == value), None)
    return value or None if field.full_name == _NULLABLE else value


def acknowledgement(
    value: SubscribeAcknowledgement, *, send_deadline_s: float, request_bytes: int
) -> change_capture_pb2.Acknowledgement:
    """Return the first message of a subscription."""
    return change_capture_pb2.Acknowledgement(
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


def heartbeat(value: Heartbeat) -> change_capture_pb2.Heartbeat:
    """Return a heartbeat; a time or size that is unknown is absent."""
    return change_capture_pb2.Heartbeat(
        published_version=value.published,
        resume_cursor=str(value.cursor),
        records_scanned=value.records_scanned,
        records_matched=value.records_matched,
        next_within_ms=milliseconds(value.next_within_s),
        expires_in_ms=(None if value.expires_in_s is None else milliseconds(value.expires_in_s)),
        lost_in_ms=None if value.lost_in_s is None else round(value.lost_in_s * 1000),
        lost_in_bytes=value.lost_in_bytes,
    )


def state_complete(value: StateComplete) -> change_capture_pb2.StateComplete:
    """Return the message after the last row of a state."""
    return change_capture_pb2.StateComplete(version=value.version, resume_cursor=str(value.cursor))


def after_captures(frames: Frames, cursor: Cursor) -> bytes:
    """Return the end of a ``next`` payload: cursor and position of its last capture."""
    version, index, ordinal = frames.last
    return b'],"cursor":"%s","position":{"version":%d,"index":%d,"ordinal":%d}}' % (
        str(cursor).encode(),
        version,
        index,
        ordinal,
    )


def history_header(history: HistoryRead, *, catalog: str) -> change_capture_pb2.HistoryHeader:
    """Return the header of a read of history."""
    return change_capture_pb2.HistoryHeader(
        catalog=catalog,
        catalog_uuid=str(history.catalog_uuid),
        anchor=history.anchor,
        closed_until=history.closed_until,
        oldest=_position(history.oldest),
        truncated=history.truncated,
        unknown_changes=history.unknown_changes,
        effective_criteria=criteria_messages(history.use.effective),
    )


def state_header(read: StateRead, *, catalog: str) -> change_capture_pb2.StateHeader:
    """Return the header of a read of state."""
    return change_capture_pb2.StateHeader(
        catalog=catalog,
        catalog_uuid=str(read.catalog_uuid),
        entity_type=read.entity_type,
        version=read.version,
        commit_timestamp=read.commit_timestamp,
        resume_cursor=str(read.cursor),
        column=read.columns,
    )


def sql_header(read: SqlRead, *, catalog: str) -> sql_pb2.SqlHeader:
    """Return the header of an answer to SQL."""
    return sql_pb2.SqlHeader(
        catalog=catalog,
        catalog_uuid=str(read.catalog_uuid),
        version=read.version,
        commit_timestamp=read.commit_timestamp,
        closed_until=read.closed_until,
        resume_cursor=str(read.cursor),
        since_version=read.since_version,
        columns=map(_sql_column, read.columns),
    )


def _sql_column(column: AnswerColumn) -> sql_pb2.SqlColumn:
    members = map(_sql_column, column.members)
    return sql_pb2.SqlColumn(name=column.name, type=column.type, members=members)


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


def catalog(info: CatalogInfo) -> catalog_pb2.Catalog:
    """Return the current figures of a catalog."""
    return catalog_pb2.Catalog(
        name=info.name,
        uuid=str(info.uuid),
        oldest=_position(info.oldest),
        published_version=info.published,
        committed_version=info.committed,
        newest_timestamp=info.newest_timestamp,
    )


def schema(view: LogView, version: int) -> catalog_pb2.GetSchemaResponse:
    """Return the entity types and columns of a published version."""
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
    )


def milliseconds(seconds: float) -> int:
    """Return a duration in whole milliseconds, at least one."""
    return max(1, round(seconds * 1000))


def _position(position: Position) -> capture_pb2.Position:
    return capture_pb2.Position(version=position.version, index=position.index)
