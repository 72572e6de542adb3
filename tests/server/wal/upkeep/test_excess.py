"""A log that is larger than ``max_bytes`` says so, and what keeps it: the lookback, a hold, a trim undone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.criteria import Criteria
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.sequences.settings import change_settings
from tailrace_server.wal.sequences.subscription_changes import HoldCap, new_subscription
from tailrace_server.wal.sequences.subscriptions import SubscriptionSequences
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.inspect import summarize
from tailrace_server.wal.upkeep.keeping import Excess, excess_of
from tailrace_server.wal.upkeep.process import run_if_due
from tests.server.wal.logs import SteppingClock, upsert, write_files

if TYPE_CHECKING:
    from pathlib import Path

HOUR = 3_600_000_000
DAY = 24 * HOUR


@pytest.fixture
def catalog(log_root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a catalog with a segment for each of 32 versions, one an hour."""
    write_files(monkeypatch)
    clock = SteppingClock(DAY)
    with LogWriter.open(log_root, "shop", clock=clock) as writer:
        for number in range(1, 33):
            writer.append([upsert(str(number))])
            writer.commit()
            clock.time += HOUR
    return log_root / "shop"


def size_of(catalog: Path) -> int:
    view = CommitLog.open(catalog).view
    return view.bytes_from(view.oldest)


def hold(catalog: Path, name: str, place: str, now: int) -> None:
    """Create a named subscription that holds everything from a place on."""
    view = CommitLog.open(catalog).view
    one = new_subscription(
        view,
        name,
        (Criteria(),),
        place,
        hold_us=1 << 60,
        hold_bytes=1 << 40,
        cap=HoldCap(None, None),
        owner="",
        now=now,
    )
    SubscriptionSequences(catalog, view.uuid).create(one, names_max=10)


def excess(catalog: Path, now: int, **settings: int) -> Excess | None:
    view = CommitLog.open(catalog).view
    return excess_of(view, settings, SubscriptionSequences(catalog, view.uuid).all(), now)


def test_what_fits_or_has_no_bound_is_not_too_large(catalog: Path) -> None:
    size = size_of(catalog)
    assert excess(catalog, DAY, max_bytes=size) is None
    assert excess(catalog, DAY, max_lookback=DAY) is None


def test_a_trim_that_is_due_makes_it_small_enough_and_who_makes_it_is_said(catalog: Path) -> None:
    size = size_of(catalog)
    found = excess(catalog, 0, max_bytes=size - 1)
    assert found is not None
    assert found[:3] == (size, 1, True)
    assert "tailrace log trim" in found.reason


def test_contract_38_what_the_lookback_keeps_is_too_large_and_stays(catalog: Path) -> None:
    found = excess(catalog, 3 * DAY, max_lookback=10 * DAY, max_bytes=1)
    assert found is not None
    assert found[:3] == (size_of(catalog), size_of(catalog) - 1, False)
    assert "younger than its max_lookback alone are larger; free space" in found.reason


def test_contract_38_51_what_a_named_subscription_holds_is_too_large_and_stays_until_it_moves(
    catalog: Path,
) -> None:
    now = 3 * DAY
    log = CommitLog.open(catalog)
    size = size_of(catalog)
    change_settings(log.store, log.view, {"max_bytes": size - 1}, 1)
    hold(catalog, "billing", "3", now)
    run_if_due(catalog, now)  # what may go is not worth a base
    assert CommitLog.open(catalog).view.oldest.version == 1
    found = excess(catalog, now, max_bytes=size - 1)
    assert found is not None
    assert found[:3] == (size, 1, False)
    assert found.reason.startswith(
        "named subscriptions hold the older versions until their readers advance (billing)"
    )
    assert summarize(catalog).excess == str(found)


def test_a_segment_alone_may_be_too_large_and_both_reasons_are_told(catalog: Path) -> None:
    now = 3 * DAY
    found = excess(catalog, now, max_bytes=1)
    assert found is not None
    assert found.reason.startswith("its newest segment alone is larger")
    hold(catalog, "billing", "1", now)
    found = excess(catalog, now, max_bytes=1)
    assert found is not None
    assert "(billing) and its newest segment alone" in found.reason
