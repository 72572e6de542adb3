"""Errors of a CDCv2 stream, below the client's tree (`tailrace.errors`).

::

    TailraceError
    └── CdcError                  a change stream is invalid; a retry does not help
        ├── InvalidStatement      a statement is invalid in itself: a negative count, a zero diff
        ├── Conflict              two statements contradict each other; names the time and both sides
        │   ├── DiffsDisagree     a second, different diff for one (data, time)
        │   ├── CountExceeded     more distinct updates at a time than were announced
        │   └── CountsDisagree    two announcements of one time
        ├── InvalidWrite          a writer was given a closed time, or a frontier that goes back
        └── StateUnreadable       the bytes are no saved state of such a reader

A conflict has two sides, each a value and the message that stated it. A message is identified by the name that
the caller passed to `Reader.receive`, or else by its number, from 1.
"""

from __future__ import annotations

from tailrace.errors import TailraceError

Origin = int | str | None
"""Name or number of a message; None if the reader no longer knows which message it was."""

Side = tuple[int, Origin]
"""A diff or a count, and the message that stated it."""


class CdcError(TailraceError):
    """A change stream cannot be read or written; the base class of the errors below."""

    code = "CDC"


class InvalidStatement(CdcError):
    """A statement is invalid by itself. The cause is its writer; a retry does not help."""

    code = "CDC_INVALID_STATEMENT"

    def __init__(self, reason: str, message: Origin = None) -> None:
        """Store the reason, with the values, and the name or number of the message if it is known."""
        where = "" if message is None else f"message {message}: "
        super().__init__(f"{where}{reason}")
        self.reason = reason
        self.message = message

    def figures(self) -> dict[str, str]:
        """Return the reason and the message."""
        return {"reason": self.reason, "message": _name(self.message)}


class Conflict(CdcError):
    """Two statements about an unfinished time contradict each other. The cause is a writer.

    The reader is stopped until `Reader.resume` is called.
    """

    code = "CDC_CONFLICT"

    def __init__(
        self, explanation: str, time: object, first: Side, second: Side, data: object = None
    ) -> None:
        """Store both sides of the conflict.

        Args:
            explanation: One sentence with the values, which becomes the message.
            time: The time that both statements are about.
            first: The side that was received first.
            second: The side that contradicts the first.
            data: The record that both statements are about; None if there is none.
        """
        super().__init__(explanation)
        self.time = time
        self.data = data
        self.first, self.first_message = first
        self.second, self.second_message = second

    def figures(self) -> dict[str, str]:
        """Return the time, both values and both messages."""
        return {
            "time": str(self.time),
            "first": str(self.first),
            "second": str(self.second),
            "first_message": _name(self.first_message),
            "second_message": _name(self.second_message),
        }


class DiffsDisagree(Conflict):
    """One record has two different diffs at one time."""

    code = "CDC_DIFFS_DISAGREE"

    def __init__(self, data: object, time: object, first: Side, second: Side) -> None:
        """Store the record, the time, and both diffs with their messages."""
        super().__init__(
            f"{data!r} at time {time} changes by {first[0]} in {_the(first[1])} "
            f"and by {second[0]} in {_the(second[1])}",
            time,
            first,
            second,
            data,
        )


class CountExceeded(Conflict):
    """A time has more distinct updates than a progress statement announced; ``data`` is the last of them."""

    code = "CDC_COUNT_EXCEEDED"

    def __init__(self, time: object, first: Side, second: Side, data: object) -> None:
        """Store the time, and both sides in order of receipt."""
        lesser, greater = sorted((first, second), key=lambda side: side[0])
        super().__init__(
            f"time {time} has {lesser[0]} updates according to {_the(lesser[1])}, but "
            f"{greater[0]} were received, {data!r} in {_the(greater[1])}",
            time,
            first,
            second,
            data,
        )


class CountsDisagree(Conflict):
    """Two progress statements announce different counts for a time; a time that is not listed has count 0."""

    code = "CDC_COUNTS_DISAGREE"

    def __init__(self, time: object, first: Side, second: Side) -> None:
        """Store the time, and both counts with their messages."""
        super().__init__(
            f"time {time} has {first[0]} updates according to {_the(first[1])}, and {second[0]} "
            f"according to {_the(second[1])}",
            time,
            first,
            second,
        )


class InvalidWrite(CdcError):
    """A call would make the output of a writer contradict itself. A retry does not help."""

    code = "CDC_INVALID_WRITE"


class StateUnreadable(CdcError):
    """The bytes are not the saved state of a reader, or of one with another kind of time."""

    code = "CDC_STATE_UNREADABLE"


def _the(message: Origin) -> str:
    return "an earlier message" if message is None else f"message {message}"


def _name(message: Origin) -> str:
    return "" if message is None else str(message)
