"""Errors of a write-ahead log, and of the values and files in which a program holds its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors.tree import TailraceError
from tailrace.position import Position

if TYPE_CHECKING:
    from collections.abc import Sequence


class LogError(TailraceError):
    """The write-ahead log cannot be used as asked."""

    code = "LOG"
    advice = "Look into the server's log."


class LogCorrupted(LogError):
    """A committed byte is wrong: the storage has changed it. Reads that do not need the byte continue."""

    code = "LOG_CORRUPTED"
    advice = "Run `tailrace log verify`; restore the segment, or start behind the fault."

    def __init__(
        self,
        path: str,
        offset: int,
        reason: str,
        first: Position | None = None,
        last: Position | None = None,
    ) -> None:
        """Keep the place.

        Args:
            path: Of the object, relative to the catalog.
            offset: Byte in the object at which the fault begins.
            reason: What is wrong.
            first: First record that cannot be read; None where the fault is not in records.
            last: Last record that cannot be read.
        """
        text = f"log corrupted: {path} at byte {offset}: {reason}"
        self.next = None if last is None else Position(last.version, last.index + 1)
        """First position behind the fault, from which reading can begin; None where ``last`` is."""
        if self.next is not None:
            text += f"; the records {first} to {last} cannot be read, those from {self.next} on can"
        super().__init__(text)
        self.path = path
        self.offset = offset
        self.reason = reason
        self.first = first
        self.last = last

    def figures(self) -> dict[str, str]:
        """Return segment, byte offset, what was wrong, and which records cannot be read."""
        places = {"first": self.first, "last": self.last, "next": self.next}
        return {
            "segment": self.path,
            "offset": str(self.offset),
            "reason": self.reason,
            **{name: str(place) for name, place in places.items() if place is not None},
        }


class LogUnreadable(LogError):
    """Not a log, a newer format version, or no permission. Says which and what to do."""

    code = "LOG_UNREADABLE"
    advice = "Do what the text says: another folder, a newer version, permission."


class LogMissing(LogError):
    """The folder of a catalog that was not dropped is gone, as with a lost volume. A retry helps."""

    code = "LOG_MISSING"
    retriable = True
    advice = "Mount the volume, or restore the folder: the server continues by itself, from the same cursor."

    def __init__(self, name: str) -> None:
        """Keep the catalog's name."""
        super().__init__(
            f"the folder of catalog {name!r} is gone, and the catalog was not dropped: mount its volume or "
            "restore the folder, and readers continue from their cursors; if it is not to come back, run "
            "`tailrace catalog drop`"
        )
        self.name = name

    def figures(self) -> dict[str, str]:
        """Return the catalog's name."""
        return {"catalog": self.name}


class LogFull(LogError):
    """No room is left on the device. Commits remain; writing continues once there is room."""

    code = "LOG_FULL"
    retriable = True
    advice = "Make room on the device. `ingest --follow` waits for it; start other writers again."


class WriterFenced(LogError):
    """A newer writer holds the catalog; this one must stop. A retry does not help."""

    code = "WRITER_FENCED"
    advice = "Stop this writer; restart it only to take the catalog over."

    def __init__(self, epoch: int, holder_epoch: int, holder: str) -> None:
        """Keep both epochs and the holder, as ``query id on host, run id``."""
        super().__init__(
            f"fenced: this writer's epoch is {epoch}, but epoch {holder_epoch} is held by {holder}; "
            "stop this writer, or restart it to take the catalog over"
        )
        self.epoch = epoch
        self.holder_epoch = holder_epoch
        self.holder = holder

    def figures(self) -> dict[str, str]:
        """Return both epochs and the holder."""
        return {
            "epoch": str(self.epoch),
            "holder_epoch": str(self.holder_epoch),
            "holder": self.holder,
        }


class UnknownWriter(LogError):
    """The catalog belongs to another writer name, or this one lost its checkpoint."""

    code = "UNKNOWN_WRITER"
    advice = "Use the name that the catalog knows, or permit the takeover, as the text says."

    def __init__(self, writer: str, known: Sequence[str], advice: str) -> None:
        """Keep both names; ``advice`` says how to continue."""
        super().__init__(f"writer {writer!r} is not one of {', '.join(known) or 'none'}: {advice}")
        self.writer = writer
        self.known = tuple(known)

    def figures(self) -> dict[str, str]:
        """Return the writer that was refused and those that the catalog knows."""
        return {"writer": self.writer, "known": ",".join(self.known)}


_SHOWN_MAX = 40


class ValueNotHeld(TailraceError):
    """Python's type for a column cannot hold a value. The image has it as it was sent; no retry helps."""

    code = "VALUE_NOT_HELD"
    advice = "Read the image, which has the value as it was sent, or declare a type that holds all values."

    def __init__(self, entity_type: str, column: str, label: str, value: str, reason: str) -> None:
        """Keep the column, what it is, the beginning of the value, and why it does not fit."""
        shown = value if len(value) <= _SHOWN_MAX else value[:_SHOWN_MAX] + "…"
        super().__init__(
            f"column {column!r} of {entity_type!r} is {label}, and cannot be read from {shown}: {reason}"
        )
        self.entity_type = entity_type
        self.column = column
        self.label = label
        self.value = shown
        self.reason = reason

    def figures(self) -> dict[str, str]:
        """Return entity type, column, its type and encoding, the beginning of the value, and why."""
        return {
            "entity_type": self.entity_type,
            "column": self.column,
            "type": self.label,
            "value": self.value,
            "reason": self.reason,
        }


class TableFileError(TailraceError):
    """The file of a live table holds something else, is written by another program, or cannot be used."""

    code = "TABLE_FILE"
    advice = "Do what its text says: name another file, end the other program, make room."

    def __init__(self, path: str, reason: str) -> None:
        """Keep the file, and what is wrong with it."""
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason

    def figures(self) -> dict[str, str]:
        """Return the file, and what is wrong with it."""
        return {"path": self.path, "reason": self.reason}
