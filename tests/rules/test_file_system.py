"""Only wal/files touches the file system, so that another store of the log is one more module there."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

WAL = Path(__file__).parents[2] / "server" / "tailrace_server" / "wal"

MODULES = {"fcntl", "glob", "mmap", "os", "shutil", "tempfile"}
"""Modules through which files are reached."""

METHODS = {
    *("chmod", "exists", "glob", "hardlink_to", "is_dir", "is_file", "iterdir", "lstat", "mkdir"),
    *("open", "read_bytes", "read_text", "rename", "rglob", "rmdir", "samefile", "stat"),
    *(
        "symlink_to",
        "touch",
        "unlink",
        "write_bytes",
        "write_text",
        "FileIO",
        "OSFile",
        "memory_map",
    ),
}
"""What touches the disk: methods of ``Path``, files of Python and of Arrow. Not ``replace``: texts have it."""

STORES = {"store", "_store", "arrivals"}
"""Names of what reaches files through the Protocol, whose methods are called alike."""

EXCEPTIONS = {
    ("schema/mapping.py", "read_text"): "the user's mapping file is no file of the log",
    ("upkeep/trigger.py", "os"): "priority of the upkeep process, and the pipes to and from it",
    ("upkeep/process.py", "os"): "the pipe that is its output",
}
"""Module and what it uses → why that is no file of the log."""


def uses(source: str) -> Iterator[str]:
    """Yield the modules and methods of a source through which it may reach files."""
    tree = ast.parse(source)
    typing_only = {
        id(each)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for statement in node.body
        for each in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        match node:
            case ast.Import(names=names):
                yield from {each.name.partition(".")[0] for each in names} & MODULES
            case ast.ImportFrom(module=str(module)):
                yield from {module.partition(".")[0]} & MODULES
            case ast.Call(func=ast.Name(id="open")):
                yield "open"
            case ast.Call(func=ast.Attribute(value=owner, attr=name)) if name in METHODS:
                last = owner.attr if isinstance(owner, ast.Attribute) else ast.unparse(owner)
                is_class = last.isidentifier() and last[0].isupper()  # CommitLog.open and its like
                if last not in STORES and not is_class:
                    yield name


def test_no_module_of_the_log_outside_files_touches_the_file_system() -> None:
    found = {
        (str(path.relative_to(WAL)), use)
        for path in WAL.rglob("*.py")
        if path.parent.name != "files"
        for use in uses(path.read_text())
    }
    assert found == EXCEPTIONS.keys()


@pytest.mark.parametrize(
    ("source", "use"),
    [
        ("import os", "os"),
        ("import os.path as p", "os"),
        ("from os import stat", "os"),
        ("def f():\n    import shutil", "shutil"),
        ("open('x')", "open"),
        ("(self.path / 'x').open()", "open"),
        ("Path('x').open()", "open"),
        ("log.path.unlink()", "unlink"),
        ("path.exists()", "exists"),
        ("io.FileIO(path)", "FileIO"),
        ("pa.OSFile(path)", "OSFile"),
    ],
)
def test_the_rule_finds_what_reaches_files(source: str, use: str) -> None:
    assert [*uses(source)] == [use]


@pytest.mark.parametrize(
    "source",
    [
        "if TYPE_CHECKING:\n    import os",
        "self._store.exists('x')",
        "log.store.open('x')",
        "CommitLog.open(path)",
        "'a'.replace('a', 'b')",
    ],
)
def test_the_rule_lets_the_store_and_types_pass(source: str) -> None:
    assert [*uses(source)] == []
