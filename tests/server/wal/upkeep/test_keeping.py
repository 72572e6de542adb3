"""What settings keep and let go, and that upkeep does it by itself: the promise before the room."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.errors import InvalidRequest, LogError, LogFull
from tailrace.position import Position
from tailrace_server.wal.base import making
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.sequences.settings import change_settings, newest_settings
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep import retention
from tailrace_server.wal.upkeep.keeping import Keeping, judge
from tailrace_server.wal.upkeep.process import run_if_due
from tailrace_server.wal.upkeep.retention import trim, trim_by_settings
from tailrace_server.wal.upkeep.trigger import DELETION_CHECK_S, UpkeepTrigger
from tailrace_server.wal.upkeep.verify import verify
from tests.server.wal.base.tables import naive, state, versions_of_bases
from tests.server.wal.logs import (
    SteppingClock,
    armed,
    finish,
    python,
    rows_of,
    upkeep_processes,
    upsert,
    write_files,
)

if TYPE_CHECKING:
    from pathlib import Path

HOUR = 3_600_000_000
DAY = 24 * HOUR
SLACK = DAY // 8

TRIM = """
import sys
from pathlib import Path
from tailrace_server.wal.upkeep.process import run_if_due
run_if_due(Path(sys.argv[1]), int(sys.argv[2]))
"""


def write_hourly(root: Path, versions: int, *, begin: int = DAY) -> None:
    """Write a version an hour, the first one at a time; each sets a key of its own and one that all set."""
    clock = SteppingClock(begin)
    with LogWriter.open(root, "shop", clock=clock) as writer:
        for number in range(1, versions + 1):
            writer.append([upsert(str(number)), upsert("all", number)])
            writer.commit()
            clock.time += HOUR


def set_of(root: Path, **settings: int | None) -> CommitLog:
    log = CommitLog.open(root / "shop")
    change_settings(log.store, log.view, settings, 1)
    return log


def judged(root: Path, now: int, **settings: int) -> Keeping:
    return judge(CommitLog.open(root / "shop").view, settings, now)


def oldest(root: Path) -> int:
    return CommitLog.open(root / "shop").view.oldest.version


def test_without_settings_nothing_goes_whatever_its_age(log_root: Path) -> None:
    write_hourly(log_root, 3)
    run_if_due(log_root / "shop", 10**15)
    assert oldest(log_root) == 1
    assert judged(log_root, 10**15)[:2] == (1, False)


def test_contract_38_nothing_younger_than_the_lookback_goes_and_older_goes_after_an_eighth_more(
    log_root: Path,
) -> None:
    """Version n is committed n - 1 hours after the first, less the µs between an opening and a commit."""
    write_hourly(log_root, 30)
    first = CommitLog.open(log_root / "shop").view.timestamp_of(1)
    # At exactly a day the first version is not younger than a day, so it may go. It need not yet.
    assert judged(log_root, first + DAY - 1, max_lookback=DAY)[:2] == (1, False)
    assert judged(log_root, first + DAY, max_lookback=DAY)[:2] == (2, False)
    assert judged(log_root, first + DAY + SLACK - 2, max_lookback=DAY)[:2] == (4, False)
    assert judged(log_root, first + DAY + SLACK, max_lookback=DAY)[:2] == (5, True)
    set_of(log_root, max_lookback=DAY)
    run_if_due(log_root / "shop", first + DAY + SLACK - 1)
    assert oldest(log_root) == 1
    run_if_due(log_root / "shop", first + DAY + SLACK)
    assert oldest(log_root) == 5
    # Asked for, as by ``log trim``, it goes at once.
    trim_by_settings(log_root / "shop", first + DAY + 5 * HOUR, at_once=True)
    assert oldest(log_root) == 7
    # A quiet log is let go of as a whole.
    run_if_due(log_root / "shop", first + 100 * DAY)
    assert oldest(log_root) == 31
    assert verify(log_root / "shop").sound


def test_state_stays_readable_from_the_base_that_a_trim_makes_first(log_root: Path) -> None:
    write_hourly(log_root, 30)
    catalog = log_root / "shop"
    wanted = [naive(catalog, version, "order") for version in range(31)]
    set_of(log_root, max_lookback=DAY)
    run_if_due(catalog, CommitLog.open(catalog).view.timestamp_of(1) + DAY + SLACK)
    assert versions_of_bases(log_root) == [4]
    assert [state(log_root, version=version) for version in range(4, 31)] == wanted[4:]


def test_bytes_alone_let_go_of_the_oldest_down_to_seven_eighths(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(monkeypatch)
    write_hourly(log_root, 32)
    sizes = CommitLog.open(log_root / "shop").state.batches.segments.sizes.tolist()
    size = sum(sizes)
    assert judged(log_root, 0, max_bytes=size) == Keeping(1, False, size, 0)
    found = judged(log_root, 0, max_bytes=size - 1)
    kept = sizes[found.before - 1 :]
    assert found.due
    assert sum(kept) <= (size - 1) * 7 / 8 < sum(kept) + sizes[found.before - 2]
    set_of(log_root, max_bytes=size - 1)
    run_if_due(log_root / "shop", 0)
    assert oldest(log_root) == found.before
    assert CommitLog.open(log_root / "shop").state.batches.segments.sizes.sum() == sum(kept)


def test_the_newest_segment_stays_however_large(log_root: Path) -> None:
    write_hourly(log_root, 4)
    last = CommitLog.open(log_root / "shop").state.batches.segments.sizes.tolist()[-1]
    found = judged(log_root, 0, max_bytes=1)
    assert (found.before, found.due, found.bytes_over) == (4, True, last - 1)


def test_contract_38_where_both_are_set_the_lookback_is_kept_and_the_bytes_are_told(
    log_root: Path,
) -> None:
    write_hourly(log_root, 30)
    view = CommitLog.open(log_root / "shop").view
    first, size = view.timestamp_of(1), judged(log_root, 0).bytes
    # All is younger: it stays, and is too large.
    assert judged(log_root, first, max_lookback=DAY, max_bytes=1)[:2] == (1, False)
    assert judged(log_root, first, max_lookback=DAY, max_bytes=1).bytes_over == size - 1
    # What is older goes at once where the log is too large, and not before an eighth more where it is not.
    assert judged(log_root, first + DAY, max_lookback=DAY, max_bytes=1)[:2] == (2, True)
    assert judged(log_root, first + DAY, max_lookback=DAY, max_bytes=size)[:2] == (2, False)


def test_contract_38_a_clock_that_was_ahead_and_was_set_back_lets_nothing_go_early(
    log_root: Path,
) -> None:
    """Commit timestamps never fall, so versions look younger than they are."""
    ahead, right = 1_000 * DAY, 10 * DAY
    write_hourly(log_root, 3, begin=ahead)
    clock = SteppingClock(right)
    with LogWriter.open(log_root, "shop", clock=clock) as writer:
        writer.append([upsert("back")])
        writer.commit()
    view = CommitLog.open(log_root / "shop").view
    assert view.timestamp_of(4) > view.timestamp_of(3) > ahead
    set_of(log_root, max_lookback=DAY)
    for now in (right, right + 100 * DAY, ahead + DAY):
        run_if_due(log_root / "shop", now)
        assert oldest(log_root) == 1
    run_if_due(log_root / "shop", ahead + 2 * DAY)
    assert oldest(log_root) == 5


@pytest.mark.parametrize("keeps_state", [False, True])
def test_contract_38_a_trim_that_is_asked_for_takes_nothing_that_is_promised(
    log_root: Path, keeps_state: bool
) -> None:
    write_hourly(log_root, 9)
    catalog = log_root / "shop"
    now = CommitLog.open(catalog).view.timestamp_of(4) + DAY
    set_of(log_root, max_lookback=DAY)
    for before in (6, 10, 99):
        with pytest.raises(
            InvalidRequest,
            match=r"retains version 5 and all later ones: .*\(1d\); trim to that version",
        ):
            trim(catalog, before, now, keeps_state=keeps_state)
    assert (oldest(log_root), versions_of_bases(log_root)) == (1, [])
    assert trim(catalog, 5, now, keeps_state=keeps_state) == Position(5, 0)


def test_contract_38_a_promise_that_is_made_while_a_trim_makes_its_base_is_kept(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_hourly(log_root, 9)
    catalog = log_root / "shop"
    now = CommitLog.open(catalog).view.timestamp_of(4) + DAY
    set_of(log_root, max_lookback=DAY)

    def make_and_promise(*arguments: Any, **options: Any) -> Any:
        made = making.make_base(*arguments, **options)
        set_of(log_root, max_lookback=7 * DAY)
        return made

    monkeypatch.setattr(retention, "make_base", make_and_promise)
    with pytest.raises(InvalidRequest, match="retains version 1 and all later ones"):
        trim_by_settings(catalog, now, at_once=True)
    assert oldest(log_root) == 1


def test_what_is_not_published_stays(log_root: Path) -> None:
    clock = SteppingClock(DAY)
    writer = LogWriter.open(log_root, "shop", clock=clock)
    for number in range(4):
        writer.append([upsert(str(number))])
        writer.commit()
        if number == 1:
            writer.publish()
    set_of(log_root, max_lookback=DAY)
    trim_by_settings(log_root / "shop", 100 * DAY, at_once=True)
    assert oldest(log_root) == 3
    writer.publish()
    assert [row[1] for row in rows_of(log_root / "shop")] == [3, 3, 4, 4]
    writer.close()
    assert verify(log_root / "shop").sound


@pytest.mark.parametrize(
    "place", ["base.after_link", "trim.has_base", "checkpoint.before_link", "checkpoint.after_link"]
)
def test_contract_38_an_automatic_trim_that_is_killed_is_done_again_and_readers_see_all_of_it_or_nothing(
    log_root: Path, place: str
) -> None:
    write_hourly(log_root, 9)
    catalog = log_root / "shop"
    wanted = [naive(catalog, version, "order") for version in range(10)]
    records = rows_of(catalog)
    set_of(log_root, max_lookback=DAY)
    now = CommitLog.open(catalog).view.timestamp_of(4) + DAY + 1
    status, _, error = finish(python(TRIM, catalog, now, failing=f"{place}=kill"))
    assert status == -signal.SIGKILL, error
    # What readers see is the log before or after the trim, with the state of all that is kept.
    for _ in range(2):
        at = oldest(log_root)
        assert at in (1, 5)
        assert rows_of(catalog) == [row for row in records if row[1] >= at]
        for version in range(at - 1, 10):
            assert state(log_root, version=version) == wanted[version]
        assert verify(catalog).sound
        run_if_due(catalog, now)
    assert oldest(log_root) == 5


def test_an_automatic_trim_without_room_leaves_the_log_as_it_was(log_root: Path) -> None:
    write_hourly(log_root, 9)
    set_of(log_root, max_lookback=DAY)
    now = CommitLog.open(log_root / "shop").view.timestamp_of(4) + DAY + 1
    with armed("base.before_rename=enospc"), pytest.raises(LogFull):
        run_if_due(log_root / "shop", now)
    assert oldest(log_root) == 1
    run_if_due(log_root / "shop", now)
    assert oldest(log_root) == 5


def test_a_trim_gives_up_nothing_while_its_base_cannot_be_made(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others take the number of the base each time."""
    write_hourly(log_root, 9)
    monkeypatch.setattr(retention, "make_base", lambda *arguments, **options: None)
    with pytest.raises(LogError, match="was not trimmed to 5: other processes change"):
        trim(log_root / "shop", 5, 1)
    assert CommitLog.open(log_root / "shop").view.oldest == Position(1, 0)
    monkeypatch.setattr(retention, "make_base", making.make_base)
    assert trim(log_root / "shop", 5, 1) == Position(5, 0)


def test_a_writer_at_work_has_it_done_within_a_minute_of_a_change(log_root: Path) -> None:
    """The setting comes from elsewhere, while it writes."""
    clock = SteppingClock(DAY)
    with LogWriter.open(log_root, "shop", clock=clock) as writer:
        for number in range(9):
            writer.append([upsert(str(number))])
            writer.commit()
            clock.time += HOUR
        set_of(log_root, max_lookback=DAY)
        clock.time += 2 * DAY
        writer.append([upsert("9")])
        writer.commit()
    assert oldest(log_root) == 10
    assert upkeep_processes() == []


def test_a_log_that_is_too_large_is_told_of_once_an_hour(
    log_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_hourly(log_root, 3)
    log = set_of(log_root, max_lookback=DAY, max_bytes=1)
    clock = SteppingClock(DAY + 3 * HOUR)
    trigger = UpkeepTrigger(log.path, clock)
    for _ in range(3):
        trigger.run_if_due(log)
        clock.time += int(DELETION_CHECK_S * 1e6)
    assert (
        caplog.text.count("max_bytes: the versions younger than its max_lookback alone are larger")
        == 1
    )
    clock.time += HOUR
    trigger.run_if_due(log)
    assert caplog.text.count("more than its max_bytes") == 2
    assert upkeep_processes() == []
    assert newest_settings(log.store, log.uuid).number == 1
