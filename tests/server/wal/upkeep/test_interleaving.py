"""Promised states stay, whatever upkeep a process does in the middle of another one's."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace.errors import BodiesExpired, LogError
from tailrace_server import failpoints
from tailrace_server.wal.base import making
from tailrace_server.wal.base.making import drop_unneeded, make_base
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.sequences.settings import change_settings
from tailrace_server.wal.sequences.subscription_changes import HoldCap, new_subscription
from tailrace_server.wal.sequences.subscriptions import SubscriptionSequences
from tailrace_server.wal.state.checkpoint import write_checkpoint
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.compaction import compact
from tailrace_server.wal.upkeep.copying import copy_log
from tailrace_server.wal.upkeep.expiring import expire
from tailrace_server.wal.upkeep.process import run_if_due
from tailrace_server.wal.upkeep.retention import delete_unnamed, trim
from tailrace_server.wal.upkeep.verify import verify
from tests.server.wal.base.tables import Table, naive, state, versions_of_bases
from tests.server.wal.logs import SteppingClock, finish, python, remove, rows_of, upsert

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


HOUR: Final = 3_600_000_000
DAY: Final = 24 * HOUR
VERSIONS: Final = 9
AFTER_GRACE: Final = 10**16
PLACES: Final = (
    "base.before_rename",
    "base.before_link",
    "base.after_link",
    "checkpoint.before_link",
    "checkpoint.after_link",
    "segment.before_rename",
    "trim.has_base",
    "expire.has_base",
)
TYPES: Final = ("order", "user")

Wanted = dict[str, list[Table]]
"""By entity type, the state at each version."""
Work = tuple[str, int]
"""The name of a work in ``run``, and a version for those that need one."""


def write_hourly(root: Path, first: int = 1, last: int = VERSIONS) -> None:
    """Write a version an hour: an order and a user of its own, and an order that all change."""
    clock = SteppingClock(DAY + (first - 1) * HOUR)
    with LogWriter.open(root, "shop", clock=clock) as writer:
        for number in range(first, last + 1):
            gone = [remove(str(number - 2))] if number % 3 == 0 else []
            users = [upsert(f"u{number}", number, "user")]
            writer.append([upsert(str(number)), upsert("all", number), *users, *gone])
            writer.commit()
            clock.time += HOUR


def keep_bodies(root: Path, kept: int, entity_type: str = "order") -> None:
    log = CommitLog.open(root / "shop")
    change_settings(log.store, log.view, {"bodies": kept}, 1, entity_type=entity_type)


def time_of(version: int) -> int:
    """Return the time at which the bodies of a version may go."""
    return DAY + (version - 1) * HOUR + DAY


def run(root: Path, work: Work) -> None:
    """Do what a process of its own may do to the log at any moment."""
    name, version = work
    path, now = root / "shop", time_of(version)
    match name:
        case "trim":
            trim(path, version, now)
        case "expire":
            expire(path, now, at_once=True)
        case "base":
            make_base(path, now, version)
        case "rebase":
            make_base(path, now)
        case "anew":
            make_base(path, now, anew=True)
        case "drop":
            drop_unneeded(path, now)
        case "upkeep":
            run_if_due(path, now + DAY)
        case "compact":
            compact(path, now)
        case "checkpoint":
            log = CommitLog.open(path)
            write_checkpoint(log, log.state, now)
        case "delete":
            delete_unnamed(path, AFTER_GRACE)
        case _:
            raise AssertionError(name)


NAMES: Final = (
    *("trim", "expire", "base", "rebase", "anew"),
    *("drop", "upkeep", "compact", "checkpoint", "delete"),
)
works: Final = st.tuples(st.sampled_from(NAMES), st.integers(1, VERSIONS))


@contextmanager
def interrupted(at: str, turn: int, act: Callable[[], None]) -> Iterator[None]:
    """Have this process do something else when it reaches a place for a certain time."""
    turns = itertools.count(1)

    def reach() -> None:
        if next(turns) == turn:
            del failpoints.armed[at]
            act()

    failpoints.armed[at] = reach
    try:
        yield
    finally:
        failpoints.armed.clear()


def attempt(root: Path, work: Work) -> None:
    """Do a work, which may give up because of others, and then has changed nothing."""
    try:
        run(root, work)
    except BodiesExpired:
        assert work[0] == "anew"  # the log alone does not have the images any more
    except LogError as error:
        if "try again" not in str(error):
            raise


def check_states(root: Path, wanted: Wanted) -> None:
    """Check every state that the log promises by its newest checkpoint, with the files of that moment."""
    path = root / "shop"
    delete_unnamed(path, AFTER_GRACE)
    view = CommitLog.open(path).view
    oldest = view.oldest.version
    for name in TYPES:
        first = max(view.bodies.first_kept(name, view.published), oldest)
        for version in range(first - 1, VERSIONS + 1):
            assert state(root, name, version) == wanted[name][version]
    assert verify(path).sound


class Meeting(NamedTuple):
    """Works on one log, some of them in the middle of another."""

    users_too: bool
    """Whether bodies of users go, too, three hours after those of orders."""
    before: list[Work]
    work: Work
    place: str
    """The place at which the work is interrupted, …"""
    turn: int
    """… when it reaches that for this time."""
    meanwhile: list[Work]
    after: list[Work]


meetings: Final = st.builds(
    Meeting,
    st.booleans(),
    st.lists(works, max_size=2),
    works,
    st.sampled_from(PLACES),
    st.integers(1, 3),
    st.lists(works, min_size=1, max_size=3),
    st.lists(works, max_size=2),
)


def check_meeting(root: Path, meeting: Meeting) -> None:
    """Let works meet on a new log, and check what state gives."""
    write_hourly(root)
    rows = rows_of(root / "shop")
    wanted: Wanted = {
        name: [naive(rows, version, name) for version in range(VERSIONS + 1)] for name in TYPES
    }
    keep_bodies(root, DAY)
    if meeting.users_too:
        keep_bodies(root, DAY + 3 * HOUR, "user")
    for work in meeting.before:
        attempt(root, work)

    def interrupt() -> None:
        for work in meeting.meanwhile:
            attempt(root, work)

    with interrupted(meeting.place, meeting.turn, interrupt):
        attempt(root, meeting.work)
    check_states(root, wanted)
    for work in meeting.after:
        attempt(root, work)
    if meeting.after:
        check_states(root, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("let_go", [("trim", 6), ("expire", 5)])
@pytest.mark.parametrize("other", [("rebase", 9), ("anew", 9), ("drop", 9)])
def test_a_base_stays_from_its_making_to_the_checkpoint_that_relies_on_it(
    log_root: Path, let_go: Work, other: Work
) -> None:
    for number, place in enumerate(("checkpoint.before_link", f"{let_go[0]}.has_base")):
        meeting = Meeting(False, [], let_go, place, 1, [other], [])
        check_meeting(log_root / str(number), meeting)


@pytest.mark.slow
@pytest.mark.parametrize("let_go", [("trim", 6), ("expire", 5)])
@pytest.mark.parametrize("place", ["base.before_rename", "base.before_link"])
def test_bases_are_chosen_by_the_log_as_it_is_when_they_are_named(
    log_root: Path, let_go: Work, place: str
) -> None:
    """The base that is relied on was there before, so the maker of another does not lose its number."""
    check_meeting(log_root, Meeting(False, [("base", 5)], ("rebase", 9), place, 1, [let_go], []))


@pytest.mark.parametrize(
    ("work", "place"),
    [(("trim", 9), "trim.has_base"), (("expire", 9), "segment.before_rename")],
)
def test_what_somebody_begins_to_hold_while_a_base_is_made_stays(
    log_root: Path, work: Work, place: str
) -> None:
    write_hourly(log_root)
    keep_bodies(log_root, DAY)
    log = CommitLog.open(log_root / "shop")
    options: dict[str, Any] = {"hold_us": 9 * DAY, "hold_bytes": 1 << 30, "now": 0, "owner": ""}
    held = new_subscription(log.view, "billing", (), "3", cap=HoldCap(), **options)
    with interrupted(place, 1, lambda: SubscriptionSequences(log.path, log.uuid).create(held)):
        attempt(log_root, work)
    view = CommitLog.open(log.path).view
    assert (view.oldest.version, dict(view.bodies.bodies_from)) == (
        (3, {}) if work[0] == "trim" else (1, {"order": 3})
    )


def test_bodies_stay_that_are_to_be_kept_for_longer_while_they_are_let_go(log_root: Path) -> None:
    write_hourly(log_root)
    keep_bodies(log_root, DAY)
    with interrupted("segment.before_rename", 1, partial(keep_bodies, log_root, 9 * DAY)):
        run(log_root, ("expire", 5))
    assert CommitLog.open(log_root / "shop").view.bodies.bodies_from == ()


def test_a_log_is_trimmed_below_where_bodies_begin(log_root: Path) -> None:
    """A base below has no table of the entity type; nothing promises its state there."""
    write_hourly(log_root)
    wanted = [naive(log_root / "shop", version, "order") for version in range(VERSIONS + 1)]
    users = [naive(log_root / "shop", version, "user") for version in range(VERSIONS + 1)]
    keep_bodies(log_root, DAY)
    run(log_root, ("expire", 7))
    for oldest in (3, 5):
        run(log_root, ("trim", oldest))
        assert CommitLog.open(log_root / "shop").view.oldest.version == oldest
        assert versions_of_bases(log_root) == [oldest - 1, 7]
        for version in range(oldest - 1, VERSIONS + 1):
            assert state(log_root, "user", version) == users[version]
        for version in range(oldest - 1, 7):
            with pytest.raises(BodiesExpired):
                state(log_root, version=version)
        assert [state(log_root, version=version) for version in (7, 8, 9)] == wanted[7:]
    assert verify(log_root / "shop").sound


def test_a_copy_has_the_bases_that_its_log_begins_with(log_root: Path, tmp_path: Path) -> None:
    """Another process trims between the look at the log and the look at its bases."""
    write_hourly(log_root)
    run(log_root, ("trim", 4))
    wanted = state(log_root, version=5)
    opened = CommitLog.open(log_root / "shop")

    def trimmed_behind(path: Path) -> CommitLog:
        monkeypatch.undo()
        run(log_root, ("trim", 8))
        return opened

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(CommitLog, "open", trimmed_behind)
        copied = copy_log(log_root / "shop", tmp_path / "copy")
    oldest = CommitLog.open(copied.path).view.oldest.version
    assert oldest == 8 or state(tmp_path / "copy", version=5) == wanted
    assert versions_of_bases(tmp_path / "copy") == [7]


TRIM = """
import sys
from pathlib import Path
from tailrace_server.wal.upkeep.retention import trim
trim(Path(sys.argv[1]), 6, 5)
"""


@pytest.mark.slow
def test_a_trim_in_another_process_keeps_its_base(log_root: Path, tmp_path: Path) -> None:
    write_hourly(log_root)
    wanted = [naive(log_root / "shop", version, "order") for version in range(VERSIONS + 1)]
    gate = tmp_path / "gate"
    trimming = python(TRIM, log_root / "shop", failing=f"checkpoint.before_link=pause:{gate}")
    while not gate.with_name("gate.paused").exists():
        assert trimming.poll() is None
    run(log_root, ("rebase", VERSIONS))
    run(log_root, ("delete", VERSIONS))
    gate.touch()
    status, _, error = finish(trimming)
    assert status == 0, error
    run(log_root, ("delete", VERSIONS))
    assert [state(log_root, version=each) for each in range(5, VERSIONS + 1)] == wanted[5:]


@pytest.mark.slow
@settings(
    max_examples=10,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(meeting=meetings)
def test_no_work_takes_a_state_that_another_one_promises(
    tmp_path_factory: pytest.TempPathFactory, meeting: Meeting
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(making, "_DUE_RECORDS", 10)
        check_meeting(tmp_path_factory.mktemp("log"), meeting)
