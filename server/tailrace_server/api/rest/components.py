"""The JSON Schemas of all requests and responses of the REST face, as components of the OpenAPI document.

The schemas of requests and headers are generated from the descriptors of proto/tailrace/v1, and error codes
from the error table, so additions there appear here automatically. The schema of a capture is written by hand,
because the engine defines its JSON form (codecs/json.py). Tests check real responses against these schemas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from google.protobuf.descriptor import FieldDescriptor

from tailrace.criteria import Area, ContainerType, Operation, Transition
from tailrace.v1 import (
    capture_pb2,
    catalog_pb2,
    change_capture_pb2,
    named_subscription_pb2,
    sql_pb2,
)
from tailrace_server.api.errors import HTTP_STATUS
from tailrace_server.api.json_requests import ELSEWHERE, enum_names
from tailrace_server.api.rest.forms import BODIES, FORMATS, VALUES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from google.protobuf.descriptor import Descriptor

Schema = dict[str, Any]

CURSOR: Final = (
    r"^1\.[0-9a-f]{32}\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*))?$"
)
_INTEGER: Final[dict[int, Schema]] = {
    FieldDescriptor.TYPE_INT32: {"type": "integer", "format": "int32"},
    FieldDescriptor.TYPE_UINT32: {"type": "integer", "format": "int64", "minimum": 0},
    FieldDescriptor.TYPE_INT64: {"type": "integer", "format": "int64"},
    FieldDescriptor.TYPE_UINT64: {"type": "integer", "format": "int64", "minimum": 0},
}


def schemas(reference: Callable[[str], Schema]) -> dict[str, Schema]:
    """Return all components by name; ``reference`` returns the reference to a component by its name."""
    subscribe = _request(change_capture_pb2.SubscribeRequest.DESCRIPTOR, reference)
    subscribe["properties"]["request"] = {
        **_long(),
        "description": "Captures that may be sent at first, from 0. Absent: as fast as the socket takes them.",
    }
    read = _request(change_capture_pb2.ReadChangesRequest.DESCRIPTOR, reference)
    # Members that exist only in JSON requests, not in the protobuf messages (api/rest/forms.py).
    for each in (subscribe, read):
        each["properties"] |= _form()
    state = _request(change_capture_pb2.ReadStateRequest.DESCRIPTOR, reference)
    state["properties"] |= {name: each for name, each in _form().items() if name != "format"}
    return {
        "Capture": _capture(reference),
        "Body": {
            "type": ["object", "string", "null"],
            "description": "A row, or the columns of it that changed: the source's own text, byte for byte. "
            "Its numbers may exceed what JavaScript holds exactly; `bodies=text` makes a string of it.",
        },
        "Cursor": {
            "type": "string",
            "pattern": CURSOR,
            "description": 'A resume point, exclusive: "strictly after this capture". Opaque to clients.',
        },
        "Position": _response(capture_pb2.Position.DESCRIPTOR, reference),
        "Criteria": _request(capture_pb2.Criteria.DESCRIPTOR, reference),
        "Condition": _request(capture_pb2.Condition.DESCRIPTOR, reference),
        "ConditionValue": _condition_value(reference),
        "Subscribe": subscribe,
        "ReadChanges": read,
        "ReadState": state,
        "QuerySql": _sql(reference),
        "SqlAnswer": _sql_answer(reference),
        "Limits": _response(change_capture_pb2.Limits.DESCRIPTOR, reference),
        "Acknowledgement": _response(change_capture_pb2.Acknowledgement.DESCRIPTOR, reference),
        "Heartbeat": _response(change_capture_pb2.Heartbeat.DESCRIPTOR, reference),
        "Captures": _captures("captures", "Capture", reference),
        "CloudEvent": _cloud_event(reference),
        "CloudEvents": _captures("events", "CloudEvent", reference),
        "Ticket": _object(
            {"ticket": {"type": "string"}, "expiresInMs": {"type": "integer"}},
            required=("ticket", "expiresInMs"),
        ),
        "Session": _object({"expiresInMs": {"type": "integer"}}, required=("expiresInMs",)),
        "Token": _object({"token": {"type": "string"}}, closed=True),
        "Demand": _object({"n": {**_long(), "minimum": 1}}, closed=True),
        "Page": _page(reference),
        "TablePage": _table_page(reference),
        "TableRow": _table_row(reference),
        "Catalog": _response(catalog_pb2.Catalog.DESCRIPTOR, reference),
        "Schema": _response(catalog_pb2.GetSchemaResponse.DESCRIPTOR, reference, nested=True),
        **_named(reference),
        "Error": _error(),
    }


def _condition_value(reference: Callable[[str], Schema]) -> Schema:
    written = _request(capture_pb2.ConditionValue.DESCRIPTOR, reference)
    plain: list[Schema] = [{"type": "string"}, {"type": "integer"}, {"type": "boolean"}]
    return {
        "anyOf": [*plain, written],
        "description": "A text, a whole number, true and false, or an object that says what the value is.",
    }


def _sql(reference: Callable[[str], Schema]) -> Schema:
    """Return the schema of a request with an SQL statement."""
    found = _request(sql_pb2.QuerySqlRequest.DESCRIPTOR, reference)
    del found["properties"]["form"], found["properties"]["parameter"]
    found["properties"]["parameters"] = {
        "type": "object",
        "description": "Values of `$name` in the statement: numbers, texts, truths, null, or lists of them.",
    }
    return {**found, "required": ["statement"]}


def _sql_answer(reference: Callable[[str], Schema]) -> Schema:
    column = {"name": {"type": "string"}, "type": {"type": "string"}}
    return _object(
        {
            "catalog": {"type": "string"},
            "catalogUuid": {"type": "string"},
            "version": _long(),
            "commitTimestamp": _long(),
            "closedUntil": _long(),
            "resumeCursor": reference("Cursor"),
            "columns": {"type": "array", "items": _object(column, required=("name", "type"))},
            "rows": {"type": "array", "items": {"type": "object"}},
            "count": {"type": "integer", "minimum": 0},
            "sinceVersion": _long(),
        },
        required=(
            *("catalog", "catalogUuid", "version", "commitTimestamp", "closedUntil"),
            *("resumeCursor", "columns", "rows", "count"),
        ),
    )


def _named(reference: Callable[[str], Schema]) -> dict[str, Schema]:
    """Return the schemas of the requests and responses of named subscriptions."""
    found = {
        kind: _request(getattr(named_subscription_pb2, f"{kind}Request").DESCRIPTOR, reference)
        for kind in ("CreateSubscription", "ResetSubscription", "Acknowledge")
    }
    for kind in ("ResetSubscription", "Acknowledge"):
        del found[kind]["properties"]["name"]
    one = _response(named_subscription_pb2.NamedSubscription.DESCRIPTOR, reference)
    return {**found, "NamedSubscription": one}


def _capture(reference: Callable[[str], Schema]) -> Schema:
    text_or_null = {"type": ["string", "null"]}
    required: dict[str, Schema] = {
        "version": {**_INTEGER[FieldDescriptor.TYPE_INT64], "minimum": 1},
        "index": {**_INTEGER[FieldDescriptor.TYPE_INT32], "minimum": 0},
        "ordinal": {**_INTEGER[FieldDescriptor.TYPE_INT32], "minimum": 0},
        "cursor": reference("Cursor"),
        "commitTimestamp": {
            **_INTEGER[FieldDescriptor.TYPE_INT64],
            "description": "Microseconds since the Unix epoch; below 2^53 until the year 2255.",
        },
        "area": _one_of(each.name for each in Area),
        "operation": _one_of(each.name for each in Operation),
        "entityType": text_or_null,
        "primaryKey": text_or_null,
        "changed": {"type": ["array", "null"], "items": {"type": "string"}},
    }
    optional: dict[str, Schema] = {
        "transition": _one_of(each.name for each in Transition),
        "containerType": _one_of(each.name for each in ContainerType),
        "containerName": {"type": "string"},
        "change": reference("Body"),
        "before": reference("Body"),
        "after": reference("Body"),
        "omittedBytes": {"type": "integer", "minimum": 1},
    }
    return {
        **_object({**required, **optional}, required=tuple(required)),
        "description": "One change, identified by version, index and ordinal in its catalog. Bodies are "
        "present if requested; container type and name at column level; the transition if the criteria "
        "have a condition.",
    }


def _form() -> dict[str, Schema]:
    return {
        "format": {
            **_one_of(FORMATS),
            "description": "The form of the data: captures, or CloudEvents with captures as data.",
        },
        "bodies": {
            **_one_of(BODIES),
            "description": "The form of bodies: objects, or strings that contain their text.",
        },
        "values": {
            **_one_of(VALUES),
            "description": "The form of values in bodies: as the source wrote them, or decoded by the column's "
            "type and encoding. Decimals that were bytes are then texts of digits; days, times and moments "
            "that were numbers are in ISO 8601.",
        },
    }


def _cloud_event(reference: Callable[[str], Schema]) -> Schema:
    members: dict[str, Schema] = {
        "specversion": {"const": "1.0"},
        "id": reference("Cursor"),
        "source": {"type": "string", "format": "uri", "pattern": "^urn:uuid:"},
        "type": {"type": "string", "pattern": "^tailrace[.][a-z]+[.][a-z]+$"},
        "subject": {"type": "string", "minLength": 1},
        "time": {"type": "string", "format": "date-time"},
        "datacontenttype": {"const": "application/json"},
        "data": reference("Capture"),
    }
    required = tuple(name for name in members if name != "subject")
    return {
        **_object(members, required=required),
        "description": "A capture as the data of a CloudEvent 1.0. The source is the catalog's uuid, the id "
        "the capture's cursor, the subject entity type and primary key.",
    }


def _captures(name: str, item: str, reference: Callable[[str], Schema]) -> Schema:
    position = {name: {"type": "integer"} for name in ("version", "index", "ordinal")}
    members = {
        name: {"type": "array", "items": reference(item), "minItems": 1},
        "cursor": reference("Cursor"),
        "position": _object(position, required=tuple(position)),
    }
    return {
        **_object(members, required=tuple(members)),
        "description": "In rising order; cursor and position are those of the last one.",
    }


def _page(reference: Callable[[str], Schema]) -> Schema:
    header = _response(change_capture_pb2.HistoryHeader.DESCRIPTOR, reference)
    header["properties"] |= {
        "captures": {"type": "array", "items": reference("Capture")},
        "hasNext": {"type": "boolean"},
        "nextCursor": {"oneOf": [reference("Cursor"), {"type": "null"}]},
        "count": {"type": "integer", "minimum": 0},
    }
    header["required"] = list(header["properties"])
    return header


def _table_page(reference: Callable[[str], Schema]) -> Schema:
    header = _response(change_capture_pb2.StateHeader.DESCRIPTOR, reference)
    header["properties"] |= {
        "rows": {"type": "array", "items": reference("Capture")},
        "hasNext": {"type": "boolean"},
        "nextPage": {"type": ["string", "null"]},
        "count": {"type": "integer", "minimum": 0},
    }
    header["required"] = list(header["properties"])
    return {
        **header,
        "description": "A table as of a version: each row is the capture of its last change. A subscription "
        "after `resumeCursor` continues from there.",
    }


def _table_row(reference: Callable[[str], Schema]) -> Schema:
    header = _response(change_capture_pb2.StateHeader.DESCRIPTOR, reference)
    header["properties"]["row"] = reference("Capture")
    header["required"] = list(header["properties"])
    return header


def _error() -> Schema:
    members: dict[str, Schema] = {
        "type": {"type": "string", "format": "uri"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": _one_of(sorted({cls.code for cls in HTTP_STATUS})),
        "retriable": {"type": "boolean"},
        "figures": {"type": "object", "additionalProperties": {"type": "string"}},
    }
    return {
        **_object(members, required=tuple(members)),
        "description": "Problem Details (RFC 9457). `code` is the machine code, the same on every transport; "
        "`retriable` says whether a retry can help; `figures` are the error's values as text.",
    }


def _request(descriptor: Descriptor, reference: Callable[[str], Schema]) -> Schema:
    """Return the schema of a request without its catalog: no other members, 64-bit numbers also as text."""
    members = {}
    for field in descriptor.fields:
        if field.name in ELSEWHERE:
            continue
        one = _field(field, reference)
        # JavaScript cannot represent all 64-bit integers, so requests may send them as decimal text.
        if field.type == FieldDescriptor.TYPE_INT64:
            one = _long()
        members[field.json_name] = {"type": "array", "items": one} if field.is_repeated else one
    return _object(members, closed=True)


def _response(
    descriptor: Descriptor, reference: Callable[[str], Schema], *, nested: bool = False
) -> Schema:
    members = {}
    for field in descriptor.fields:
        if nested and field.type == FieldDescriptor.TYPE_MESSAGE:
            assert field.message_type is not None
            one = _response(field.message_type, reference, nested=True)
        else:
            one = _field(field, reference)
        if field.name == "sql_type":
            one = {"type": ["string", "null"]}
        members[field.json_name] = {"type": "array", "items": one} if field.is_repeated else one
    return _object(members)


def _field(field: FieldDescriptor, reference: Callable[[str], Schema]) -> Schema:
    match field.type:
        case FieldDescriptor.TYPE_MESSAGE:
            assert field.message_type is not None
            return reference(field.message_type.name)
        case FieldDescriptor.TYPE_ENUM:
            assert field.enum_type is not None
            return _one_of(enum_names(field.enum_type))
        case FieldDescriptor.TYPE_BOOL:
            return {"type": "boolean"}
        case FieldDescriptor.TYPE_STRING:
            cursor = field.name in ("after", "before") or field.name.endswith("cursor")
            return reference("Cursor") if cursor else {"type": "string"}
        case kind:
            return dict(_INTEGER[kind])


def _one_of(names: Iterable[str]) -> Schema:
    """Return the schema of an enumeration; documentation pages list its names only if it has a type."""
    return {"type": "string", "enum": list(names)}


def _long() -> Schema:
    return {"type": ["integer", "string"], "format": "int64", "pattern": "^-?[0-9]+$"}


def _object(
    members: dict[str, Schema], *, required: tuple[str, ...] = (), closed: bool = False
) -> Schema:
    found: Schema = {"type": "object", "properties": members}
    if required:
        found["required"] = list(required)
    if closed:
        found["additionalProperties"] = False
    return found
