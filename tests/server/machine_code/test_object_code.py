"""Objects are loaded only whole and for the sources that they were made from. Builds a small one for real."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from tailrace_server.machine_code import builder, object_code
from tailrace_server.machine_code.object_code import CompiledModule

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOOPS = CompiledModule("loops_of_a_test", ("plus_one", "twice"))
SOURCE = """
def plus_one(number):
    return number + 1

def twice(number):
    return 2 * number

def divided(number):
    return 10 // number
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder with the module, from which this process and the builder's import it."""
    path = tmp_path_factory.mktemp("loops")
    (path / "loops_of_a_test.py").write_text(SOURCE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(path)
        patch.setenv("PYTHONPATH", str(path), prepend=":")
        assert object_code.load(LOOPS) is None
        built = object_code.build(LOOPS)
        assert [built[name](20) for name in LOOPS.functions] == [21, 40]
        yield path


@pytest.fixture
def file(folder: Path) -> Path:
    """Return the object's file."""
    [found] = (folder / "__pycache__").glob("*.object")
    return found


def test_what_was_built_is_loaded(file: Path) -> None:
    loaded = object_code.load(LOOPS)
    assert loaded is not None
    assert [loaded[name](-4) for name in LOOPS.functions] == [-3, -8]
    assert LOOPS.key() in file.name


def test_a_file_that_is_not_whole_counts_as_missing(file: Path) -> None:
    whole = file.read_bytes()
    head = whole.index(b"\n")
    flipped = bytes([whole[-1] ^ 1])
    for damaged in (b"", whole[: head - 5], whole[:head], whole[:-1], whole[:-1] + flipped):
        file.write_bytes(damaged)
        assert object_code.load(LOOPS) is None
    file.write_bytes(whole)
    assert object_code.load(LOOPS) is not None


def test_the_object_of_another_source_is_passed_over(folder: Path) -> None:
    source = folder / "loops_of_a_test.py"
    source.write_text(SOURCE + "\n# changed\n")
    assert object_code.load(LOOPS) is None
    source.write_text(SOURCE)
    assert object_code.load(LOOPS) is not None


def test_an_object_in_the_users_cache_is_found_too(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "tailrace").mkdir()
    content = file.read_bytes()
    file.rename(tmp_path / "tailrace" / file.name)
    assert object_code.load(LOOPS) is not None
    file.write_bytes(content)


def test_code_that_needs_more_than_the_c_library_is_refused(folder: Path) -> None:
    """LLVM would end the process that loads it. A division may fail, and numba raises that by Python."""
    assert folder.is_dir()
    with pytest.raises(ValueError, match="which the object cannot hold"):
        builder.compiled_object(import_module(LOOPS.name), ("divided",))


def test_a_failure_of_the_compiler_says_why() -> None:
    with pytest.raises(OSError, match=r"status 1: ModuleNotFoundError: .*no_such_module"):
        object_code.build(CompiledModule("no_such_module", ("f",), ()))
