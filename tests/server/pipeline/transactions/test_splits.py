"""Splits of a batch: lines before each, positions, and the versions that snapshot rows go to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.pipeline.input.change import CHANGE, SNAPSHOT, SPLIT, Change, FileSplit
from tailrace_server.pipeline.sources.debezium.source import Debezium
from tailrace_server.pipeline.transactions.lines import (
    lines_before,
    lines_to_skip,
    positions,
    recut,
)
from tailrace_server.pipeline.transactions.tally import cut_snapshots, tally

if TYPE_CHECKING:
    from collections.abc import Iterable


def split(file: str, block: int, lines: int) -> Change:
    return Change(SPLIT, b"", file=file, block=block, line=lines)


SPLITS = [split("b", 0, 5), split("a", 200, 7), split("a", 0, 3), split("a", 100, 0)]


def test_lines_are_counted_from_the_head_of_each_file() -> None:
    assert lines_before(SPLITS) == {("a", 0): 0, ("a", 100): 3, ("a", 200): 3, ("b", 0): 0}


def test_positions_are_lines_of_whole_files_and_nameless_ones_have_none() -> None:
    assert positions([*SPLITS, split("", 0, 9)], Debezium()) == {"file:a": 10, "file:b": 5}


def snapshot_rows(sizes: Iterable[int]) -> list[Change]:
    return [
        Change(
            CHANGE, FileSplit(f"{n:02}").place(line), f"{SNAPSHOT}{n:02}\0" + "0", total_order=line
        )
        for n, size in enumerate(sizes)
        for line in range(size)
    ]


@given(st.lists(st.integers(0, 9), max_size=4), st.integers(1, 7))
def test_snapshot_rows_are_cut_every_so_many_over_all_splits(sizes: list[int], rows: int) -> None:
    changes = snapshot_rows(sizes)
    tallies, cuts = cut_snapshots(tally(changes, 0.0), rows, "w-0")
    found = list(recut(changes, cuts))
    assert [change.total_order for change in found] == list(range(len(changes)))
    by_key: dict[str, int] = {}
    for change in found:
        by_key[change.transaction or ""] = by_key.get(change.transaction or "", 0) + 1
    assert by_key == {key: t.rows for key, t in tallies.items()}
    assert list(by_key.values()) == [
        min(rows, len(changes) - start) for start in range(0, len(changes), rows)
    ]


def test_other_rows_pass_unchanged() -> None:
    row = Change(CHANGE, b"1", "7")
    assert list(recut([row], [])) == [row]


def test_lines_are_skipped_from_the_head_of_a_file_whichever_split_comes_first() -> None:
    splits = [("a", 200, 7), ("a", 0, 3), ("b", 0, 5)]
    assert lines_to_skip(splits, {"a": 4, "b": 0}.__getitem__) == {("a", 0): 3, ("a", 200): 1}
