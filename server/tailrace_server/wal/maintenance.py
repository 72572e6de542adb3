"""Upkeep beside a writer: compaction by its rule, then deletion of what is no longer named.

It runs in a thread of its own on a log of its own, pausing after each batch, so that the writer's commits
wait for the interpreter a fraction of a millisecond at most. A failure is logged and tried again when the
rule next asks: a log without compaction is slower, not wrong.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from tailrace.errors import TailraceError
from tailrace_server.wal.compaction import DUE_SEGMENTS, compact, is_due
from tailrace_server.wal.retention import delete_unnamed

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace_server.clock import Clock
    from tailrace_server.wal.state import LogState

_PAUSE_S: Final = 0.001
_log = logging.getLogger("tailrace.wal")


class Maintenance:
    """Starts upkeep when a writer's log is due for it, at most one at a time."""

    def __init__(self, path: Path, clock: Clock) -> None:
        """Bind to a catalog's folder."""
        self._path = path
        self._clock = clock
        self._thread: threading.Thread | None = None
        self._next_look = 0

    def look(self, state: LogState) -> None:
        """Start upkeep if it is due; cheap when it is not."""
        if len(state.batches.segments) < self._next_look:
            return
        self._next_look = len(state.batches.segments) + DUE_SEGMENTS // 8
        if self._thread is not None and self._thread.is_alive():
            return
        if is_due(state):
            self._thread = threading.Thread(target=self._run, name=f"compact {self._path.name}")
            self._thread.start()

    def close(self) -> None:
        """Wait until nothing runs any more."""
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            done = compact(self._path, self._clock.now(), pause_s=_PAUSE_S)
            deleted = delete_unnamed(self._path, self._clock.now())
        except TailraceError as error:
            _log.warning("catalog %s was not compacted: %s", self._path.name, error)
        else:
            _log.debug("catalog %s: %s, %d files deleted", self._path.name, done, len(deleted))
