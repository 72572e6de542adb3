"""Rows that the source removed while no connector followed it are named by the next snapshot, or removed.

The law is tried on a real log. The source has two tables. It is followed, changes while it is not, and is read
anew, by snapshots that may be interrupted. Files, batches and restarts cut the lines of each table anywhere.
"""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tailrace.criteria import Area, Operation
from tailrace_server.pipeline.input.change import FileSplit
from tests.process.ingest.reading import leads, records
from tests.server.pipeline.feeds import Feed
from tests.server.pipeline.shapes import decoder, envelope, line, postgres

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace_server.pipeline.input.change import Change
    from tailrace_server.pipeline.run.progress import LackingSnapshot

TABLES = ("a", "b")
Rows = dict[int, int]
"""Key → value."""
Line = tuple[str, bytes]
"""Table, and line of its topic."""


def read(table: str, lsn: int, key: int, value: int, mark: str) -> Line:
    return table, line(
        envelope("r", postgres(lsn, None, table, snapshot=mark), after={"id": key, "v": value})
    )


def snapshot(tables: dict[str, Rows], lsn: int) -> list[Line]:
    """Return the rows of a snapshot, marked as Debezium marks them: a table of one row has one mark."""
    found: list[Line] = []
    first_table = next(iter(tables))
    for table, rows in tables.items():
        for number, (key, value) in enumerate(rows.items()):
            first, last = number == 0, number == len(rows) - 1
            mark = "true"
            if first and table == first_table:
                mark = "first"
            elif last:
                mark = "last_in_data_collection"
            elif first:
                mark = "first_in_data_collection"
            found.append(read(table, lsn, key, value, mark))
    # The connector holds its last row back until it knows that it is the last of all tables.
    if found:
        table, text = found[-1]
        message = json.loads(text)
        message["source"]["snapshot"] = "last"
        found[-1] = table, line(message)
    return found


class Source:
    """A database of two tables, and the lines that a connector has written of it."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.tables: dict[str, Rows] = {table: {} for table in TABLES}
        self.lines: list[Line] = []
        self.lsn = 100
        self.value = 0
        self.absent: set[str] = set()
        """The tables without a row in the last snapshot."""

    def __repr__(self) -> str:
        return "\n".join(text.decode() for _, text in self.lines)

    def change(self, *, followed: bool, reuse: bool = True) -> None:
        """Insert, update or remove a row; a connector that follows writes a line."""
        self.lsn += 10
        self.value += 1
        table = self.draw(st.sampled_from(TABLES))
        rows = self.tables[table]
        key = self.draw(st.integers(1, 6)) + (0 if reuse else 10)
        removed = key in rows and self.draw(st.booleans())
        source = postgres(self.lsn, self.lsn, table)
        if removed:
            del rows[key]
            message = envelope("d", source, before={"id": key})
        else:
            message = envelope(
                "u" if key in rows else "c", source, after={"id": key, "v": self.value}
            )
            rows[key] = self.value
        if followed:
            self.lines.append((table, line(message)))

    def chunk(self) -> None:
        """Read a table by an incremental snapshot."""
        table = self.draw(st.sampled_from(TABLES))
        for key, value in self.tables[table].items():
            self.lines.append(read(table, self.lsn, key, value, "incremental"))

    def snapshot(self, *, interrupted: bool = False) -> None:
        """Read all tables."""
        self.lsn += 10
        self.absent = {table for table, rows in self.tables.items() if not rows}
        found = snapshot(self.tables, self.lsn)
        self.lines += (
            found[: self.draw(st.integers(0, max(0, len(found) - 1)))] if interrupted else found
        )


@st.composite
def sources(draw: st.DrawFn) -> Source:
    source = Source(draw)
    if draw(st.booleans()):
        for _ in range(draw(st.integers(1, 8))):
            source.change(followed=False)
        source.snapshot()
    for _ in range(draw(st.integers(1, 10))):
        source.change(followed=True)
    for _ in range(draw(st.integers(0, 8))):
        source.change(followed=False)
    if draw(st.booleans()):
        source.snapshot(interrupted=True)
        for _ in range(draw(st.integers(0, 4))):
            source.change(followed=False)
    assume(any(source.tables.values()))  # of an empty database a connector sends nothing
    source.snapshot()
    for _ in range(draw(st.integers(0, 4))):
        # Keys of their own, so that what the snapshot lacks stays what the log has too much.
        source.change(followed=True, reuse=False)
        if draw(st.integers(0, 3)) == 0:
            source.chunk()
    return source


def cut(draw: Any, lines: list[Line]) -> Iterator[dict[str, list[bytes]]]:
    """Yield batches, each with the lines of a file of each table; tables are cut apart from each other."""
    count = draw(st.integers(1, 4))
    parts: dict[str, list[list[bytes]]] = {}
    for table in TABLES:
        own = [text for of, text in lines if of == table]
        places = sorted(draw(st.integers(0, len(own))) for _ in range(count - 1))
        parts[table] = [own[a:b] for a, b in itertools.pairwise([0, *places, len(own)])]
    for number in range(count):
        yield {table: parts[table][number] for table in TABLES}


class Ingest:
    """An ingest that may be killed and begun anew between batches."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.root, self.options = root, {"snapshot_rows": 3, **options}
        self.feed = Feed(root, **self.options)
        self.found: dict[str, LackingSnapshot] = {}
        """What was reported of each table last."""

    def restart(self) -> None:
        self.feed.close()
        self.feed = Feed(self.root, **self.options)

    def batch(self, files: dict[str, list[bytes]]) -> None:
        number = self.feed.driver.last_batch + 1
        reader = decoder()
        changes: list[Change] = []
        for table, lines in files.items():
            changes += reader.feed(FileSplit(f"{table}-{number:06}", 0, number), lines)
        self.feed.driver.batch(number, [*changes, *reader.finish()])

    def compare(self, *, ended: bool = False) -> None:
        self.feed.driver.compare_snapshots(ended=ended)
        self.found.update(self.feed.driver.counters.lacking)

    def end(self) -> None:
        self.feed.driver.flush(ended=True)
        self.compare(ended=True)
        self.feed.close()

    def tables(self) -> dict[str, Rows]:
        """Return the tables by the log."""
        tables: dict[str, Rows] = {table: {} for table in TABLES}
        for record in records(self.root / "shop"):
            if record.area == Area.DATA:
                rows, key = tables[record.entity_type or ""], int(record.primary_key or "")
                rows.pop(key, None)
                if record.operation != Operation.REMOVE:
                    rows[key] = json.loads(record.after or b"")["v"]
        return tables


@settings(max_examples=40)
@given(sources(), st.data(), st.booleans())
def test_a_snapshot_names_or_removes_exactly_what_was_removed_meanwhile(
    tmp_path_factory: pytest.TempPathFactory, source: Source, data: st.DataObject, removes: bool
) -> None:
    ingest = Ingest(tmp_path_factory.mktemp("log"), removes_missing=removes)
    for files in cut(data.draw, source.lines):
        ingest.batch(files)
        if data.draw(st.booleans()):
            ingest.restart()
        if data.draw(st.booleans()):
            ingest.compare()
    ingest.end()
    tables = ingest.tables()
    for table, rows in source.tables.items():
        extra = tables[table].keys() - rows.keys()
        assert {key: tables[table][key] for key in rows} == rows
        found = ingest.found.get(table)
        if not extra:
            assert found is None or (found.removed and not found.count)
            continue
        if found is None:
            # The log may learn of a table only after the snapshot's end, and the snapshot has no row of it.
            assert table in source.absent
            continue
        # No row of the table has marked its last one, so an option does not remove by it.
        assert found.is_absent or not removes
        assert found.count == len(extra)
        assert {int(key) for key in found.keys} <= extra
        assert len(found.keys) == min(5, len(extra))


A = {1: 1, 2: 2, 3: 3}


def lines_of(found: list[Line]) -> dict[str, list[bytes]]:
    return {table: [text for of, text in found if of == table] for table in TABLES}


def followed(root: Path, then: dict[str, Rows], **options: Any) -> Ingest:
    """Ingest a snapshot of both tables, and then another one."""
    ingest = Ingest(root, **options)
    ingest.batch(lines_of(snapshot({"a": A, "b": {7: 7}}, 100)))
    ingest.batch(lines_of(snapshot(then, 200)))
    return ingest


def test_rows_that_a_second_snapshot_lacks_are_reported_once(log_root: Path) -> None:
    ingest = followed(log_root, {"a": {2: 2, 3: 3}, "b": {7: 7}})
    ingest.end()
    found = ingest.found["a"]
    assert (found.count, found.keys) == (1, ["1"])
    assert "b" not in ingest.found
    again = Ingest(log_root)
    again.end()
    assert again.found == {}


def test_reported_rows_are_removed_by_a_later_run_with_the_option(log_root: Path) -> None:
    followed(log_root, {"a": {2: 2, 3: 3}, "b": {7: 7}}).end()
    again = Ingest(log_root, removes_missing=True)
    again.end()
    assert again.found["a"].removed == 1
    assert again.tables() == {"a": {2: 2, 3: 3}, "b": {7: 7}}
    *_, lead = leads(log_root / "shop")
    assert lead["snapshot"] is True
    assert lead["source_log"] == "postgresql:shop"
    *_, removal = records(log_root / "shop")
    assert (removal.operation, removal.primary_key) == (Operation.REMOVE, "1")
    assert json.loads(removal.before or b"") == {"id": 1, "v": 1}


def test_what_the_stream_says_from_before_the_snapshot_is_older_than_the_removal(
    log_root: Path,
) -> None:
    """A slot may send changes again from before the snapshot; changes from behind it bring the row back."""
    ingest = followed(log_root, {"a": {2: 2, 3: 3}, "b": {7: 7}}, removes_missing=True)
    ingest.compare()
    update = envelope("u", postgres(150, 15, "a"), after={"id": 1, "v": 9})
    ingest.batch({"a": [line(update)]})
    ingest.feed.driver.flush(ended=True)
    assert ingest.tables()["a"] == {2: 2, 3: 3}
    insert = envelope("c", postgres(250, 25, "a"), after={"id": 1, "v": 10})
    ingest.batch({"a": [line(insert)]})
    ingest.end()
    assert ingest.tables()["a"] == {1: 10, 2: 2, 3: 3}


def test_an_empty_table_is_reported_and_never_removed(log_root: Path) -> None:
    ingest = followed(log_root, {"a": A, "b": {}}, removes_missing=True)
    ingest.end()
    assert ingest.found["b"].is_absent
    assert (ingest.found["b"].count, ingest.found["b"].keys) == (1, ["7"])
    assert ingest.tables()["b"] == {7: 7}


def test_a_snapshot_of_chosen_tables_says_nothing_about_the_others(log_root: Path) -> None:
    """As a signal asks for, or where a table is new."""
    ingest = Ingest(log_root)
    for table in ("c", "d"):
        insert = envelope("c", postgres(50, 5, table), after={"id": 1, "v": 1})
        ingest.batch({table: [line(insert)]})
    ingest.batch(lines_of(snapshot({"a": A}, 200)))
    ingest.end()
    assert ingest.found == {}


def test_a_snapshot_with_a_row_set_aside_removes_nothing(log_root: Path) -> None:
    """The row is in the source, though the log does not have it."""
    ingest = Ingest(log_root, removes_missing=True)
    ingest.batch(lines_of(snapshot({"a": A}, 100)))
    bad = lines_of(snapshot({"a": A}, 200))
    bad["a"][1] = bad["a"][1].replace(b'{"id":2,"v":2}', b"17")
    ingest.batch(bad)
    ingest.end()
    assert ingest.found["a"].fault == "some of its rows were set aside"
    assert ingest.tables()["a"] == A


def test_late_rows_of_an_interrupted_snapshot_leave_the_next_one_followed(log_root: Path) -> None:
    """They are set aside as older, so nothing is removed, and an error line says so."""
    ingest = Ingest(log_root, removes_missing=True)
    ingest.batch(lines_of(snapshot({"a": A}, 100)))
    interrupted, second = snapshot({"a": A}, 150), snapshot({"a": {2: 2, 3: 3}}, 200)
    ingest.batch(lines_of(second[:1]))
    ingest.batch(lines_of(interrupted[1:2]))
    ingest.batch(lines_of(second[1:]))
    ingest.end()
    assert ingest.found["a"].fault == "some of its rows were set aside"
    assert ingest.tables()["a"] == A


def test_older_changes_behind_a_snapshot_leave_it_whole(log_root: Path) -> None:
    """As a slot sends them that was kept while the connector lost its place."""
    ingest = Ingest(log_root)
    ingest.batch(lines_of(snapshot({"a": A}, 100)))
    second = lines_of(snapshot({"a": {2: 2, 3: 3}}, 200))
    second["a"].append(line(envelope("u", postgres(150, 15, "a"), after={"id": 2, "v": 0})))
    ingest.batch(second)
    ingest.end()
    assert (ingest.found["a"].count, ingest.found["a"].fault) == (1, "")
    assert ingest.tables()["a"] == A


def test_a_snapshot_that_is_older_than_the_log_removes_nothing(log_root: Path) -> None:
    ingest = Ingest(log_root, removes_missing=True)
    insert = envelope("c", postgres(300, 30, "a"), after={"id": 9, "v": 9})
    ingest.batch({"a": [line(insert)]})
    ingest.feed.driver.flush(ended=True)
    ingest.batch(lines_of(snapshot({"a": A}, 200)))
    ingest.end()
    assert "older" in ingest.found["a"].fault
    assert ingest.tables()["a"] == {9: 9, **A}


def test_a_table_in_several_partitions_is_not_compared(log_root: Path) -> None:
    ingest = Ingest(log_root, removes_missing=True)
    ingest.batch(lines_of(snapshot({"a": A}, 100)))
    driver = ingest.feed.driver
    reader, (first, _, last) = decoder(), lines_of(snapshot({"a": A}, 200))["a"]
    changes = [*reader.feed(FileSplit("a+0+1.json", 0, 5), [first])]
    changes += reader.feed(FileSplit("a+1+1.json", 0, 5), [last])
    driver.batch(1, [*changes, *reader.finish()])
    ingest.end()
    assert "partitions" in ingest.found["a"].fault
    assert ingest.tables()["a"] == A


@pytest.mark.parametrize("mark", ["true", "incremental"])
def test_rows_without_marks_are_no_whole_snapshot(log_root: Path, mark: str) -> None:
    ingest = Ingest(log_root, removes_missing=True)
    ingest.batch(lines_of(snapshot({"a": A}, 100)))
    ingest.batch({"a": [read("a", 200, 2, 2, mark)[1]]})
    ingest.end()
    assert ingest.found == {}
    assert ingest.tables()["a"] == A
