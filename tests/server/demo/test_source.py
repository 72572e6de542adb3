"""The demo's own input: cut at line ends, byte for byte, and announced as what it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace_server.demo.source import files_of

if TYPE_CHECKING:
    from pathlib import Path


def test_files_are_cut_at_line_ends_and_nothing_of_them_is_changed(tmp_path: Path) -> None:
    """Line ends of Unicode inside a text, and bytes that are no UTF-8, are the source's business."""
    folder, inbox = tmp_path / "input", tmp_path / "inbox"
    folder.mkdir()
    lines = [b'{"n":%d,"t":"a\xe2\x80\xa8b\xc2\x85c\xff"}' % number for number in range(200)]
    (folder / "long.json").write_bytes(b"\n".join(lines))
    (folder / "short.json").write_bytes(lines[0] + b"\n")
    source = files_of(folder)
    assert source.lines == 201
    assert f"2 files of {folder}, 201 lines, which appear in 50 parts" in source.title
    assert len(list(source.write(inbox))) == 50  # of four lines each: at most PARTS
    written = [each.read_bytes() for each in sorted(inbox.glob("long-*.json"))]
    assert b"".join(written) == b"\n".join(lines) + b"\n"
    assert [each.read_bytes() for each in inbox.glob("short-*")] == [lines[0] + b"\n"]
