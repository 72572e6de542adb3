"""Compiled loops are loaded only whole and for the sources that they were made from."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from typing import TYPE_CHECKING

import pytest

from tailrace_server.machine_code import __main__ as maker
from tailrace_server.machine_code import loader

if TYPE_CHECKING:
    from pathlib import Path

_WITHOUT_COMPILER = """
import sys
from tailrace_server.machine_code.loader import loops
assert loops(1) is not None
assert not {"numba", "llvmlite"} & sys.modules.keys()
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the file, which a process finds in the user's cache alone."""
    loader.loops_made()
    name = loader.file_name(loader.key())
    found = next(path for path in loader.places(name) if path.exists())
    copy = tmp_path / "tailrace" / name
    copy.parent.mkdir()
    copy.write_bytes(found.read_bytes())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(loader, "_loops", None)
    monkeypatch.setattr(loader, "_key", None)
    monkeypatch.setattr(loader, "_maker", None)
    monkeypatch.setattr(loader, "_rows", 0)
    monkeypatch.setattr(loader, "places", lambda name: [*loader_places(name)][1:])
    return copy


loader_places = loader.places


def test_a_file_in_the_users_cache_is_loaded(file: Path) -> None:
    assert file == loader.places(file.name)[0]  # type: ignore[index]
    found = loader.loops(1)
    assert found is not None
    assert found.gather(0, 0, 0, 0, 0, id(bytearray(64)) + 16) == 0


def test_a_file_that_is_not_whole_counts_as_missing(file: Path) -> None:
    whole, key = file.read_bytes(), loader.key()
    assert loader.read(file, key) is not None
    head = whole.index(b"\n")
    flipped = bytes([whole[-1] ^ 1])
    for damaged in (b"", whole[: head - 5], whole[:head], whole[:-1], whole[:-1] + flipped):
        file.write_bytes(damaged)
        assert loader.read(file, key) is None
    assert loader.loops(1) is None


def test_the_file_of_another_key_is_passed_over(file: Path) -> None:
    assert loader.read(file, "0" * 16) is None


def test_the_key_covers_all_sources_versions_and_the_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = {loader.key()}
    changes: list[tuple[str, object]] = [
        ("version", lambda name: "1" if name == "numba" else "2"),
        ("version", lambda name: "2" if name == "numba" else "1"),
        ("_processor", lambda: "another"),
        ("_FOLDER", loader._FOLDER / "loops"),
    ]
    for name, value in changes:
        with monkeypatch.context() as patch:
            patch.setattr(loader, name, value)
            keys.add(loader.key())
    assert len(keys) == 1 + len(changes)


def test_without_numba_one_line_says_that_python_does_the_work(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(loader, "version", version)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            assert loader.loops(1_000_000) is None
            assert loader.prepare() is None
    [line] = caplog.messages
    assert line.startswith("no compiled loops; plain Python is used")
    assert "numba" in line


def test_few_rows_make_no_loops(file: Path) -> None:
    file.unlink()
    assert loader.loops(3) is None
    assert loader._maker is None


@pytest.mark.slow
def test_a_failure_of_the_compiler_is_one_line_in_the_log(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file.unlink()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with caplog.at_level(logging.INFO):
        assert loader.loops(1_000_000) is None
        assert loader._maker is not None
        loader._maker.join()
        assert loader.loops(1_000_000) is None
    begun, failed = caplog.messages
    assert "compiling loops" in begun
    assert "the compiler ended with status" in failed


def test_where_no_folder_can_be_written_to_the_error_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(loader, "places", lambda name: [tmp_path / "file" / "folder" / name])
    with pytest.raises(OSError, match=r"no folder is writable: .*Not a directory"):
        maker.make()


@pytest.mark.slow
def test_a_process_loads_the_loops_without_the_compiler() -> None:
    loader.loops_made()
    subprocess.run([sys.executable, "-c", _WITHOUT_COMPILER], check=True, env={**os.environ})
