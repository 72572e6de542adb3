"""Time to live: rows are removed when their time is over, once, and whatever happened to them meanwhile."""

from __future__ import annotations

import signal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.criteria import Operation
from tailrace.errors import InvalidRequest, LogFull
from tailrace_server.pipeline.catalog import time_to_live
from tailrace_server.pipeline.catalog.due_times import DueRows
from tailrace_server.pipeline.sources.debezium.source import Debezium
from tailrace_server.wal.catalog import open_writer
from tailrace_server.wal.schema.mapping import SchemaMapping
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.transaction_writer import TransactionWriter
from tests.process.ingest.reading import data, leads, published
from tests.server.pipeline.feeds import Feed
from tests.server.pipeline.shapes import envelope, line, postgres
from tests.server.wal.base.tables import state
from tests.server.wal.logs import SteppingClock, armed, finish, python

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Row = dict[str, Any]

SECOND = 1_000_000
MINUTE = 60 * SECOND
BY_AGE = '[entity_types.product]\nttl = "1 minute after the last change"\n'
BY_COLUMN = """
[entity_types.product]
ttl = "until"
[entity_types.product.columns.until]
type = "TIMESTAMP"
encoding = "debezium.MicroTimestamp"
"""
EXPIRE = f"""
import sys
from pathlib import Path
from tests.server.pipeline.feeds import Feed
from tests.server.wal.logs import SteppingClock
clock = SteppingClock()
clock.time = int(sys.argv[2])
Feed(Path(sys.argv[1]), {BY_AGE!r}, clock=clock).driver.expire(whole=True)
"""


class Shop:
    """A feed of one table, on a clock that a test sets."""

    def __init__(self, root: Path, mapping: str = BY_AGE) -> None:
        self.root = root
        self.mapping = mapping
        self.clock = SteppingClock()
        self._lsn = 0
        self._feeds: list[Feed] = []
        self.begin()

    def begin(self, **options: Any) -> None:
        """Begin an ingest, as after a restart."""
        self.clock.time += 1_000  # entries are stamped by a clock that moves
        self.feed = Feed(self.root, self.mapping, clock=self.clock, **options)
        self._feeds.append(self.feed)

    def close(self) -> None:
        for feed in self._feeds:
            feed.close()

    def take(self, *changes: tuple[str, Row | None, Row | None]) -> None:
        """Take changes, each a transaction; all in one batch."""
        lines = []
        self.clock.time += 1_000
        for op, before, after in changes:
            self._lsn += 1
            lines.append(line(envelope(op, postgres(self._lsn), before=before, after=after)))
        self.feed.batch(*lines)

    def insert(self, *rows: Row) -> None:
        self.take(*(("c", None, row) for row in rows))

    def expire(self) -> None:
        self.feed.driver.expire(whole=True)

    def expiries(self) -> list[tuple[int, str | None, Row | None]]:
        """Return version, key and image of the rows that have expired."""
        return [
            (r.version, r.primary_key, orjson.loads(r.before) if r.before else None)
            for r in data(self.feed.catalog)
            if r.operation == Operation.EXPIRE
        ]

    def expired(self) -> list[str]:
        """Return the keys of the rows that have expired, those of a version sorted."""
        return [key for _, key in sorted((at, key or "") for at, key, _ in self.expiries())]

    def keys(self) -> set[str]:
        """Return the keys of the rows that are there."""
        return {row[0] for row in state(self.root, entity_type="product")}


@pytest.fixture
def shop(log_root: Path) -> Iterator[Callable[..., Shop]]:
    shops: list[Shop] = []

    def make(*args: Any) -> Shop:
        shops.append(Shop(log_root, *args))
        return shops[-1]

    yield make
    for each in shops:
        each.close()


def test_rows_expire_by_age_with_their_last_image_in_versions_of_their_own(
    shop: Callable[..., Shop],
) -> None:
    made = shop()
    made.insert({"id": 1, "n": 1}, {"id": 2, "n": 1})
    made.clock.time += 30 * SECOND
    made.take(("u", None, {"id": 2, "n": 2}))
    made.clock.time += 30 * SECOND
    made.expire()
    assert made.expiries() == [(4, "1", {"id": 1, "n": 1})]
    made.expire()
    made.begin()
    made.expire()
    assert made.expired() == ["1"]
    made.clock.time += 30 * SECOND
    made.expire()
    assert made.expiries()[1:] == [(5, "2", {"id": 2, "n": 2})]
    lead = leads(made.feed.catalog)[-1]
    assert (lead["counts"], lead["source_count"]) == ({"product": 1}, 0)
    assert lead["expired_at"] == made.clock.time
    assert made.feed.driver.counters.expired == 1
    assert made.keys() == set()


def test_a_row_is_due_by_what_it_is_now(shop: Callable[..., Shop]) -> None:
    """Changed, removed, made anew, truncated; null is never, and a value that is no time is told."""
    made = shop(BY_COLUMN)
    at = made.clock.time + MINUTE
    rows: list[Row] = [{"id": n, "until": at} for n in range(5)]
    made.insert(*rows, {"id": 5, "until": None}, {"id": 6, "until": 9_223_372_036_825_200_000})
    made.expire()
    assert made.expired() == []
    made.take(
        ("u", rows[1], rows[1] | {"until": at + 1}),
        ("d", rows[2], None),
        ("d", rows[3], None),
        ("c", None, rows[3] | {"until": at + 1}),
        ("u", rows[4], rows[4] | {"until": None}),
    )
    made.clock.time = at
    made.expire()
    assert made.expired() == ["0"]
    made.clock.time = at + 1
    made.expire()
    assert sorted(made.expired()) == ["0", "1", "3"]
    made.insert({"id": 0, "until": at + 5}, {"id": 7, "until": at + 5})
    made.take(("t", None, None))
    made.insert({"id": 8, "until": at + 5})
    made.clock.time = at + 5
    made.expire()
    assert made.expired()[3:] == ["8"]


def test_a_value_that_is_no_time_is_counted_and_told(shop: Callable[..., Shop]) -> None:
    mapping = BY_COLUMN.replace('"TIMESTAMP"', '"JSON"').replace(
        '"debezium.MicroTimestamp"', '"json"'
    )
    made = shop('[entity_types.product]\nttl = "until"\n[entity_types.product.columns.until]\n'
                'type = "TIMESTAMP WITH TIME ZONE"\n')  # fmt: skip
    made.insert({"id": 1, "until": "1970-01-01T00:00:00.5Z"})
    hole = "__debezium_unavailable_value"
    made.take(("u", None, {"id": 2, "until": hole}))
    made.expire()
    unread = made.feed.driver.counters.unread_times["product"]
    assert (made.expired(), unread.count) == (["1"], 1)
    assert unread.first == f'until is "{hole}", which is not a time: the source did not send it'
    with pytest.raises(
        InvalidRequest, match=r"shop.toml: entity_types.product.ttl: .* is not a time"
    ):
        Feed(made.root, mapping)


@pytest.mark.parametrize("place", ["segment.before_rename", "entry.linked"])
def test_contract_34_without_room_nothing_expires_and_later_all_does_once(
    shop: Callable[..., Shop], place: str
) -> None:
    made = shop()
    made.insert({"id": 1}, {"id": 2})
    made.clock.time += MINUTE
    with armed(f"{place}=enospc"), pytest.raises(LogFull):
        made.expire()
    for _ in range(2):
        made.begin()
        made.expire()
    assert made.expired() == ["1", "2"]


@pytest.mark.slow
@pytest.mark.parametrize("place", ["pipeline.before_commit", "pipeline.after_commit"])
def test_contract_34_one_that_is_killed_has_removed_a_row_once(
    shop: Callable[..., Shop], place: str
) -> None:
    made = shop()
    made.insert({"id": 1}, {"id": 2})
    made.close()
    made.clock.time += MINUTE
    status, _, error = finish(python(EXPIRE, made.root, made.clock.time, failing=f"{place}=kill"))
    assert status == -signal.SIGKILL, error
    made.begin()
    made.expire()
    assert made.expired() == ["1", "2"]
    assert published(made.feed.catalog) == 3


def test_a_row_that_expired_does_not_go_again(shop: Callable[..., Shop]) -> None:
    """The source still has it: its removal is no record, and what it is changed to is a new row."""
    made = shop()
    rows: list[Row] = [{"id": n, "n": 1} for n in range(4)]
    made.insert(*rows)
    made.clock.time += MINUTE
    made.expire()
    for number in range(2):  # by what this run remembers, then by the log
        before = rows[2 * number + 1]
        made.take(("d", rows[2 * number], None), ("u", before, before | {"n": 2}))
        made.begin()
    last = data(made.feed.catalog)[-2:]
    assert [(r.primary_key, r.operation, r.changed, r.before) for r in last] == [
        ("1", Operation.UPSERT, None, None),
        ("3", Operation.UPSERT, None, None),
    ]
    assert made.keys() == {"1", "3"}
    made.take(("d", rows[1] | {"n": 2}, None))
    assert data(made.feed.catalog)[-1].operation == Operation.REMOVE


def test_an_update_that_is_in_the_log_before_keeps_its_row_and_one_that_comes_after_makes_it_anew(
    shop: Callable[..., Shop],
) -> None:
    made = shop()
    made.insert({"id": 1, "n": 1}, {"id": 2, "n": 1})
    made.clock.time += MINUTE
    made.take(("u", None, {"id": 1, "n": 2}))
    made.expire()
    assert made.expired() == ["2"]
    made.take(("u", None, {"id": 2, "n": 2}))
    assert made.keys() == {"1", "2"}


def test_a_clock_that_steps_back_lets_nothing_expire_until_it_has_come_so_far_again(
    shop: Callable[..., Shop],
) -> None:
    made = shop()
    made.insert({"id": 1})
    began = made.clock.time
    made.clock.time = began - MINUTE
    made.expire()
    assert made.expired() == []
    made.clock.time = began + MINUTE
    made.expire()
    assert made.expired() == ["1"]


def test_rows_of_a_trimmed_log_expire_by_the_time_that_their_commit_had(
    shop: Callable[..., Shop],
) -> None:
    """The log forgets the commits of trimmed versions; a mark says how old these were at most."""
    made = shop()
    made.insert({"id": 1}, {"id": 2})
    for number in range(3, 9):
        made.clock.time += 10 * SECOND
        made.insert({"id": number})
    made.feed.driver.writer.trim(before=7)
    made.begin()  # at 60 s; versions 1 to 6 are of 0 to 40 s
    made.expire()
    assert made.keys() == {*map(str, range(3, 9))}
    made.clock.time += 10 * SECOND
    made.expire()
    assert made.keys() == {*map(str, range(4, 9))}


def test_all_rows_are_read_again_where_more_are_due_than_are_kept(
    shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_to_live, "DueRows", lambda: DueRows(8))
    made = shop()
    for first in range(0, 60, 20):
        made.insert(*({"id": n} for n in range(first, first + 20)))
        made.clock.time += 10 * SECOND
    made.clock.time += 30 * SECOND
    made.expire()
    assert sorted(map(int, made.expired())) == [*range(20)]
    made.clock.time += MINUTE
    made.expire()
    assert sorted(map(int, made.expired())) == [*range(60)]
    assert made.feed.driver.counters.overdue_s(made.clock.time) == 0


@settings(max_examples=10)
@given(st.data())
def test_what_expires_is_what_a_model_of_the_table_lets_expire(
    drawn: st.DataObject,
) -> None:
    with TemporaryDirectory() as folder:
        made = Shop(Path(folder), BY_COLUMN)
        made.insert({"id": 0, "until": None})
        rows: dict[int, Row] = {}
        wanted: list[str] = []
        try:
            for _ in range(drawn.draw(st.integers(1, 12))):
                key = drawn.draw(st.integers(1, 3))
                old, kind = rows.get(key), drawn.draw(st.sampled_from("wwwdets"))
                if kind == "w":
                    due = made.clock.time + drawn.draw(st.integers(0, 3)) * MINUTE
                    rows[key] = {"id": key, "until": due}
                    made.take(("c" if old is None else "u", None, rows[key]))
                elif kind == "d" and old is not None:
                    made.take(("d", rows.pop(key), None))
                elif kind == "t":
                    rows.clear()
                    made.take(("t", None, None))
                elif kind == "s":
                    made.begin()
                elif kind == "e":
                    made.clock.time += MINUTE
                    made.expire()
                    over = [n for n, row in rows.items() if row["until"] <= made.clock.time]
                    wanted += sorted(str(rows.pop(n)["id"]) for n in over)
            assert made.expired() == wanted
            assert made.keys() - {"0"} == {*map(str, rows)}
        finally:
            made.close()


def test_a_time_to_live_is_refused_where_it_cannot_be(shop: Callable[..., Shop]) -> None:
    for text, reason in (
        ('ttl = "7 days"', "ttl: must be a column, or an age"),
        ('ttl = "0 days after the last change"', "ttl: must be at least 1 second"),
        ('ttl = "a"\nimages = "as-sent"', "images: must be full if ttl is set"),
    ):
        with pytest.raises(InvalidRequest, match=rf"m: entity_types.t.{reason}"):
            SchemaMapping.parse(f"[entity_types.t]\n{text}", "m")
    made = shop()
    made.insert({"id": 1, "n": 1})
    with pytest.raises(
        InvalidRequest, match=r"product.ttl: product has no column until, it has id"
    ):
        Feed(made.root, BY_COLUMN)
    with (
        open_writer(made.root, "third", writer="w") as writer,
        pytest.raises(
            InvalidRequest, match=r"m: entity_types.t.ttl: only tailrace ingest debezium"
        ),
    ):
        TransactionWriter(writer, SchemaMapping.parse('[entity_types.t]\nttl = "a"', "m"))
    keyless = Debezium(keyless=frozenset({"product"}))
    with pytest.raises(InvalidRequest, match=r"product.ttl: .* no key"):
        Feed(made.root / "other", BY_AGE, source=keyless)


def test_rows_of_a_renamed_entity_type_and_column_expire_as_they_are_now(
    shop: Callable[..., Shop],
) -> None:
    made = shop(BY_COLUMN)
    over = made.clock.time + MINUTE
    made.insert({"id": 1, "until": over, "a": 1})
    made.mapping = BY_COLUMN.replace("product", "item").replace("until", "over")
    made.mapping = made.mapping.replace('ttl = "over"', 'ttl = "over"\nrenamed_from = "product"')
    made.mapping += 'renamed_from = "until"\n'
    made.begin()
    row = {"id": 2, "over": made.clock.time + 2 * MINUTE}
    made.feed.batch(line(envelope("c", postgres(9, None, "item"), after=row)))
    made.clock.time += MINUTE
    made.expire()
    assert [key for _, key, _ in made.expiries()] == ["1"]
    assert data(made.feed.catalog)[-1].entity_type == "item"
    assert made.expiries()[0][2] == {"id": 1, "over": over, "a": 1}
    assert CommitLog.open(made.feed.catalog).view.published == 3
