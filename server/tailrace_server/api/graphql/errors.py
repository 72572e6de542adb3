"""Errors in the form of GraphQL: a list of objects with a message, a path where there is one, and extensions.

::

    {"message": "position 1:0 is no longer in the log, …", "path": ["onProductChange"],
     "extensions": {"code": "POSITION_COMPACTED", "retriable": false, "figures": {"oldest": "4:0", …}}}

``extensions`` are those of the one error table, the same on every transport; `VALUE_CODES` are GraphQL's own.
Locations point into a document; an error of execution has none, since equal selections of different documents
share what is sent.
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
"""Most faults of one document that are sent; a made-up document can have thousands."""
_VALUE_SHOWN_MAX: Final = 40
"""Bytes of a value that its error shows."""


VALUE_CODES: Final[Mapping[str, tuple[str, str]]] = {
    "BODIES_OMITTED": (
        "The bodies of the change are above `maxMessageBytes`; `omittedBytes` says how large they are.",
        "Subscribe with a larger `maxMessageBytes`, or read the change from the history with one.",
    ),
    "VALUE_INVALID": (
        "Its scalar cannot hold the value: it is beyond the scalar's range, the column has another type "
        "since the subscription began, or the row never kept to it.",
        "Subscribe again to have the column's new type; else take `afterText` of `onCatalogChange`, the row "
        "as it is.",
    ),
}
"""Codes of a value that is null in data that are there: because, what to do. No retry helps; no figures."""


class DocumentRefused(InvalidRequest):
    """A document that does not parse, is not valid here, or is above a limit. The caller's doing."""

    def __init__(self, faults: Sequence[GraphQLError]) -> None:
        """Keep the faults; there is at least one."""
        super().__init__(faults[0].message)
        self.faults = tuple(faults[:_SHOWN_MAX])


class ValueUnfit(ValueError):
    """A value that cannot be shown, as its scalar cannot hold it. Null, with this error."""

    def __init__(self, message: str, code: str = "VALUE_INVALID") -> None:
        """Keep what is wrong and its machine code."""
        super().__init__(message)
        self.code = code

    def as_error(self, path: Sequence[str | int]) -> dict[str, Any]:
        """Return it as an error of the field at a path."""
        extensions = {"code": self.code, "retriable": False, "figures": {}}
        return {"message": str(self), "path": list(path), "extensions": extensions}


def cannot_represent(scalar: str, raw: bytes, reason: str = "") -> ValueUnfit:
    """Return why a value is null that its scalar cannot hold, with its beginning as the source wrote it."""
    shown = raw[:_VALUE_SHOWN_MAX].decode(errors="replace")
    return ValueUnfit(f"{scalar} cannot represent {shown}{reason and f': {reason}'}")


def omitted(size: int) -> ValueUnfit:
    """Return why a body is null that was too large."""
    return ValueUnfit(
        f"left out: the bodies have {size} bytes, above maxMessageBytes", "BODIES_OMITTED"
    )


def error_list(error: TailraceError) -> list[dict[str, Any]]:
    """Return an error as GraphQL has it."""
    if isinstance(error, DocumentRefused):
        return [_document_fault(fault) for fault in error.faults]
    return [{"message": str(error), "extensions": extensions_of(error)}]


def encoded_errors(error: TailraceError) -> bytes:
    """Return an answer without data, in one line."""
    return msgspec.json.encode({"errors": error_list(error)})


def extensions_of(error: TailraceError) -> dict[str, Any]:
    """Return what the one error table says of an error."""
    found = problem(error)
    return {name: found[name] for name in ("code", "retriable", "figures")}


def field_error(fault: GraphQLError) -> dict[str, Any]:
    """Return an error that a field ended with; its data is null."""
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
