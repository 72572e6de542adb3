"""From request bytes to messages. A field or enum value that is not known is refused by name, never ignored.

An old server that ignored a new criterion would send too much; a new one that ignored an old field, too little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from tailrace.errors import InvalidRequest, Unsupported
from tailrace.v1.capture_pb2 import Condition
from tailrace_server.api.many_keys import refuse_many_keys
from tailrace_server.api.requests import refuse_excess

if TYPE_CHECKING:
    from collections.abc import Iterable

_Request = TypeVar("_Request", bound=Message)


def parse(kind: type[_Request], data: bytes, *, criteria_max: int) -> _Request:
    """Return a request message.

    Raises:
        InvalidRequest: It has too many criteria or keys, or is no such message.
        Unsupported: It has a field or an enum value that this server does not know; names it.
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
            f"{path}field {unknown.field_number}", f"this server does not know it in {kind}"
        )
    for field, value in message.ListFields():
        if field.message_type is Condition.DESCRIPTOR:
            continue  # of thousands of messages, and looked at where it is read, in a thread
        values = value if field.is_repeated else (value,)
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            if field.name == "criteria":
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
