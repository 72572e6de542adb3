"""The clock that idle time is read from: it goes only while the source has nothing more to give.

A transaction is idle when no row of it came although one could have. None can come while a batch runs or while
files wait to be read, so the clock is stopped then. A transaction whose rows all lie in those files is not
torn, however long they take to read. The clock goes in two cases:

* A trigger found nothing, and so did the next: from one to the other, unless a batch lies between.
* A batch took all there was, and so did the next: from one to the other. The rows of the later batch are
  tallied before the clock is read. Without this case a source that is fed faster than batches run would
  never be idle, and no transaction without END would be complete.

It begins with the process, at 0, standing.
"""

from __future__ import annotations


class IdleClock:
    """Seconds in which the source had nothing more to give. Not thread-safe: the driver's lock guards it."""

    def __init__(self) -> None:
        """Begin at 0."""
        self._now = 0.0
        self._idle_since: float | None = None
        """When the source last had nothing; None since a batch began."""
        self._all_read_at: float | None = None
        """The last moment up to which all is read; None while files may wait."""

    @property
    def now(self) -> float:
        """Seconds since the process began; never goes back."""
        return self._now

    def source_idle(self, at: float) -> None:
        """The source had nothing more at a moment of the monotonic clock."""
        if self._idle_since is not None:
            self._now += max(at - self._idle_since, 0.0)
        self._idle_since = self._all_read_at = at

    def batch_began(self, at: float, *, whole: bool) -> None:
        """A batch begins, of what the source had at a moment of the monotonic clock.

        Call it before the batch's rows are looked at.

        Args:
            at: When it was listed, or soon after.
            whole: Whether it is all that the source had then.
        """
        if whole and self._all_read_at is not None:
            self._now += max(at - self._all_read_at, 0.0)
        self._all_read_at = at if whole else None
        self._idle_since = None
