"""Errors of a write-ahead log, on the server or in a pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors.tree import TailraceError

if TYPE_CHECKING:
    from collections.abc import Sequence


class LogError(TailraceError):
    """The write-ahead log cannot be used as asked."""

    code = "LOG"
    advice = "Look into the server's log."


class LogCorrupted(LogError):
    """A committed byte is wrong. The storage's doing; reads that do not need it go on."""

    code = "LOG_CORRUPTED"
    advice = "Run `tailrace log verify`; restore the segment, or start behind the fault."

    def __init__(self, path: str, offset: int, reason: str) -> None:
        """Keep the object's path relative to the catalog and the byte offset of the fault."""
        super().__init__(f"log corrupted: {path} at byte {offset}: {reason}")
        self.path = path
        self.offset = offset
        self.reason = reason

    def figures(self) -> dict[str, str]:
        """Return segment, byte offset and what was wrong."""
        return {"segment": self.path, "offset": str(self.offset), "reason": self.reason}


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
    """No room is left on the device. What was committed stays; writing goes on once there is room."""

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
