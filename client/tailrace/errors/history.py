"""Errors of history: the log no longer has a version, or has another one in its place.

Also here: errors that are stored and raised again. They drop their traceback, since it keeps objects alive.
"""

from __future__ import annotations

import traceback
from copy import copy
from typing import TYPE_CHECKING

from tailrace.errors.tree import InternalError, TailraceError

if TYPE_CHECKING:
    from uuid import UUID

    from tailrace.position import Position


class PositionCompacted(TailraceError):
    """The start is before the oldest retained position. A retry does not help: take a new snapshot."""

    code = "POSITION_COMPACTED"
    advice = (
        "Take a new snapshot and continue after it, or start at version 0, the oldest retained "
        "version."
    )

    def __init__(
        self,
        wanted: Position,
        oldest: Position,
        newest: Position,
        advice: str = "take a new snapshot, or start at version 0 for the oldest retained",
    ) -> None:
        """Store the requested position and both ends of the retained log; ``advice`` says how to continue."""
        super().__init__(
            f"position {wanted} is no longer in the log, which has {oldest} to {newest}; {advice}"
        )
        self.wanted = wanted
        self.oldest = oldest
        self.newest = newest

    def figures(self) -> dict[str, str]:
        """Return the requested, oldest and newest position as version:index."""
        return {
            "wanted": str(self.wanted),
            "oldest": str(self.oldest),
            "newest": str(self.newest),
        }


class BodiesExpired(TailraceError):
    """The bodies of a record have left the log. A retry does not help.

    An entity type can retain bodies for a shorter time than the heads of its records.
    """

    code = "BODIES_EXPIRED"
    advice = (
        "Request heads only (no bodies), start at `oldest`, or read the table's state and continue "
        "there."
    )

    def __init__(
        self,
        wanted: Position,
        entity_type: str,
        oldest: Position,
        advice: str = "request no bodies, start there, or read the state and continue after it",
    ) -> None:
        """Store the first record without bodies, its entity type, and the oldest position that has them."""
        super().__init__(
            f"the bodies of {wanted} are no longer in the log, which has those of entity type "
            f"{entity_type!r} from {oldest} on; {advice}"
        )
        self.wanted = wanted
        self.entity_type = entity_type
        self.oldest = oldest

    def figures(self) -> dict[str, str]:
        """Return the two positions as version:index, and the entity type."""
        return {
            "wanted": str(self.wanted),
            "entity_type": self.entity_type,
            "oldest": str(self.oldest),
        }


class DeadlineExceeded(TailraceError):
    """The server did not publish the version that the request waits for in time. A retry may help."""

    code = "DEADLINE_EXCEEDED"
    retriable = True
    advice = (
        "Try again, or wait longer. If the version never appears, the writer has not published "
        "it, or it belongs to another catalog."
    )

    def __init__(self, name: str, version: int, published: int, waited_s: float) -> None:
        """Store the catalog, the version waited for, and the newest version published after the wait."""
        super().__init__(
            f"version {version} of catalog {name!r} was not published within {waited_s:g} s; the newest is "
            f"{published}"
        )
        self.name = name
        self.version = version
        self.published = published

    def figures(self) -> dict[str, str]:
        """Return the catalog, the version waited for, and the newest published version."""
        return {
            "catalog": self.name,
            "version": str(self.version),
            "published": str(self.published),
        }


class ImagesMissing(TailraceError):
    """A record lacks an image that CDCv2 needs: the row before or the row after the change.

    The cause is the source; a retry does not help.
    """

    code = "IMAGES_MISSING"
    advice = (
        "Configure the source to send rows before and after. A subscription may then begin after "
        "this version; an export needs every version, and therefore a new catalog."
    )

    def __init__(self, version: int, key: str | None, image: str) -> None:
        """Store the version and key of the record, and the name of the missing image; no key for a truncate."""
        what = "removes all rows at once" if key is None else f"has no image {image!r}"
        super().__init__(
            f"version {version}: the record of key {key!r} {what}; CDCv2 needs the old and new "
            "values of all rows (configure the source to send rows before and after; a "
            "subscription may then begin after this version, an export needs a catalog without "
            "such records)"
        )
        self.version = version
        self.key = key
        self.image = image

    def figures(self) -> dict[str, str]:
        """Return the version, the key (empty for a truncate) and the name of the missing image."""
        return {"version": str(self.version), "key": self.key or "", "image": self.image}


class CatalogReplaced(TailraceError):
    """The cursor or subscription belongs to a log that no longer exists. A retry does not help: start anew."""

    code = "CATALOG_REPLACED"
    advice = "Discard the cursor and what was built from it; start again."

    def __init__(self, name: str, expected: UUID, found: UUID | None) -> None:
        """Store the uuid of the old log and that of the new one, ``found``; None if the catalog was dropped."""
        now = f"is now {found}" if found is not None else "was dropped"
        super().__init__(
            f"catalog {name!r} {now}; a cursor, subscription or writer of {expected} is no longer "
            "valid: start again, without a cursor"
        )
        self.name = name
        self.expected = expected
        self.found = found

    def figures(self) -> dict[str, str]:
        """Return the name and both uuids; ``found`` is empty if the catalog was dropped."""
        return {
            "catalog": self.name,
            "expected": str(self.expected),
            "found": str(self.found or ""),
        }


class CursorAhead(TailraceError):
    """The log ends before the cursor: it was restored from an older copy. A retry does not help: start anew."""

    code = "CURSOR_AHEAD"
    advice = (
        "Restore the newer log, or discard the cursor and what was built from it. If several "
        "servers share a log over a network, this server may be late: try again a little later."
    )

    def __init__(self, name: str, cursor: str, newest: Position) -> None:
        """Store the catalog, the cursor's text and the newest position of the log."""
        super().__init__(
            f"catalog {name!r} ends at {newest}, and the cursor {cursor} is later: the log was "
            "restored from an older copy, or this server has not read the newest commits yet"
        )
        self.name = name
        self.cursor = cursor
        self.newest = newest

    def figures(self) -> dict[str, str]:
        """Return the catalog, the cursor, and the newest position as version:index."""
        return {"catalog": self.name, "cursor": self.cursor, "newest": str(self.newest)}


class HistoryReplaced(TailraceError):
    """The log was restored from an older copy and then written further. A retry does not help: start anew.

    The log lacks changes that the cursor has passed, and has others in their place.
    """

    code = "HISTORY_REPLACED"
    advice = "Discard the cursor and what was built from it; start again."

    def __init__(self, name: str, cursor: str, found: int) -> None:
        """Store the catalog, the cursor's text, and the commit time of its version in this log, in µs."""
        super().__init__(
            f"catalog {name!r} was restored from an older copy and then written again: its "
            f"version at the cursor {cursor} is a different one, committed at {found}; start "
            "again, without a cursor"
        )
        self.name = name
        self.cursor = cursor
        self.found = found

    def figures(self) -> dict[str, str]:
        """Return the catalog, the cursor, and the commit time of the cursor's version in this log, in µs."""
        return {"catalog": self.name, "cursor": self.cursor, "found": str(self.found)}


class ColumnsChanged(TailraceError):
    """A column of the request was dropped, got a narrower type, or another column has its name now.

    A retry does not help: start anew.
    """

    code = "COLUMNS_CHANGED"
    advice = (
        "Discard the cursor and what was built from it; start again, with a condition on the present "
        "columns."
    )

    def __init__(self, entity_type: str, column: str, reason: str) -> None:
        """Store the entity type, the column's name and what happened to it."""
        super().__init__(
            f"column {column!r} of {entity_type!r} {reason}; start again, without a cursor"
        )
        self.entity_type = entity_type
        self.column = column
        self.reason = reason

    def figures(self) -> dict[str, str]:
        """Return the entity type, the column and what happened to it."""
        return {"entity_type": self.entity_type, "column": self.column, "reason": self.reason}


def kept(error: Exception) -> TailraceError:
    """Return an error in a form that may be stored: as a ``TailraceError``, without traceback.

    A traceback would keep all its frames alive. For an unexpected error, which is our bug, the traceback is
    stored as text in a note.
    """
    # Keep the original error as the cause: its note has the traceback, before the frames are forgotten.
    if not isinstance(error, TailraceError):
        internal = InternalError(f"{type(error).__name__}: {error}")
        error.add_note("".join(traceback.format_exception(error)))
        internal.__cause__ = error
        error = internal
    forget_frames(error)
    return error


def again(error: TailraceError) -> TailraceError:
    """Return a copy of a stored error to raise; raising the stored one would add frames to its traceback."""
    copied = copy(error)
    copied.__cause__ = error.__cause__
    return copied


def forget_frames(error: BaseException) -> None:
    """Remove the tracebacks of an error and of its causes; for errors that are not raised further.

    A traceback references the frames that the error passed through, and their local variables. A frame or task
    that references the error completes a reference cycle, which only the cycle collector frees. Frames that are
    still running are not cleared.
    """
    # Causes and contexts form a graph, possibly with cycles: visit each error once, without recursion.
    found, waiting = set(), [error]
    while waiting:
        each = waiting.pop()
        if id(each) in found:
            continue
        found.add(id(each))
        traceback.clear_frames(each.__traceback__)
        each.__traceback__ = None
        waiting += [led for led in (each.__cause__, each.__context__) if led is not None]
        if isinstance(each, BaseExceptionGroup):
            waiting += each.exceptions
