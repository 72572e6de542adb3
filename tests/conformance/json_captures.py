"""From the JSON form of a capture to the value, bodies byte for byte: what the JSON drivers read with."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import msgspec

import tailrace
from tailrace.capture import Capture, Heartbeat, StateComplete
from tailrace.criteria import (
    Area,
    CaptureKind,
    CatchUp,
    ContainerType,
    Content,
    Criteria,
    Operation,
    OverrunPolicy,
    Transition,
)
from tailrace.cursor import StateCursor
from tailrace.position import Position, TimestampMicros
from tailrace.transport.grpc_status import rebuild

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.errors import TailraceError

_NULL: Final = b"null"
_NO_BODY: Final = msgspec.Raw(_NULL)


class _Capture(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    index: int
    ordinal: int
    cursor: str
    commitTimestamp: int
    area: str
    operation: str
    entityType: str | None
    primaryKey: str | None
    changed: tuple[str, ...] | None
    kind: str = "CHANGE"
    transition: str | None = None
    containerType: str | None = None
    containerName: str | None = None
    change: msgspec.Raw = _NO_BODY
    before: msgspec.Raw = _NO_BODY
    after: msgspec.Raw = _NO_BODY
    omittedBytes: int = 0


def captures(data: bytes | msgspec.Raw) -> tuple[Capture, ...]:
    """Return the captures of a JSON array."""
    return tuple(map(_capture, msgspec.json.decode(data, type=list[_Capture])))


def capture(data: bytes) -> Capture:
    """Return the capture of one JSON object."""
    return _capture(msgspec.json.decode(data, type=_Capture))


def _capture(each: _Capture) -> Capture:
    cursor = tailrace.Cursor.parse(each.cursor)
    state = replace(cursor, row=None) if isinstance(cursor, StateCursor) else None
    found = Capture(
        catalog_uuid=cursor.catalog_uuid,
        version=each.version,
        index=each.index,
        ordinal=each.ordinal,
        commit_timestamp=TimestampMicros(each.commitTimestamp),
        area=Area[each.area],
        operation=Operation[each.operation],
        entity_type=each.entityType,
        primary_key=each.primaryKey,
        changed=each.changed,
        container_type=None if each.containerType is None else ContainerType[each.containerType],
        container_name=each.containerName,
        change=_body(each.change),
        before=_body(each.before),
        after=_body(each.after),
        omitted_bytes=each.omittedBytes,
        kind=CaptureKind[each.kind],
        state=state,
        transition=None if each.transition is None else Transition[each.transition],
    )
    assert str(found.cursor) == each.cursor
    return found


def _body(raw: msgspec.Raw) -> bytes | None:
    data = bytes(raw)
    return None if data == _NULL else data


def heartbeat(value: dict[str, Any]) -> Heartbeat:
    """Return a heartbeat."""
    return Heartbeat(
        published=value["publishedVersion"],
        cursor=tailrace.Cursor.parse(value["resumeCursor"]),
        records_scanned=value["recordsScanned"],
        records_matched=value["recordsMatched"],
        next_within_s=value["nextWithinMs"] / 1000,
    )


def state_complete(value: dict[str, Any]) -> StateComplete:
    """Return that a state is complete."""
    return StateComplete(value["version"], tailrace.Cursor.parse(value["resumeCursor"]))


class JsonAcknowledgement:
    """The payload of ``subscribed``."""

    def __init__(self, value: dict[str, Any]) -> None:
        self.subscription_id: str = value["subscriptionId"]
        self.resume_cursor = tailrace.Cursor.parse(value["resumeCursor"])
        self.catalog_uuid = self.resume_cursor.catalog_uuid
        assert str(self.catalog_uuid) == value["catalogUuid"]
        self.start = Position(**value["start"])
        self.published: int = value["publishedVersion"]
        self.heartbeat_interval_s: float = value["heartbeatIntervalMs"] / 1000
        self.catch_up = CatchUp[value["catchUp"]]
        self.overrun_policy = OverrunPolicy[value["overrunPolicy"]]
        self.unknown_names: tuple[str, ...] = tuple(value["unknownNames"])
        self.unknown_changes: tuple[str, ...] = tuple(value["unknownChanges"])
        self.state_version: int | None = value.get("stateVersion")


def error(problem: dict[str, Any]) -> TailraceError:
    """Return the error that a Problem Details object names."""
    found = rebuild(problem["code"], problem["detail"], problem["figures"])
    assert found is not None
    assert found.retriable == problem["retriable"]
    return found


def criteria(alternatives: tuple[Criteria, ...]) -> list[dict[str, Any]]:
    """Return criteria in the JSON form."""
    out = []
    for one in alternatives:
        value: dict[str, Any] = {
            "entityType": one.entity_type,
            "primaryKey": one.primary_key,
            "operation": [each.name for each in one.operation],
            "containerType": [each.name for each in one.container_type],
            "containerName": one.container_name,
        }
        if one.area is not None:
            value["area"] = one.area.name
        if isinstance(one.where, str):
            value["where"] = one.where
            value["whereVersion"] = one.where_version
        out.append({name: part for name, part in value.items() if part})
    return out


def bodies(content: Content) -> list[str]:
    """Return the names of bodies."""
    flags = (Content.CHANGE, Content.BEFORE, Content.AFTER)
    return [str(flag.name).lower() for flag in flags if flag in content]


def start(value: tailrace.criteria.Beginning | None) -> dict[str, Any]:
    """Return the members that name a start."""
    match value:
        case None:
            return {}
        case tailrace.FromState(None):
            return {"initial": "STATE"}
        case tailrace.FromState(cursor):
            return {"initial": "STATE", "after": str(cursor)}
        case tailrace.Since(position) if position.index:
            return {"sinceVersion": position.version, "sinceIndex": position.index}
        case tailrace.Since(position):
            return {"sinceVersion": position.version}
        case tailrace.After(cursor, None):
            return {"after": str(cursor)}
        case tailrace.After(cursor, from_time):
            return {"after": str(cursor), "fromTime": from_time}
        case tailrace.FromTime(timestamp):
            return {"fromTime": timestamp}


def members(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of a request by their JSON names, enums by their plain names."""
    return {
        camel(name): value.name if isinstance(value, Enum) else value
        for name, value in asked.items()
    }


def camel(name: str) -> str:
    """Return protobuf's JSON name of a field."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)
