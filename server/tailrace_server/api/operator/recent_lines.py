"""The newest warnings and errors of the server's log, kept for its page.

A handler of the standard logging module, which our own events pass too (`logging_setup`). It keeps what the log
says and no more, cut to a bound, without tracebacks. A line that repeats the one before is counted, so that a
flood of one kind does not push out what came before it.
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
"""Of one line."""
_TEXT_MAX: Final = 300
"""Characters of a value; an error's text with its advice has fewer."""
_OWN: Final = frozenset({"event", "level", "logger", "timestamp", "exc_info", "stack_info"})


@dataclass(slots=True)
class LogLine:
    """A warning or an error."""

    timestamp: int
    """When it was written last, µs since the epoch."""
    level: str
    logger: str
    event: str
    fields: Mapping[str, str] = field(default_factory=dict)
    times: int = 1
    """How often it was written in a row."""


class RecentLines(logging.Handler):
    """Keeps the last lines; a context manager, which listens to the root logger for the time of the block."""

    def __init__(self) -> None:
        """Begin with none."""
        super().__init__(logging.WARNING)
        self._lines: deque[LogLine] = deque(maxlen=_LINES_MAX)

    def __enter__(self) -> Self:
        """Begin to listen."""
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self)

    def newest_first(self) -> list[LogLine]:
        """Return what is kept."""
        return list(reversed(tuple(self._lines)))

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line; called by the logging module, under the handler's lock."""
        line = _line_of(record)
        last = self._lines[-1] if self._lines else None
        if last is not None and (last.event, last.fields) == (line.event, line.fields):
            last.times += 1
            last.timestamp = line.timestamp
        else:
            self._lines.append(line)


def _line_of(record: logging.LogRecord) -> LogLine:
    fields: dict[str, str] = {}
    # An event of ours is a mapping here; it becomes text only in the formatter of stderr's handler.
    said: Any = record.msg
    if isinstance(said, dict):
        event = str(said.get("event", ""))
        for name, value in said.items():
            if name not in _OWN and not name.startswith("_") and len(fields) < _FIELDS_MAX:
                fields[name] = _cut(str(value))
    else:
        event = record.getMessage()
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
