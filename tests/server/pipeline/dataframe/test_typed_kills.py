"""A write of typed rows that is killed and repeated: nothing is lost or there twice, and no file is left."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tailrace_server.pipeline.dataframe import runs, typed_versions
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.retention import delete_unnamed, orphans
from tailrace_server.wal.upkeep.verify import verify
from tests.process.ingest.reading import published
from tests.server.pipeline.dataframe.test_typed_rows import rows
from tests.server.pipeline.dataframe.typed_writing import state, write
from tests.server.wal.logs import finish, python

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import sys
from pathlib import Path
from tests.support import failpoints
from tests.server.pipeline.dataframe.test_typed_kills import write_all
failpoints.arm(sys.argv[2])
write_all(Path(sys.argv[1]))
"""


def write_all(root: Path) -> None:
    """Write a table, a change of it, and a snapshot, each with runs and segments in files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "_CARRIED_BYTES", 0)
        patch.setattr(typed_versions, "ROWS_MAX", 0)
        write(root, [rows((1, "a"), (2, "b")), rows((3, "c"))], batch=1)
        write(root, [rows((1, "x"), (4, "d"))], batch=2, images="full")
        write(root, [rows((1, "y")), rows((4, "d"))], batch=3, mode="snapshot")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "at"),
    [
        ("segment.before_rename", 2),
        ("segment.after_rename", 3),
        ("pipeline.before_commit", 1),
        ("entry.before_link", 3),
        ("entry.after_link", 4),
        ("pipeline.after_commit", 2),
    ],
)
def test_a_killed_write_of_typed_rows_goes_on(log_root: Path, place: str, at: int) -> None:
    status, _, _ = finish(python(PROGRAM, log_root, f"{place}=kill@{at}"))
    assert status == -signal.SIGKILL
    write_all(log_root)
    assert published(log_root / "shop") == 3
    assert state(log_root) == {"1": b'{"id":1,"name":"y"}', "4": b'{"id":4,"name":"d"}'}
    assert verify(log_root / "shop").sound
    # The next epoch makes orphans of what the killed program left.
    write(log_root, [rows((1, "y"))], batch=4)
    delete_unnamed(log_root / "shop", 1 << 60)
    assert not orphans(CommitLog.open(log_root / "shop"))
    assert not [*(log_root / "shop" / "segments").rglob("*-run*")]
