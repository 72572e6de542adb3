"""Attempts to reach a source, with growing waits between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tailrace_server.pipeline.feed.source import SourceUnreachable
    from tailrace_server.pipeline.run.progress import ProgressReporter
    from tailrace_server.pipeline.run.stop_signals import Stopping

_RETRY_S: Final = (1.0, 30.0)
"""The first and the longest wait before a new connection to the source, in seconds."""


class Reconnection:
    """The attempts of one run to reach its source."""

    def __init__(self, reporter: ProgressReporter, stopping: Stopping, *, follow: bool) -> None:
        """Begin; the source has not been reached yet."""
        self._reporter = reporter
        self._stopping = stopping
        self._follow = follow
        self._is_reached = False
        self._wait_s = _RETRY_S[0]

    def reached(self) -> None:
        """Record that the source has answered."""
        self._is_reached = True
        self._wait_s = _RETRY_S[0]

    def failed(self, error: SourceUnreachable) -> None:
        """Report a failure and wait, at most until the run must stop.

        Raises:
            SourceUnreachable: The run does not follow its source, or has never reached it.
        """
        if not (self._follow and self._is_reached):
            raise error
        self._reporter.complain(f"{error}; a new attempt follows in {self._wait_s:g} s")
        self._stopping.wait(self._wait_s)
        self._wait_s = min(2 * self._wait_s, _RETRY_S[1])
