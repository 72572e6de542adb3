"""Errors of a CDCv2 stream, below the client's tree (`tailrace.errors`).

::

    TailraceError
    └── CdcError                  a change stream is wrong; a retry does not help
        ├── InvalidStatement      a statement is invalid in itself: a negative count, a zero diff
        ├── Conflict              two statements contradict each other; names the time and both sides
        │   ├── DiffsDisagree     a second, different diff for one (data, time)
        │   ├── CountExceeded     more distinct updates at a time than were announced
        │   └── CountsDisagree    two announcements of one time
        ├── InvalidWrite          a writer was given a closed time, or a frontier that goes back
        └── StateUnreadable       the bytes are no saved state of such a reader

A side of a conflict is a value and the message that stated it: the name that the caller gave to
`Reader.receive`, or else the number of the message, from 1.
"""

from __future__ import annotations

from tailrace.errors import TailraceError

Origin = int | str | None
"""Name or number of a message; None if it is no longer known which of several it was."""

Side = tuple[int, Origin]
"""A diff or a count, and the message that stated it."""


class CdcError(TailraceError):
    """A change stream cannot be read or written. The base of the errors below."""

    code = "CDC"


class InvalidStatement(CdcError):
    """A statement is invalid, whatever else was received. Its writer's doing; a retry does not help."""

    code = "CDC_INVALID_STATEMENT"

    def __init__(self, reason: str, message: Origin = None) -> None:
        """Keep what is wrong, with the values, and the message's name if it has one."""
        where = "" if message is None else f"message {message}: "
        super().__init__(f"{where}{reason}")
        self.reason = reason
        self.message = message

    def figures(self) -> dict[str, str]:
        """Return the reason and the message."""
        return {"reason": self.reason, "message": _name(self.message)}


class Conflict(CdcError):
    """Two statements about an unfinished time contradict each other. A writer's doing.

    The reader is stopped until `Reader.resume`.
    """

    code = "CDC_CONFLICT"

    def __init__(
        self, explanation: str, time: object, first: Side, second: Side, data: object = None
    ) -> None:
        """Keep both sides.

        Args:
            explanation: One sentence with the values.
            time: The time in question.
            first: The side that was received first.
            second: The side that contradicts it.
            data: The record in question; None if none is known.
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
        """Keep the record, the time, and both diffs with their messages."""
        super().__init__(
            f"{data!r} at time {time} changes by {first[0]} in {_the(first[1])} "
            f"and by {second[0]} in {_the(second[1])}",
            time,
            first,
            second,
            data,
        )


class CountExceeded(Conflict):
    """More distinct updates at a time than were announced; ``data`` is the last of them."""

    code = "CDC_COUNT_EXCEEDED"

    def __init__(self, time: object, first: Side, second: Side, data: object) -> None:
        """Keep the time, and both sides in the order in which they were received."""
        lesser, greater = sorted((first, second), key=lambda side: side[0])
        super().__init__(
            f"time {time} has {lesser[0]} updates by {_the(lesser[1])}, "
            f"but {greater[0]} have come, {data!r} in {_the(greater[1])}",
            time,
            first,
            second,
            data,
        )


class CountsDisagree(Conflict):
    """Two progress statements announce different counts for a time; a time that is not listed has 0."""

    code = "CDC_COUNTS_DISAGREE"

    def __init__(self, time: object, first: Side, second: Side) -> None:
        """Keep the time, and both counts with their messages."""
        super().__init__(
            f"time {time} has {first[0]} updates by {_the(first[1])} "
            f"and {second[0]} by {_the(second[1])}",
            time,
            first,
            second,
        )


class InvalidWrite(CdcError):
    """A call of a writer would make its output untrue. The caller's doing; a retry does not help."""

    code = "CDC_INVALID_WRITE"


class StateUnreadable(CdcError):
    """The bytes are no saved state of a reader, or of a reader of another kind of time."""

    code = "CDC_STATE_UNREADABLE"


def _the(message: Origin) -> str:
    return "an earlier message" if message is None else f"message {message}"


def _name(message: Origin) -> str:
    return "" if message is None else str(message)
