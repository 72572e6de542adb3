"""Errors in the form of GraphQL: a list of objects with a message, a path or locations, and extensions.

::

    {"message": "position 1:0 is no longer in the log, …", "path": ["onProductChange"],
     "extensions": {"code": "POSITION_COMPACTED", "retriable": false, "figures": {"oldest": "4:0", …}}}

``extensions`` come from the error table of all transports; the codes in `VALUE_CODES` exist only in GraphQL. An
error in a document has locations. An error of execution has none, because different documents with equal
selections share the same bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from tailrace.errors import InvalidRequest, TailraceError
from tailrace_server.api.errors import logged, problem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphql import GraphQLError

_log = structlog.get_logger("tailrace.graphql")

_SHOWN_MAX: Final = 20
"""Maximum number of faults of one document that are sent; a malicious document can have thousands."""
_VALUE_SHOWN_MAX: Final = 40
"""Maximum number of a value's bytes in an error message."""


VALUE_CODES: Final[Mapping[str, tuple[str, str]]] = {
    "BODIES_OMITTED": (
        "The bodies of the change are above `maxMessageBytes`; `omittedBytes` says how large they are.",
        "Subscribe with a larger `maxMessageBytes`, or read the change from the history with one.",
    ),
    "VALUE_INVALID": (
        "The column's scalar cannot hold the value: it exceeds the range of the scalar, the column has "
        "got another type since the subscription began, or the row never had the declared type.",
        "Subscribe again to get the column's new type; else use `afterText` of `onCatalogChange`, which "
        "is the unchanged row.",
    ),
}
"""Codes for a value that is null although the answer has data → cause and remedy. None is retriable."""


class DocumentRefused(InvalidRequest):
    """A document that does not parse, is not valid for the schema, or exceeds a limit. The caller's fault."""

    def __init__(self, faults: Sequence[GraphQLError]) -> None:
        """Store the faults, at least one."""
        super().__init__(faults[0].message)
        self.faults = tuple(faults[:_SHOWN_MAX])


class ValueUnfit(ValueError):
    """A value that its scalar cannot represent, or that was omitted; the field is null and has this error."""

    def __init__(self, message: str, code: str = "VALUE_INVALID") -> None:
        """Store the message and its machine code, one of `VALUE_CODES`."""
        super().__init__(message)
        self.code = code

    def as_error(self, path: Sequence[str | int]) -> dict[str, Any]:
        """Return the GraphQL error of the field at a path."""
        extensions = {"code": self.code, "retriable": False, "figures": {}}
        return {"message": str(self), "path": list(path), "extensions": extensions}


def cannot_represent(scalar: str, raw: bytes, reason: str = "") -> ValueUnfit:
    """Return the error for a value that a scalar cannot represent; it quotes the start of the source's text."""
    shown = raw[:_VALUE_SHOWN_MAX].decode(errors="replace")
    return ValueUnfit(f"{scalar} cannot represent {shown}{reason and f': {reason}'}")


def omitted(size: int) -> ValueUnfit:
    """Return the error for a body that was omitted because it was too large; ``size`` is in bytes."""
    return ValueUnfit(
        f"left out: the bodies have {size} bytes, above maxMessageBytes", "BODIES_OMITTED"
    )


def error_list(error: TailraceError) -> list[dict[str, Any]]:
    """Return the GraphQL errors of an error; a refused document may have several."""
    if isinstance(error, DocumentRefused):
        return [_document_fault(fault) for fault in error.faults]
    return [{"message": str(error), "extensions": extensions_of(error)}]


def encoded_errors(error: TailraceError) -> bytes:
    """Return an encoded answer with the errors and without data, in one line."""
    return msgspec.json.encode({"errors": error_list(error)})


def extensions_of(error: TailraceError) -> dict[str, Any]:
    """Return code, retriable and figures of an error, from the error table."""
    found = problem(error)
    return {name: found[name] for name in ("code", "retriable", "figures")}


def field_error(fault: GraphQLError) -> dict[str, Any]:
    """Return the GraphQL error of a field whose resolver failed; its data is null."""
    original, path = fault.original_error, fault.path or []
    if original is None:
        return ValueUnfit(fault.message).as_error(path)
    if isinstance(original, ValueUnfit):
        return original.as_error(path)
    error = logged(original, _log)
    return {"message": str(error), "path": path, "extensions": extensions_of(error)}


def _document_fault(fault: GraphQLError) -> dict[str, Any]:
    extensions = extensions_of(InvalidRequest(fault.message))
    out: dict[str, Any] = {"message": fault.message, "extensions": extensions}
    if fault.locations:
        out["locations"] = [{"line": each.line, "column": each.column} for each in fault.locations]
    return out
