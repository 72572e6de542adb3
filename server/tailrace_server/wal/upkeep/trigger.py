"""Upkeep beside a writer: checkpoints, compaction, bases, trims by the settings, deletion of what is not named.

It runs in a process of its own (process.py), because a thread would take the interpreter from the commits for
milliseconds, many times over. The process is started when a compaction or a deletion is first due; from then
on it is told each time. A failure is logged there and tried again when the rule next asks: a log without
compaction is slower, not wrong. Checkpoints only bound the time to open. The writer makes them itself while
there is no such process, and when the process leaves one undone for too long.
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
"""A writer that publishes checks this often whether files have had their grace, a tenth of it, and whether the
settings let go of versions."""

_LARGE_S: Final = 3600.0
"""Time between two reports of a log that is larger than its settings want."""

_OVERDUE: Final = 2
"""The writer makes a checkpoint itself once it is this many times due."""

_ENDS_S: Final = 60.0
"""The time that upkeep under way has at the end of a writer: mostly seconds; killed, it was for nothing."""

_HURRIED_ENDS_S: Final = 2.0
"""The same where a signal or an error ends the writer: service managers kill after ten seconds."""

_KILLED_S: Final = 1.0
"""How long a killed process is waited for; one that waits for its storage cannot even be killed."""

_PIPE_BYTES: Final = 1 << 16
"""As much as a pipe holds: a read takes whole lines, as a write puts them in whole."""

_NICENESS: Final = 10
"""Of its process: commits come first where both want the processor."""

_PROCESS: Final = "tailrace_server.wal.upkeep.process"
_log = logging.getLogger("tailrace.wal")


class UpkeepTrigger:
    """Has upkeep done when a writer's log is due for it."""

    def __init__(self, path: Path, clock: Clock) -> None:
        """Bind to a catalog's folder."""
        self._path = path
        self._clock = clock
        self.failure = ""
        """Machine code of the error that keeps upkeep from being done, as last heard; empty if none does."""
        self._process: subprocess.Popen[bytes] | None = None
        self._next_entry = 0
        self._next_deletion_check: float | None = None
        """By the monotonic clock; None before the first."""
        self._next_large_warning = float("-inf")

    def run_if_due(self, log: CommitLog) -> None:
        """Have upkeep done if it is due; cheap where it is not."""
        if self._process is not None:
            self._hear(self._process)
        # 1. The checkpoint is made here while no process runs: it takes a moment, a process start far longer.
        try:
            write_checkpoint_if_due(
                log, self._clock.now(), times=_OVERDUE if self._is_running() else 1
            )
        except LogFull as error:
            self.failure = error.code
            _log.error("no checkpoint of catalog %s: %s", self._path.name, error)
        else:
            if not self._is_running():
                self.failure = ""  # it was a checkpoint of here, and the next one is due no sooner
        # 2. Anything larger is the process's, which decides by itself what is due when it comes to it.
        if self._compaction_is_due(log) or self._trim_or_deletion_is_due(log):
            self._put_off_deletion_check()  # the process checks it whatever it is asked for
            self._ask()

    def close(self, *, hurried: bool = False) -> None:
        """Wait until the process has done what is under way; kill it if that takes too long. Idempotent.

        What is killed was for nothing, and harms nothing: its files have no name in the log yet, and go with
        the next deletion. The next writer that publishes has the same done again.

        Args:
            hurried: The writer must end soon: wait for 2 s instead of a minute.
        """
        process, self._process = self._process, None
        if process is None or process.stdin is None:
            return
        within_s = _HURRIED_ENDS_S if hurried else _ENDS_S
        process.stdin.close()
        try:
            process.wait(within_s)
        except subprocess.TimeoutExpired:
            process.kill()
            _log.warning(
                "upkeep of catalog %s was ended, as it was not done %g s after its writer; the next writer's "
                "begins anew",
                *(self._path.name, within_s),
            )
            with suppress(subprocess.TimeoutExpired):
                process.wait(_KILLED_S)
        self._hear(process)
        assert process.stdout is not None
        process.stdout.close()

    def _compaction_is_due(self, log: CommitLog) -> bool:
        """Return whether a compaction or a base is due, or a checkpoint that the process has to make."""
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
        """Return whether there is something to let go by the settings, or to delete.

        That is, files have had their grace or, the first time, the last writer left some behind.
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
        """Return whether the settings let go of versions or bodies; tell if the log is too large still."""
        known = newest_settings(log.store, log.uuid)
        settings = known.settings
        view = log.published_view()
        verdict = judge(view, settings, self._clock.now())
        if verdict.bytes > settings.get(MAX_BYTES, verdict.bytes):
            self._tell_excess(log, view, settings)
        return verdict.due or expiry_is_due(log, known.by_type(log.view), self._clock.now())

    def _tell_excess(self, log: CommitLog, view: LogView, settings: Mapping[str, int]) -> None:
        """Log that the log is too large and stays so, now and then."""
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
        """Take what the process has answered since the last time; the last line counts."""
        assert process.stdout is not None
        with suppress(BlockingIOError):
            while lines := os.read(process.stdout.fileno(), _PIPE_BYTES):
                self.failure = lines.decode().split("\n")[-2]

    def _is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _ask(self) -> None:
        """Tell the process to run what is due, by one line with the time; start it if it does not run."""
        try:
            if not self._is_running():
                self.close()
                self._process = self._start()
            assert self._process is not None
            assert self._process.stdin is not None
            os.write(self._process.stdin.fileno(), b"%d\n" % self._clock.now())
        except BlockingIOError:
            return  # it has been told often enough
        except OSError as error:
            _log.warning("no upkeep of catalog %s: %s", self._path.name, error)

    def _start(self) -> subprocess.Popen[bytes]:
        """Start the process. It ends when its input does: with ``close``, or with this process."""
        process = subprocess.Popen(
            # -P: a file of the current folder is no module of ours, whatever its name is.
            [sys.executable, "-P", "-m", _PROCESS, self._path.absolute()],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,  # ctrl-c is the writer's, whose end is the process's
        )
        assert process.stdin is not None
        assert process.stdout is not None
        os.set_blocking(process.stdin.fileno(), False)
        os.set_blocking(process.stdout.fileno(), False)
        # From here rather than by itself: its imports alone would take a commit's processor for 0.2 s.
        os.setpriority(os.PRIO_PROCESS, process.pid, _NICENESS)
        return process
