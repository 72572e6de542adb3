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
from pathlib import Path

from tailrace.errors import TailraceError
from tailrace_server.wal.base.making import base_is_due, make_base
from tailrace_server.wal.state.checkpoint import write_checkpoint_if_due
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.compaction import compact, is_due
from tailrace_server.wal.upkeep.expiring import expire
from tailrace_server.wal.upkeep.key_files import key_file_is_due, make_key_files
from tailrace_server.wal.upkeep.retention import (
    DELETE_FILES,
    delete_unnamed,
    deletion_is_due,
    last_writer_left_orphans,
    trim_by_settings,
)

_log = logging.getLogger("tailrace.wal")


def run_if_due(path: Path, now: int) -> None:
    """Run the upkeep that is due in a catalog.

    Args:
        path: The catalog's folder.
        now: µs since the epoch.

    Raises:
        LogError: It cannot be done; the log is as it was.
    """
    # What is trimmed first need not be compacted or summed up.
    verdict = trim_by_settings(path, now)
    if verdict.due:
        _log.info("catalog %s: let go of all below version %d", path.name, verdict.before)
    expired = expire(path, now)
    if expired is not None:
        _log.info("catalog %s: let go of bodies: %s", path.name, expired)
    log = CommitLog.open(path)
    if rebases := base_is_due(log):
        _log.debug("catalog %s: %s", path.name, make_base(path, now))
    if key_file_is_due(log):
        _log.debug("catalog %s: %d key files", path.name, make_key_files(path))
    if compacts := is_due(log.state):
        _log.debug("catalog %s: %s", path.name, compact(path, now))
    else:
        write_checkpoint_if_due(log, now)
    if (
        compacts
        or rebases
        or verdict.due
        or expired is not None
        or deletion_is_due(log, now)
        or last_writer_left_orphans(log)
    ):
        deleted = delete_unnamed(path, now, files_max=DELETE_FILES)
        _log.debug("catalog %s: %d files deleted", path.name, len(deleted))


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
