"""The process that trigger.py starts: ``python -m tailrace_server.wal.upkeep.process CATALOG_FOLDER``.

Each line of its input is a time in µs: it then runs the upkeep that is due. It answers with a line: the machine
code of the error that kept it from that, or nothing. It ends with its input. Killing it at any moment is
harmless: all that it does is exclusive or repeatable (compaction.py, retention.py).
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
    """Run the upkeep that is due in a catalog. A step that fails does not keep the others from their work.

    Args:
        path: The catalog's folder.
        now: µs since the epoch.

    Raises:
        LogError: The first failure, after all other steps have run; each is in the log.
    """
    failures: list[TailraceError] = []

    def step(name: str, work: Callable[[], object]) -> bool:
        """Run one step and return True if it changed the log; log and collect its failure."""
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
    # 1. Deletion comes first: it needs nothing of the other steps, and a full disk would stop all of them.
    if deletion_is_due(log, now) or last_writer_left_orphans(log):
        step("deletion", partial(_delete, path, now))
    # 2. What is trimmed first need not be compacted or summed up.
    changed = step("trim", partial(_trim, path, now))
    changed |= step("expiry of bodies", partial(expire, path, now))
    # 3. What remains is summed up. Each rule looks at the log as the steps before have left it.
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
    return f"let go of all below version {verdict.before}" if verdict.due else ""


def _delete(path: Path, now: int) -> str:
    deleted = delete_unnamed(path, now, files_max=DELETE_FILES)
    return f"{len(deleted)} files" if deleted else ""


def main() -> None:
    """Run what is due once for each line of the input."""
    path, answers = Path(sys.argv[1]), sys.stdout.fileno()
    os.set_blocking(answers, False)
    for line in sys.stdin.buffer:
        failure = ""
        try:
            run_if_due(path, int(line))
        except TailraceError as error:
            failure = error.code
            _log.error("no upkeep of catalog %s: %s", path.name, error)
        with suppress(OSError):  # nobody reads, or the writer is gone
            os.write(answers, b"%b\n" % failure.encode())


if __name__ == "__main__":
    main()
