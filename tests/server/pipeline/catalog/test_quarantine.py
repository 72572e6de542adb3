"""Lines that could not be used, in a file for each batch."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import LogFull
from tailrace_server.pipeline.catalog.driver import LineRefused, write_quarantine
from tailrace_server.pipeline.input.change import FileSplit, quarantined

if TYPE_CHECKING:
    from pathlib import Path


def test_each_line_is_kept_with_its_place_in_the_file(tmp_path: Path) -> None:
    head, tail = FileSplit("a.json", 0), FileSplit("a.json", 512)
    lines = [quarantined(tail, 2, b"\xff", "not UTF-8"), quarantined(head, 1, b"{", "truncated")]
    path = write_quarantine(tmp_path / "q", "w-0", lines, {("a.json", 512): 30})
    assert [json.loads(text) for text in path.read_text().splitlines()] == [
        {"file": "a.json", "line": 1, "reason": "truncated", "raw": "{"},
        {
            "file": "a.json",
            "line": 32,
            "reason": "not UTF-8",
            "raw_base64": base64.b64encode(b"\xff").decode(),
        },
    ]


def test_a_batch_that_is_tried_again_writes_the_same_file(tmp_path: Path) -> None:
    lines = [quarantined(FileSplit("a.json"), 1, b"{", "truncated")]
    first = write_quarantine(tmp_path, "w-0", lines, {}).read_bytes()
    assert write_quarantine(tmp_path, "w-0", lines, {}).read_bytes() == first
    assert [path.name for path in tmp_path.iterdir()] == ["w-0.jsonl"]


def test_an_error_of_the_disk_is_named(tmp_path: Path) -> None:
    lines = [quarantined(FileSplit("a.json"), 1, b"{", "truncated")]
    (tmp_path / "w-0.jsonl.tmp").symlink_to("/dev/full")
    with pytest.raises(LogFull, match="cannot write"):
        write_quarantine(tmp_path, "w-0", lines, {})


def test_a_refused_line_names_the_option_that_refuses_it() -> None:
    error = LineRefused("a.json", 7, "truncated")
    assert str(error) == "a.json line 7: truncated; without --strict it goes to quarantine"
    assert error.figures() == {"file": "a.json", "line": "7", "reason": "truncated"}
