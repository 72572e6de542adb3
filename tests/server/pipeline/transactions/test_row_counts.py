"""Tables without a key: the whole row is the key, and equal rows are counted."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.criteria import Operation
from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.input.change import FileSplit
from tailrace_server.pipeline.sources.debezium.source import Debezium
from tailrace_server.pipeline.transactions.driver import Driver
from tailrace_server.pipeline.transactions.settings import IngestSettings, Rules
from tailrace_server.wal.catalog import open_writer
from tests.process.ingest.reading import data
from tests.server.pipeline.shapes import decoder, end, envelope, line, postgres

if TYPE_CHECKING:
    from pathlib import Path

    from tests.process.ingest.reading import Record

WHOLE = frozenset(("audit",))
Row = dict[str, Any]


class Feed:
    """Feeds batches of lines to a catalog; each time anew if it is asked to."""

    def __init__(
        self, root: Path, *, keyless: frozenset[str] = WHOLE, writer: str = "test"
    ) -> None:
        self.root, self.keyless, self.writer = root, keyless, writer
        self.catalog = root / "shop"
        self.restart()

    def restart(self, writer: str | None = None) -> None:
        self.writer = writer or self.writer
        source = Debezium(keyless=self.keyless)
        settings = IngestSettings(
            input=self.root,
            log=self.root,
            catalog="shop",
            source=source,
            rules=Rules(idle_s=3600.0),
        )
        opened = open_writer(self.root, "shop", writer=self.writer, take_over=True)
        self.driver = Driver(opened, settings)

    def batch(self, *lines: bytes) -> None:
        number = self.driver.last_batch + 1
        feed = decoder(keyless=self.keyless)
        name = f"{self.writer}-{number:06}"
        changes = list(
            feed.feed(FileSplit(name, 0, self.driver.writer.state.last_version + 1), lines)
        )
        self.driver.batch(number, [*changes, *feed.finish()])

    def reasons(self) -> list[str]:
        files = sorted((self.catalog / "quarantine").iterdir())
        return [orjson.loads(each)["reason"] for f in files for each in f.read_bytes().splitlines()]


def row(op: str, lsn: int, before: Row | None, after: Row | None, tx: int | None = None) -> bytes:
    """Return a change of a table without a key, as Debezium writes it."""
    source = postgres(lsn, tx, "audit")
    return line({"key": None, "value": envelope(op, source, before=before, after=after)})


def said(found: list[Record]) -> list[tuple[int, str | None, Operation, int]]:
    return [
        (r.version, r.primary_key, Operation(r.operation), orjson.loads(r.change or b"")["diff"])
        for r in found
    ]


def counts(catalog: Path) -> Counter[str]:
    """Return how often each row exists, by what the log says; and check each record against that."""
    held: Counter[str] = Counter()
    for record in data(catalog):
        assert record.primary_key is not None
        image = record.before if record.after is None else record.after
        assert image is not None
        assert orjson.dumps([*orjson.loads(image).values()]).decode() == record.primary_key
        known = held[record.primary_key]
        held[record.primary_key] += orjson.loads(record.change or b"")["diff"]
        count = held[record.primary_key]
        assert Operation(record.operation) is (Operation.UPSERT if count else Operation.REMOVE)
        assert (record.before is not None, record.after is not None) == (known != 0, count != 0)
    return +held


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[list[bytes]], Counter[str]]:
    """Draw batches of lines, of transactions that may go on in later batches; and what exists then."""
    rows = [{"a": a, "b": b} for a in (1, 2) for b in ("x", 'y"')]
    exist: list[Row] = []
    lines: list[bytes] = []
    lsn = 0
    for _ in range(draw(st.integers(0, 3))):
        exist.append(draw(st.sampled_from(rows)))
        lines.append(row("r", 1, None, exist[-1]))
    for tx in range(1, draw(st.integers(1, 6)) + 1):
        count = draw(st.integers(1, 4))
        for _ in range(count):
            lsn += 1
            op = draw(st.sampled_from("cud")) if exist else "c"
            before = None if op == "c" else exist.pop(draw(st.integers(0, len(exist) - 1)))
            after = None if op == "d" else draw(st.sampled_from(rows))
            if after is not None:
                exist.append(after)
            lines.append(row(op, lsn + 1, before, after, tx))
        lines.append(line(end(str(tx), count)))
    cuts = sorted(draw(st.lists(st.integers(0, len(lines)), max_size=4)))
    batches = [lines[a:b] for a, b in zip([0, *cuts], [*cuts, len(lines)], strict=True)]
    expected = Counter(orjson.dumps([*each.values()]).decode() for each in exist)
    return batches, expected


@settings(max_examples=15)
@given(
    histories(),
    st.lists(st.sampled_from(["go on", "restart", "take over"]), min_size=5, max_size=5),
)
def test_counts_are_those_of_the_source_wherever_batches_and_runs_are_cut(
    tmp_path_factory: pytest.TempPathFactory,
    history: tuple[list[list[bytes]], Counter[str]],
    moves: list[str],
) -> None:
    batches, expected = history
    feed = Feed(tmp_path_factory.mktemp("log"))
    for number, (lines, move) in enumerate(zip(batches, moves, strict=False)):
        if move != "go on":
            feed.restart(f"writer-{number}" if move == "take over" else None)
        feed.batch(*lines)
    feed.driver.flush(ended=True)
    assert counts(feed.catalog) == expected
    assert feed.reasons() == []


def test_a_row_is_removed_with_its_last_copy(log_root: Path) -> None:
    feed = Feed(log_root)
    a = {"a": 1, "b": None}
    feed.batch(row("c", 1, None, a), row("c", 2, None, a), row("d", 3, a, None))
    feed.restart()
    feed.batch(row("d", 4, a, None))
    assert said(data(feed.catalog)) == [
        (1, "[1]", Operation.UPSERT, 1),
        (2, "[1]", Operation.UPSERT, 1),
        (3, "[1]", Operation.UPSERT, -1),
        (4, "[1]", Operation.REMOVE, -1),
    ]


def test_what_cancels_in_a_transaction_is_no_record(log_root: Path) -> None:
    feed = Feed(log_root)
    a, b = {"a": 1}, {"a": 2}
    lines = [row("c", 1, None, a, 7), row("u", 2, a, b, 7), row("u", 3, b, b, 7)]
    feed.batch(*lines, line(end("7", 3)))
    assert said(data(feed.catalog)) == [(1, "[2]", Operation.UPSERT, 1)]


def test_a_truncate_ends_all_counts(log_root: Path) -> None:
    feed = Feed(log_root)
    a = {"a": 1}
    feed.batch(*(row("c", lsn, None, a) for lsn in (1, 2)))
    feed.batch(row("t", 3, None, None), row("c", 4, None, a))
    feed.restart()
    feed.batch(row("d", 5, a, None))
    found = data(feed.catalog)
    assert found[2].change == b'{"truncate": true}'
    assert said([*found[:2], *found[3:]]) == [
        (1, "[1]", Operation.UPSERT, 1),
        (2, "[1]", Operation.UPSERT, 1),
        (4, "[1]", Operation.UPSERT, 1),
        (5, "[1]", Operation.REMOVE, -1),
    ]


def test_a_column_that_is_added_without_values_leaves_rows_what_they_are(log_root: Path) -> None:
    feed = Feed(log_root)
    feed.batch(row("c", 1, None, {"a": 1}), row("d", 2, {"a": 1, "new": None}, None))
    assert [each[2] for each in said(data(feed.catalog))] == [Operation.UPSERT, Operation.REMOVE]
    assert feed.driver.counters.below_zero == 0


def test_a_row_that_leaves_more_often_than_it_came_is_told(log_root: Path) -> None:
    feed = Feed(log_root)
    feed.batch(row("d", 1, {"a": 1}, None))
    assert said(data(feed.catalog)) == [(1, "[1]", Operation.UPSERT, -1)]
    assert feed.driver.counters.below_zero == 1


@pytest.mark.parametrize(
    ("again", "reason"),
    [
        (
            row("r", 9, None, {"a": 1}),
            "a second snapshot of 'audit', whose rows are counted already",
        ),
        (row("c", 3, None, {"a": 2}, 7), "its transaction is version 2"),
        (row("u", 9, None, {"a": 2}), "no image of the row before"),
        (row("d", 9, None, None), "PostgreSQL sends it with REPLICA IDENTITY FULL"),
        (
            row("c", 9, None, {"a": "__debezium_unavailable_value"}),
            "the source did not send column a",
        ),
        (
            line(envelope("r", postgres(9, None, "audit", snapshot="incremental"), after={"a": 1})),
            "a row of an incremental snapshot does not say whether it is counted already",
        ),
    ],
)
def test_what_would_make_a_count_wrong_is_set_aside(
    log_root: Path, again: bytes, reason: str
) -> None:
    feed = Feed(log_root)
    feed.batch(row("r", 1, None, {"a": 1}), row("r", 1, None, {"a": 1}))
    feed.batch(row("c", 2, None, {"a": 2}, 7), line(end("7", 1)))
    feed.restart()
    feed.batch(again)
    assert counts(feed.catalog) == {"[1]": 2, "[2]": 1}
    [found] = feed.reasons()
    assert reason in found


def test_a_table_that_streamed_first_has_no_snapshot_later(log_root: Path) -> None:
    feed = Feed(log_root)
    feed.batch(row("c", 1, None, {"a": 1}), row("r", 2, None, {"a": 1}))
    assert counts(feed.catalog) == {"[1]": 1}
    assert "a second snapshot" in feed.reasons()[0]


def test_a_row_that_a_connector_sends_again_counts_once(log_root: Path) -> None:
    """It has its place in the transaction again; two equal rows have different places."""
    feed = Feed(log_root)

    def inserted(order: int) -> bytes:
        block = {"id": "7:1", "total_order": order}
        return line(envelope("c", postgres(5, 7, "audit"), after={"a": 1}, transaction=block))

    feed.batch(inserted(1), inserted(2), inserted(2), line(end("7", 3)))
    assert counts(feed.catalog) == {"[1]": 2}


def test_a_value_that_an_update_did_not_send_is_taken_from_before(log_root: Path) -> None:
    feed = Feed(log_root)
    before, after = {"a": 1, "b": "long"}, {"a": 2, "b": "__debezium_unavailable_value"}
    feed.batch(row("c", 1, None, before), row("u", 2, before, after))
    assert counts(feed.catalog) == {'[2,"long"]': 1}


def test_tables_with_a_key_are_as_they_were(log_root: Path) -> None:
    feed = Feed(log_root)
    keyed = line({"key": {"id": 1}, "value": envelope("c", postgres(1, 7), after={"id": 1})})
    feed.batch(keyed, row("c", 2, None, {"a": 1}, 7), line(end("7", 2)))
    assert [(r.entity_type, r.primary_key, r.change) for r in data(feed.catalog)] == [
        ("product", "1", None),
        ("audit", "[1]", b'{"diff":1}'),
    ]


def test_a_catalog_keeps_its_choice(log_root: Path) -> None:
    feed = Feed(log_root)
    feed.batch(row("c", 1, None, {"a": 1}))
    with pytest.raises(InvalidRequest, match="catalog shop counts the rows of 'audit': give --key"):
        Feed(log_root, keyless=frozenset())
    feed.restart()
    feed.batch(line({"key": {"id": 1}, "value": envelope("c", postgres(1), after={"id": 1})}))
    with pytest.raises(
        InvalidRequest, match="--keyless product=whole-row: its rows in catalog shop"
    ):
        Feed(log_root, keyless=frozenset(("audit", "product")))


def test_many_commits_leave_few_files(log_root: Path) -> None:
    feed = Feed(log_root)
    for number in range(40):
        feed.batch(row("c", number + 1, None, {"a": number}))
    files = [file for file in feed.driver.writer.state.pending if "counts" in file.path]
    assert len(files) <= 8
    feed.restart()
    for number in range(40):
        feed.batch(row("d", number + 41, {"a": number}, None))
    assert counts(feed.catalog) == Counter()
    assert {Operation(r.operation) for r in data(feed.catalog)[40:]} == {Operation.REMOVE}


def test_without_the_option_the_reason_names_it(log_root: Path) -> None:
    feed = Feed(log_root, keyless=frozenset())
    feed.batch(row("c", 1, None, {"id": 1}))
    [reason] = feed.reasons()
    assert "use the whole row with --keyless audit=whole-row" in reason
