"""Spark's reason for a failure, in one line."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from tailrace.errors import TailraceError

_TRACEBACK: Final = "Traceback (most recent call last):"
_CLASS: Final = re.compile(r"^(?:\w+\.)+(?=\w+: )")
"""The module that defines the class of an error."""
_UNREAD: Final = "[FAILED_READ_FILE"
"""Head of what Spark says of a file of the input that it cannot read."""


class SparkFailed(TailraceError):
    """Spark gave up: its JVM died, or a task failed too often. Run again: nothing is lost or doubled."""

    code = "SPARK_FAILED"
    retriable = True

    def __init__(self, reason: str) -> None:
        """Keep what Spark said, in one line."""
        put_right = (
            "put that file right, or an empty one in its place, and " if _UNREAD in reason else ""
        )
        super().__init__(
            f"Spark gave up: {reason}; {put_right}run again, and it goes on where it stopped"
        )
        self.reason = reason

    def figures(self) -> dict[str, str]:
        """Return what Spark said."""
        return {"reason": self.reason}


def reason_of(error: BaseException) -> str:
    """Return the lines of a Spark error that say what went wrong, not where: its own, and its first cause's."""
    texts = []
    java = getattr(error, "java_exception", None)
    with suppress(Py4JError, OSError):
        while java is not None:
            if line := _telling_line(str(java.getMessage() or "")):
                texts.append(line)
            java = java.getCause()
    if not texts:
        return _telling_line(str(error)) or type(error).__name__
    if texts[-1] in texts[0]:
        return texts[0]
    return f"{texts[0]} ({texts[-1]})"


def _telling_line(text: str) -> str:
    """Return the line of a message that says what happened: the first, or of Python's tracebacks the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if _TRACEBACK in lines:
        return _CLASS.sub("", lines[-1])[:500]
    return "" if not lines or lines[0].endswith(":") else lines[0][:500]
