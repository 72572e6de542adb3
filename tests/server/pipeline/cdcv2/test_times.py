"""Times and updates of a change stream in shares, held against the pure reader."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.cdcv2 import CdcError, Progress, Reader, Update
from tailrace_server.pipeline.cdcv2.cutting import (
    CutMessages,
    RowCutter,
    UpdateCollector,
    add_statement,
)
from tailrace_server.pipeline.cdcv2.times import (
    TIMES,
    counts_table,
    coverage_after,
    frontier_after,
    hashes_of_times,
    intervals_table,
    joined_coverage,
    received_table,
    update_times,
    why_waiting,
)
from tailrace_server.pipeline.cdcv2.updates import (
    UPDATES,
    before,
    distinct,
    joined,
    share_out,
    since,
    slots,
)
from tests.server.pipeline.cdcv2.streams import (
    SCHEMA,
    make_history,
    mangle,
    read_purely,
    statements,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np


class Shared:
    """A reader made of the stage's functions, cut into shares as tasks are."""

    def __init__(self, shares: int) -> None:
        self.shares = shares
        self.frontier: int | None = 0
        self.coverage: list[tuple[int, int | None]] = []
        self.kept = pa.RecordBatch.from_pylist([], UPDATES)
        self.times = pa.RecordBatch.from_pylist([], TIMES)

    def receive(self, batch: Sequence[object], place: int) -> list[tuple[bytes, int, int]]:
        """Take some messages at once; return what they finish."""
        if self.frontier is None:
            return []
        out, rows = CutMessages(), UpdateCollector(SCHEMA.form)
        for message in batch:
            assert add_statement(message, place, rows, out) is None
        rows.finish(out)
        news = since(joined(out.updates), self.frontier)
        olds = self._parts(self.kept, self.kept.column("hash").to_numpy())
        parts = self._parts(news, news.column("hash").to_numpy())
        kept, received = [], []
        for old, new in zip(olds, parts, strict=True):
            known = distinct(joined([old, new]))
            if known.conflicts:
                raise Disagree
            kept.append(known.updates)
            received.append(received_table(known.updates.slice(old.num_rows)))
        told, cover = counts_table(out.progress), intervals_table(out.progress)
        found = []
        for counts, came, times in zip(
            *(
                self._parts(each, hashes_of_times(each.column("time").to_numpy()))
                for each in (told, joined(received, received[0].schema), self.times)
            ),
            strict=True,
        ):
            updated = update_times(times, self.coverage, cover, counts, came, self.frontier)
            if updated.contradiction is not None:
                raise Disagree
            found.append(updated)
        coverage = joined_coverage(self.coverage, cover, self.frontier)
        self.frontier = frontier_after(self.frontier, coverage, [each.lowest for each in found])
        self.coverage = coverage_after(coverage, self.frontier)
        whole = joined(kept)
        finished = before(whole, self.frontier)
        self.kept = since(whole, self.frontier)
        times = joined([since(each.times, self.frontier) for each in found], TIMES)
        self.times = times
        columns = finished.select(["data", "time", "diff"]).to_pydict()
        return list(zip(*columns.values(), strict=True))

    def _parts(self, rows: pa.RecordBatch, hashed: np.ndarray) -> list[pa.RecordBatch]:
        parts = {share: rows.slice(0, 0) for share in range(self.shares)}
        parts.update(share_out(rows, hashed, self.shares))
        return [parts[share] for share in range(self.shares)]


class Disagree(Exception):
    """Messages contradict each other."""


def data_of(row: object) -> bytes:
    out = bytearray()
    SCHEMA.form.data.encode(row, out)
    return bytes(out)


@pytest.mark.parametrize("shares", [1, 2, 8])
def test_contract_40_shares_give_what_the_pure_reader_gives(shares: int) -> None:
    history = make_history(shares, 120, 20, 9)
    messages = mangle(statements(history, 7, 121, close=True), shares, window=60)
    pure, reader = read_purely(messages)
    assert reader.closed
    shared = Shared(shares)
    found: dict[int, set[tuple[bytes, int]]] = {}
    for start in range(0, len(messages), 11):
        for data, time, diff in shared.receive(messages[start : start + 11], start):
            assert (data, diff) not in found.setdefault(time, set())
            found[time].add((data, diff))
    assert shared.frontier is None
    assert (shared.kept.num_rows, shared.times.num_rows, shared.coverage) == (0, 0, [])
    assert found == {
        time: {(data_of(row), diff) for row, diff in rows} for time, rows in pure.items()
    }


TIME = st.integers(0, 12)
UPDATES_OF = st.lists(
    st.tuples(st.sampled_from([(1, "a", None), (2, "b", 1)]), TIME, st.sampled_from([1, -1, 2])),
    max_size=4,
).map(lambda rows: [Update(*row) for row in rows])


@st.composite
def progress(draw: st.DrawFn) -> Progress[int]:
    lower, upper = sorted((draw(TIME), draw(TIME)))
    closes = draw(st.integers(0, 9)) == 0
    inside = st.integers(lower, 12 if closes else max(lower, upper - 1))
    listed = (
        {}
        if lower == upper and not closes
        else draw(st.dictionaries(inside, st.integers(0, 2), max_size=3))
    )
    return Progress((lower,), () if closes else (upper,), tuple(listed.items()))


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.one_of(UPDATES_OF, progress()), max_size=14),
    st.integers(1, 5),
    st.integers(1, 3),
)
def test_contract_40_whatever_is_said_shares_and_the_pure_reader_agree(
    messages: list[list[Update[int]] | Progress[int]], batch: int, shares: int
) -> None:
    """Also where messages contradict each other: both stop, though a batch may hear of it later or sooner."""
    reader: Reader[int] = Reader()
    pure: list[tuple[bytes, int, int]] = []
    stopped = False
    try:
        for message in messages:
            for updates, _ in reader.receive(message):
                pure.extend((data_of(row), time, diff) for row, time, diff in updates)
    except CdcError:
        stopped = True
    shared = Shared(shares)
    found: list[tuple[bytes, int, int]] = []
    try:
        for start in range(0, len(messages), batch):
            found.extend(shared.receive(list(messages[start : start + batch]), start))
    except Disagree:
        # A batch hears all of its messages before it finishes a time: it may see more than the reader.
        if batch == 1:
            assert stopped
        return
    assert not stopped
    assert sorted(found) == sorted(pure)
    assert (() if shared.frontier is None else (shared.frontier,)) == reader.frontier
    reasons = why_waiting(shared.frontier, shared.coverage, shared.times, 100)
    assert reasons == reader.why_waiting()


def test_slots_are_told_by_what_is_said_of_a_row_at_a_time_only() -> None:
    cutter = RowCutter(SCHEMA.form)
    out = CutMessages()
    raw = SCHEMA.form.encode([Update((1, "a", None), 3, 1), Update((1, "a", None), 3, -1)])
    cutter.cut(raw, 1, 0, out)
    [rows] = out.updates
    hashed = rows.column("hash").to_numpy()
    assert hashed[0] == hashed[1]
    assert (slots(hashed) < 256).all()
