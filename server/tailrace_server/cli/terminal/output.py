"""Output to the terminal: colours if it supports them; captures go to stdout, all else to stderr."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

_CODES: Final = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
    "grey": "90",
}
_UNPRINTABLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def open_closed_streams() -> None:
    """Open the null device for each standard stream that was closed when the process started (``>&-``).

    Python has None for such a stream. The next file that is opened would get its descriptor, and writes to
    descriptor 1 would go into that file.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        # `open` returns the lowest free descriptor, which is mostly the closed one itself.
        descriptor = os.open(os.devnull, os.O_RDWR)
        if descriptor != number:
            os.dup2(descriptor, number)
            os.close(descriptor)
        stream = os.fdopen(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False)
        setattr(sys, name, stream)


@dataclass(frozen=True, slots=True)
class Palette:
    """Adds colours to texts, or returns them unchanged if the output does not support colours."""

    enabled: bool

    @classmethod
    def of(cls, stream: TextIO) -> Palette:
        """Return the palette for a stream; NO_COLOR and FORCE_COLOR take precedence over its type."""
        if os.environ.get("NO_COLOR"):
            return cls(enabled=False)
        if os.environ.get("FORCE_COLOR"):
            return cls(enabled=True)
        return cls(enabled=stream.isatty() and os.environ.get("TERM") != "dumb")

    def paint(self, text: str, *styles: str) -> str:
        """Return the text in one or more of the styles of this module."""
        if not self.enabled or not text:
            return text
        return f"\x1b[{';'.join(_CODES[style] for style in styles)}m{text}\x1b[0m"

    def dim(self, text: str) -> str:
        """Return dimmed text."""
        return self.paint(text, "grey")

    def bold(self, text: str) -> str:
        """Return emphasized text."""
        return self.paint(text, "bold")

    def error(self, text: str) -> str:
        """Return text in the style of errors."""
        return self.paint(text, "bold", "red")


def note(message: str) -> None:
    """Write a line for the person at the terminal to stderr, where it does not disturb a pipe."""
    palette = Palette.of(sys.stderr)
    print(f"{palette.dim('·')} {message}", file=sys.stderr, flush=True)


def note_unknown_changes(entity_types: Sequence[str]) -> None:
    """Warn of entity types whose updates come without before-image, so that changed columns are unknown."""
    if entity_types:
        note(
            f"updates of {', '.join(map(printable, entity_types))} come without their row before "
            "the change, so it is unknown which columns they changed, and all of them are "
            "printed; configure the source to send whole rows, in PostgreSQL by ALTER TABLE … "
            "REPLICA IDENTITY FULL"
        )


def printable(text: str) -> str:
    """Return text with control and direction characters escaped, since data is not trusted."""
    if text.isascii() and text.isprintable():
        return text
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def clock_text(timestamp_micros: int) -> str:
    """Return the local time of day of a commit timestamp, to the millisecond."""
    return _local(timestamp_micros, "%H:%M:%S.%f", cut=3)


def day_text(timestamp_micros: int) -> str:
    """Return the local date of a commit timestamp."""
    return _local(timestamp_micros, "%Y-%m-%d")


def date_text(timestamp_micros: int) -> str:
    """Return the local date and time of a commit timestamp, to the second."""
    return _local(timestamp_micros, "%Y-%m-%d %H:%M:%S")


def _local(timestamp_micros: int, form: str, cut: int = 0) -> str:
    """Return a commit timestamp formatted as local time; the number itself if it is beyond the calendar."""
    from datetime import UTC, datetime, timedelta

    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=timestamp_micros)
        text = moment.astimezone().strftime(form)
    except (OverflowError, ValueError):
        return f"{timestamp_micros} µs"
    return text[: len(text) - cut]
