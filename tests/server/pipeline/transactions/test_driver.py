"""The driver on a real log, without Spark: batches, flushes and restarts in any order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import LogCorrupted, LogFull
from tailrace_server.pipeline.input.change import FileSplit
from tailrace_server.pipeline.sources.debezium.source import Debezium
from tailrace_server.pipeline.transactions.driver import Driver
from tailrace_server.pipeline.transactions.settings import IngestSettings, Rules
from tailrace_server.wal.catalog import open_writer
from tailrace_server.wal.state.commit_log import CommitLog
from tests.process.ingest.reading import leads, records
from tests.server.pipeline.shapes import decoder, end, envelope, line, postgres
from tests.support import failpoints

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace_server.pipeline.input.change import Change
    from tailrace_server.wal.files.documents import PendingSegment


def row(lsn: int, tx: int, table: str = "product") -> bytes:
    return line(envelope("c", postgres(lsn, tx, table), after={"id": lsn}))


def decoded(number: int, lines: list[bytes]) -> list[Change]:
    feed = decoder()
    changes = list(feed.feed(FileSplit(f"{number:06}", 0, number), lines))
    return changes + list(feed.finish())


class Run:
    """A driver that may be dropped and begun anew at any time, as after a crash."""

    def __init__(self, root: Path) -> None:
        rules = Rules(idle_s=3600.0)
        self.settings = IngestSettings(
            input=root, log=root, catalog="shop", source=Debezium(), rules=rules
        )
        self.root = root
        self.restart()

    def restart(self) -> None:
        writer = open_writer(self.root, "shop", writer="test")
        self.driver = Driver(writer, self.settings)

    def pending(self) -> list[PendingSegment]:
        return list(self.driver.writer.state.pending)


@st.composite
def feeds(draw: st.DrawFn) -> tuple[list[list[bytes]], int]:
    """Draw batches of the lines of some transactions, every END after its rows or before."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=6))
    lines: list[bytes] = []
    lsn = 0
    for number, size in enumerate(sizes, 1):
        for _ in range(size):
            lsn += 1
            lines.append(row(lsn, number))
        lines.append(line(end(str(number), size)))
    lines = draw(st.permutations(lines))
    size = draw(st.integers(1, len(lines)))
    return [lines[at : at + size] for at in range(0, len(lines), size)], len(sizes)


@settings(max_examples=25)
@given(feeds(), st.data())
def test_contract_34_restarts_between_batches_lose_and_double_nothing(
    tmp_path_factory: pytest.TempPathFactory,
    case: tuple[list[list[bytes]], int],
    data: st.DataObject,
) -> None:
    """Each batch may be given again, as Spark does when its own commit is lost."""
    batches, transactions = case
    run = Run(tmp_path_factory.mktemp("log"))
    for number, lines in enumerate(batches):
        for _ in range(data.draw(st.integers(1, 2))):
            if data.draw(st.booleans()):
                run.restart()
            run.driver.batch(number, decoded(number, lines))
    assert run.driver.open_tallies == {}
    ids = [body["transaction_id"] for body in leads(run.root / "shop")]
    assert sorted(ids, key=int) == [str(n) for n in range(1, transactions + 1)]
    assert all("late" not in body for body in leads(run.root / "shop"))


def test_late_rows_that_wait_are_late_after_a_restart_and_follow_what_is_before_them(
    log_root: Path,
) -> None:
    """The last image of a row is the last that the source wrote."""
    run = Run(log_root)
    run.driver.batch(0, decoded(0, [row(1, 10), row(5, 12)]))
    run.driver.flush(ended=True)
    run.driver.batch(1, decoded(1, [row(6, 12)]) + decoded(2, [row(2, 11, "customer")]))
    assert run.driver.counters.late == 0
    run.restart()
    run.driver.flush(ended=True)
    told = [(body["transaction_id"], body.get("of")) for body in leads(log_root / "shop")]
    assert told == [("10", None), ("12", None), ("11", None), ("12", 2)]
    keys = [r.primary_key for r in records(log_root / "shop") if r.primary_key]
    assert keys == ["1", "5", "2", "6"]
    assert run.pending() == []


def test_pending_files_go_when_nothing_in_them_is_open(log_root: Path) -> None:
    run = Run(log_root)
    run.driver.batch(0, decoded(0, [row(1, 7), row(2, 8)]))
    assert len(run.pending()) == 2
    run.driver.batch(1, decoded(1, [line(end("8", 1))]))
    before = run.pending()
    run.driver.batch(2, decoded(2, [line(end("9", 0))]))
    assert run.pending() == before  # what is open has not changed
    run.driver.batch(3, decoded(3, [line(end("7", 1))]))
    assert run.pending() == []
    assert [r.primary_key for r in records(log_root / "shop") if r.primary_key] == ["1", "2"]


def test_a_damaged_pending_file_is_named(log_root: Path) -> None:
    run = Run(log_root)
    run.driver.batch(0, decoded(0, [row(1, 7)]))
    file = log_root / "shop" / run.driver.writer.state.pending[-1].path
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    with pytest.raises(LogCorrupted, match=r"pending-.*checksum"):
        run.restart()


def test_contract_37_a_full_disk_is_told_and_the_batch_goes_on_once_there_is_room(
    log_root: Path,
) -> None:
    run = Run(log_root)
    for point in ("segment.before_rename", "entry.before_link", "entry.linked"):
        failpoints.arm(f"{point}=enospc@1")
        try:
            with pytest.raises(LogFull):
                run.driver.batch(0, decoded(0, [row(1, 7), line(end("7", 1))]))
        finally:
            failpoints.arm("")
        run.restart()
    run.driver.batch(0, decoded(0, [row(1, 7), line(end("7", 1))]))
    assert [body["transaction_id"] for body in leads(log_root / "shop")] == ["7"]


def test_positions_tell_how_many_lines_of_a_file_are_in_the_log(log_root: Path) -> None:
    run = Run(log_root)
    run.driver.batch(0, decoded(0, [row(1, 7), b"", b"{"]))
    assert run.driver.consumed("000000") == 3
    assert run.driver.consumed("000001") == 0
    positions = CommitLog.open(log_root / "shop").state.source_positions
    assert positions == {
        "file:000000": 3,
        "connector": "postgresql:shop",
        "table:product": "shop.public.product",
        "key:product": '["id"]',
    }


def test_updates_without_the_row_before_are_noted_until_the_source_sends_it(log_root: Path) -> None:
    """An insert has none either, and says nothing. The note is written where it changes."""
    run = Run(log_root)
    product = {"id": 1, "price": 2}
    batches: list[list[tuple[str, Any, Any]]] = [
        [("c", None, product)],
        [("u", None, product), ("u", product, {**product, "price": 3})],
        [("u", None, product)],
        [("d", product, None)],
        [("u", product, {**product, "price": 4})],
    ]
    lsn, noted = 0, []
    for number, batch in enumerate(batches):
        lines = []
        for op, before, after in batch:
            lsn += 1
            lines.append(line(envelope(op, postgres(lsn), before=before, after=after)))
        run.driver.batch(number, decoded(number, lines))
        run.driver.flush(ended=True)
        noted.append(run.driver.writer.state.source_positions.get("before:product"))
    assert noted == [None, "missing", "missing", "missing", "sent"]
    assert CommitLog.open(log_root / "shop").view.unknown_changes == ()


def test_traffic_that_is_about_no_row_is_counted_by_what_it_is(log_root: Path) -> None:
    """Of a connector that idles there may be nothing else; none of it is for quarantine."""
    run = Run(log_root)
    source = {"connector": "mysql", "name": "shop"}
    lines = [
        {"ts_ms": 1},
        {"schema": {"name": "io.debezium.connector.common.Heartbeat"}, "payload": {"ts_ms": 2}},
        {"key": {"serverName": "shop"}, "value": {"ts_ms": 3, "ts_us": 3_000}},
        {
            "source": source,
            "ts_ms": 4,
            "databaseName": "shop",
            "ddl": "ALTER …",
            "tableChanges": [],
        },
        {
            "op": "m",
            "ts_ms": 5,
            "source": postgres(5),
            "message": {"prefix": "p", "content": "eA=="},
        },
    ]
    run.driver.batch(0, decoded(0, [line(each) for each in lines]))
    counters = run.driver.counters
    assert counters.ignored_by_kind == {"heartbeat": 3, "schema change": 1, "logical message": 1}
    assert (counters.ignored, counters.quarantined, counters.versions) == (5, 0, 0)
