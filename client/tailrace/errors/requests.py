"""What is wrong with a request: the caller's mistakes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors.tree import TailraceError

if TYPE_CHECKING:
    from collections.abc import Sequence


class InvalidRequest(TailraceError):
    """The caller asked for something that has no meaning. The caller's doing; a retry does not help."""

    code = "INVALID_REQUEST"
    advice = "Correct the request; the text names the field."


class CursorInvalid(InvalidRequest):
    """The text is not a cursor. The caller's doing; a retry does not help."""

    code = "CURSOR_INVALID"
    advice = "Hand in a cursor as it came, unchanged."

    def __init__(self, text: str) -> None:
        """Keep at most 100 characters of the text that was refused."""
        shown = text if len(text) <= 100 else text[:100] + "…"
        super().__init__(
            f"not a cursor: {shown!r}; a cursor reads "
            "1.<catalog uuid>.<version>.<index>.<ordinal>.<commit timestamp> "
            "and comes from a capture, a heartbeat or an acknowledgement"
        )
        self.text = shown

    def figures(self) -> dict[str, str]:
        """Return the text that was refused."""
        return {"cursor": self.text}


class CatalogUnknown(InvalidRequest):
    """No catalog of that name is served. The caller's doing, unless it is about to be created."""

    code = "CATALOG_UNKNOWN"
    advice = "Correct the name, or retry once the catalog has been created."

    def __init__(self, name: str, known: Sequence[str]) -> None:
        """Keep the name that was asked for and the names that exist."""
        names = ", ".join(sorted(known)) or "none yet"
        super().__init__(f"no catalog named {name!r}; known catalogs: {names}")
        self.name = name
        self.known = tuple(sorted(known))

    def figures(self) -> dict[str, str]:
        """Return the name asked for and the names that exist, separated by commas."""
        return {"catalog": self.name, "known": ",".join(self.known)}


class Unsupported(InvalidRequest):
    """A field or value that this server does not know or has not built; never ignored silently."""

    code = "UNSUPPORTED"
    advice = "Leave the field out, or ask a newer server."

    def __init__(self, field: str, reason: str) -> None:
        """Keep the path of the field, as ``criteria[0].where``."""
        super().__init__(f"unsupported: {field}: {reason}")
        self.field = field

    def figures(self) -> dict[str, str]:
        """Return the path of the field."""
        return {"field": self.field}
