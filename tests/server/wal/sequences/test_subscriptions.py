"""Named subscriptions in the folder: exclusive creation decides, and nothing that comes late counts."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tailrace.criteria import Area, Criteria, Operation
from tailrace.cursor import Cursor
from tailrace.errors import (
    InvalidRequest,
    LogCorrupted,
    PositionCompacted,
    SubscriptionExists,
    SubscriptionPaused,
    SubscriptionTakenOver,
    SubscriptionUnknown,
)
from tailrace.position import Position
from tailrace_server.wal.sequences import subscription_changes, subscriptions
from tailrace_server.wal.sequences.subscription_changes import (
    HoldCap,
    criteria_in,
    cursor_at,
    new_subscription,
)
from tailrace_server.wal.sequences.subscriptions import SubscriptionSequences, name_in_log
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.retention import trim
from tests.server.wal.logs import write

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from tailrace_server.wal.files.sequence_documents import SubscriptionDocument

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOW = 1_700_000_000_000_000
WEEK = 7 * 24 * 3600 * 1_000_000


@pytest.fixture
def catalog(log_root: Path) -> Path:
    write(log_root, "shop", 5)
    return log_root / "shop"


@pytest.fixture
def sequences(catalog: Path) -> SubscriptionSequences:
    return SubscriptionSequences(catalog, CommitLog.open(catalog).uuid)


def subscription(catalog: Path, name: str = "billing", **given: Any) -> SubscriptionDocument:
    options: dict[str, Any] = {
        "criteria": (),
        "place": "earliest",
        "hold_us": None,
        "hold_bytes": None,
        "cap": HoldCap(),
        "owner": "",
        "now": NOW,
    }
    options |= given
    criteria, place = options.pop("criteria"), options.pop("place")
    return new_subscription(CommitLog.open(catalog).view, name, criteria, place, **options)


def files(catalog: Path, name: str = "billing") -> list[str]:
    return sorted(os.listdir(catalog / "subscriptions" / name))


def cursor(catalog: Path, version: int) -> Cursor:
    return CommitLog.open(catalog).view.cursor(version, 0)


def test_a_subscription_is_kept_as_it_was_created(
    catalog: Path, sequences: SubscriptionSequences
) -> None:
    wanted = (
        Criteria(entity_type=("order",), operation=(Operation.UPSERT,), primary_key=("4", "ä")),
        Criteria(area=Area.SCHEMA),
        Criteria(entity_type=("order",), where="total > :least", parameters={"least": 4}),
        Criteria(entity_type=("order",), where={"column": "state", "in": ["paid", "sent"]}),
    )
    sequences.create(subscription(catalog, criteria=wanted, owner="ann"))
    (name,) = sequences.names()
    assert name == name_in_log("billing", "ann") != name_in_log("billing", "bob")
    found = sequences.get(name)
    # The names of conditions are those of the version at which it was created.
    assert set(criteria_in(found.criteria)) == {
        one if one.where is None else replace(one, where_version=5) for one in wanted
    }
    assert (found.owner, found.created, found.epoch, found.paused) == ("ann", NOW, 0, False)
    assert Cursor.parse(found.cursor).version == 0
    assert (found.hold_us, found.hold_bytes) == (24 * 3600 * 1_000_000, 10 << 30)


def test_a_name_is_taken_by_one_of_many_that_want_it_at_once(
    catalog: Path, sequences: SubscriptionSequences
) -> None:
    def create(_: int) -> bool:
        try:
            sequences.create(subscription(catalog))
        except SubscriptionExists:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(create, range(8))) == 1


def test_takeovers_at_once_have_an_epoch_each(
    catalog: Path, sequences: SubscriptionSequences
) -> None:
    sequences.create(subscription(catalog))

    def take_over(number: int) -> int:
        found = sequences.change(
            "billing", partial(subscription_changes.taken_over, reader=f"{number}", now=NOW)
        )
        return found.epoch

    with ThreadPoolExecutor(8) as threads:
        epochs = [*threads.map(take_over, range(40))]
    assert len({*epochs}) == 40
    assert sequences.get("billing").epoch == max(epochs)
    assert len(files(catalog)) <= 9


def test_contract_51_a_fenced_reader_acknowledges_nothing(
    catalog: Path, sequences: SubscriptionSequences
) -> None:
    sequences.create(subscription(catalog))
    for _ in range(2):
        sequences.change("billing", partial(subscription_changes.taken_over, reader="b", now=NOW))
    at = cursor(catalog, 3)
    with pytest.raises(SubscriptionTakenOver, match="epoch 1, but b has taken it with epoch 2"):
        sequences.change(
            "billing", lambda found: subscription_changes.acknowledged(found, 1, at, NOW)
        )
    with pytest.raises(SubscriptionTakenOver):
        sequences.change(
            "billing", lambda found: subscription_changes.taken_over(found, "a", NOW, 1)
        )
    with pytest.raises(InvalidRequest, match="has had readers only up to epoch 2"):
        sequences.change(
            "billing", lambda found: subscription_changes.acknowledged(found, 3, at, NOW)
        )
    found = sequences.change(
        "billing", lambda found: subscription_changes.acknowledged(found, 2, at, NOW + 1)
    )
    assert (found.cursor, found.moved) == (str(at), NOW + 1)


def test_acknowledging_backwards_is_refused_and_the_same_again_changes_nothing(
    catalog: Path, sequences: SubscriptionSequences
) -> None:
    sequences.create(subscription(catalog))
    sequences.change("billing", partial(subscription_changes.taken_over, reader="b", now=NOW))
    for version in (3, 3):
        at = cursor(catalog, version)
        found = sequences.change(
            "billing",
            lambda found: subscription_changes.acknowledged(found, 1, at, NOW),  # noqa: B023
        )
    assert found.number == NOW + 2
    with pytest.raises(InvalidRequest, match="reset the subscription"):
        sequences.change(
            "billing",
            lambda found: subscription_changes.acknowledged(found, 1, cursor(catalog, 2), NOW),
        )


def test_a_write_that_was_held_up_until_its_number_was_free_again_counts_for_nothing(
    catalog: Path, sequences: SubscriptionSequences
) -> None:
    """Old objects are deleted, so exclusive creation alone would let it succeed."""
    sequences.create(subscription(catalog))
    held_up = sequences.get("billing")
    decided: list[SubscriptionDocument] = []

    def decide(found: SubscriptionDocument) -> SubscriptionDocument:
        if not decided:
            for number in range(20):
                sequences.change(
                    "billing", partial(subscription_changes.taken_over, reader=f"{number}", now=NOW)
                )
        decided.append(found)
        return subscription_changes.taken_over(found, "late", NOW)

    late = sequences.change("billing", decide)
    assert decided[0].number == held_up.number
    assert len(decided) == 2
    assert (late.epoch, sequences.get("billing").epoch) == (21, 21)
    assert all(int(name[:20]) > NOW + 10 for name in files(catalog))


def test_a_paused_subscription_takes_no_reader_and_its_last_one_is_fenced(
    catalog: Path, sequences: SubscriptionSequences
) -> None:
    sequences.create(subscription(catalog))
    sequences.change("billing", partial(subscription_changes.taken_over, reader="b", now=NOW))
    sequences.change(
        "billing", partial(subscription_changes.paused, who="ann", now=NOW, pauses=True)
    )
    with pytest.raises(SubscriptionPaused):
        sequences.change("billing", partial(subscription_changes.taken_over, reader="b", now=NOW))
    late = partial(subscription_changes.acknowledged, epoch=1, cursor=cursor(catalog, 3), now=NOW)
    with pytest.raises(SubscriptionPaused):  # "subscribe again" would be refused
        sequences.change("billing", late)
    sequences.change(
        "billing", partial(subscription_changes.paused, who="ann", now=NOW, pauses=False)
    )
    with pytest.raises(SubscriptionTakenOver):
        sequences.change("billing", late)
    found = sequences.change(
        "billing", partial(subscription_changes.taken_over, reader="b", now=NOW)
    )
    assert found.epoch == 3


def test_a_deleted_name_can_be_created_anew_and_refuses_what_comes_late(
    catalog: Path, sequences: SubscriptionSequences
) -> None:
    sequences.create(subscription(catalog))
    sequences.change("billing", partial(subscription_changes.taken_over, reader="b", now=NOW))
    sequences.delete("billing", NOW)
    with pytest.raises(SubscriptionUnknown, match=r"no named subscription 'billing'$"):
        sequences.get("billing")
    assert sequences.all() == []
    sequences.create(subscription(catalog, place="3"))
    with pytest.raises(InvalidRequest, match="epoch 0"):
        sequences.change(
            "billing",
            lambda found: subscription_changes.acknowledged(found, 1, cursor(catalog, 4), NOW),
        )
    assert sequences.get("billing").number == NOW + 3


def test_what_a_deleted_name_has_left_goes_after_a_week(
    catalog: Path, sequences: SubscriptionSequences
) -> None:
    sequences.create(subscription(catalog))
    sequences.delete("billing", NOW)
    sequences.create(subscription(catalog, "audit", now=NOW + WEEK - 1))
    assert sequences.names() == ["audit", "billing"]
    sequences.create(subscription(catalog, "search", now=NOW + WEEK))
    assert sequences.names() == ["audit", "search"]


def test_a_catalog_and_an_owner_have_so_many_names_and_no_more(
    catalog: Path, sequences: SubscriptionSequences
) -> None:
    for name, owner in (("a", "ann"), ("b", "ann"), ("c", "bob")):
        sequences.create(subscription(catalog, name, owner=owner), names_max=4, owner_max=2)
    with pytest.raises(
        InvalidRequest, match=r"2 named subscriptions .*\(named_subscriptions_of_owner"
    ):
        sequences.create(subscription(catalog, "d", owner="ann"), names_max=4, owner_max=2)
    sequences.create(subscription(catalog, "d", owner="bob"), names_max=4, owner_max=2)
    with pytest.raises(
        InvalidRequest, match=r"4 named subscriptions, which is its limit \(named_sub"
    ):
        sequences.create(subscription(catalog, "e", owner="cid"), names_max=4, owner_max=2)
    with pytest.raises(SubscriptionExists):
        sequences.create(subscription(catalog, "a", owner="ann"), names_max=4, owner_max=2)


def test_deleted_names_count_for_nothing_and_few_leave_an_object(
    catalog: Path, sequences: SubscriptionSequences, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "_DELETED_MAX", 4)
    for number in range(6):
        for name in (f"a{number}", f"b{number}"):
            sequences.create(subscription(catalog, name), names_max=2, owner_max=2)
        for name in (f"a{number}", f"b{number}"):
            sequences.delete(name, NOW + number)
    assert sequences.names() == ["a3", "a4", "a5", "b3", "b4", "b5"]


def test_a_late_write_counts_for_nothing_after_its_name_was_forgotten_and_created_anew(
    catalog: Path, sequences: SubscriptionSequences
) -> None:
    """Nothing is left of the first subscription then, not even its numbers."""
    sequences.create(subscription(catalog))
    decided: list[SubscriptionDocument] = []

    def decide(found: SubscriptionDocument) -> SubscriptionDocument:
        if not decided:
            sequences.delete("billing", NOW)
            sequences.create(subscription(catalog, "audit", now=NOW + WEEK))
            assert sequences.names() == ["audit"]
            sequences.create(subscription(catalog, now=NOW + WEEK))
        decided.append(found)
        return subscription_changes.taken_over(found, "late", NOW)

    late = sequences.change("billing", decide)
    assert late.id == decided[1].id != decided[0].id
    assert sequences.get("billing").id == late.id


@pytest.mark.parametrize("name", ["", ".a", "a/b", "a" * 65, "ä", "..", "a\n"])
def test_a_name_that_is_none_is_refused(
    catalog: Path, sequences: SubscriptionSequences, name: str
) -> None:
    with pytest.raises(
        InvalidRequest, match="is not a valid name of a subscription: use up to 64 letters"
    ):
        subscription(catalog, name)
    with pytest.raises(InvalidRequest, match="is not a valid name"):
        sequences.get(name)


def test_a_hold_above_the_cap_is_refused_and_a_default_keeps_to_it(catalog: Path) -> None:
    cap = HoldCap(us=1_000, bytes=2_000)
    with pytest.raises(
        InvalidRequest, match="hold: 1,001 µs is too large; the maximum of this server is 1,000 µs"
    ):
        subscription(catalog, hold_us=1_001, cap=cap)
    with pytest.raises(InvalidRequest, match="hold_bytes: 2,001 bytes"):
        subscription(catalog, hold_bytes=2_001, cap=cap)
    found = subscription(catalog, cap=cap)
    assert (found.hold_us, found.hold_bytes) == (1_000, 2_000)


def test_a_place_is_a_position_or_a_word(catalog: Path) -> None:
    trim(catalog, 3, NOW)
    view = CommitLog.open(catalog).view
    places = {
        each: cursor_at(view, each) for each in ("earliest", "0", "0:0", "latest", "4", "4:2", "6")
    }
    assert [(each.version, each.index) for each in places.values()] == [
        *(Position(3).preceding(),) * 3,
        Position(6).preceding(),
        Position(4).preceding(),
        (4, 1),
        Position(6).preceding(),
    ]
    with pytest.raises(PositionCompacted):
        cursor_at(view, "2")
    with pytest.raises(
        InvalidRequest, match="the newest published version is 5; write 6, or latest"
    ):
        cursor_at(view, "7")
    for at, first in ((0, 4), (1, 5), (3_600_000_000, 6)):
        time = _EPOCH + timedelta(microseconds=view.timestamp_of(4) + at)
        zones = (time, time.astimezone(timezone(timedelta(hours=-3))))
        assert {cursor_at(view, each.isoformat()) for each in zones} == {
            cursor_at(view, str(first))
        }
    with pytest.raises(PositionCompacted):
        cursor_at(view, "1970-01-01T00:00:00Z")
    with pytest.raises(InvalidRequest, match="it has no time zone"):
        cursor_at(view, "2026-05-04T10:30:00")
    for none in ("", "newest", "-1", "1:", "1:-1", "\uff11"):
        with pytest.raises(InvalidRequest, match="is not a position: write earliest"):
            cursor_at(view, none)


def test_a_damaged_object_is_told_by_its_path(
    catalog: Path, sequences: SubscriptionSequences
) -> None:
    sequences.create(subscription(catalog))
    [name] = files(catalog)
    path = catalog / "subscriptions" / "billing" / name
    path.write_bytes(path.read_bytes().replace(b'"epoch":0', b'"epoch":1'))
    with pytest.raises(LogCorrupted, match=f"subscriptions/billing/{name}"):
        sequences.get("billing")
