"""A trim spares what a named subscription needs, up to the cap of its hold, and breaks the hold beyond it."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.cursor import Cursor
from tailrace.named import SubscriptionHealth
from tailrace.position import END, Position
from tailrace_server.cli.application import run
from tailrace_server.wal.sequences import subscription_changes
from tailrace_server.wal.sequences.holds import health_of, hold_of, needed_position
from tailrace_server.wal.sequences.subscription_changes import HoldCap, new_subscription
from tailrace_server.wal.sequences.subscriptions import SubscriptionSequences
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.retention import trim
from tests.server.wal.logs import write

if TYPE_CHECKING:
    from pathlib import Path

HOUR = 3600 * 1_000_000


@pytest.fixture
def catalog(log_root: Path) -> Path:
    write(log_root, "shop", 10)
    return log_root / "shop"


def create(catalog: Path, name: str, place: str, **given: Any) -> SubscriptionSequences:
    view = CommitLog.open(catalog).view
    options: dict[str, Any] = {"hold_us": HOUR, "hold_bytes": 1 << 30, "now": 0, "owner": ""}
    sequences = SubscriptionSequences(catalog, view.uuid)
    sequences.create(new_subscription(view, name, (), place, cap=HoldCap(), **(options | given)))
    return sequences


def now(catalog: Path) -> int:
    """Return a time just after the last commit."""
    return CommitLog.open(catalog).view.newest_timestamp + 1


def health(catalog: Path, name: str, at: int) -> SubscriptionHealth:
    view = CommitLog.open(catalog).view
    return health_of(hold_of(SubscriptionSequences(catalog, view.uuid).get(name), view, at))


def test_a_trim_stops_at_the_lowest_that_is_held(catalog: Path) -> None:
    create(catalog, "billing", "4:1")
    create(catalog, "search", "7")
    assert trim(catalog, 9, now(catalog)) == Position(4, 0)
    SubscriptionSequences(catalog, CommitLog.open(catalog).uuid).delete("billing", 0)
    assert trim(catalog, 9, now(catalog)) == Position(7, 0)
    assert trim(catalog, 9, now(catalog) + 2 * HOUR) == Position(9, 0)


def test_contract_51_a_hold_beyond_its_time_is_broken_loudly(
    catalog: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sequences = create(catalog, "billing", "4")
    late = now(catalog) + HOUR
    assert health(catalog, "billing", late) is SubscriptionHealth.NOT_HELD
    with caplog.at_level(logging.WARNING, "tailrace.wal"):
        assert trim(catalog, 6, late) == Position(6, 0)
    [line] = caplog.messages
    assert "the hold of subscription 'billing' is broken: it needs the log from 4:0 on" in line
    assert sequences.get("billing").broken == late
    assert health(catalog, "billing", late) is SubscriptionHealth.LOST
    # What it lost cannot come back, so it holds nothing of the rest.
    assert trim(catalog, 8, now(catalog)) == Position(8, 0)


def test_a_hold_beyond_its_bytes_is_broken(catalog: Path) -> None:
    sequences = create(catalog, "billing", "4", hold_bytes=1)
    assert trim(catalog, 6, now(catalog)) == Position(6, 0)
    assert sequences.get("billing").broken


def test_a_trim_that_takes_nothing_of_it_breaks_no_hold(catalog: Path) -> None:
    sequences = create(catalog, "billing", "4", hold_bytes=1)
    create(catalog, "search", "3")
    assert trim(catalog, 6, now(catalog)) == Position(3, 0)
    assert not sequences.get("billing").broken
    assert health(catalog, "billing", now(catalog)) is SubscriptionHealth.NOT_HELD


def test_a_broken_hold_stands_again_once_its_reader_has_moved_on(catalog: Path) -> None:
    sequences = create(catalog, "billing", "4")
    create(catalog, "search", "5", hold_us=3 * HOUR)
    late = now(catalog) + HOUR
    assert trim(catalog, 9, late) == Position(5, 0)
    sequences.change("billing", partial(subscription_changes.taken_over, reader="b", now=0))
    cursor = CommitLog.open(catalog).view.cursor(6, END)
    sequences.change(
        "billing", lambda found: subscription_changes.acknowledged(found, 1, cursor, late)
    )
    assert health(catalog, "billing", now(catalog)) is SubscriptionHealth.HELD
    sequences.delete("search", 0)
    assert trim(catalog, 9, now(catalog)) == Position(7, 0)


def test_one_that_holds_nothing_is_neither_spared_nor_broken(
    catalog: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sequences = create(catalog, "billing", "4", hold_us=0)
    assert trim(catalog, 6, now(catalog)) == Position(6, 0)
    assert not sequences.get("billing").broken
    assert not caplog.messages


def test_who_has_everything_needs_nothing(catalog: Path) -> None:
    create(catalog, "billing", "latest")
    at = now(catalog)
    view = CommitLog.open(catalog).view
    found = hold_of(SubscriptionSequences(catalog, view.uuid).get("billing"), view, at + 9 * HOUR)
    assert (found.needed, found.age_us, found.bytes) == (Position(11, 0), 0, 0)
    assert trim(catalog, 11, at) == Position(11, 0)
    assert health(catalog, "billing", at) is SubscriptionHealth.HELD


def test_what_is_needed_is_the_record_of_which_a_part_was_passed(catalog: Path) -> None:
    uuid = CommitLog.open(catalog).uuid
    assert needed_position(Cursor(uuid, 4, 2, 0)) == Position(4, 2)
    assert needed_position(Cursor(uuid, 4, 2)) == Position(4, 3)
    assert needed_position(Cursor(uuid, 4, END)) == Position(5, 0)


def test_the_command_says_who_holds(catalog: Path, capsys: pytest.CaptureFixture[str]) -> None:
    create(catalog, "billing", "4:1")
    assert run(["log", "trim", str(catalog), "--before", "6"]) == 0
    text = capsys.readouterr().err
    assert "oldest retained position: 4:0" in text
    assert "held by named subscriptions: billing needs 4:1; move or delete the subscription" in text
