"""The events of the audit: one class each, whose fields are those of a line. docs/audit.md lists them.

Every line has the fields of `AuditLine`; those that say nothing of an event are empty texts. A credential is
no field of any: what was shown at the door is not recorded, only whom it proved.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct, to_builtins
from msgspec.json import Encoder

LOGGER: Final = "tailrace.audit"
"""Tells the audit's lines from others, where both go to stderr."""

_encode: Final = Encoder().encode


def moment() -> str:
    """Return now as lines have it: ``2026-11-26T02:25:09.000731Z``."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class AuditLine(Struct, kw_only=True, tag_field="event"):
    """The common members of all lines."""

    time: str
    """When it happened: ISO 8601, UTC, microseconds."""
    logger: str = LOGGER
    """`tailrace.audit`; the lines of the log have another value."""
    principal: str = ""
    """The proven name; `anonymous` where no identity is asked for; empty: the server itself."""
    kind: str = ""
    """How it was proven: `jwt`, `api_key` or `certificate`; `anonymous`; empty for the server itself."""
    issuer: str = ""
    """The issuer of the name: the `iss` of a JWT; empty for others."""
    address: str = ""
    """The peer's address; behind a trusted proxy, the one that the proxy names."""
    transport: str = ""
    """How it came: `grpc`, `rest_websocket`, `rest_events`, `rest`, `graphql_websocket` …"""
    catalog: str = ""
    """The catalog that was asked for, as it was asked for."""

    @classmethod
    def event(cls) -> str:
        """Return the event's name."""
        return str(cls.__struct_config__.tag)

    def encoded(self) -> bytes:
        """Return the line, with its end."""
        try:
            return _encode(self) + b"\n"
        except UnicodeEncodeError:
            # Half a character, as a path or a certificate may have: the line is more than its form.
            return _encode(_written_out(to_builtins(self))) + b"\n"


def _written_out(value: object) -> object:
    """Return a value of JSON in which what is no text has the form of an escape."""
    match value:
        case str():
            return value.encode(errors="backslashreplace").decode()
        case dict():
            return {_written_out(name): _written_out(each) for name, each in value.items()}
        case list() | tuple():
            return [*map(_written_out, value)]
        case _:
            return value


class Authenticated(AuditLine, tag="authenticated"):
    """Somebody proved who they are; once a minute for the same principal, address and transport."""

    expires_at: float | None = None
    """When the proof expires, seconds since 1970; null: never."""


class Refused(AuditLine, tag="refused"):
    """Something was asked for and not given: at the door, or by the engine."""

    code: str = ""
    """The machine code of the error that the caller got."""
    reason: str = ""
    """Its text."""


class Subscribed(AuditLine, tag="subscribed"):
    """A subscription was opened."""

    id: str = ""
    """The subscription's id, as its `ended` has it too."""
    asked: Sequence[str] = ()
    """The request in words, one text for each alternative; of more than 100 values the number of the rest."""
    effective: Sequence[str] = ()
    """The part of them that is granted."""
    content: str = ""
    """The bodies that were asked for."""
    start: str = ""
    """The first position that can come."""


class Ended(AuditLine, tag="ended"):
    """A subscription ended."""

    id: str = ""
    """The subscription's id."""
    code: str = ""
    """Why: the machine code of its last error; `SUBSCRIPTION_CLOSED`: the subscriber left."""
    reason: str = ""
    """The same in words."""
    captures: int = 0
    """Captures that were handed to the transport."""
    bytes: int = 0
    """Their bytes."""
    cursor: str = ""
    """The last cursor: everything before it was handed over."""


class HistoryBegun(AuditLine, tag="history_begun"):
    """A read of history or of state began; one for each page."""

    id: str = ""
    """The read's id, as its `history_ended` has it too."""
    asked: Sequence[str] = ()
    """As of `subscribed`."""
    effective: Sequence[str] = ()
    """As of `subscribed`."""
    content: str = ""
    """The bodies that were asked for."""
    start: str = ""
    """Of state: the version that it is of; empty for history."""


class HistoryEnded(AuditLine, tag="history_ended"):
    """A read of history or of state ended."""

    id: str = ""
    """The read's id."""
    code: str = ""
    """The machine code of the error that ended it; empty: it was read to its end, or left by its reader."""
    reason: str = ""
    """The same in words."""
    captures: int = 0
    """Captures that were handed to the transport."""
    bytes: int = 0
    """Their bytes."""
    cursor: str = ""
    """The cursor of the last capture, of state the page behind the last row; empty before the first."""


class PolicyLoaded(AuditLine, tag="policy_loaded"):
    """The policy was read, at start or because its file changed."""

    file: str = ""
    """Its path."""
    grants: int = 0
    """How many grants it has."""
    fingerprint: str = ""
    """SHA-256 of the file, in hexadecimal."""


class KeysChanged(AuditLine, tag="keys_changed"):
    """The keys that callers are checked against changed."""

    source: str = ""
    """The file or issuer that they are of."""
    added: Sequence[str] = ()
    """Names or ids of keys that are accepted from now on."""
    removed: Sequence[str] = ()
    """Those that are not any more."""


class OperatorAction(AuditLine, tag="operator_action"):
    """An operator did something, or somebody changed or began to read a named subscription."""

    action: str = ""
    """The action: `end_subscription`; `create_subscription`, `read_subscription`, `reset_subscription`,
    `pause_subscription`, `resume_subscription`, `delete_subscription`."""
    subject: str = ""
    """To what: the id of a subscription, or the name of a named one."""
    reason: str = ""
    """Why, in the operator's words; of a reset where to."""


class AuditStarted(AuditLine, tag="audit_started"):
    """The server began to record."""

    pid: int = 0
    """Its process."""
    version: str = ""
    """Its version."""


class AuditResumed(AuditLine, tag="audit_resumed"):
    """Lines were lost before this one: they did not fit into the queue."""

    lost: int = 0
    """How many."""


class AuditStopped(AuditLine, tag="audit_stopped"):
    """The server stopped in good order: the last line of its process."""
