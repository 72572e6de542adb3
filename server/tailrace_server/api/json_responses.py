"""JSON objects of the REST face: everything except captures, which are encoded already.

Names are those of proto/tailrace/v1 in protobuf's JSON form; docs/rest.md shows each object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace_server.rows.criteria_form import where_form

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.capture import Heartbeat, StateComplete
    from tailrace.criteria import Criteria
    from tailrace.cursor import Cursor
    from tailrace.position import Position
    from tailrace_server.catalogs.catalog_info import CatalogInfo
    from tailrace_server.live.options import SubscribeAcknowledgement
    from tailrace_server.log_cache.frames import Frames
    from tailrace_server.reads.history import HistoryRead
    from tailrace_server.reads.state import StateRead
    from tailrace_server.wal.state.view import LogView


def acknowledgement(
    value: SubscribeAcknowledgement, *, send_deadline_s: float, request_bytes: int
) -> dict[str, Any]:
    """Return an acknowledgement; it has name and epoch only for a named subscription."""
    named = {"name": value.name, "epoch": value.epoch} if value.name else {}
    return {
        "subscriptionId": value.subscription_id,
        "catalog": value.catalog,
        "catalogUuid": str(value.catalog_uuid),
        "start": position(value.start),
        "resumeCursor": str(value.resume_cursor),
        "publishedVersion": value.published,
        "heartbeatIntervalMs": milliseconds(value.heartbeat_interval_s),
        "catchUp": value.catch_up.name,
        "overrunPolicy": value.overrun_policy.name,
        "limits": {
            "queueCaptures": value.queue_captures,
            "messageBytes": value.message_bytes,
            "maxMessageBytes": value.max_message_bytes,
            "sendDeadlineMs": milliseconds(send_deadline_s),
            "requestBytes": request_bytes,
        },
        "unknownNames": list(value.unknown_names),
        "unknownChanges": list(value.unknown_changes),
        "effectiveCriteria": criteria(value.effective_criteria),
        **named,
        **({} if value.state_version is None else {"stateVersion": value.state_version}),
        **({} if value.where_version is None else {"whereVersion": value.where_version}),
    }


def criteria(values: Sequence[Criteria]) -> list[dict[str, Any]]:
    """Return criteria in the form of requests."""
    return [
        {name: value for name, value in _criteria_members(each).items() if value} for each in values
    ]


def _criteria_members(value: Criteria) -> dict[str, Any]:
    return {
        "area": None if value.area is None else value.area.name,
        "entityType": list(value.entity_type),
        "primaryKey": list(value.primary_key),
        "operation": [each.name for each in value.operation],
        "containerType": [each.name for each in value.container_type],
        "containerName": list(value.container_name),
        **where_form(value),
    }


def heartbeat(value: Heartbeat) -> dict[str, Any]:
    """Return a heartbeat; it has ``expiresInMs``, ``lostInMs`` and ``lostInBytes`` only if they are known."""
    expires = {}
    if value.expires_in_s is not None:
        expires = {"expiresInMs": milliseconds(value.expires_in_s)}
    if value.lost_in_s is not None:
        expires["lostInMs"] = round(value.lost_in_s * 1000)
    if value.lost_in_bytes is not None:
        expires["lostInBytes"] = value.lost_in_bytes
    return expires | {
        "publishedVersion": value.published,
        "resumeCursor": str(value.cursor),
        "recordsScanned": value.records_scanned,
        "recordsMatched": value.records_matched,
        "nextWithinMs": milliseconds(value.next_within_s),
    }


def state_complete(value: StateComplete) -> dict[str, Any]:
    """Return the message after the last row of a state."""
    return {"version": value.version, "resumeCursor": str(value.cursor)}


def after_captures(frames: Frames, cursor: Cursor) -> bytes:
    """Return the end of a ``next`` payload: cursor and position of its last capture."""
    version, index, ordinal = frames.last
    return b'],"cursor":"%s","position":{"version":%d,"index":%d,"ordinal":%d}}' % (
        str(cursor).encode(),
        version,
        index,
        ordinal,
    )


def history_header(history: HistoryRead, *, catalog: str) -> dict[str, Any]:
    """Return the header of a read of history."""
    return {
        "catalog": catalog,
        "catalogUuid": str(history.catalog_uuid),
        "anchor": history.anchor,
        "closedUntil": history.closed_until,
        "oldest": position(history.oldest),
        "truncated": history.truncated,
        "unknownChanges": list(history.unknown_changes),
        "effectiveCriteria": criteria(history.use.effective),
    }


def state_header(read: StateRead, *, catalog: str) -> dict[str, Any]:
    """Return the header of a read of state."""
    return {
        "catalog": catalog,
        "catalogUuid": str(read.catalog_uuid),
        "entityType": read.entity_type,
        "version": read.version,
        "commitTimestamp": read.commit_timestamp,
        "resumeCursor": str(read.cursor),
        "column": list(read.columns),
    }


def catalog(info: CatalogInfo) -> dict[str, Any]:
    """Return the current figures of a catalog."""
    return {
        "name": info.name,
        "uuid": str(info.uuid),
        "oldest": position(info.oldest),
        "publishedVersion": info.published,
        "committedVersion": info.committed,
        "newestTimestamp": info.newest_timestamp,
    }


def schema(view: LogView, version: int) -> dict[str, Any]:
    """Return the entity types and columns of a published version."""
    value = view.schema_of(version)
    since, until = view.schema_span(version)
    return {
        "catalog": view.name,
        "catalogUuid": str(view.uuid),
        "schemaId": value.id,
        "sinceVersion": since,
        "untilVersion": until,
        "placeholders": list(value.placeholders),
        "entityTypes": [
            {
                "name": name,
                "columns": [
                    {
                        "name": column.name,
                        "role": column.role.name,
                        "sqlType": column.sql_type,
                        "encoding": column.encoding,
                        "inferred": column.inferred,
                        "nullable": column.nullable,
                        "key": column.key,
                        "origin": column.origin.value,
                        "id": column.id,
                        "dropped": column.dropped,
                    }
                    for column in columns
                ],
            }
            for name, columns in value.entity_types.items()
        ],
    }


def position(value: Position) -> dict[str, int]:
    """Return the position of a record."""
    return {"version": value.version, "index": value.index}


def milliseconds(seconds: float) -> int:
    """Return a duration in whole milliseconds, at least one."""
    return max(1, round(seconds * 1000))
