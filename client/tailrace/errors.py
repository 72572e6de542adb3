"""Every error that tailrace raises, one tree.

::

    TailraceError
    ├── InvalidRequest            the caller's mistake: criteria, demand, start
    │   ├── CursorInvalid         the text is not a cursor
    │   ├── CatalogUnknown        no such catalog; carries the known ones
    │   └── Unsupported           a field or value that this server does not know or has not built
    ├── PositionCompacted         left the log; carries oldest and newest position
    ├── ImagesMissing             a record lacks an image that its encoding needs; names version and key
    ├── CatalogReplaced           the cursor or subscription belongs to another log, or the catalog was dropped
    ├── CursorAhead               the log ends before the cursor; carries where it ends
    ├── HistoryReplaced           the log was restored from an older copy and written anew
    ├── SubscriptionClosed        you closed it
    ├── SubscriptionBroken        the other side or the network ended it      (retriable)
    │   ├── HeartbeatMissed       nothing came for longer than the server announced
    │   ├── SubscriberTooSlow     a write stayed blocked past the send deadline
    │   └── ServerStopping        graceful stop
    ├── ServerFull                no room in the server's memory for this request  (retriable)
    ├── TransportError            the connection failed before a subscription stood  (retriable)
    │   ├── ConnectTimeout
    │   └── NotGrpc               something else answers at that address
    ├── LogError                  the write-ahead log, on the server or in a pipeline
    │   ├── LogCorrupted          a committed byte is wrong: segment and byte offset
    │   ├── LogUnreadable         a folder that is not a log, a newer format, no permission
    │   ├── LogFull               no room left on the device                   (retriable)
    │   ├── WriterFenced          a newer writer holds the catalog; names it
    │   └── UnknownWriter         another writer name without permission to take over
    └── InternalError             our bug; never retried

``code`` is the machine code that every transport carries (google.rpc.ErrorInfo.reason on gRPC).
``figures()`` gives the error's values as text, by name. All of them pickle, since some cross from a
Spark worker.
"""

from __future__ import annotations

import traceback
from copy import copy
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from tailrace.position import Position


class TailraceError(Exception):
    """The root of the tree; catch it to catch all of ours."""

    code: ClassVar[str] = "INTERNAL"
    retriable: ClassVar[bool] = False
    advice: ClassVar[str] = ""
    """What to do about it, in a sentence; docs/errors.md shows it."""

    def figures(self) -> dict[str, str]:
        """Return the values that the error carries, by name, as text."""
        return {}

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by attributes, since subclasses take other arguments than the message."""
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def _rebuild(
    cls: type[TailraceError], args: tuple[object, ...], state: dict[str, object]
) -> TailraceError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


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


class PositionCompacted(TailraceError):
    """The start lies below the oldest retained position. A retry does not help: take a new snapshot."""

    code = "POSITION_COMPACTED"
    advice = "Take a new snapshot and go on behind it, or start at version 0 for what is retained."

    def __init__(
        self,
        wanted: Position,
        oldest: Position,
        newest: Position,
        advice: str = "take a new snapshot, or start at version 0 for the oldest retained",
    ) -> None:
        """Keep the first position wanted and both ends of what is retained; ``advice`` says how to go on."""
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


class ImagesMissing(TailraceError):
    """CDCv2 says what went and came, and a record's images do not. The source's doing; no retry helps."""

    code = "IMAGES_MISSING"
    advice = (
        "Have the source send rows before and after. A subscription may then begin behind this version; an "
        "export needs every version, and so a catalog of its own."
    )

    def __init__(self, version: int, key: str | None, image: str) -> None:
        """Keep where the record stands and the image that it lacks."""
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
        "Restore the newer log, or forget the cursor and what was built from it. Where several servers share "
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


class SubscriptionClosed(TailraceError):
    """You closed the subscription, or the client that it belongs to, and then used it."""

    code = "SUBSCRIPTION_CLOSED"
    advice = "Subscribe again."


class SubscriptionBroken(TailraceError):
    """The other side or the network ended the subscription; ``__cause__`` says what. Resume by cursor."""

    code = "SUBSCRIPTION_BROKEN"
    retriable = True
    advice = "Subscribe again after the last cursor that was processed."

    def __init__(self, message: str, resume_cursor: str | None = None) -> None:
        """Keep the cursor to resume from, where one is known."""
        super().__init__(message)
        self.resume_cursor = resume_cursor

    def figures(self) -> dict[str, str]:
        """Return the cursor to resume from, where one is known."""
        return {} if self.resume_cursor is None else {"resume_cursor": self.resume_cursor}


class HeartbeatMissed(SubscriptionBroken):
    """Neither a capture nor a heartbeat came within the time that the server announced."""

    code = "HEARTBEAT_MISSED"
    advice = "Look for a dead connection between, and resume by cursor."


class SubscriberTooSlow(SubscriptionBroken):
    """The subscriber left a message unread past the send deadline, or for a second while memory was short."""

    code = "SUBSCRIBER_TOO_SLOW"
    advice = "Read faster, ask for less, or request in smaller steps; resume by cursor."


class ServerStopping(SubscriptionBroken):
    """The server stops in good order; a subscriber resumes elsewhere or later by its cursor."""

    code = "SERVER_STOPPING"
    advice = "Resume by cursor, here in a moment or at another server."


class ServerFull(TailraceError):
    """The server has no room in its memory for what the request would keep there. A retry helps later."""

    code = "SERVER_FULL"
    retriable = True
    advice = "Retry after a pause that grows, ask for less at once, or give the server more memory."


class TransportError(TailraceError):
    """The connection failed. The network's doing; a retry helps."""

    code = "TRANSPORT"
    retriable = True
    advice = "Retry after a pause that grows."


class ConnectTimeout(TransportError):
    """The server could not be reached in time."""

    code = "CONNECT_TIMEOUT"
    advice = "Check address and network; retry after a pause that grows."


class NotGrpc(TransportError):
    """Something answers at that address, but not in gRPC. Mostly the port is the wrong one.

    It is retried all the same: behind a proxy it passes.
    """

    code = "NOT_GRPC"
    advice = "Give the address that the server was started with as `--grpc`, not that of `--http`."

    def __init__(self, address: str) -> None:
        """Keep the address that was asked."""
        super().__init__(
            f"{address} answers in HTTP/1, not in gRPC; give the server's gRPC address, not its HTTP one"
        )
        self.address = address

    def figures(self) -> dict[str, str]:
        """Return the address that was asked."""
        return {"address": self.address}


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


class LogFull(LogError):
    """No room is left on the device. What was committed stays; writing goes on once there is room."""

    code = "LOG_FULL"
    retriable = True
    advice = "Make room on the device; writing goes on by itself."


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
        """Keep both names; ``advice`` says how to go on."""
        super().__init__(f"writer {writer!r} is not one of {', '.join(known) or 'none'}: {advice}")
        self.writer = writer
        self.known = tuple(known)

    def figures(self) -> dict[str, str]:
        """Return the writer that was refused and those that the catalog knows."""
        return {"writer": self.writer, "known": ",".join(self.known)}


class InternalError(TailraceError):
    """Our bug; never retried. Please report it with the log of the server."""

    code = "INTERNAL"
    advice = "Report it with the log of the server."


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
