"""The messages of a socket: one JSON object each, read strictly, written from ready parts.

::

    {"type": "subscribe", "id": "1", "payload": {…}}      client
    {"id":"1","type":"next","payload":{…}}                 server

No other member is allowed. ``id`` is the client's text, unique among what is open on the socket.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from tailrace.errors import InvalidRequest
from tailrace_server.api.json_requests import decode
from tailrace_server.api.websocket.codes import Close, CloseCode

ID_CHARACTERS_MAX: Final = 256
"""Longest id of an operation; graphql-ws takes UUIDs."""

_MEMBERS: Final = frozenset({"type", "id", "payload"})


@dataclass(frozen=True, slots=True)
class ClientMessage:
    """A client's message."""

    type: str
    id: str
    """Empty where it has none."""
    payload: object
    """None where it has none."""


def parse(text: str) -> ClientMessage:
    """Return a message.

    Raises:
        Close: It is none: close code 4400, with what is wrong.
    """
    try:
        value = decode(text)
    except InvalidRequest as error:
        raise malformed(str(error)) from None
    if not isinstance(value, dict):
        raise malformed("a message is a JSON object")
    kind = value.get("type")
    if not isinstance(kind, str):
        raise malformed("a message has a type, which is a text")
    for name in value:
        if name not in _MEMBERS:
            raise malformed(f"{kind[:20]}: unknown member {name[:40]!r}")
    id = value.get("id", "")
    if not isinstance(id, str) or len(id) > ID_CHARACTERS_MAX:
        raise malformed(f"{kind[:20]}: id is a text of 1 to {ID_CHARACTERS_MAX} characters")
    return ClientMessage(kind, id, value.get("payload"))


def malformed(reason: str) -> Close:
    """Return the close of what is no message of this protocol."""
    return Close(CloseCode.MALFORMED, reason)


def head(type: str, id: str) -> bytes:
    """Return the beginning of a message with a payload; ``}`` ends it behind the payload."""
    return b'{"id":%s,"type":"%s","payload":' % (msgspec.json.encode(id), type.encode())


def whole(type: str, id: str | None = None, payload: object = None) -> bytes:
    """Return a message; without a payload where it is None."""
    parts: dict[str, object] = {} if id is None else {"id": id}
    parts["type"] = type
    if payload is not None:
        parts["payload"] = payload
    return msgspec.json.encode(parts)
