"""Errors of history: positions and cursors of versions that the log no longer has, or has in another form.

An error that is stored or raised again drops the frames that it passed through, since they keep objects alive.
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
    """The start lies below the oldest retained position. A retry does not help: take a new snapshot."""

    code = "POSITION_COMPACTED"
    advice = (
        "Take a new snapshot and continue behind it, or start at version 0 for what is retained."
    )

    def __init__(
        self,
        wanted: Position,
        oldest: Position,
        newest: Position,
        advice: str = "take a new snapshot, or start at version 0 for the oldest retained",
    ) -> None:
        """Keep the first position wanted and both ends of the retained log; ``advice`` says how to continue."""
        super().__init__(
            f"position {wanted} is no longer in the log, which keeps {oldest} to {newest}; {advice}"
        )
        self.wanted = wanted
        self.oldest = oldest
        self.newest = newest

    def figures(self) -> dict[str, str]:
        """Return the three positions as version:index."""
        return {
            "wanted": str(self.wanted),
            "oldest": str(self.oldest),
            "newest": str(self.newest),
        }


class BodiesExpired(TailraceError):
    """A record's bodies are gone: its entity type keeps them for less long than heads. No retry helps."""

    code = "BODIES_EXPIRED"
    advice = "Read heads alone (no bodies), start at `oldest`, or read the table's state and continue there."

    def __init__(
        self,
        wanted: Position,
        entity_type: str,
        oldest: Position,
        advice: str = "ask for no bodies, start there, or read the state and go on behind it",
    ) -> None:
        """Keep the first record whose bodies are missing, its entity type, and where that one's begin."""
        super().__init__(
            f"the bodies of {wanted} are no longer in the log, which keeps those of entity type "
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
    """The version that was waited for was not published in time. A retry helps once it is."""

    code = "DEADLINE_EXCEEDED"
    retriable = True
    advice = (
        "Try again, or wait for longer. If it never comes, the writer has not published it, or the version is "
        "another catalog's."
    )

    def __init__(self, name: str, version: int, published: int, waited_s: float) -> None:
        """Keep the catalog, the version waited for, and the newest published after so many seconds."""
        super().__init__(
            f"version {version} of catalog {name!r} was not published within {waited_s:g} s; the newest is "
            f"{published}"
        )
        self.name = name
        self.version = version
        self.published = published

    def figures(self) -> dict[str, str]:
        """Return catalog, the version waited for and the newest published."""
        return {
            "catalog": self.name,
            "version": str(self.version),
            "published": str(self.published),
        }


class ImagesMissing(TailraceError):
    """CDCv2 says what went and came, and a record's images do not. The source's doing; no retry helps."""

    code = "IMAGES_MISSING"
    advice = (
        "Have the source send rows before and after. A subscription may then begin behind this version; an "
        "export needs every version, and so a catalog of its own."
    )

    def __init__(self, version: int, key: str | None, image: str) -> None:
        """Keep the place of the record and the image that it lacks."""
        what = "removes all rows at once" if key is None else f"has no image {image!r}"
        super().__init__(
            f"version {version}: the record of key {key!r} {what}; CDCv2 needs the rows that went and "
            "those that came (have the source send rows before and after; a subscription may then begin behind "
            "this version, an export needs a catalog without such records)"
        )
        self.version = version
        self.key = key
        self.image = image

    def figures(self) -> dict[str, str]:
        """Return version, key (empty for a truncate) and image."""
        return {"version": str(self.version), "key": self.key or "", "image": self.image}


class CatalogReplaced(TailraceError):
    """The cursor or subscription belongs to a log that is gone. A retry does not help: start anew."""

    code = "CATALOG_REPLACED"
    advice = "Forget the cursor and what was built from it; start anew."

    def __init__(self, name: str, expected: UUID, found: UUID | None) -> None:
        """Keep both uuids; ``found`` is None where the catalog was dropped."""
        now = f"is now {found}" if found is not None else "was dropped"
        super().__init__(
            f"catalog {name!r} {now}; a cursor, subscription or writer of {expected} ends with that: start "
            "anew, without a cursor"
        )
        self.name = name
        self.expected = expected
        self.found = found

    def figures(self) -> dict[str, str]:
        """Return the name and both uuids; ``found`` is empty where the catalog was dropped."""
        return {
            "catalog": self.name,
            "expected": str(self.expected),
            "found": str(self.found or ""),
        }


class CursorAhead(TailraceError):
    """The log ends before the cursor: it was restored from an older copy. A retry does not help: start anew."""

    code = "CURSOR_AHEAD"
    advice = (
        "Restore the newer log, or forget the cursor and what was built from it. If several servers share "
        "a log over a network, this one may be behind: try again a little later."
    )

    def __init__(self, name: str, cursor: str, newest: Position) -> None:
        """Keep the catalog, the cursor's text and where the log ends."""
        super().__init__(
            f"catalog {name!r} ends at {newest}, and the cursor {cursor} is from beyond that: the log was "
            "restored from an older copy, or this server has not read the newest commits yet"
        )
        self.name = name
        self.cursor = cursor
        self.newest = newest

    def figures(self) -> dict[str, str]:
        """Return catalog, cursor and the end of the log, as version:index."""
        return {"catalog": self.name, "cursor": self.cursor, "newest": str(self.newest)}


class HistoryReplaced(TailraceError):
    """The log was restored from an older copy and written anew: what the cursor has passed is not in it.

    A retry does not help: start anew.
    """

    code = "HISTORY_REPLACED"
    advice = "Forget the cursor and what was built from it; start anew."

    def __init__(self, name: str, cursor: str, found: int) -> None:
        """Keep the catalog, the cursor's text and the timestamp that the log has for its version, µs."""
        super().__init__(
            f"catalog {name!r} holds another version than the one that the cursor {cursor} has passed, "
            f"committed at {found}: the log was restored from an older copy and written anew; start anew, "
            "without a cursor"
        )
        self.name = name
        self.cursor = cursor
        self.found = found

    def figures(self) -> dict[str, str]:
        """Return catalog, cursor and the commit timestamp of its version in this log, µs."""
        return {"catalog": self.name, "cursor": self.cursor, "found": str(self.found)}


class ColumnsChanged(TailraceError):
    """A column was dropped, has a type that may not hold its values, or its name is another column's now.

    A retry does not help: start anew.
    """

    code = "COLUMNS_CHANGED"
    advice = "Forget the cursor and what was built from it; start anew, with a condition on the columns of now."

    def __init__(self, entity_type: str, column: str, reason: str) -> None:
        """Keep the entity type, the column's name and what happened to it."""
        super().__init__(
            f"column {column!r} of {entity_type!r} {reason}; start anew, without a cursor"
        )
        self.entity_type = entity_type
        self.column = column
        self.reason = reason

    def figures(self) -> dict[str, str]:
        """Return entity type, column and what happened to it."""
        return {"entity_type": self.entity_type, "column": self.column, "reason": self.reason}


def kept(error: Exception) -> TailraceError:
    """Return an error as one of the tree that may be kept: without its frames, which would be kept with it.

    Of one that is our bug the traceback stays as text, in a note.
    """
    if not isinstance(error, TailraceError):
        internal = InternalError(f"{type(error).__name__}: {error}")
        error.add_note("".join(traceback.format_exception(error)))
        internal.__cause__ = error
        error = internal
    forget_frames(error)
    return error


def again(error: TailraceError) -> TailraceError:
    """Return a copy to raise: a kept error would keep every frame that it passed through."""
    copied = copy(error)
    copied.__cause__ = error.__cause__
    return copied


def forget_frames(error: BaseException) -> None:
    """Take its traceback from an error that goes no further, and from those that led to it.

    A traceback keeps the frames that the error passed through, with all they hold. A frame, or a task, that
    keeps the error makes a cycle of it, which only the cycle collector finds. Frames that still run are spared.
    """
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
