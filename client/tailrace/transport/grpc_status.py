"""Conversion of a gRPC status to the error that the server raised, with the same class and figures.

A server sends google.rpc.Status in the trailer ``grpc-status-details-bin``, with one google.rpc.ErrorInfo:
reason = ``TailraceError.code``, metadata = ``figures()``. A status without these details comes from gRPC itself
or from a proxy. It becomes a retriable error of the network, unless its status code has another meaning.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote
from uuid import UUID

import grpc
from google.protobuf.message import DecodeError

from tailrace import errors
from tailrace.errors import (
    InvalidRequest,
    NotGrpc,
    NotPermitted,
    TailraceError,
    TransportError,
    Unauthenticated,
    Unsupported,
)
from tailrace.position import END, Position
from tailrace.v1.status_pb2 import ErrorDetail, ErrorStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tailrace.transport.target import EnvironmentProxy

DETAILS_KEY: Final = "grpc-status-details-bin"
DETAIL_TYPE: Final = "type.googleapis.com/google.rpc.ErrorInfo"
DOMAIN: Final = "tailrace"


def position(text: str) -> Position:
    """Parse the text form of a ``Position``."""
    version, _, index = text.partition(":")
    return Position(int(version), END if index == "end" else int(index))


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


def _text_or_none(text: str) -> str | None:
    return text or None


def _uuid_or_none(text: str) -> UUID | None:
    return UUID(text) if text else None


_Figures = dict[str, tuple[str, "Callable[[str], object]"]]

_RESUME: Final[_Figures] = {"resume_cursor": ("resume_cursor", str)}

FIGURES: Final[dict[type[TailraceError], _Figures]] = {
    errors.CursorInvalid: {"text": ("cursor", str)},
    errors.CatalogUnknown: {"name": ("catalog", str), "known": ("known", _names)},
    errors.EntityTypeUnknown: {
        "catalog": ("catalog", str),
        "entity_type": ("entity_type", str),
        "known": ("known", _names),
    },
    errors.RowUnknown: {
        "entity_type": ("entity_type", str),
        "primary_key": ("primary_key", str),
        "version": ("version", int),
    },
    errors.SubscriptionUnknown: {
        "catalog": ("catalog", str),
        "name": ("name", str),
        "known": ("known", _names),
    },
    errors.SubscriptionExists: {"catalog": ("catalog", str), "name": ("name", str)},
    errors.SubscriptionPaused: {"name": ("name", str)},
    errors.Unsupported: {"field": ("field", str)},
    errors.PositionCompacted: {
        "wanted": ("wanted", position),
        "oldest": ("oldest", position),
        "newest": ("newest", position),
    },
    errors.BodiesExpired: {
        "wanted": ("wanted", position),
        "entity_type": ("entity_type", str),
        "oldest": ("oldest", position),
    },
    errors.DeadlineExceeded: {
        "name": ("catalog", str),
        "version": ("version", int),
        "published": ("published", int),
    },
    errors.ImagesMissing: {
        "version": ("version", int),
        "key": ("key", _text_or_none),
        "image": ("image", str),
    },
    errors.TableFileError: {"path": ("path", str), "reason": ("reason", str)},
    errors.ValueNotHeld: {
        "entity_type": ("entity_type", str),
        "column": ("column", str),
        "label": ("type", str),
        "value": ("value", str),
        "reason": ("reason", str),
    },
    errors.CatalogReplaced: {
        "name": ("catalog", str),
        "expected": ("expected", UUID),
        "found": ("found", _uuid_or_none),
    },
    errors.CursorAhead: {
        "name": ("catalog", str),
        "cursor": ("cursor", str),
        "newest": ("newest", position),
    },
    errors.ColumnsChanged: {
        "entity_type": ("entity_type", str),
        "column": ("column", str),
        "reason": ("reason", str),
    },
    errors.HistoryReplaced: {
        "name": ("catalog", str),
        "cursor": ("cursor", str),
        "found": ("found", int),
    },
    errors.NotGrpc: {"address": ("address", str)},
    errors.TlsFailed: {"address": ("address", str), "reason": ("reason", str)},
    errors.SubscriptionBroken: _RESUME,
    errors.HeartbeatMissed: _RESUME,
    errors.SubscriberTooSlow: _RESUME,
    errors.ServerStopping: _RESUME,
    errors.TokenExpired: _RESUME,
    errors.EndedByOperator: _RESUME,
    errors.SubscriptionOverrun: _RESUME,
    errors.SubscriptionTakenOver: {
        **_RESUME,
        "name": ("name", str),
        "epoch": ("epoch", int),
        "holder_epoch": ("holder_epoch", int),
        "holder": ("holder", str),
    },
    errors.Unauthenticated: _RESUME,
    errors.NotPermitted: _RESUME,
    errors.QuotaExceeded: {
        "quota": ("quota", str),
        "limit": ("limit", float),
        "used": ("used", float),
        "retry_after_s": ("retry_after_s", float),
    },
    errors.LogMissing: {"name": ("catalog", str)},
    errors.LogCorrupted: {
        "path": ("segment", str),
        "offset": ("offset", int),
        "reason": ("reason", str),
        "first": ("first", position),
        "last": ("last", position),
        "next": ("next", position),
    },
    errors.WriterFenced: {
        "epoch": ("epoch", int),
        "holder_epoch": ("holder_epoch", int),
        "holder": ("holder", str),
    },
    errors.UnknownWriter: {"writer": ("writer", str), "known": ("known", _names)},
}
"""Class of error → attribute → its name in ``figures()``, and the function that parses its text."""


_UNREACHABLE: Final = re.compile(r"ipv[46]:(\S+): Failed to connect to remote host: (.+?)(?:;|$)")
_REFUSED: Final = "Connection refused"
_NOT_CONNECTED: Final = "failed to connect to all addresses"
_UNKNOWN_NAME: Final = re.compile(r"errors resolving (\S+): \[.*: ([^:\]]+)\]")
_OTHER_PROTOCOL: Final = re.compile(r"ipv[46]:(\S+): Failed parsing HTTP/2 .*http1\.x server")
_PROXY_REFUSED: Final = re.compile(r"HTTP proxy returned response code ([0-9]+)")
"""Text of gRPC's core for a connection that a proxy refused; the patterns above are for other failures."""


def _tree(root: type[TailraceError]) -> list[type[TailraceError]]:
    return [root, *(cls for child in root.__subclasses__() for cls in _tree(child))]


_BY_CODE: Final = {cls.code: cls for cls in _tree(TailraceError)}


def rebuild(reason: str, message: str, figures: Mapping[str, str]) -> TailraceError | None:
    """Return the error with a machine-readable code; None if this client does not know the code.

    Args:
        reason: The code, ``TailraceError.code`` of the class.
        message: Text of the error.
        figures: Values of the error by name; missing ones become None.
    """
    cls = _BY_CODE.get(reason)
    if cls is None:
        return None
    # Without `__init__`: its arguments differ by class, and the message is complete already.
    error = cls.__new__(cls, message)
    error.args = (message,)
    for name, (figure, read) in FIGURES.get(cls, {}).items():
        setattr(error, name, read(figures[figure]) if figure in figures else None)
    return error


def error_of(error: grpc.aio.AioRpcError, proxy: EnvironmentProxy | None = None) -> TailraceError:
    """Return the error of a failed call; ``proxy`` is the proxy on the way, if there is one."""
    # Prefer the details of the server. A newer server may send a code that this client does not know: then the
    # status decides.
    detail = _detail(error)
    if detail is not None:
        rebuilt = rebuild(detail.reason, error.details() or "", detail.metadata)
        if rebuilt is not None:
            return rebuilt
    return _by_status(error.code(), error.details() or error.code().name, proxy)


def may_be_tls(error: grpc.aio.AioRpcError, host: str) -> bool:
    """Return True if no connection could be opened and TLS may be the cause, on either side.

    gRPC's core reports only the last address of a host name. If that address refuses connections, a handshake
    may have failed at an earlier address.
    """
    details = error.details() or ""
    if error.code() is not grpc.StatusCode.UNAVAILABLE or not details.startswith(_NOT_CONNECTED):
        return False
    # A TCP error is no TLS error. But a refused address may hide a handshake at an earlier address of the name.
    unreachable = _UNREACHABLE.search(details)
    if unreachable is not None:
        return unreachable[2] == _REFUSED and not _is_address(host)
    return not _OTHER_PROTOCOL.search(details)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _detail(error: grpc.aio.AioRpcError) -> ErrorDetail | None:
    # The stubs know only one of the two forms of metadata.
    trailers: Iterable[tuple[str, str | bytes]] = error.trailing_metadata() or ()  # type: ignore[assignment]
    for key, value in trailers:
        if key == DETAILS_KEY and isinstance(value, bytes):
            try:
                return _our_detail(value)
            except (DecodeError, ValueError):
                return None
    return None


def _our_detail(value: bytes) -> ErrorDetail | None:
    for packed in ErrorStatus.FromString(value).details:
        if packed.type_url == DETAIL_TYPE:
            detail = ErrorDetail.FromString(packed.value)
            if detail.domain == DOMAIN:
                return detail
    return None


def _by_status(
    code: grpc.StatusCode, details: str, proxy: EnvironmentProxy | None
) -> TailraceError:
    match code:
        case grpc.StatusCode.UNIMPLEMENTED:
            return Unsupported("method", details)
        case (
            grpc.StatusCode.INVALID_ARGUMENT
            | grpc.StatusCode.NOT_FOUND
            | grpc.StatusCode.FAILED_PRECONDITION
            | grpc.StatusCode.OUT_OF_RANGE
        ):
            return InvalidRequest(details)
        case grpc.StatusCode.UNAUTHENTICATED:
            return Unauthenticated(details)
        case grpc.StatusCode.PERMISSION_DENIED:
            return NotPermitted(details)
        case grpc.StatusCode.RESOURCE_EXHAUSTED if "larger than max" in details:
            return InvalidRequest(details)
        case grpc.StatusCode.UNAVAILABLE if (match := _OTHER_PROTOCOL.search(details)) is not None:
            return NotGrpc(unquote(match[1]))
        case grpc.StatusCode.UNAVAILABLE if (
            match := _UNREACHABLE.search(details) or _UNKNOWN_NAME.search(details)
        ) is not None:
            reason = f"{match[2].strip()[0].lower()}{match[2].strip()[1:]}"
            found = unquote(match[1])
            if proxy is not None:
                return TransportError(
                    f"cannot reach {proxy.host}: {found}: {reason}; that is {proxy}"
                )
            return TransportError(f"cannot reach {found}: {reason}")
        case grpc.StatusCode.UNAVAILABLE if (
            proxy is not None and (match := _PROXY_REFUSED.search(details)) is not None
        ):
            return TransportError(
                f"cannot reach {proxy.host}: refused with HTTP status {match[1]} by {proxy}"
            )
        case grpc.StatusCode.DEADLINE_EXCEEDED if proxy is not None:
            return TransportError(f"deadline exceeded: {details}, through {proxy}")
        case _:
            return TransportError(f"{code.name.lower().replace('_', ' ')}: {details}")
