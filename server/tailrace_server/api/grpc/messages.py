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
    change_capture_pb2,
    sql_pb2,
)
from tailrace.v1.capture_pb2 import Condition
from tailrace.v1.change_capture_pb2 import ReadChangesResponse, ReadStateResponse
from tailrace_server.api.requests import refuse_excess, refuse_many_keys
from tailrace_server.reads.sql_request import SqlForm

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace.cursor import Cursor
    from tailrace_server.log_cache.frames import Frames
    from tailrace_server.reads.state_place import StatePage


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


def history_end(*, next_cursor: Cursor | None, captures: int) -> bytes:
    """Return the last message of a read of history; a cursor means that another page follows."""
    message = change_capture_pb2.HistoryEnd(
        has_next=next_cursor is not None,
        next_cursor="" if next_cursor is None else str(next_cursor),
        captures=captures,
    )
    return ReadChangesResponse(end=message).SerializeToString()


def state_end(*, next_page: StatePage | None, rows: int) -> bytes:
    """Return the last message of a read of state."""
    page = "" if next_page is None else str(next_page)
    message = change_capture_pb2.StateEnd(next_page=page, rows=rows)
    return ReadStateResponse(end=message).SerializeToString()


def sql_rows(form: SqlForm, frames: Frames) -> bytes:
    """Return a message with rows of an answer to SQL."""
    if form is SqlForm.ARROW:
        return sql_pb2.QuerySqlResponse(arrow=frames.data).SerializeToString()
    return sql_pb2.QuerySqlResponse(rows=frames.data).SerializeToString()


def sql_end(*, rows: int) -> bytes:
    """Return the last message of an answer to SQL."""
    return sql_pb2.QuerySqlResponse(end=sql_pb2.SqlEnd(rows=rows)).SerializeToString()


def without_bodies(data: bytes) -> bytes:
    """Return a message of one capture without its bodies, with the number of omitted bytes."""
    message = ReadChangesResponse.FromString(data)
    (capture,) = message.captures
    capture.omitted_bytes = len(capture.change) + len(capture.before) + len(capture.after)
    for name in ("change", "before", "after"):
        capture.ClearField(name)
    return message.SerializeToString()
