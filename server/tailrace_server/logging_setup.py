"""Structured logs on stderr: one event a line with keys and values, as JSON or for a terminal.

The event names what happened and never contains a value, so that lines can be counted and filtered. Values
follow under names that include their unit. Events of this project come through structlog, those of libraries
through the standard logging module, and both are written in the same form.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import TYPE_CHECKING, Any, Final, Literal

import structlog

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from structlog.typing import Processor

_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
"""Control characters, which a terminal would interpret."""


def configure(
    level: Literal["debug", "info", "warning", "error"] = "info",
    format: Literal["auto", "json", "console"] = "auto",
) -> None:
    """Send all logs of this process to stderr.

    Args:
        level: Lowest level that is written.
        format: ``auto`` = for people if stderr is a terminal, else JSON.
    """
    console = sys.stderr.isatty() if format == "auto" else format == "console"
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if console else "iso", utc=not console),
    ]
    final: list[Processor] = (
        [_escaped, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=24)]
        if console
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    # One handler for both kinds of events, so that lines of libraries have the same form as ours.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *final],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Our own events replace uvicorn's information lines, but its warnings and errors must still be logged.
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def _escaped(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escape control characters in texts, which a caller may send in a header; tracebacks are not changed."""
    for name, value in event.items():
        if isinstance(value, str) and name not in ("exception", "stack"):
            event[name] = _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], value)
    return event
