"""The registry is the one module that names a source outside its folder."""

from __future__ import annotations

import ast
from pathlib import Path

import tailrace_server
from tailrace_server.pipeline import sources
from tailrace_server.pipeline.sources.registry import SOURCES

SERVER = Path(tailrace_server.__file__).parent
FOLDER = Path(sources.__file__).parent


def imported(file: Path) -> set[str]:
    """Return what a module imports, at its head or in a function."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return found


def test_each_source_is_a_folder_that_only_the_registry_imports() -> None:
    folders = {path.name for path in FOLDER.iterdir() if (path / "__init__.py").exists()}
    assert folders == set(SOURCES)
    importers = {
        (file.relative_to(SERVER).as_posix(), folder)
        for file in SERVER.rglob("*.py")
        for folder in folders
        if not file.is_relative_to(FOLDER / folder)
        and any(f"pipeline.sources.{folder}" in name for name in imported(file))
    }
    assert importers == {("pipeline/sources/registry.py", folder) for folder in folders}


def test_a_source_is_registered_under_its_name() -> None:
    assert {name: source.name for name, source in SOURCES.items()} == {
        name: name for name in SOURCES
    }
