"""The queue of the audit, and the one thread that writes it.

::

    event loop ──put──▶ queue, bounded by bytes ──▶ thread ──▶ file
                  │                                   │ fails
                  └ full: the line is lost,           └ stands still: told at once,
                    counted, and told in                tried again every second
                    line once there is room

Lines that anybody can cause by knocking (refusals, proofs) may fill half of it at most, so that a flood of
them takes no room from what those do who were let in.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from tailrace_server.access.audit.events import AuditResumed, Authenticated, Refused, moment

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace_server.access.audit.audit_file import AuditFile
    from tailrace_server.access.audit.events import AuditLine

_AGAIN_S: Final = 1.0
_HANGS_S: Final = 5.0
"""A write that takes longer has stopped: a full pipe, or a storage that does not answer."""
_BATCH_BYTES: Final = 256 << 10
_LINE_BYTES: Final = 100
"""Of memory for a line in the queue, beside its text."""
_FROM_ANYBODY: Final = (Authenticated, Refused)

_log = structlog.get_logger("tailrace.audit")


@dataclass(frozen=True, slots=True)
class TrailStatistics:
    """The audit's queue, now."""

    written: int
    """Lines written, since the process began."""
    lost: int
    """Lines that did not fit into the queue, since it began."""
    queued_bytes: int
    standing_still_s: float
    """For how long nothing could be written; 0 while it can."""
    reason: str
    """Why; empty while it can."""


class AuditTrail:
    """Lines on their way to the file. Any thread may put one."""

    def __init__(
        self,
        file: AuditFile,
        bytes_max: int,
        monotonic: Callable[[], float] = time.monotonic,
        again_s: float = _AGAIN_S,
    ) -> None:
        """Start the thread; ``close`` ends it.

        Args:
            file: Where it writes.
            bytes_max: Of the queue.
            monotonic: The clock.
            again_s: How soon it tries again to write.
        """
        self._again_s = again_s
        self._file = file
        self._bytes_max = bytes_max
        self._monotonic = monotonic
        self._changed = threading.Condition()
        # All below is read and written under the condition's lock.
        self._lines: deque[bytes] = deque()
        self._queued_bytes = 0
        """Of the queue, with what the thread has taken from it and not written."""
        self._written = self._lost = 0
        self._lost_untold = 0
        """Lines lost since a line last said so."""
        self._writing_since: float | None = None
        """When the write began that has not returned; None: there is none."""
        self._failing_since: float | None = None
        self._reason = ""
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="tailrace-audit", daemon=True)
        self._thread.start()

    def put(self, line: AuditLine) -> bool:
        """Queue a line; return False if it is lost, as the queue has no room. Never waits for the file."""
        data = line.encoded()
        share = 2 if isinstance(line, _FROM_ANYBODY) else 1
        with self._changed:
            told = self._telling_of_lost()
            needed = _charged(data) + (_charged(told) if told else 0)
            if self._closing or self._queued_bytes + needed > self._bytes_max // share:
                self._lost += 1
                self._lost_untold += 1
                return False
            if told:
                self._push(told)
                self._lost_untold = 0
            self._push(data)
            self._changed.notify()
        return True

    def statistics(self) -> TrailStatistics:
        """Return the figures of this moment."""
        now = self._monotonic()
        with self._changed:
            since, reason = self._failing_since, self._reason
            writing = self._writing_since
            if since is None and writing is not None and now - writing >= _HANGS_S:
                since, reason = writing, "a write does not return"
            return TrailStatistics(
                written=self._written,
                lost=self._lost,
                queued_bytes=self._queued_bytes,
                standing_still_s=0.0 if since is None else max(now - since, 1e-9),
                reason=reason,
            )

    def close(self, deadline_s: float) -> None:
        """Write what is queued and end; a line that is not written in time is lost, and the log says so."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(deadline_s)
        found = self.statistics()
        if found.queued_bytes:
            _log.error(
                "audit lost",
                reason=found.reason or "the server stops",
                lost_bytes=found.queued_bytes,
            )
        if not self._thread.is_alive():
            self._file.close()

    def _push(self, data: bytes) -> None:
        self._lines.append(data)
        self._queued_bytes += _charged(data)

    def _telling_of_lost(self) -> bytes | None:
        """Return the line with the number of lost ones; None if none were."""
        if not self._lost_untold:
            return None
        return AuditResumed(time=moment(), lost=self._lost_untold).encoded()

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            if not self._write(b"".join(batch)):
                return
            with self._changed:
                self._written += len(batch)
                self._queued_bytes -= sum(map(_charged, batch))

    def _next(self) -> list[bytes] | None:
        """Wait for lines and take some; None once it is closed and there are none."""
        with self._changed:
            while not self._lines:
                # What was lost while nothing could be written is told although nothing new happens.
                if told := self._telling_of_lost():
                    self._push(told)
                    self._lost_untold = 0
                elif self._closing:
                    return None
                else:
                    self._changed.wait()
            batch, size = [], 0
            while self._lines and size < _BATCH_BYTES:
                batch.append(self._lines.popleft())
                size += len(batch[-1])
            return batch

    def _write(self, data: bytes) -> bool:
        """Write lines, however long the file takes none; return False if it is closed before they are."""
        place = 0
        while place < len(data):
            with self._changed:
                self._writing_since = self._monotonic()
            try:
                place = self._file.append(data, place)
            except OSError as error:
                if not self._fails(error):
                    return False
            else:
                self._goes_on()
        return True

    def _fails(self, error: OSError) -> bool:
        """Tell that nothing can be written, and wait a moment; return False if it is closed meanwhile."""
        reason = error.strerror or str(error)
        with self._changed:
            self._writing_since = None
            first = self._failing_since is None
            if first:
                self._failing_since = self._monotonic()
            self._reason = reason
        if first:
            _log.error("audit stands still", reason=reason)
        with self._changed:
            return not self._changed.wait_for(lambda: self._closing, self._again_s)

    def _goes_on(self) -> None:
        with self._changed:
            self._writing_since = None
            since, self._failing_since, self._reason = self._failing_since, None, ""
            lost = self._lost
        if since is not None:
            _log.info("audit goes on", stood_still_s=self._monotonic() - since, lines_lost=lost)


def _charged(data: bytes) -> int:
    return len(data) + _LINE_BYTES
