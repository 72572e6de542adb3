"""Lines by split; sources/test_source.py takes them on to a log."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.pipeline.input.change import CHANGE, SPLIT, FileSplit
from tailrace_server.pipeline.transactions.lines import (
    LINES_SCHEMA,
    SplitDecoder,
    decode_lines,
    relative_file,
    runs,
)
from tailrace_server.pipeline.transactions.settings import IngestSettings
from tests.server.pipeline.shapes import UNBOUND
from tests.server.pipeline.sources.pairs import Pairs

INPUT = "/in put"
_SPLITS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from([0, 64]), st.integers(1, 3)),
    max_size=4,
    unique_by=lambda of: of[:2],
)


def table_of(splits: list[tuple[str, int, int]]) -> pa.Table:
    """Return lines ``1 FILE-BLOCK-N=x`` of splits, as Spark hands them over."""
    rows = [
        {
            "value": b"1 %b-%d-%d=x" % (file.encode(), block, n),
            "file": f"file:/in%20put/{file}",
            "block": block,
            "modified_us": 9,
        }
        for file, block, lines in splits
        for n in range(lines)
    ]
    return pa.Table.from_pylist(rows, LINES_SCHEMA)


@given(_SPLITS)
def test_lines_are_cut_where_file_or_block_changes(splits: list[tuple[str, int, int]]) -> None:
    found = list(runs(table_of(splits), INPUT))
    assert [(split, len(lines)) for split, lines in found] == [
        (FileSplit(file, block, 9), lines) for file, block, lines in splits
    ]


@given(_SPLITS, st.dictionaries(st.sampled_from("ab"), st.integers(0, 6)))
def test_lines_that_the_log_holds_are_skipped_from_the_head_of_each_file(
    splits: list[tuple[str, int, int]], consumed: dict[str, int]
) -> None:
    settings = IngestSettings(input=Path(INPUT), log=Path("log"), catalog="shop", source=Pairs())
    decoded = decode_lines(table_of(splits), settings, UNBOUND, lambda file: consumed.get(file, 0))
    left = [change.primary_key for change in decoded.changes if change.kind == CHANGE]
    expected = []
    for file in "ab":
        of_file = [
            f"{file}-{block}-{n}"
            for name, block, lines in sorted(splits)
            if name == file
            for n in range(lines)
        ]
        expected += of_file[consumed.get(file, 0) :]
    assert left == expected
    assert decoded.skipped == sum(lines for *_, lines in splits) - len(expected)


def test_a_split_is_counted_over_all_its_pieces() -> None:
    decoder = SplitDecoder(Pairs().line_decoder(None, 1, UNBOUND), {("f", 0): 1})
    split = FileSplit("f", 0, 5)
    assert list(decoder.feed(split, [b"1 a=x"])) == []
    assert [change.line for change in decoder.feed(split, [b"", b"nonsense"])] == [3]
    [counted] = decoder.finish()
    assert (counted.kind, counted.line, counted.number) == (SPLIT, 3, 2)
    assert counted.place == split.place(0)


def test_files_are_named_below_the_input() -> None:
    assert relative_file("file:/in%20put/a/b.json", INPUT) == "a/b.json"
    assert relative_file("", INPUT) == ""
