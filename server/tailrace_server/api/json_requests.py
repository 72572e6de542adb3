"""A strict reader of requests: JSON objects and query strings become messages of proto/tailrace/v1.

::

    {"sinceVersion": 4, "body": ["change", "after"],
     "criteria": [{"area": "DATA", "entityType": ["product"], "operation": ["UPSERT"]}]}

Fields have protobuf's JSON names. Enum values have plain names, without the prefix of their type (``UPSERT``);
bodies are named as in captures, ``after``. A 64-bit number is a number or decimal text. Null means absent, but
a null condition is refused, since without a condition every row matches. Unlike protobuf's own reader, this one
refuses everything unknown with its path, and accepts only one spelling of each value.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from tailrace.conditions import checked_text, decimal_of, fill, shown_value
from tailrace.errors import InvalidRequest, Unsupported
from tailrace.v1.capture_pb2 import Body, Condition
from tailrace.v1.change_capture_pb2 import ReadChangesRequest, ReadStateRequest, SubscribeRequest
from tailrace.v1.sql_pb2 import QuerySqlRequest
from tailrace_server.api import requests
from tailrace_server.api.requests import KEYS_MAX, refuse_many_keys
from tailrace_server.wal.record.json_check import json_fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_Request = TypeVar("_Request", bound=Message)
_Read = TypeVar("_Read")

_INTEGERS: Final = {
    FieldDescriptor.TYPE_INT32: range(-(1 << 31), 1 << 31),
    FieldDescriptor.TYPE_UINT32: range(1 << 32),
    FieldDescriptor.TYPE_INT64: range(-(1 << 63), 1 << 63),
}
JSON_VALUES_MAX: Final = 2 * KEYS_MAX
"""Most values in the JSON of one request, counted by commas and brackets; 100,000 keys fit with other
values."""
ELSEWHERE: Final = ("catalog", "encoding", "values")
"""Fields of a request that JSON faces do not read: the catalog is in the path, the encoding is JSON, and the
values' form is part of the answer's form (rest/forms.py)."""

_CONDITIONS: Final = ("where", "whereTree")
_DECIMAL: Final = re.compile(r"-?[0-9]{1,4000}", re.ASCII)  # what Python turns into a number
_SNAKE: Final = re.compile(r"\b[a-z]+(?:_[a-z]+)+\b")
_SHOWN: Final = 60
_FLAT: Final = "criteria"  # the field whose own fields a URL can give as parameters
_EXACTLY: Final = msgspec.json.Decoder(float_hook=decimal_of)
_KINDS: Final = (SubscribeRequest, ReadChangesRequest, ReadStateRequest, QuerySqlRequest)


def _refuse_many_values(data: bytes | str, named: str) -> None:
    """Refuse a text with too many values: parsed, empty lists take thirty times the text's size."""
    if len(data) <= JSON_VALUES_MAX:
        return
    if isinstance(data, str):
        count = data.count(",") + data.count("[") + data.count("{")
    else:
        count = data.count(b",") + data.count(b"[") + data.count(b"{")
    if count > JSON_VALUES_MAX:
        raise InvalidRequest(
            f"{named}more than {JSON_VALUES_MAX} values, counted by commas and brackets; request less at "
            "once"
        )


def decode_exactly(data: bytes) -> Any:
    """Return a JSON value like ``decode``, but with decimals for numbers that have a fraction."""
    return decode(data, read=_EXACTLY.decode)


def decode(
    data: bytes | str, what: str = "", read: Callable[[bytes | str], Any] = msgspec.json.decode
) -> Any:
    """Return the value of a JSON text.

    Raises:
        InvalidRequest: The text is not JSON, too deeply nested, or has too many values; the error begins with
            ``what``, for instance a parameter's name.
    """
    named = f"{what}: " if what else ""
    _refuse_many_values(data, named)
    if not data:
        raise InvalidRequest(f"{named}not JSON: it is empty")
    try:
        return read(data)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"{named}not JSON: {json_fault(data, error)}") from None
    except RecursionError:
        raise InvalidRequest(f"{named}not JSON: nested too deeply") from None
    except UnicodeError:
        raise InvalidRequest(f"{named}not JSON: not UTF-8") from None


def from_json(
    kind: type[_Request], value: object, *, criteria_max: int, without: Iterable[str] = ()
) -> _Request:
    """Return a request message from its JSON form.

    Args:
        kind: The message.
        value: A decoded JSON value; must be an object.
        criteria_max: Most criteria of the request.
        without: JSON names of fields that are refused because they come from elsewhere; the catalog is in the
            path.

    Raises:
        InvalidRequest: A value has the wrong type or is out of range, or there are too many criteria or keys;
            the error has the path.
        Unsupported: The server does not know a field or enum value; the error has its path.
    """
    if isinstance(value, dict) and isinstance(criteria := value.get("criteria"), list):
        # Before the criteria are converted: there may be very many.
        requests.refuse_excess(len(criteria), criteria_max)
    message = kind()
    _fill(message, value, "", frozenset(without))
    in_json(refuse_many_keys)(message)
    return message


def from_query(
    kind: type[_Request],
    pairs: Iterable[tuple[str, str]],
    *,
    criteria_max: int,
    without: Iterable[str] = (),
) -> _Request:
    """Return a request message from the parameters of a URL.

    The fields of a single criteria are parameters; a list is a repeated parameter:
    ``entityType=a&entityType=b``. ``body`` may also be one text with commas. ``criteria`` is the JSON text of a
    whole list of criteria, and ``whereTree`` the JSON text of a tree.

    Raises:
        InvalidRequest: A value is wrong, or a parameter is given twice; the error has the name.
        Unsupported: The server does not know a parameter or enum value.
    """
    fields = _fields(kind.DESCRIPTOR)
    alternative = _fields(fields[_FLAT].message_type) if _FLAT in fields else {}
    value: dict[str, Any] = {}
    one: dict[str, Any] = {}
    # 1. Sort the parameters: fields of a single criteria go into ``one``, all others into ``value``.
    for name, text in pairs:
        if name == _FLAT and name in fields:
            if name in value:
                raise InvalidRequest(f"{name}: given twice")
            value[name] = decode(text, name)
            if value[name] is None:
                raise InvalidRequest(f"{name}: null has no meaning here; leave it out")
            continue
        into, field = (one, alternative[name]) if name in alternative else (value, fields.get(name))
        if field is None:
            raise Unsupported(name, "this server does not know the parameter")
        if field.is_repeated:
            into.setdefault(name, []).extend(text.split(",") if name == "body" else [text])
        elif name in into:
            raise InvalidRequest(f"{name}: given twice")
        else:
            into[name] = _as_value(field, name, text)
    # 2. Short form and JSON form of criteria exclude each other.
    if one:
        if _FLAT in value:
            raise InvalidRequest(f"{_FLAT}: give {_FLAT} or {', '.join(one)}, not both")
        value[_FLAT] = [one]
    return from_json(kind, value, criteria_max=criteria_max, without=without)


def in_json_names(error: InvalidRequest) -> InvalidRequest:
    """Return an error of the shared rules with the names of the JSON form, for instance ``sinceIndex``."""
    text = _SNAKE.sub(lambda match: _JSON_NAMES.get(match[0], match[0]), str(error))
    if text != str(error):
        error.args = (text,)
    return error


def in_json(function: Callable[[_Request], _Read]) -> Callable[[_Request], _Read]:
    """Return the function, changed so that its errors have the names of the JSON form."""

    def read(message: _Request) -> _Read:
        try:
            return function(message)
        except InvalidRequest as error:
            raise in_json_names(error) from None

    return read


def _as_value(field: FieldDescriptor, name: str, text: str) -> object:
    """Return the JSON value of a parameter that is given once."""
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return decode(text, name)
    if field.type != FieldDescriptor.TYPE_BOOL:
        return text
    if text not in ("true", "false"):
        raise InvalidRequest(f"{name}: must be true or false, not {shown_value(text)}")
    return text == "true"


@cache
def _fields(descriptor: Descriptor) -> Mapping[str, FieldDescriptor]:
    return {field.json_name: field for field in descriptor.fields}


@cache
def enum_names(enum: EnumDescriptor) -> Mapping[str, int]:
    """Return the plain names of an enum's values, without UNSPECIFIED."""
    values = {value.name: value.number for value in enum.values if value.number}
    prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", enum.name).upper() + "_"
    plain = {name.removeprefix(prefix): number for name, number in values.items()}
    if enum is Body.DESCRIPTOR:
        return {name.lower(): number for name, number in plain.items()}
    return plain


def _fill(message: Message, value: object, path: str, without: frozenset[str]) -> None:
    if not isinstance(value, dict):
        raise InvalidRequest(
            f"{path or 'the request'}: must be an object, not {shown_value(value)}"
        )
    fields = _fields(message.DESCRIPTOR)
    for name, part in value.items():
        at = f"{path}.{name}" if path else name
        field = fields.get(name)
        if field is None or (not path and name in without):
            kind = message.DESCRIPTOR.name
            raise Unsupported(at[:_SHOWN], f"this server does not know the field in {kind}")
        if part is None:
            if name in _CONDITIONS:
                raise InvalidRequest(f"{at}: null is not a condition; leave it out to get all rows")
            continue
        if not field.is_repeated:
            _set(message, field, part, at)
            continue
        if not isinstance(part, list):
            raise InvalidRequest(f"{at}: must be a list, not {shown_value(part)}")
        target = getattr(message, field.name)
        if field.type == FieldDescriptor.TYPE_STRING and all(type(each) is str for each in part):
            # A list may have 100,000 keys, and the event loop waits: one call for the list, not one for each
            # key.
            # Protobuf refuses lone surrogates. Then the loop below finds the wrong text and reports its path.
            with suppress(UnicodeEncodeError):
                target.extend(part)
                continue
            del target[:]
        for place, each in enumerate(part):
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                _fill(target.add(), each, f"{at}[{place}]", without)
            else:
                target.append(_scalar(field, each, f"{at}[{place}]"))


def _set(message: Message, field: FieldDescriptor, value: object, path: str) -> None:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        part = getattr(message, field.name)
        part.SetInParent()
        if isinstance(part, Condition):
            fill(part, value, path)
        else:
            _fill(part, value, path, frozenset())
    else:
        setattr(message, field.name, _scalar(field, value, path))


def _scalar(field: FieldDescriptor, value: object, path: str) -> Any:
    if field.type == FieldDescriptor.TYPE_STRING:
        return checked_text(value, path)
    if field.type == FieldDescriptor.TYPE_BOOL:
        if not isinstance(value, bool):
            raise InvalidRequest(f"{path}: must be true or false, not {shown_value(value)}")
        return value
    if field.type == FieldDescriptor.TYPE_ENUM:
        assert field.enum_type is not None
        return _enum(field.enum_type, value, path)
    kind = _INTEGERS[field.type]
    return integer(kind, value, path, bounds=requests.BOUNDS.get(field.name, kind))


def _enum(enum: EnumDescriptor, value: object, path: str) -> int:
    names = enum_names(enum)
    if not isinstance(value, str):
        raise InvalidRequest(f"{path}: must be one of {', '.join(names)}, not {shown_value(value)}")
    if value not in names:
        raise Unsupported(path, f"{shown_value(value)} is not one of {', '.join(names)}")
    return names[value]


def integer(allowed: range, value: object, path: str, *, bounds: range | None = None) -> int:
    """Return a whole number that is given as a number or as decimal text.

    Args:
        allowed: The range of the number's type.
        value: The given value.
        path: The path of the value for errors.
        bounds: The range that the error text names, if it is narrower than that of the type.

    Raises:
        InvalidRequest: The value is no whole number or out of range; the error has the path.
    """
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{path}: must be a whole number, not {shown_value(value)}")
    if value not in allowed:
        bounds = bounds or allowed
        raise InvalidRequest(
            f"{path}: must be from {bounds.start} to {bounds.stop - 1}, not {shown_value(value)}"
        )
    return value


def _json_names() -> dict[str, str]:
    kinds = (each.DESCRIPTOR for each in _KINDS)
    criteria = SubscribeRequest.DESCRIPTOR.fields_by_name["criteria"].message_type
    assert criteria is not None
    return {f.name: f.json_name for kind in (*kinds, criteria) for f in kind.fields}


_JSON_NAMES: Final = _json_names()
