"""The upkeep process that trigger.py starts: ``python -m tailrace_server.wal.upkeep.process CATALOG_FOLDER``.

For each line of its input, a time in µs, the process runs the upkeep that is due at that time. It answers with
one line: the machine code of the first error, or an empty line. It ends at the end of its input. It can be
killed at any moment without harm: each step creates an object exclusively, or can be repeated (compaction.py,
retention.py).
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.errors import TailraceError
from tailrace_server.wal.base.key_files import key_file_is_due, make_key_files
from tailrace_server.wal.base.making import base_is_due, make_base
from tailrace_server.wal.state.checkpoint import write_checkpoint_if_due
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.compaction import compact, holds_entries, is_due
from tailrace_server.wal.upkeep.expiring import expire
from tailrace_server.wal.upkeep.retention import (
    DELETE_FILES,
    delete_unnamed,
    deletion_is_due,
    last_writer_left_orphans,
    trim_by_settings,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger("tailrace.wal")


def run_if_due(path: Path, now: int) -> None:
    """Run the upkeep that is due in a catalog. If a step fails, the other steps still run.

    Args:
        path: The catalog's folder.
        now: Current time, µs since the epoch.

    Raises:
        LogError: The first failure, after all other steps have run. Each failure is logged.
    """
    failures: list[TailraceError] = []

    def step(name: str, work: Callable[[], object]) -> bool:
        """Run one step; return True if it has changed the log. Log and collect its failure."""
        try:
            done = work()
        except TailraceError as error:
            _log.error("catalog %s: no %s: %s", path.name, name, error)
            failures.append(error)
            return False
        if done:
            _log.info("catalog %s: %s: %s", path.name, name, done)
        return bool(done)

    log = CommitLog.open(path)
    # 1. Delete files first. This needs no other step, and makes room, without which the others may fail.
    if deletion_is_due(log, now) or last_writer_left_orphans(log):
        step("deletion", partial(_delete, path, now))
    # 2. Trim and expire next, so that the later steps do not rewrite records that are removed anyway.
    changed = step("trim", partial(_trim, path, now))
    changed |= step("expiry of bodies", partial(expire, path, now))
    # 3. Make bases and key files, and compact, by the state of the log after the steps before. A compaction
    #    writes a checkpoint, so an extra checkpoint is needed only without one.
    log = CommitLog.open(path)
    if base_is_due(log):
        changed |= step("base", partial(make_base, path, now))
    if key_file_is_due(log):
        step("key files", partial(make_key_files, path))
    if is_due(log.state) or holds_entries(log.state):
        changed |= step("compaction", partial(compact, path, now))
    else:
        step("checkpoint", partial(write_checkpoint_if_due, log, now))
    if changed:
        step("deletion", partial(_delete, path, now))
    if failures:
        raise failures[0]


def _trim(path: Path, now: int) -> str:
    verdict = trim_by_settings(path, now)
    return f"versions below {verdict.before} removed" if verdict.due else ""


def _delete(path: Path, now: int) -> str:
    deleted = delete_unnamed(path, now, files_max=DELETE_FILES)
    return f"{len(deleted)} files" if deleted else ""


def main() -> None:
    """Run the upkeep that is due, once for each line of the input."""
    path, answers = Path(sys.argv[1]), sys.stdout.fileno()
    # The writer may not read the answers for long: a full pipe must not block upkeep.
    os.set_blocking(answers, False)
    for line in sys.stdin.buffer:
        failure = ""
        try:
            run_if_due(path, int(line))
        except TailraceError as error:
            failure = error.code
            _log.error("no upkeep of catalog %s: %s", path.name, error)
        with suppress(OSError):  # the pipe is full, or the writer has ended
            os.write(answers, b"%b\n" % failure.encode())


if __name__ == "__main__":
    main()
