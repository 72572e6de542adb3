"""An ingest that follows its input over a disk that is full for a while."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from tailrace.cdcv2 import Progress
from tailrace.errors import LogFull
from tailrace_server.pipeline.run import room
from tailrace_server.pipeline.run.progress import ProgressReporter
from tailrace_server.pipeline.run.room import run_with_room
from tests.server.pipeline.cdcv2.test_ingest import A, Stream, told, update
from tests.server.wal.logs import armed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tailrace_server.pipeline.cdcv2.ingest import Cdcv2Outcome


@pytest.fixture
def stream(tmp_path: Path, log_root: Path, monkeypatch: pytest.MonkeyPatch) -> Stream:
    folder = tmp_path / "input"
    folder.mkdir()
    found = Stream(folder, log_root)
    found.add(update(A, 1, 1), Progress((0,), (), ((1, 1),)))
    monkeypatch.setattr(room, "_PAUSE_S", 0.0)
    monkeypatch.setattr(room, "_LOOK_S", 0.01)
    return found


@pytest.mark.parametrize("place", ["entry.before_link", "entry.linked", "segment.before_rename"])
def test_contract_37_what_follows_continues_once_there_is_room(
    stream: Stream, log_root: Path, capfd: pytest.CaptureFixture[str], place: str
) -> None:
    run: Callable[[], Cdcv2Outcome] = partial(stream.ingest, follow=True)
    with armed(f"{place}=enospc@1"):
        outcome = run_with_room(run, log_root, ProgressReporter(), follow=True)
    assert outcome.closed
    assert [each[:3] for each in told(stream)] == [(1, "UPSERT", "1")]
    said = capfd.readouterr().err
    assert "the ingest waits for free space" in said
    assert "there is free space again" in said


def test_contract_37_without_following_a_full_disk_ends_the_ingest(
    stream: Stream, log_root: Path
) -> None:
    with armed("entry.before_link=enospc@1"), pytest.raises(LogFull):
        run_with_room(stream.ingest, log_root, ProgressReporter(quiet=True), follow=False)
    run_with_room(stream.ingest, log_root, ProgressReporter(quiet=True), follow=False)
    assert len(told(stream)) == 1
