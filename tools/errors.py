"""Write docs/errors.md from the code: every error, on every transport, and what to do about it.

``python -m tools.errors`` rewrites the page; ``--check`` only compares.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace import errors
from tailrace.transport.grpc_status import FIGURES
from tailrace_server.api.errors import GRPC_STATUS, HTTP_OWN, HTTP_OWN_RETRIABLE, HTTP_STATUS
from tailrace_server.api.graphql.errors import VALUE_CODES
from tailrace_server.api.websocket.messages import BECAUSE, CloseCode
from tools.pages import renew

if TYPE_CHECKING:
    from tailrace.errors import TailraceError

PAGE = Path(__file__).resolve().parent.parent / "docs" / "errors.md"

HEAD = """\
# Errors

`make docs` makes this page from the code. A code means the same on every transport. In brackets are
its class in Python, the statuses of gRPC and HTTP, the form over WebSocket if it is not a message
`error`, and *retry* if a retry helps: retry with the cursor of the last capture that you processed;
you miss nothing, and get nothing twice.

"""

FORMS_HEAD = """
Positions among the figures read `version:index`, with `end` for an index past the last. Lists are
separated by commas. Texts are cut at 600 characters. The metrics `tailrace_grpc_errors` and
`tailrace_http_errors` count the errors by code.

## The form of an error on each transport

| | |
|---|---|
"""

FORMS = {
    "gRPC": "the status, with a google.rpc.Status in the trailer `grpc-status-details-bin` that holds one "
    "google.rpc.ErrorInfo: domain `tailrace`, reason = the code, metadata = the figures",
    "REST, before anything is sent": "an answer with the HTTP status and a Problem Details object "
    "(RFC 9457): `code`, `detail`, `retriable`, `figures`",
    "REST, in the middle of an answer": 'NDJSON: a last line `{"error": {…}}`; JSON, CloudEvents and Arrow '
    "have no form for it, so the connection is cut",
    "server-sent events": "an event named `error` with the same object; then the stream ends",
    "REST over WebSocket": 'a message `{"id": …, "type": "error", "payload": {…}}` with the same object; the '
    "socket and its other subscriptions continue",
    "GraphQL over WebSocket": "a message of type `error` whose payload is a list of GraphQL errors, each with "
    "`message` and, in `extensions`, `code`, `retriable`, `figures`; the socket continues",
    "GraphQL over HTTP": "the same list as `errors`; the HTTP status where there is no data, else 200",
    "Python": "the class, with the figures as attributes",
}

VALUES = """
A gRPC status without details comes from gRPC itself or from a proxy. Retry after `UNAVAILABLE`,
`CANCELLED`, `INTERNAL`, `UNKNOWN`, `ABORTED`, `DEADLINE_EXCEEDED`, `DATA_LOSS`, and after
`RESOURCE_EXHAUSTED` unless a message was larger than allowed; after no other.

A program that does not read details ends at `INVALID_ARGUMENT`, `NOT_FOUND`, `FAILED_PRECONDITION`,
`OUT_OF_RANGE`, `UNIMPLEMENTED` and `PERMISSION_DENIED`. After `UNAUTHENTICATED` it needs a new token,
and after any other status it retries, also at a damaged log, so it should log the reason.

## Values that GraphQL cannot show

Such a field is null, and an error beside the data has its path. The subscription or query continues.
`retriable` is false, and `figures` are empty.

"""

CLOSES = """
## Close codes of WebSockets

A mistake that concerns a whole socket closes it, with the same codes on both sub-protocols.

"""

OWN = """
## What HTTP itself refuses

These answers come before a request reaches a catalog. They are Problem Details too, with the code
`INVALID_REQUEST`.

"""


def page() -> str:
    """Return the page."""
    forms = "".join(f"| {transport} | {form} |\n" for transport, form in FORMS.items())
    sockets = f"{CLOSES}{close_codes()}"
    return (
        f"{HEAD}{table()}{FORMS_HEAD}{forms}{VALUES}{value_codes()}{sockets}{OWN}{own_statuses()}"
    )


def table() -> str:
    """Return the list of all errors, in the order of the tree."""
    return "".join(
        f"- **`{error.code}`** (`{error.__name__}`, {status.name} {HTTP_STATUS[error]}{_socket(error)}"
        f"{', *retry*' if error.retriable else ''}): {_when(error)} *Do:* {error.advice}{_figures(error)}\n"
        for error, status in GRPC_STATUS.items()
    )


def _figures(error: type[TailraceError]) -> str:
    names = ", ".join(f"`{name}`" for name, _ in FIGURES.get(error, {}).values())
    return f" *Figures:* {names}." if names else ""


def close_codes() -> str:
    """Return the table of close codes."""
    lines = ["| Close code | Because | What to do |", "|---|---|---|"]
    lines += [
        f"| {int(code)} | {because} | {advice} |" for code, (because, advice) in BECAUSE.items()
    ]
    return "\n".join(lines) + "\n"


def own_statuses() -> str:
    """Return the table of what HTTP itself refuses."""
    lines = ["| Status | Because | What to do | Retry |", "|---|---|---|---|"]
    lines += [
        f"| {status} | {because} | {advice} | {'yes' if status in HTTP_OWN_RETRIABLE else 'no'} |"
        for status, (because, advice) in HTTP_OWN.items()
    ]
    return "\n".join(lines) + "\n"


def value_codes() -> str:
    """Return the table of what is null in data of GraphQL."""
    lines = ["| Code | Because | What to do |", "|---|---|---|"]
    lines += [
        f"| `{code}` | {because} | {advice} |" for code, (because, advice) in VALUE_CODES.items()
    ]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> None:
    """Renew the page, or with ``--check`` fail if it is behind."""
    renew(PAGE, page(), arguments)


def _socket(error: type[TailraceError]) -> str:
    """Return what a socket does: the message ``error``, and where the whole socket goes its close code."""
    if error is errors.SubscriberTooSlow:
        return f", close {int(CloseCode.TOO_SLOW)}"
    if error is errors.ServerStopping:
        return f", `error` and close {int(CloseCode.GOING_AWAY)}"
    if error in (errors.Unauthenticated, errors.TokenExpired):
        return f", `error` or close {int(CloseCode.UNAUTHORIZED)} or {int(CloseCode.FORBIDDEN)}"
    return ""


def _when(error: type[TailraceError]) -> str:
    """Return the first sentences of its docstring, without those about a retry, which has a column."""
    text = " ".join((error.__doc__ or "").split("\n\n")[0].split())
    said = [
        each
        for each in re.split(r"(?<=\.) ", text)
        if not re.search(r"\bretr(y|ied)\b|'s doing\b", each)
    ]
    return " ".join(said).replace("|", "\\|").replace("``", "`")


if __name__ == "__main__":
    main(sys.argv[1:])
