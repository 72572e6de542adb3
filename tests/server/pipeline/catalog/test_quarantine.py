"""Lines that could not be used, in a file for each batch."""

from __future__ import annotations

import base64
import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import LogFull
from tailrace_server.pipeline.catalog.quarantine import (
    LineRefused,
    adopt_parts,
    write_quarantine,
)
from tailrace_server.pipeline.input.change import (
    DELETE,
    QUARANTINED,
    READ,
    Change,
    FileSplit,
    quarantined,
)
from tailrace_server.pipeline.run.set_aside import SetAside

if TYPE_CHECKING:
    from pathlib import Path


def test_each_line_is_kept_with_its_place_in_the_file(tmp_path: Path) -> None:
    head, tail = FileSplit("a.json", 0), FileSplit("a.json", 512)
    lines = [quarantined(head, 1, b"{", "truncated"), quarantined(tail, 2, b"\xff", "not UTF-8")]
    path = tmp_path / "q" / "w-0.jsonl"
    write_quarantine(path, lines, {("a.json", 512): 30})
    assert [json.loads(text) for text in path.read_text().splitlines()] == [
        {"file": "a.json", "line": 1, "reason": "truncated", "raw": "{"},
        {
            "file": "a.json",
            "line": 32,
            "reason": "not UTF-8",
            "raw_base64": base64.b64encode(b"\xff").decode(),
        },
    ]


def test_a_batch_that_is_tried_again_replaces_its_files(tmp_path: Path) -> None:
    """In the driver, in tasks, in fewer tasks, in the driver again; files of other batches stay."""
    path = tmp_path / "w-0.jsonl"
    flush = tmp_path / "w-0-1.jsonl"
    lines = [quarantined(FileSplit("a.json"), 1, b"{", "truncated")]
    write_quarantine(flush, lines, {})
    for tasks in (0, 3, 1, 0):
        names = [f"w-0-task-{task}-{attempt}.part" for task in range(tasks) for attempt in (0, 1)]
        for name in names:
            write_quarantine(tmp_path / name, lines, {})
        if not tasks:
            write_quarantine(path, lines, {})
        adopt_parts(path, [tmp_path / name for name in names[::2]])
        ours = [f"w-0-task{task}.jsonl" for task in range(tasks)] or ["w-0.jsonl"]
        assert {file.name for file in tmp_path.iterdir()} == {*ours, flush.name}


def test_an_error_of_the_disk_is_named(tmp_path: Path) -> None:
    lines = [quarantined(FileSplit("a.json"), 1, b"{", "truncated")]
    (tmp_path / "w-0.jsonl.tmp").symlink_to("/dev/full")
    with pytest.raises(LogFull, match="cannot write"):
        write_quarantine(tmp_path / "w-0.jsonl", lines, {})


LINES = st.builds(
    Change,
    kind=st.just(QUARANTINED),
    place=st.binary(min_size=1, max_size=2),
    entity_type=st.sampled_from([None, "a", "b"]),
    operation=st.sampled_from([0, READ, DELETE]),
    source=st.sampled_from([None, "s"]),
    table=st.sampled_from([None, "t", "u"]),
    number=st.sampled_from([None, 1]),
    reason=st.sampled_from(["no key: a", "no key: b", "CSV: c"]),
    file=st.just("f"),
    block=st.just(0),
    line=st.integers(1, 9),
)


@given(st.lists(LINES, unique_by=lambda line: line.place), st.integers(0, 9))
def test_a_summary_is_the_same_however_the_lines_are_divided(lines: list[Change], at: int) -> None:
    """Of its parts in any order; and what it tells is what a list of the lines would."""

    def of(some: list[Change]) -> SetAside:
        return SetAside.of(some, lambda reason: reason.startswith("CSV"))

    def keeps(table: str, source: str | None) -> bool:
        return table == "t"

    divided = of(lines[at:])
    divided.add(of(lines[:at]))
    assert divided == of(lines)
    found = divided.with_effects(keeps)
    kept = [line for line in lines if line.table in (None, "t")]
    assert sum(each.number for each in found.kinds.values()) == len(kept)
    assert {name: x.number for name, x in found.entity_types.items()} == Counter(
        line.entity_type for line in kept if line.entity_type is not None
    )
    if kept:
        first, last = (choose(kept, key=lambda line: line.place) for choose in (min, max))
        assert found.together is not None
        assert (found.together.place, found.together.reason) == (first.place, first.reason)
        assert found.together.last_reason == last.reason
    assert found.snapshot_types == {x.entity_type for x in kept if x.operation in (0, READ)}
    incompatible = sum(line.number or 0 for line in kept)
    assert (found.incompatible.number if found.incompatible else 0) == incompatible


def test_a_refused_line_names_the_option_that_refuses_it() -> None:
    error = LineRefused("a.json", 7, "truncated")
    assert str(error) == "a.json line 7: truncated; without --strict it goes to quarantine"
    assert error.figures() == {"file": "a.json", "line": "7", "reason": "truncated"}
