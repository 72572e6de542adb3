"""Catalog folders that were copied or thinned out by hand, or are not ours to use: named, with advice."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tests.process.commands import PERMISSIONS_BIND, ServerProcess, outcome

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow


def write(root: Path, catalog: str) -> Path:
    with LogWriter.open(root, catalog) as writer:
        for number in range(3):
            writer.append([Mutation("product", str(number), after=b'{"id":%d}' % number)])
            writer.commit()
            writer.publish()
    return root / catalog


def error_in(outcome: tuple[int, str, str], status: int = 2) -> str:
    """Return the one line of a command that could not begin."""
    found, _, error = outcome
    assert (found, error.count("\n"), error[:7]) == (status, 0, "error: "), error
    return error


@contextmanager
def mode(number: int, *folders: Path) -> Iterator[None]:
    """Give folders permissions for the time of the block."""
    for each in folders:
        each.chmod(number)
    try:
        yield
    finally:
        for each in folders:
            each.chmod(0o755)


async def test_a_copy_of_a_catalog_beside_it_is_an_error_of_the_copy(log_root: Path) -> None:
    original = write(log_root, "shop")
    shutil.copytree(original, log_root / "shop-copy")
    status, text, error = await outcome("catalog", "list", "--log", log_root)
    assert status == 2
    assert [line.split()[0] for line in text.splitlines()] == ["NAME", "shop"]
    assert "catalog 'shop-copy'" in error
    assert "names catalog 'shop'" in error
    assert f"move it out of {log_root}" in error
    server = ServerProcess(log_root)
    async with server.up() as process:
        line = await process.note("log unreadable", "shop-copy")
        assert "names catalog 'shop'" in line
        health = (await server.get("/health")).json()
        [fault] = health["faults"]
        assert (health["catalogs"], fault["subject"]) == (1, "shop-copy")
        assert "move it out of" in fault["reason"]
        listed = await outcome("catalog", "list", "--server", server.grpc)
        assert "shop-copy" not in listed[1]
        for name, expected in (("shop", 0), ("shop-copy", 2)):
            status, _, error = await outcome("changes", name, "--server", server.grpc)
            assert (status, "the folder is a copy or was renamed" in error) == (
                expected,
                expected == 2,
            )
        write(log_root, "depot")
        events = await outcome("changes", "system", "--server", server.grpc, "--json")
        assert "shop-copy" not in events[1]
    status, _, error = await outcome("catalog", "drop", "shop-copy", "--log", log_root, "--yes")
    assert status == 0, error
    status, text, error = await outcome("catalog", "list", "--log", log_root)
    assert (status, error) == (0, "")
    assert [line.split()[0] for line in text.splitlines()] == ["NAME", "depot", "shop"]


async def test_a_folder_of_the_log_that_is_missing_is_named_with_advice(log_root: Path) -> None:
    """By each command that opens a log; all of them read it by the same function."""
    for folder in ("log", "published", "checkpoints"):
        shutil.rmtree(write(log_root, folder) / folder)
    for folder, arguments in (
        ("log", ("log", "inspect")),
        ("log", ("log", "trim", "--before", "2")),
        ("published", ("log", "verify")),
        ("checkpoints", ("log", "inspect")),
    ):
        command, name, *options = arguments
        path = log_root / folder
        status, _, error = await outcome(command, name, path, *options)
        assert (status, error.count("\n")) == (2, 0), error
        assert f"{path} is incomplete: it has no folder {folder}; restore" in error
    status, _, error = await outcome("catalog", "list", "--log", log_root)
    assert status == 2
    for folder in ("log", "published", "checkpoints"):
        assert f"{log_root / folder} is incomplete: it has no folder {folder}; restore" in error


async def test_a_catalog_that_may_not_be_entered_is_named_not_its_root(
    log_root: Path, tmp_path: Path
) -> None:
    """By ingest, which says so before it starts Spark."""
    catalog = write(log_root, "shop")
    feed = tmp_path / "feed"
    feed.mkdir()
    ingest = ("ingest", "debezium", "--input", feed, "--log", log_root, "--catalog", "shop")
    with mode(0o000, catalog):
        error = error_in(await outcome(*ingest, python=PERMISSIONS_BIND))
        assert f"cannot read {catalog}: Permission denied; give user " in error
        error = error_in(await outcome("log", "inspect", catalog, python=PERMISSIONS_BIND))
        assert str(catalog) in error
    with mode(0o444, log_root):
        error = error_in(await outcome(*ingest, python=PERMISSIONS_BIND))
        assert f"cannot read {log_root}: Permission denied; give user " in error


async def test_a_log_without_write_permission_is_read_and_says_why_it_is_not_written(
    log_root: Path, tmp_path: Path
) -> None:
    catalog = write(log_root, "shop")
    feed = tmp_path / "feed"
    feed.mkdir()
    ingest = ("ingest", "debezium", "--input", feed, "--log", log_root, "--catalog")
    folders = [each for each in (catalog, *catalog.rglob("*")) if each.is_dir()]
    with mode(0o555, log_root, *folders):
        for arguments in (
            ("log", "trim", catalog, "--before", "2"),
            ("catalog", "drop", "shop", "--log", log_root, "--yes"),
            (*ingest, "shop"),
            (*ingest, "new"),
        ):
            error = error_in(await outcome(*arguments, python=PERMISSIONS_BIND))
            assert "Permission denied; give user " in error
        status, _, error = await outcome("log", "verify", catalog, python=PERMISSIONS_BIND)
        assert status == 0, error
    status, _, error = await outcome("log", "verify", catalog)
    assert status == 0, error
