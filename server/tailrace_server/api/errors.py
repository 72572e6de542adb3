"""The one table of errors: the form of each error on each protocol. docs/errors.md is made from it.

On gRPC an error is a status code, a text, and a google.rpc.Status in the trailer ``grpc-status-details-bin``
with one google.rpc.ErrorInfo: domain ``tailrace``, reason = the error's ``code``, metadata = its
``figures()``. The client makes the same exception from it (tailrace/status.py).

On the JSON faces it is a Problem Details object (RFC 9457): an HTTP answer of its status, or the payload of an
``error`` message. ``code``, ``retriable`` and ``figures`` are extensions::

    {"type": "urn:tailrace:error:position-compacted", "title": "Position compacted", "status": 410,
     "detail": "position 1:0 is no longer in the log, …", "code": "POSITION_COMPACTED", "retriable": false,
     "figures": {"wanted": "1:0", "oldest": "4:0", "newest": "6:1"}}
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import grpc
import msgspec
from google.protobuf.any_pb2 import Any
from google.rpc.error_details_pb2 import ErrorInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

from tailrace import errors
from tailrace.transport.grpc_status import DETAILS_KEY, DOMAIN
from tailrace_server.errors import as_tailrace_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from structlog.stdlib import BoundLogger

    from tailrace.errors import TailraceError

GRPC_STATUS: Final[Mapping[type[TailraceError], grpc.StatusCode]] = {
    errors.InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    errors.CursorInvalid: grpc.StatusCode.INVALID_ARGUMENT,
    errors.CatalogUnknown: grpc.StatusCode.NOT_FOUND,
    errors.EntityTypeUnknown: grpc.StatusCode.NOT_FOUND,
    errors.RowUnknown: grpc.StatusCode.NOT_FOUND,
    errors.SubscriptionUnknown: grpc.StatusCode.NOT_FOUND,
    errors.SubscriptionExists: grpc.StatusCode.ALREADY_EXISTS,
    errors.SubscriptionPaused: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Unsupported: grpc.StatusCode.UNIMPLEMENTED,
    errors.PositionCompacted: grpc.StatusCode.OUT_OF_RANGE,
    errors.BodiesExpired: grpc.StatusCode.OUT_OF_RANGE,
    errors.DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.ImagesMissing: grpc.StatusCode.FAILED_PRECONDITION,
    errors.TableFileError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ValueNotHeld: grpc.StatusCode.FAILED_PRECONDITION,
    errors.CatalogReplaced: grpc.StatusCode.FAILED_PRECONDITION,
    errors.CursorAhead: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ColumnsChanged: grpc.StatusCode.FAILED_PRECONDITION,
    errors.HistoryReplaced: grpc.StatusCode.FAILED_PRECONDITION,
    errors.SubscriptionClosed: grpc.StatusCode.CANCELLED,
    errors.SubscriptionBroken: grpc.StatusCode.UNAVAILABLE,
    errors.HeartbeatMissed: grpc.StatusCode.UNAVAILABLE,
    errors.SubscriberTooSlow: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.SubscriptionOverrun: grpc.StatusCode.ABORTED,
    errors.ServerStopping: grpc.StatusCode.UNAVAILABLE,
    errors.TokenExpired: grpc.StatusCode.UNAUTHENTICATED,
    errors.SubscriptionTakenOver: grpc.StatusCode.ABORTED,
    errors.EndedByOperator: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    errors.NotPermitted: grpc.StatusCode.PERMISSION_DENIED,
    errors.QuotaExceeded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.ServerFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.TransportError: grpc.StatusCode.UNAVAILABLE,
    errors.ConnectTimeout: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.NotGrpc: grpc.StatusCode.UNAVAILABLE,
    errors.TlsFailed: grpc.StatusCode.UNAVAILABLE,
    errors.LogError: grpc.StatusCode.INTERNAL,
    errors.LogCorrupted: grpc.StatusCode.DATA_LOSS,
    errors.LogMissing: grpc.StatusCode.UNAVAILABLE,
    errors.LogUnreadable: grpc.StatusCode.FAILED_PRECONDITION,
    errors.LogFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.WriterFenced: grpc.StatusCode.ABORTED,
    errors.UnknownWriter: grpc.StatusCode.FAILED_PRECONDITION,
    errors.InternalError: grpc.StatusCode.INTERNAL,
}
"""The gRPC status of every class of errors, except for the root class."""

HTTP_STATUS: Final[Mapping[type[TailraceError], int]] = {
    errors.InvalidRequest: 400,
    errors.CursorInvalid: 400,
    errors.CatalogUnknown: 404,
    errors.EntityTypeUnknown: 404,
    errors.RowUnknown: 404,
    errors.SubscriptionUnknown: 404,
    errors.SubscriptionExists: 409,
    errors.SubscriptionPaused: 409,
    errors.Unsupported: 400,
    errors.PositionCompacted: 410,
    errors.BodiesExpired: 410,
    errors.DeadlineExceeded: 504,
    errors.ImagesMissing: 409,
    errors.TableFileError: 409,
    errors.ValueNotHeld: 409,
    errors.CatalogReplaced: 409,
    errors.CursorAhead: 409,
    errors.ColumnsChanged: 409,
    errors.HistoryReplaced: 409,
    errors.SubscriptionClosed: 409,
    errors.SubscriptionBroken: 503,
    errors.HeartbeatMissed: 504,
    errors.SubscriberTooSlow: 429,
    errors.SubscriptionOverrun: 409,
    errors.ServerStopping: 503,
    errors.TokenExpired: 401,
    errors.SubscriptionTakenOver: 409,
    errors.EndedByOperator: 409,
    errors.Unauthenticated: 401,
    errors.NotPermitted: 403,
    errors.QuotaExceeded: 429,
    errors.ServerFull: 429,
    errors.TransportError: 502,
    errors.ConnectTimeout: 504,
    errors.NotGrpc: 502,
    errors.TlsFailed: 502,
    errors.LogError: 500,
    errors.LogCorrupted: 500,
    errors.LogMissing: 503,
    errors.LogUnreadable: 500,
    errors.LogFull: 507,
    errors.WriterFenced: 409,
    errors.UnknownWriter: 409,
    errors.InternalError: 500,
}
"""The HTTP status of the same classes, in an HTTP answer or an ``error`` message."""

HTTP_OWN: Final[Mapping[int, tuple[str, str]]] = {
    403: (
        "the `Origin` of a WebSocket is another page's",
        "Allow the page with the setting `ws_origins`.",
    ),
    404: (
        "the path does not exist, or has no WebSocket",
        "Correct the path; `/v1/openapi.json` lists them.",
    ),
    405: ("the path has other methods", "Use a method in `Allow`."),
    406: (
        "`Accept` has no format that the path offers",
        "Use a format that the text of the error names.",
    ),
    408: ("the body did not arrive in time", "Send the body with the request."),
    413: ("the body is too large", "Send a smaller request."),
    415: ("the body is of another type", "Send `application/json`."),
    421: (
        "`Host` is not a name of this server",
        "Use the server's address, or allow the name with the setting `http_hosts`.",
    ),
    429: ("too many live connections are open", "Retry later, or share a socket."),
}
"""Refusals of HTTP itself: status → (reason, remedy). They are Problem Details too, code
``INVALID_REQUEST``."""

HTTP_OWN_RETRIABLE: Final = frozenset({429})
"""The statuses of `HTTP_OWN` after which the same request may succeed later."""

PROBLEM_TYPE: Final = "application/problem+json"
PROBLEM_URN: Final = "urn:tailrace:error:"

_TEXT_MAX: Final = 600
"""Most characters of a text in a trailer. Clients refuse metadata above 8 KiB, and percent-encoding triples the
bytes of characters other than ASCII."""


def logged(error: Exception, log: BoundLogger) -> TailraceError:
    """Return an error for a client as a `TailraceError`; log it first if it is a fault of the server.

    The client receives one line; the traceback is only in the server's log.
    """
    found = as_tailrace_error(error)
    if found.code == errors.InternalError.code:
        log.error("internal error", error=str(found), exc_info=found.__cause__ or found)
    elif isinstance(found, errors.LogCorrupted):
        log.error("damaged log", error=str(found))
    return found


def grpc_status(error: TailraceError) -> tuple[grpc.StatusCode, str, tuple[tuple[str, bytes]]]:
    """Return the status code, text and trailing metadata of an error."""
    # A class without an entry gets the status of its nearest base class.
    code = next(GRPC_STATUS[cls] for cls in type(error).__mro__ if cls in GRPC_STATUS)
    text = _shortened(str(error))
    packed = Any()
    packed.Pack(
        ErrorInfo(
            reason=error.code,
            domain=DOMAIN,
            metadata={name: _shortened(value) for name, value in error.figures().items()},
        )
    )
    number: int = code.value[0]
    status = Status(code=number, message=text, details=[packed])
    return code, text, ((DETAILS_KEY, status.SerializeToString()),)


def http_status(error: TailraceError) -> int:
    """Return the status of an HTTP answer for an error."""
    return next(HTTP_STATUS[cls] for cls in type(error).__mro__ if cls in HTTP_STATUS)


def retry_after(error: errors.QuotaExceeded) -> str:
    """Return the value of ``Retry-After``: whole seconds, rounded up."""
    return str(math.ceil(error.retry_after_s))


def problem(error: TailraceError) -> dict[str, object]:
    """Return an error as a Problem Details object."""
    code = error.code
    return {
        "type": PROBLEM_URN + code.lower().replace("_", "-"),
        "title": code.replace("_", " ").capitalize(),
        "status": http_status(error),
        "detail": _shortened(str(error)),
        "code": code,
        "retriable": error.retriable,
        "figures": {name: _shortened(value) for name, value in error.figures().items()},
    }


def encoded_refusal(error: errors.InvalidRequest, status: int) -> bytes:
    """Return a refusal of HTTP itself, with a status of `HTTP_OWN`, as the JSON text of Problem Details."""
    body = {**problem(error), "status": status, "retriable": status in HTTP_OWN_RETRIABLE}
    return msgspec.json.encode(body)


def encoded_problem(error: TailraceError) -> bytes:
    """Return an error as the JSON text of a Problem Details object."""
    return msgspec.json.encode(problem(error))


def _shortened(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else text[: _TEXT_MAX - 1] + "…"
