"""The messages of a WebSocket: one JSON object each, parsed strictly and written from encoded parts.

::

    {"type": "subscribe", "id": "1", "payload": {…}}      client
    {"id":"1","type":"next","payload":{…}}                 server

No other member is allowed. The client chooses ``id``; it is unique among the open operations of the socket.

Close codes follow graphql-transport-ws where that protocol defines one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import msgspec

from tailrace.errors import InvalidRequest
from tailrace_server.api.json_requests import decode

if TYPE_CHECKING:
    from collections.abc import Mapping


ID_CHARACTERS_MAX: Final = 256
"""Maximum length of an operation's id, in characters; the client library graphql-ws uses UUIDs."""

_MEMBERS: Final = frozenset({"type", "id", "payload"})


class CloseCode(IntEnum):
    """The close codes that the server sends; `BECAUSE` has the meaning of each."""

    GOING_AWAY = 1001
    NOT_TEXT = 1007
    TOO_SLOW = 1008
    TOO_LARGE = 1009
    INTERNAL = 1011
    TRY_AGAIN = 1013
    MALFORMED = 4400
    UNAUTHORIZED = 4401
    FORBIDDEN = 4403
    SUBPROTOCOL = 4406
    INIT_TIMEOUT = 4408
    DUPLICATE_ID = 4409
    SECOND_INIT = 4429


class Close(Exception):
    """An exception that closes the whole socket with a code and a reason."""

    def __init__(self, code: CloseCode, reason: str) -> None:
        """Store code and reason; the sender cuts the reason to 123 bytes (`close_reason`)."""
        super().__init__(reason)
        self.code = code
        self.reason = reason


BECAUSE: Final[Mapping[CloseCode, tuple[str, str]]] = {
    CloseCode.GOING_AWAY: (
        "the server stops, or the connection has reached `max_connection_age`; each subscription "
        "received its resume cursor",
        "Connect again and resume from the cursor.",
    ),
    CloseCode.NOT_TEXT: ("a text frame is not UTF-8", "Correct the client."),
    CloseCode.TOO_SLOW: (
        "a message stayed unread past the send deadline (`SUBSCRIBER_TOO_SLOW`), or was not finished in time",
        "Read faster, or with demand; resume from the cursor.",
    ),
    CloseCode.TOO_LARGE: (
        "a message is too large (64 KiB before `connection_ack`, then 4 MiB) or in too many fragments, "
        "or the server is receiving too much at once",
        "Send less at once; if this was the last message, send it again.",
    ),
    CloseCode.INTERNAL: (
        "a ping was not answered, or an internal error of the server",
        "Connect again and resume from the cursor; report an internal error.",
    ),
    CloseCode.TRY_AGAIN: (
        "the caller cannot be identified now (`QUOTA_EXCEEDED`, or `TRANSPORT`: an issuer is away)",
        "Connect again after a pause; the reason of the close frame says which.",
    ),
    CloseCode.MALFORMED: (
        "not a message of this protocol: not JSON, an unknown type or member, a binary frame",
        "Correct the client; the reason of the close frame has the fault.",
    ),
    CloseCode.UNAUTHORIZED: (
        "a subscribe before `connection_ack`, or no token in `connection_init` or handshake where the server "
        "needs one (`UNAUTHENTICATED`)",
        "Wait for the acknowledgement; send a token as the payload's `token`, or in the handshake.",
    ),
    CloseCode.FORBIDDEN: (
        "the token of the `connection_init`, or a newer one, is not accepted (`UNAUTHENTICATED`), has "
        "expired (`TOKEN_EXPIRED`) or is another caller's (`NOT_PERMITTED`); or an idle socket's token "
        "has expired",
        (
            "Get a new token, connect again and resume from the cursor; the reason of the close frame has "
            "the fault."
        ),
    ),
    CloseCode.SUBPROTOCOL: (
        "the client offered no sub-protocol that this path supports",
        "Offer the sub-protocol in the reason.",
    ),
    CloseCode.INIT_TIMEOUT: ("no `connection_init` in time", "Send it first, within 10 s."),
    CloseCode.DUPLICATE_ID: (
        "a subscribe with an id that is in use",
        "Use another id, or complete the first subscription.",
    ),
    CloseCode.SECOND_INIT: ("a second `connection_init`", "Send it once."),
}
"""The meaning and the remedy of each close code; docs/errors.md is made from this table."""


@dataclass(frozen=True, slots=True)
class ClientMessage:
    """A message from a client."""

    type: str
    id: str
    """The id of the operation; empty if the message has none."""
    payload: object
    """The payload; None if the message has none."""


def parse(text: str) -> ClientMessage:
    """Parse a message of a client.

    Raises:
        Close: The text is not a valid message: close code 4400, with the fault as reason.
    """
    try:
        value = decode(text)
    except InvalidRequest as error:
        raise malformed(str(error)) from None
    if not isinstance(value, dict):
        raise malformed("a message must be a JSON object")
    kind = value.get("type")
    if not isinstance(kind, str):
        raise malformed("a message must have a type, which is a text")
    # Quote only a prefix of what the client sent: a close frame has little room for the reason.
    for name in value:
        if name not in _MEMBERS:
            raise malformed(f"{kind[:20]}: unknown member {name[:40]!r}")
    # Whether a type requires an id is checked by the state machine.
    id = value.get("id", "")
    if not isinstance(id, str) or len(id) > ID_CHARACTERS_MAX:
        raise malformed(f"{kind[:20]}: id must be a text of 1 to {ID_CHARACTERS_MAX} characters")
    return ClientMessage(kind, id, value.get("payload"))


def malformed(reason: str) -> Close:
    """Return the close (4400) for a text that is not a message of this protocol."""
    return Close(CloseCode.MALFORMED, reason)


def head(type: str, id: str) -> bytes:
    """Return the encoded start of a message; the caller appends the encoded payload and ``}``."""
    return b'{"id":%s,"type":"%s","payload":' % (msgspec.json.encode(id), type.encode())


def whole(type: str, id: str | None = None, payload: object = None) -> bytes:
    """Return a message as JSON, without the members that are None."""
    parts: dict[str, object] = {} if id is None else {"id": id}
    parts["type"] = type
    if payload is not None:
        parts["payload"] = payload
    return msgspec.json.encode(parts)
