"""What waits in an input folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace_server.pipeline.input.folder import WaitingFiles, waiting_files

if TYPE_CHECKING:
    from pathlib import Path


def test_files_that_the_log_does_not_hold_wait_and_hidden_and_empty_ones_never_do(
    tmp_path: Path,
) -> None:
    (tmp_path / "deep er").mkdir()
    (tmp_path / "_temporary").mkdir()
    for name in ("a.json", "deep er/b.json", "deep er/held.json"):
        (tmp_path / name).write_bytes(b"12345")
    for name in (".c.json", "_d.json", "_temporary/e.json"):
        (tmp_path / name).write_bytes(b"hidden")
    (tmp_path / "empty.json").touch()
    held = {"deep er/held.json"}
    assert waiting_files(tmp_path, held.__contains__) == WaitingFiles(2, 10)
    assert waiting_files(tmp_path / "gone", held.__contains__) == WaitingFiles(0, 0)
