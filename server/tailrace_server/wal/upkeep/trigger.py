"""Upkeep that a writer starts: checkpoints, compaction, bases, retention, deletion of files out of use.

Upkeep runs in a process of its own (process.py), because a thread would delay commits by holding the
interpreter, for milliseconds and many times. The process is started when a compaction or a deletion is due for
the first time. After that it gets a message each time something is due. It logs a failure, and the work is
tried again the next time it is due: without compaction a log is slower, but not wrong. Checkpoints only bound
the time to open a log. The writer makes them itself while the process does not run, and if the process fails to
make one for too long.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from tailrace.errors import LogError, LogFull
from tailrace_server.wal.base.key_files import key_file_is_due
from tailrace_server.wal.base.making import base_is_due
from tailrace_server.wal.sequences.settings import MAX_BYTES, newest_settings
from tailrace_server.wal.sequences.subscriptions import SubscriptionSequences
from tailrace_server.wal.state.checkpoint import checkpoint_is_due, write_checkpoint_if_due
from tailrace_server.wal.upkeep.compaction import DUE_SEGMENTS, holds_entries, is_due
from tailrace_server.wal.upkeep.expiring import expiry_is_due
from tailrace_server.wal.upkeep.keeping import excess_of, judge
from tailrace_server.wal.upkeep.retention import deletion_is_due, last_writer_left_orphans

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tailrace.clock import Clock
    from tailrace_server.wal.state.commit_log import CommitLog
    from tailrace_server.wal.state.view import LogView

DELETION_CHECK_S: Final = 60.0
"""Seconds between two checks, by a writer that publishes, if files can be deleted or versions trimmed: 1/10 of
the grace period."""

_LARGE_S: Final = 3600.0
"""Seconds between two warnings that a log is larger than its settings allow."""

_OVERDUE: Final = 2
"""While the process runs, the writer makes a checkpoint itself only if the limits are exceeded this many
times."""

_ENDS_S: Final = 60.0
"""Seconds to wait, when a writer ends, for current upkeep, which usually needs a few. If it is killed, its work
is lost."""

_HURRIED_ENDS_S: Final = 2.0
"""Seconds to wait for current upkeep if a signal or an error ends the writer: service managers kill a process
ten seconds after the signal."""

_KILLED_S: Final = 1.0
"""Seconds to wait for a killed process to end. A process that waits for its storage ignores the signal."""

_PIPE_BYTES: Final = 1 << 16
"""Bytes to read at once: the capacity of a pipe. So a read returns whole lines, since each write is a whole
line."""

_NICENESS: Final = 10
"""Niceness of the process, so that commits have priority for the processor."""

_PROCESS: Final = "tailrace_server.wal.upkeep.process"
_log = logging.getLogger("tailrace.wal")


class UpkeepTrigger:
    """Runs upkeep of a writer's log when it is due, in a process of its own."""

    def __init__(self, path: Path, clock: Clock) -> None:
        """Bind to a catalog's folder; the process is started later."""
        self._path = path
        self._clock = clock
        self.failure = ""
        """Machine code of the error in the newest upkeep; empty if it succeeded."""
        self._process: subprocess.Popen[bytes] | None = None
        self._next_entry = 0
        self._next_deletion_check: float | None = None
        """Monotonic time of the next check for a trim or a deletion; None before the first check."""
        self._next_large_warning = float("-inf")

    def run_if_due(self, log: CommitLog) -> None:
        """Start upkeep if it is due; cheap if it is not. The writer calls this after its commits."""
        if self._process is not None:
            self._hear(self._process)
        # 1. Make a checkpoint here while no process runs: that is much faster than starting the process.
        try:
            write_checkpoint_if_due(
                log, self._clock.now(), times=_OVERDUE if self._is_running() else 1
            )
        except LogFull as error:
            self.failure = error.code
            _log.error("no checkpoint of catalog %s: %s", self._path.name, error)
        else:
            if not self._is_running():
                # Without a process, the failure was that of a checkpoint made here, which is no longer due.
                self.failure = ""
        # 2. Leave all larger work to the process. It decides itself what is due when it gets the message.
        if self._compaction_is_due(log) or self._trim_or_deletion_is_due(log):
            self._put_off_deletion_check()  # the process checks this too, each time
            self._ask()

    def close(self, *, hurried: bool = False) -> None:
        """Wait until the process has finished its current work; kill it if that takes too long. Idempotent.

        Killing the process loses its work, but does no harm: the log does not name its files yet, and the next
        deletion removes them. The next writer that publishes starts the same work again.

        Args:
            hurried: True if the writer must end soon: wait for 2 s instead of a minute.
        """
        process, self._process = self._process, None
        if process is None or process.stdin is None:
            return
        within_s = _HURRIED_ENDS_S if hurried else _ENDS_S
        # The process ends at the end of its input, after the work that it has begun.
        process.stdin.close()
        try:
            process.wait(within_s)
        except subprocess.TimeoutExpired:
            process.kill()
            _log.warning(
                "upkeep of catalog %s was ended, as it was not complete %g s after its writer; "
                "the next writer starts it again",
                *(self._path.name, within_s),
            )
            with suppress(subprocess.TimeoutExpired):
                process.wait(_KILLED_S)
        self._hear(process)
        assert process.stdout is not None
        process.stdout.close()

    def _compaction_is_due(self, log: CommitLog) -> bool:
        """Return True if a compaction, a base or key file, or a checkpoint of the process is due."""
        # The checks are not cheap, so they are made only once every DUE_SEGMENTS / 8 entries.
        state = log.state
        if state.last_entry < self._next_entry:
            return False
        self._next_entry = state.last_entry + DUE_SEGMENTS // 8
        if is_due(state) or key_file_is_due(log) or (self._is_running() and checkpoint_is_due(log)):
            return True
        try:
            return base_is_due(log)
        except LogError as error:
            _log.warning("no base of catalog %s: %s", self._path.name, error)
            return False

    def _trim_or_deletion_is_due(self, log: CommitLog) -> bool:
        """Return True if versions or bodies can be removed by the settings, or if files can be deleted.

        Files can be deleted if their grace period is over. At the first check, orphans of the last writer are
        looked for as well.
        """
        planned = self._next_deletion_check
        if planned is not None and self._clock.monotonic() < planned:
            return False
        self._put_off_deletion_check()
        try:
            return (
                self._trim_is_due(log)
                or holds_entries(log.state)
                or deletion_is_due(log, self._clock.now())
                or (planned is None and last_writer_left_orphans(log))
            )
        except LogError as error:
            _log.warning("no upkeep of catalog %s: %s", self._path.name, error)
            return False

    def _trim_is_due(self, log: CommitLog) -> bool:
        """Return True if the settings make a trim or an expiry due; warn if the log stays too large."""
        known = newest_settings(log.store, log.uuid)
        settings = known.settings
        view = log.published_view()
        verdict = judge(view, settings, self._clock.now())
        if verdict.bytes > settings.get(MAX_BYTES, verdict.bytes):
            self._tell_excess(log, view, settings)
        return verdict.due or expiry_is_due(log, known.by_type(log.view), self._clock.now())

    def _tell_excess(self, log: CommitLog, view: LogView, settings: Mapping[str, int]) -> None:
        """Log a warning that the log is and stays too large, at most once in _LARGE_S seconds."""
        now = self._clock.monotonic()
        if now < self._next_large_warning:
            return
        named = SubscriptionSequences(log.path, log.uuid).all()
        excess = excess_of(view, settings, named, self._clock.now())
        if excess is not None and not excess.is_due:
            self._next_large_warning = now + _LARGE_S
            _log.warning("catalog %s is too large: %s", self._path.name, excess)

    def _put_off_deletion_check(self) -> None:
        self._next_deletion_check = self._clock.monotonic() + DELETION_CHECK_S

    def _hear(self, process: subprocess.Popen[bytes]) -> None:
        """Read the answers of the process since the last call, and store the newest in ``failure``."""
        assert process.stdout is not None
        with suppress(BlockingIOError):
            while lines := os.read(process.stdout.fileno(), _PIPE_BYTES):
                self.failure = lines.decode().split("\n")[-2]

    def _is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _ask(self) -> None:
        """Send the process a line with the time, so that it runs what is due; start it if it does not run."""
        try:
            if not self._is_running():
                self.close()
                self._process = self._start()
            assert self._process is not None
            assert self._process.stdin is not None
            os.write(self._process.stdin.fileno(), b"%d\n" % self._clock.now())
        except BlockingIOError:
            return  # the pipe is full: the process has enough lines to read
        except OSError as error:
            _log.warning("no upkeep of catalog %s: %s", self._path.name, error)

    def _start(self) -> subprocess.Popen[bytes]:
        """Start the process. It ends at the end of its input: after ``close``, or when this process ends."""
        process = subprocess.Popen(
            # -P: never import a file of the current folder that has the name of a module.
            [sys.executable, "-P", "-m", _PROCESS, self._path.absolute()],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,  # Ctrl-C reaches only the writer, which then ends this process
        )
        assert process.stdin is not None
        assert process.stdout is not None
        os.set_blocking(process.stdin.fileno(), False)
        os.set_blocking(process.stdout.fileno(), False)
        # Set the niceness here, not in the process: its imports alone take 0.2 s of processor time from
        # commits.
        os.setpriority(os.PRIO_PROCESS, process.pid, _NICENESS)
        return process
