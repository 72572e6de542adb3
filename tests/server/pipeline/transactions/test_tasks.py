"""What tasks are given and give; tests/process/ingest/test_ingest.py has Spark run them."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.pipeline.catalog.pending import write_pending
from tailrace_server.pipeline.input.change import (
    CHANGE,
    SNAPSHOT,
    Change,
    FileSplit,
    from_table,
    to_batch,
)
from tailrace_server.pipeline.spark.pieces import decoded, frame, pieces_in
from tailrace_server.pipeline.transactions.grouping import Released
from tailrace_server.pipeline.transactions.large_batch import summarize
from tailrace_server.pipeline.transactions.lines import LINES_SCHEMA, LineDecoder, recut
from tailrace_server.pipeline.transactions.pieces import Layout, PieceKind, encode_plans, rows_batch
from tailrace_server.pipeline.transactions.settings import IngestSettings
from tailrace_server.pipeline.transactions.tally import (
    BatchSummary,
    Tally,
    cut_snapshots,
    tally,
)
from tailrace_server.pipeline.transactions.tasks import (
    QuarantineTarget,
    Share,
    SnapshotCuts,
    TaskWriter,
    VersionCutter,
)
from tests.server.pipeline.shapes import UNBOUND
from tests.server.pipeline.sources.pairs import Pairs

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest


@given(st.lists(st.integers(0, 50_000), max_size=30), st.integers(1, 8))
def test_every_version_has_one_task_and_tasks_follow_the_versions(
    rows: list[int], cores: int
) -> None:
    layout = Layout.of(rows, cores)
    tasks = [layout.task(version) for version in range(len(rows))]
    assert tasks == sorted(tasks)
    assert layout.versions == len(rows)
    assert layout.tasks <= max(1, 2 * cores)
    assert set(tasks) == set(range(layout.tasks)) if rows else layout.tasks == 1
    assert [tasks.index(task) for task in sorted(set(tasks))] == list(layout.starts)[
        : len(set(tasks))
    ]
    ranges = [layout.range_of(task) for task in range(layout.tasks)]
    assert [version for start, stop in ranges for version in range(start, stop)] == [
        *range(len(rows))
    ]


def test_a_few_rows_are_one_task() -> None:
    assert Layout.of([1] * 100, cores=8).tasks == 1
    assert Layout.of([20_000] * 8, cores=2).tasks == 4


def decode(settings: IngestSettings, lines: list[dict[str, Any]], skip: Any = None) -> list[Any]:
    """Return kind and content of the pieces that a task makes of lines."""
    task = LineDecoder(pickle.loads(pickle.dumps(settings)), skip or {}, UNBOUND)
    batches = pa.Table.from_pylist(lines, LINES_SCHEMA).to_batches(max_chunksize=2)
    return [(kind, piece) for _, kind, piece in pieces_in(task(batches))]


def test_lines_are_decoded_in_a_task(tmp_path: Path) -> None:
    """The driver gets from the tasks what it would have summarized itself; rows and lines stay with them."""
    settings = IngestSettings(input=tmp_path, log=tmp_path, catalog="shop", source=Pairs())
    texts = (b"1 a=x", b"1 b=y", b"", b"?", b"2 c=z")
    rows = [
        {"value": value, "file": f"file:{tmp_path}/a", "block": 0, "modified_us": 1}
        for value in texts
    ]
    pieces = decode(settings, rows, {("a", 0): 1})
    changes = [
        change
        for kind, piece in pieces
        if kind in (PieceKind.ROWS, PieceKind.QUARANTINED)
        for change in from_table(decoded(piece))
    ]
    assert [c.primary_key for c in changes if c.kind == CHANGE] == ["b", "c"]
    given = summarize(pieces, {("a", 0): 1}, 7.0).given
    [split] = given.splits
    assert (split.line, split.number, given.skipped) == (5, 2, 1)
    expected = BatchSummary.of([*changes, split], 1, 7.0, settings.source.tells_shape)
    assert given == expected._replace(lines=())


def cutter(path: Path, keys: Sequence[str], layout: Layout, cuts: Any = None) -> VersionCutter:
    target = QuarantineTarget(path / "quarantine" / "w-0.jsonl", {}, UNBOUND)
    return VersionCutter(layout, pa.array(keys, pa.string()), cuts, path, target, 1)


KEYS = st.sampled_from([*"abcd", f"{SNAPSHOT}0", f"{SNAPSHOT}1"])


@given(st.lists(KEYS, min_size=1), st.integers(1, 3), st.sets(st.integers(0, 9)), st.data())
def test_rows_get_the_versions_that_a_driver_alone_would_give_them(
    keys: list[str], rows_per_version: int, kept: set[int], data: st.DataObject
) -> None:
    """Those of open transactions, and of cuts that stay open, go to the share of open rows."""
    numbers: Counter[str] = Counter()
    changes = []
    for place, key in enumerate(keys):
        order = numbers[key] if key.startswith(SNAPSHOT) else -1
        numbers[key] += 1
        changes.append(Change(CHANGE, FileSplit("f").place(place + 1), key, total_order=order))
    tallies, cuts = cut_snapshots(tally(changes, 0.0), rows_per_version, "b")
    released = [key for n, key in enumerate(sorted(tallies)) if n not in kept]
    starts = data.draw(st.sets(st.integers(0, max(0, len(released) - 1))))
    layout = Layout(tuple(sorted({0, *starts})), len(released))
    cut = cutter(Path(), released, layout, SnapshotCuts.of(cuts) if cuts else None)
    found = [
        (share, version, change.place, change.transaction, change.total_order)
        for share, _, piece in pieces_in(cut.cut(rows_batch(changes), layout.tasks))
        for version, change in zip(
            decoded(piece).column("version").to_pylist(), from_table(decoded(piece)), strict=True
        )
    ]
    versions = {key: version for version, key in enumerate(released)}
    expected = []
    for row in recut(changes, cuts):
        version = versions.get(row.transaction or "", -1)
        share = layout.tasks if version < 0 else layout.task(version)
        expected.append((share, version, row.place, row.transaction, row.total_order))
    assert sorted(found) == sorted(expected)


def test_pending_rows_are_read_in_a_task_by_transaction(tmp_path: Path) -> None:
    (tmp_path / "segments").mkdir()
    rows = [Change(CHANGE, b"%d" % n, key) for n, key in enumerate("aba")]
    file = write_pending(tmp_path / "segments" / "1" / "p.arrow", to_batch(rows))
    cut = cutter(tmp_path, ["a"], Layout((0,), 1))
    [(share, kind, piece)] = pieces_in(cut._pending(file, ["a"]))
    assert (share, kind) == (0, PieceKind.ROWS)
    assert decoded(piece).column("place").to_pylist() == [b"0", b"2"]


def test_a_share_is_read_in_version_order_in_chunks_of_whole_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tailrace_server.pipeline.transactions.tasks._ROWS_AT_ONCE", 4)
    sizes = [1, 0, 9, 2, 2, 0, 1, 0]
    keys = [str(version) for version in range(len(sizes)) for _ in range(sizes[version])]
    changes = [Change(CHANGE, b"%02d" % n, key) for n, key in enumerate(keys)]
    cut = cutter(Path(), [*map(str, range(len(sizes)))], Layout((0,), len(sizes)))
    plans = [Released(Tally(str(version))) for version in range(len(sizes))]
    pieces = [(0, PieceKind.PLANS, encode_plans(plans))]
    for start in range(0, len(changes), 5):
        some = rows_batch(changes[start : start + 5][::-1])
        pieces += [(*names, piece.to_pybytes()) for *names, piece in pieces_in(cut.cut(some, None))]
    share = Share.of([frame(pieces)])
    chunks = [(a, b, sum(map(len, rows))) for a, b, rows in share.chunks(0, len(sizes))]
    assert [b for _, b, _ in chunks[:-1]] == [a for a, _, _ in chunks[1:]]
    assert (chunks[0][0], chunks[-1][1]) == (0, len(sizes))
    assert all(rows == sum(sizes[a:b]) and rows <= 4 + max(sizes) for a, b, rows in chunks)
    assert [each.tally.key for each in share.plans] == [each.tally.key for each in plans]


def test_a_writer_of_tasks_pickles() -> None:
    target = QuarantineTarget(Path("q"), {}, UNBOUND)
    paths = Path("s.arrow"), Path("p.arrow")
    writer = TaskWriter(Layout.of([1], 1), {}, Pairs(), None, *paths, target)
    assert pickle.loads(pickle.dumps(writer)) == writer
