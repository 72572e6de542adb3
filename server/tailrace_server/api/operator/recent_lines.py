"""The newest warnings and errors of the server's log, retained for the operator's page.

`RecentLines` is a handler of the standard logging module, through which the server's own events pass too
(`logging_setup`). It stores the fields of each event, shortened and without tracebacks. A line that repeats the
previous one only increases a count, so a flood of equal lines does not displace earlier lines.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

_LINES_MAX: Final = 100
_FIELDS_MAX: Final = 12
"""Maximum number of fields of one line."""
_TEXT_MAX: Final = 300
"""Maximum length of a value, in characters; the text of an error with its advice is shorter."""
_OWN: Final = frozenset({"event", "level", "logger", "timestamp", "exc_info", "stack_info"})
"""Members of an event that are not fields of a line."""


@dataclass(slots=True)
class LogLine:
    """A warning or an error in the log."""

    timestamp: int
    """Time of the last occurrence, in microseconds since the epoch."""
    level: str
    logger: str
    event: str
    fields: Mapping[str, str] = field(default_factory=dict)
    times: int = 1
    """Number of consecutive occurrences."""


class RecentLines(logging.Handler):
    """Logging handler that retains the last 100 lines.

    As a context manager it is attached to the root logger for the time of the block.
    """

    def __init__(self) -> None:
        """Start without lines."""
        super().__init__(logging.WARNING)
        self._lines: deque[LogLine] = deque(maxlen=_LINES_MAX)

    def __enter__(self) -> Self:
        """Attach the handler to the root logger."""
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self)

    def newest_first(self) -> list[LogLine]:
        """Return the retained lines, newest first."""
        return list(reversed(tuple(self._lines)))

    def emit(self, record: logging.LogRecord) -> None:
        """Store a line; called by the logging module, under the handler's lock."""
        line = _line_of(record)
        last = self._lines[-1] if self._lines else None
        if last is not None and (last.event, last.fields) == (line.event, line.fields):
            last.times += 1
            last.timestamp = line.timestamp
        else:
            self._lines.append(line)


def _line_of(record: logging.LogRecord) -> LogLine:
    fields: dict[str, str] = {}
    # The message of a structlog event is a mapping here: the formatter of stderr's handler renders it later.
    said: Any = record.msg
    if isinstance(said, dict):
        event = str(said.get("event", ""))
        for name, value in said.items():
            if name not in _OWN and not name.startswith("_") and len(fields) < _FIELDS_MAX:
                fields[name] = _cut(str(value))
    else:
        event = record.getMessage()
    # An error comes from the logging module's own `exc_info`, or as a member of a structlog event.
    error = record.exc_info[1] if record.exc_info else None
    if error is None and isinstance(said, dict) and isinstance(said.get("exc_info"), BaseException):
        error = said["exc_info"]
    if error is not None:
        fields.setdefault("error", _cut(f"{type(error).__name__}: {error}"))
    return LogLine(
        timestamp=time.time_ns() // 1_000,
        level=record.levelname.lower(),
        logger=record.name,
        event=_cut(event),
        fields=fields,
    )


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else text[: _TEXT_MAX - 1] + "…"
