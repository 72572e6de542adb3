"""Contract 37: no room is a clear error, the log stays readable, and writing goes on once there is room."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.errors import LogFull
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.verify import verify
from tests.server.wal.logs import (
    armed,
    finish,
    python,
    rows_of,
    transactions_in,
    upsert,
    write_files,
)

if TYPE_CHECKING:
    from pathlib import Path

PLACES = [
    "segment.before_rename",
    "segment.after_rename",
    "schema.before_link",
    "schema.after_link",
    "entry.before_link",
    "entry.linked",
    "entry.after_link",
]


@pytest.mark.parametrize("publish", [False, True], ids=["two-steps", "one-step"])
@pytest.mark.parametrize("place", PLACES)
def test_contract_37_a_commit_without_room_is_repeated_once_there_is(
    log_root: Path, monkeypatch: pytest.MonkeyPatch, place: str, publish: bool
) -> None:
    """Also if it fails after its entry stands: the repeat commits once, what came meanwhile behind it."""
    if place.startswith("segment"):
        write_files(monkeypatch)
    writer = LogWriter.open(log_root, "shop")
    writer.append([upsert("1")])
    with armed(f"{place}=enospc"), pytest.raises((LogFull, OSError)):
        writer.commit(publish=publish)
    stands = publish and place in ("entry.linked", "entry.after_link")
    assert CommitLog.open(log_root / "shop").view.published == stands
    writer.append([upsert("2")])
    receipt = writer.commit(publish=publish)
    if not publish:
        writer.publish()
    assert receipt is not None
    assert receipt.last_version == 2
    assert transactions_in(rows_of(log_root / "shop")) == ["1", "2"]
    writer.close()
    assert verify(log_root / "shop").sound


@pytest.mark.parametrize("place", ["publication.before_link", "publication.after_link"])
def test_contract_37_a_publication_without_room_is_repeated_once_there_is(
    log_root: Path, place: str
) -> None:
    writer = LogWriter.open(log_root, "shop")
    writer.append([upsert("1")])
    writer.commit()
    with armed(f"{place}=enospc"), pytest.raises((LogFull, OSError)):
        writer.publish()
    writer.publish()
    assert transactions_in(rows_of(log_root / "shop")) == ["1"]
    writer.close()
    assert verify(log_root / "shop").sound


FULL_DISK = """
import resource, sys
from pathlib import Path
from tailrace.errors import LogFull
from tailrace_server.wal.log_writer import LogWriter
from tests.server.wal.logs import upsert
writer = LogWriter.open(Path(sys.argv[1]), "shop")
writer.append([upsert("1")])
writer.commit()
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
for limit in (0, 100, 2000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    if limit == 0:
        writer.append([upsert("2")])
    try:
        writer.commit()
    except LogFull as error:
        print(error.code, error.retriable)
    try:
        writer.publish()
    except LogFull as error:
        print(error.code)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
writer.append([upsert("3")])
writer.commit()
writer.publish()
writer.close()
"""


@pytest.mark.slow
def test_contract_37_the_kernel_refuses_to_write_and_later_does_not(log_root: Path) -> None:
    """RLIMIT_FSIZE makes write(2) itself fail, at once and after a part of the file."""
    status, out, err = finish(python(FULL_DISK, log_root))
    assert status == 0, err
    assert out.splitlines()[:2] == ["LOG_FULL True", "LOG_FULL"]
    assert transactions_in(rows_of(log_root / "shop")) == ["1", "2", "3"]
    assert verify(log_root / "shop").sound
