"""Errors of a write-ahead log, of typed values, and of the files of live tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors.tree import TailraceError
from tailrace.position import Position

if TYPE_CHECKING:
    from collections.abc import Sequence


class LogError(TailraceError):
    """The write-ahead log cannot be read or written; the base class of the errors below."""

    code = "LOG"
    advice = "Read the server's log."


class LogCorrupted(LogError):
    """A committed byte has changed in the storage. Reads that do not need this byte continue to work."""

    code = "LOG_CORRUPTED"
    advice = "Run `tailrace log verify`; restore the segment, or start after the fault."

    def __init__(
        self,
        path: str,
        offset: int,
        reason: str,
        first: Position | None = None,
        last: Position | None = None,
    ) -> None:
        """Store the place of the fault.

        Args:
            path: Path of the damaged object, relative to the catalog.
            offset: Byte offset in the object at which the fault begins.
            reason: Description of the fault.
            first: First record that cannot be read; None if the fault is not in records.
            last: Last record that cannot be read; None if the fault is not in records.
        """
        text = f"log corrupted: {path} at byte {offset}: {reason}"
        self.next = None if last is None else Position(last.version, last.index + 1)
        """First position after the fault, from which reading can resume; None if ``last`` is None."""
        if self.next is not None:
            text += f"; the records {first} to {last} cannot be read, those from {self.next} on can"
        super().__init__(text)
        self.path = path
        self.offset = offset
        self.reason = reason
        self.first = first
        self.last = last

    def figures(self) -> dict[str, str]:
        """Return the segment, the byte offset, the reason, and the records that cannot be read."""
        places = {"first": self.first, "last": self.last, "next": self.next}
        return {
            "segment": self.path,
            "offset": str(self.offset),
            "reason": self.reason,
            **{name: str(place) for name, place in places.items() if place is not None},
        }


class LogUnreadable(LogError):
    """A folder is not a log, has a newer format, or may not be read. The text says which, and what to do."""

    code = "LOG_UNREADABLE"
    advice = (
        "Do what the text of the error says: use another folder or a newer version, or set "
        "permissions."
    )


class LogMissing(LogError):
    """The folder of a catalog is missing, though the catalog was not dropped; a volume may be unmounted.

    A retry helps once the folder is back.
    """

    code = "LOG_MISSING"
    retriable = True
    advice = (
        "Mount the volume, or restore the folder: the server then continues by itself, from the same "
        "cursor."
    )

    def __init__(self, name: str) -> None:
        """Store the catalog's name."""
        super().__init__(
            f"the folder of catalog {name!r} no longer exists, although the catalog was not "
            "dropped: mount its volume or restore the folder, and readers continue from their "
            "cursors; to give the catalog up, run `tailrace catalog drop`"
        )
        self.name = name

    def figures(self) -> dict[str, str]:
        """Return the catalog's name."""
        return {"catalog": self.name}


class LogFull(LogError):
    """No space is left on the device. Committed versions are safe; writing continues once there is space."""

    code = "LOG_FULL"
    retriable = True
    advice = "Free space on the device. `ingest --follow` waits for it; start other writers again."


class WriterFenced(LogError):
    """A newer writer has taken over the catalog; this writer must stop. A retry does not help."""

    code = "WRITER_FENCED"
    advice = "Stop this writer; restart it only to take the catalog over."

    def __init__(self, epoch: int, holder_epoch: int, holder: str) -> None:
        """Store the writer's own epoch, the newer epoch and its writer, as ``query id on host, run id``."""
        super().__init__(
            f"fenced: this writer's epoch is {epoch}, but epoch {holder_epoch} is held by {holder}; "
            "stop this writer, or restart it to take the catalog over"
        )
        self.epoch = epoch
        self.holder_epoch = holder_epoch
        self.holder = holder

    def figures(self) -> dict[str, str]:
        """Return the writer's own epoch, the newer epoch and its writer."""
        return {
            "epoch": str(self.epoch),
            "holder_epoch": str(self.holder_epoch),
            "holder": self.holder,
        }


class UnknownWriter(LogError):
    """The catalog belongs to a writer of another name, or this writer has lost its checkpoint."""

    code = "UNKNOWN_WRITER"
    advice = "Use the name that the catalog knows, or permit the takeover; the text of the error says how."

    def __init__(self, writer: str, known: Sequence[str], advice: str) -> None:
        """Store the refused writer name and the known ones; ``advice`` says how to continue."""
        super().__init__(f"writer {writer!r} is not one of {', '.join(known) or 'none'}: {advice}")
        self.writer = writer
        self.known = tuple(known)

    def figures(self) -> dict[str, str]:
        """Return the refused writer name and those that the catalog knows."""
        return {"writer": self.writer, "known": ",".join(self.known)}


_SHOWN_MAX = 40


class ValueNotHeld(TailraceError):
    """Python's type for a column cannot hold a value; the image has it as text. A retry does not help."""

    code = "VALUE_NOT_HELD"
    advice = "Read the image, which has the value as it was sent, or declare a type that holds all values."

    def __init__(self, entity_type: str, column: str, label: str, value: str, reason: str) -> None:
        """Store the column, its type and encoding, the first 40 characters of the value, and the reason."""
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
        """Return the entity type, the column, its type and encoding, the start of the value, and the reason."""
        return {
            "entity_type": self.entity_type,
            "column": self.column,
            "type": self.label,
            "value": self.value,
            "reason": self.reason,
        }


class TableFileError(TailraceError):
    """The file of a live table has other contents, is in use by another program, or cannot be used."""

    code = "TABLE_FILE"
    advice = "Do what the text of the error says: use another file, end the other program, or free space."

    def __init__(self, path: str, reason: str) -> None:
        """Store the path of the file and the reason."""
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason

    def figures(self) -> dict[str, str]:
        """Return the path of the file and the reason."""
        return {"path": self.path, "reason": self.reason}
