"""Bodies that go: heads, positions, running numbers and counts stay, state stays, and readers are told."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.errors import BodiesExpired, LogError, LogFull, LogUnreadable
from tailrace.position import Position
from tailrace_server.wal.files import documents
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import SchemaMapping
from tailrace_server.wal.segment.reader import BatchReader
from tailrace_server.wal.sequences.settings import change_settings
from tailrace_server.wal.sequences.subscription_changes import HoldCap, new_subscription
from tailrace_server.wal.sequences.subscriptions import SubscriptionSequences
from tailrace_server.wal.state.checkpoint import write_checkpoint
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.state.entity_records import EntityRecords
from tailrace_server.wal.upkeep import expiring
from tailrace_server.wal.upkeep.compaction import compact
from tailrace_server.wal.upkeep.expiring import expire, expiry_is_due
from tailrace_server.wal.upkeep.inspect import record, summarize
from tailrace_server.wal.upkeep.process import run_if_due
from tailrace_server.wal.upkeep.retention import delete_unnamed, trim
from tailrace_server.wal.upkeep.trigger import UpkeepTrigger
from tailrace_server.wal.upkeep.verify import verify
from tests.server.wal.base.tables import naive, state, versions_of_bases
from tests.server.wal.logs import (
    AFTER,
    AREA,
    KEY,
    VERSION,
    Row,
    SteppingClock,
    armed,
    finish,
    python,
    remove,
    rows_of,
    update,
    upsert,
)

if TYPE_CHECKING:
    from pathlib import Path

HOUR = 3_600_000_000
DAY = 24 * HOUR
BODIES = slice(AFTER - 2, AFTER + 1)
TYPE = 5

EXPIRE = """
import sys
from pathlib import Path
from tailrace_server.wal.upkeep.expiring import expire
expire(Path(sys.argv[1]), int(sys.argv[2]), at_once=True)
"""


def write_hourly(root: Path, first: int, last: int) -> None:
    """Write a version an hour: an order of its own, one that all change, and a user."""
    clock = SteppingClock(DAY + (first - 1) * HOUR)
    with LogWriter.open(root, "shop", clock=clock) as writer:
        for number in range(first, last + 1):
            mutations = [
                upsert(str(number)),
                update("all", number - 1, number),
                upsert(f"u{number}", number, "user"),
            ]
            mutations += [remove(str(number - 2))] if number % 3 == 0 else []
            writer.append(mutations)
            writer.commit()
            clock.time += HOUR


def keep_bodies(root: Path, kept: int | None = DAY, entity_type: str = "order") -> CommitLog:
    log = CommitLog.open(root / "shop")
    change_settings(log.store, log.view, {"bodies": kept}, 1, entity_type=entity_type)
    return log


def time_of(root: Path, version: int) -> int:
    """Return the time at which a version's bodies may go."""
    return CommitLog.open(root / "shop").view.timestamp_of(version) + DAY


def without(records: list[Row], first: int, *entity_types: str) -> list[Row]:
    """Return records as they are once the bodies of some entity types begin at a version."""
    return [
        (*each[: BODIES.start], None, None, None, *each[BODIES.stop :])
        if each[VERSION] < first and each[AREA] == 2 and each[TYPE] in entity_types and each[KEY]
        else each
        for each in records
    ]


def test_heads_counts_and_running_numbers_stay_and_bodies_of_others_do(log_root: Path) -> None:
    write_hourly(log_root, 1, 9)
    catalog = log_root / "shop"
    records = rows_of(catalog)
    log = keep_bodies(log_root)
    done = expire(catalog, time_of(log_root, 4), at_once=True)
    assert done is not None
    assert done.bytes_after < done.bytes_before
    view = log.refresh()
    assert view is not None
    assert view.bodies.bodies_from == (("order", 5),)
    assert view.oldest == Position(1, 0)
    assert rows_of(catalog) == without(records, 5, "order") != records
    assert expire(catalog, time_of(log_root, 4), at_once=True) is None
    assert summarize(catalog).bodies_from == {"order": 5}
    found = record(catalog, Position(2, 1))
    assert found is not None
    assert (found.bodies_expired, found.after, found.primary_key) == (True, None, "2")
    assert verify(catalog).sound
    # What is compacted and written later changes nothing about it, and the rest follows in its time.
    write_hourly(log_root, 10, 12)
    newer = rows_of(catalog)[len(records) :]
    assert compact(catalog, 7) is not None
    assert rows_of(catalog) == without(records, 5, "order") + newer
    expire(catalog, time_of(log_root, 11), at_once=True)
    assert rows_of(catalog) == without(records + newer, 12, "order")
    assert verify(catalog).sound


def test_it_is_due_once_bodies_are_kept_for_an_eighth_longer(log_root: Path) -> None:
    write_hourly(log_root, 1, 9)
    log, catalog = keep_bodies(log_root), log_root / "shop"
    settings = {"order": {"bodies": DAY}}
    first = time_of(log_root, 1)
    assert not expiry_is_due(log, settings, first + DAY // 8 - 1)
    assert expiry_is_due(log, settings, first + DAY // 8)
    run_if_due(catalog, first + DAY // 8 - 1)
    assert CommitLog.open(catalog).view.bodies.bodies_from == ()
    run_if_due(catalog, first + DAY // 8)
    assert CommitLog.open(catalog).view.bodies.bodies_from == (("order", 5),)
    # A clock that is set back lets nothing go, and takes nothing back.
    run_if_due(catalog, first - 10 * DAY)
    assert CommitLog.open(catalog).view.bodies.bodies_from == (("order", 5),)
    keep_bodies(log_root, None)
    run_if_due(catalog, first + 100 * DAY)
    assert CommitLog.open(catalog).view.bodies.bodies_from == (("order", 5),)


def test_state_is_read_from_where_bodies_begin_and_refused_below(log_root: Path) -> None:
    write_hourly(log_root, 1, 9)
    catalog = log_root / "shop"
    wanted = {
        name: [naive(catalog, version, name) for version in range(10)] for name in ("order", "user")
    }
    keep_bodies(log_root)
    expire(catalog, time_of(log_root, 5), at_once=True)
    assert versions_of_bases(log_root) == [5]
    delete_unnamed(catalog, 10**16)
    for version in range(5, 10):
        assert state(log_root, version=version) == wanted["order"][version]
    for version in range(1, 5):
        with pytest.raises(BodiesExpired, match="state can be read from 5 on") as refused:
            state(log_root, version=version)
        assert (refused.value.wanted, refused.value.oldest) == (Position(version), Position(6))
    for version in range(10):
        assert state(log_root, "user", version=version) == wanted["user"][version]
    # The base stays for as long as it is needed, also beside newer ones, and goes with a trim.
    expire(catalog, time_of(log_root, 7), at_once=True)
    assert versions_of_bases(log_root) == [7]
    trim(catalog, 9, 5)
    assert versions_of_bases(log_root) == [8]
    view = CommitLog.open(catalog).view
    assert (view.oldest, view.bodies.bodies_from) == (Position(9, 0), ())
    assert state(log_root, version=8) == wanted["order"][8]
    assert verify(catalog).sound


def test_entity_types_have_their_own_times_and_each_keeps_a_base(log_root: Path) -> None:
    write_hourly(log_root, 1, 9)
    catalog = log_root / "shop"
    records = rows_of(catalog)
    wanted = [naive(catalog, version, "user") for version in range(10)]
    keep_bodies(log_root)
    keep_bodies(log_root, DAY + 3 * HOUR, "user")
    expire(catalog, time_of(log_root, 7), at_once=True)
    assert CommitLog.open(catalog).view.bodies.by_name(9) == {"order": 8, "user": 5}
    assert versions_of_bases(log_root) == [4, 7]
    assert rows_of(catalog) == without(without(records, 8, "order"), 5, "user")
    assert [state(log_root, "user", version) for version in range(4, 10)] == wanted[4:]
    assert verify(catalog).sound


def test_whoever_needs_the_bodies_of_records_is_told_by_position(log_root: Path) -> None:
    write_hourly(log_root, 1, 6)
    log = keep_bodies(log_root)
    expire(log.path, time_of(log_root, 3), at_once=True)
    newer = CommitLog.open(log.path)
    with BatchReader(log.path) as reader:
        with pytest.raises(BodiesExpired, match="'order' from 4:0 on") as told:
            list(EntityRecords(newer, reader, "order").versions(2, 7))
        assert told.value.wanted == Position(2, 1)
        assert [each.number for each in EntityRecords(newer, reader, "order").versions(4, 7)] == [
            *range(4, 7)
        ]
        users = EntityRecords(newer, reader, "user").versions(1, 7)
        assert [each.number for each in users] == [*range(1, 7)]
    # Who has an older view reads on from the files that were replaced, within their grace.
    assert all(row[AFTER] for row in rows_of(log.path, log.view) if row[KEY] == "1" and row[4] == 1)


def test_a_renamed_entity_type_keeps_its_setting_and_its_old_bodies_go(log_root: Path) -> None:
    clock = SteppingClock(DAY)
    with LogWriter.open(log_root, "shop", clock=clock) as writer:
        writer.append([Mutation("order", "1", after=b'{"id":1}')])
        writer.commit()
    log = keep_bodies(log_root)
    renamed = SchemaMapping.parse('[entity_types.purchase]\nrenamed_from = "order"\n')
    clock.time += HOUR
    with LogWriter.open(log_root, "shop", clock=clock, mapping=renamed) as writer:
        writer.append([Mutation("purchase", "2", after=b'{"id":2}')])
        writer.commit()
    expire(log.path, time_of(log_root, 2), at_once=True)
    assert CommitLog.open(log.path).view.bodies.by_name(2) == {"purchase": 3}
    images = {row[KEY]: row[AFTER] for row in rows_of(log.path) if row[AREA] == 2}
    assert images == {"1": None, "2": None}
    assert verify(log.path).sound


def test_what_is_not_published_keeps_its_bodies(log_root: Path) -> None:
    writer = LogWriter.open(log_root, "shop", clock=SteppingClock(DAY))
    for number in range(4):
        writer.append([upsert(str(number))])
        writer.commit()
        if number == 1:
            writer.publish()
    keep_bodies(log_root)
    expire(log_root / "shop", 10**15, at_once=True)
    writer.publish()
    found = [row[AFTER] for row in rows_of(log_root / "shop") if row[AREA] == 2]
    assert [image is None for image in found] == [True, True, False, False]
    writer.close()
    assert verify(log_root / "shop").sound


def test_large_logs_go_step_by_step(log_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiring, "_STEP_BYTES", 1)
    write_hourly(log_root, 1, 6)
    catalog = log_root / "shop"
    records = rows_of(catalog)
    keep_bodies(log_root)
    firsts = []
    while expire(catalog, time_of(log_root, 6), at_once=True) is not None:
        (entry,) = CommitLog.open(catalog).view.bodies.bodies_from
        firsts.append(entry[1])
        assert rows_of(catalog) == without(records, entry[1], "order")
        assert verify(catalog).sound
    assert firsts == sorted(set(firsts))
    assert (len(firsts) > 2, firsts[-1]) == (True, 7)


@pytest.mark.parametrize("place", ["expire.has_base", "checkpoint.after_link"])
def test_one_that_is_killed_has_let_all_go_or_nothing(log_root: Path, place: str) -> None:
    write_hourly(log_root, 1, 6)
    catalog = log_root / "shop"
    records, now = rows_of(catalog), time_of(log_root, 3)
    wanted = [naive(catalog, version, "order") for version in range(7)]
    keep_bodies(log_root)
    status, _, error = finish(python(EXPIRE, catalog, now, failing=f"{place}=kill"))
    assert status == -signal.SIGKILL, error
    for _ in range(2):
        begins = dict(CommitLog.open(catalog).view.bodies.bodies_from).get("order", 1)
        assert begins in (1, 4)
        assert rows_of(catalog) == without(records, begins, "order")
        for version in range(begins - 1, 7):
            assert state(log_root, version=version) == wanted[version]
        assert verify(catalog).sound
        expire(catalog, now, at_once=True)
    assert rows_of(catalog) == without(records, 4, "order")


@pytest.mark.parametrize("place", ["base.before_rename", "segment.before_rename"])
def test_without_room_nothing_goes(log_root: Path, place: str) -> None:
    write_hourly(log_root, 1, 6)
    catalog = log_root / "shop"
    records = rows_of(catalog)
    keep_bodies(log_root)
    with armed(f"{place}=enospc"), pytest.raises(LogFull):
        expire(catalog, time_of(log_root, 3), at_once=True)
    assert rows_of(catalog) == records
    assert verify(catalog).sound


def test_nothing_goes_whose_images_no_base_has(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_hourly(log_root, 1, 6)
    keep_bodies(log_root)
    monkeypatch.setattr(expiring, "make_base", lambda *arguments, **others: None)
    with pytest.raises(LogError, match="at the same time; try again"):
        expire(log_root / "shop", time_of(log_root, 3), at_once=True)
    assert CommitLog.open(log_root / "shop").view.bodies.bodies_from == ()


def test_an_older_tailrace_refuses_such_a_log_and_reads_it_again_once_that_part_is_trimmed(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would show records without bodies, and say nothing."""
    write_hourly(log_root, 1, 6)
    catalog = log_root / "shop"
    follower = CommitLog.open(catalog)
    keep_bodies(log_root)
    expire(catalog, time_of(log_root, 3), at_once=True)
    older = "format version 2, but this tailrace reads only up to 1; upgrade it"
    with monkeypatch.context() as patched:
        patched.setattr(documents, "_newest", lambda kind: 1)
        for read in (follower.refresh, lambda: CommitLog.open(catalog)):
            with pytest.raises(LogUnreadable, match=older):
                read()
    trim(catalog, 4, 5)
    with monkeypatch.context() as patched:
        patched.setattr(documents, "_newest", lambda kind: 1)
        assert CommitLog.open(catalog).view.oldest == Position(4, 0)


def test_verify_names_a_body_that_should_be_gone(log_root: Path) -> None:
    """As after a restore of old files by hand: the checkpoint says that they are gone."""
    write_hourly(log_root, 1, 4)
    catalog = log_root / "shop"
    log = keep_bodies(log_root)
    log.advance()
    log.read_newest_checkpoint()
    log.state.bodies_from = (("order", 3),)
    log.state.revision += 1
    assert write_checkpoint(log, log.state, 5)
    reasons = [fault.reason for fault in verify(catalog).faults]
    assert reasons[0] == "(1, 3) has a body that should have been removed"
    assert len(reasons) == 2


def test_what_a_named_subscription_holds_keeps_its_bodies(log_root: Path) -> None:
    write_hourly(log_root, 1, 6)
    log, now = keep_bodies(log_root), time_of(log_root, 5)
    sequences = SubscriptionSequences(log.path, log.uuid)
    options: dict[str, Any] = {"hold_us": 7 * DAY, "hold_bytes": 1 << 30, "now": 0, "owner": ""}
    sequences.create(new_subscription(log.view, "billing", (), "3", cap=HoldCap(), **options))
    expire(log.path, now, at_once=True)
    assert CommitLog.open(log.path).view.bodies.by_name(6) == {"order": 3}
    sequences.delete("billing", 0)
    expire(log.path, now, at_once=True)
    assert CommitLog.open(log.path).view.bodies.by_name(6) == {"order": 6}


def test_a_writer_at_work_has_it_done(log_root: Path) -> None:
    write_hourly(log_root, 1, 4)
    keep_bodies(log_root)
    clock = SteppingClock(time_of(log_root, 4) + DAY)
    log = CommitLog.open(log_root / "shop")
    trigger = UpkeepTrigger(log.path, clock)
    trigger.run_if_due(log)
    trigger.close()
    assert CommitLog.open(log.path).view.bodies.by_name(4) == {"order": 5}
