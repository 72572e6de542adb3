"""``tailrace export cdcv2`` as a process: killed anywhere, run twice at once, following, and its errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace_server.cli.application import run
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tests.process.commands import INTERRUPT, Command, outcome
from tests.server.export.logs import MAPPING, Shop, collections, export, image, item, statements
from tests.server.wal.logs import armed, finish, python

if TYPE_CHECKING:
    from pathlib import Path

CODE = """
import sys
from tailrace_server.export import cdcv2
from tailrace_server.cli.application import run
cdcv2.UPDATES_MAX = 5
sys.exit(run(sys.argv[1:]))
"""


def command(root: Path, out: Path, *more: object) -> list[str]:
    what = ["--log", root, "--catalog", "shop", "--entity-type", "item", "--output", out]
    return ["export", "cdcv2", *map(str, (*what, *more))]


@pytest.mark.slow
def test_an_exporter_killed_anywhere_goes_on_where_its_folder_ends(
    log_root: Path, tmp_path: Path
) -> None:
    shop = Shop(log_root)
    shop.write(40)
    out, whole = tmp_path / "out", tmp_path / "whole"
    for place in (
        "before_link=kill@1",
        "after_link=kill@1",
        "before_link=kill@4",
        "after_link=kill@3",
    ):
        process = python(CODE, *command(log_root, out), failing=f"export.{place}")
        assert finish(process)[0] == -9
    assert finish(python(CODE, *command(log_root, out)))[0] == 0
    export(log_root, whole)
    assert collections(statements(out)) == collections(statements(whole))


@pytest.mark.slow
async def test_two_that_follow_into_one_folder_write_one_stream(
    log_root: Path, tmp_path: Path
) -> None:
    shop = Shop(log_root)
    shop.write(10)
    out = tmp_path / "out"
    following = command(log_root, out, "--follow", "--every", "10ms")
    async with Command(*following) as first, Command(*following) as second:
        for each in (first, second):
            await each.note("following shop")
        for _ in range(4):
            shop.write(5)
        for each in (first, second):
            await each.note("complete below version 31")
            each.send(INTERRUPT)
            assert await each.end() == 128 + INTERRUPT
    found, frontier = collections(statements(out))
    assert (found[max(found)], frontier) == ({row: 1 for row in shop.prices.items()}, 31)


@pytest.mark.slow
async def test_a_following_exporter_ends_with_the_error_of_its_log(
    log_root: Path, tmp_path: Path
) -> None:
    Shop(log_root).write(5)
    out = tmp_path / "out"
    async with Command(*command(log_root, out, "--follow")) as following:
        await following.note("following shop")
        assert (await outcome("catalog", "drop", "shop", "--log", log_root, "--yes"))[0] == 0
        assert await following.end() == 1
    assert "catalog 'shop' was dropped" in following.notes[-1]


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = run(arguments)
    error = capsys.readouterr().err
    assert error.startswith("error: "), error
    assert error.count("\n") == 1, error
    return status, error


def test_what_is_wrong_is_said_in_one_line(
    log_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Shop(log_root).write(5)
    out = tmp_path / "out"
    assert run(command(log_root, out, "--since", 2)) == 0
    assert "complete below version 6" in capsys.readouterr().err
    for more, text in (
        (("--since", "3"), f"{out} holds 'item' of catalog"),
        (("--since", "9"), "--since 9: the published versions are 1 to 5"),
        (("--since", "0"), "--since"),
        (("--every", "soon"), "--every 'soon'"),
        (("--since", "2", "--like", str(tmp_path / "x")), "there is no export"),
    ):
        status, error = error_of(capsys, *command(log_root, out, *more))
        assert (status, text in error) == (2, True), error
    with LogWriter.open(log_root, "shop", mapping=MAPPING) as writer:
        writer.append([item(99, None, 1)])
        writer.append([Mutation("item", "99", after=image(99, 2))])
    status, error = error_of(capsys, *command(log_root, tmp_path / "new"))
    assert status == 1
    assert "version 7: the record of key '99' has no image 'before'" in error
    assert not (tmp_path / "new").exists()


def test_a_full_disk_leaves_nothing_half_written(
    log_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(log_root)
    shop.write(10)
    out = tmp_path / "out"
    with armed("export.before_link=enospc@3"):
        status, error = error_of(capsys, *command(log_root, out))
    assert (status, "writing continues once there is free space" in error) == (1, True)
    assert not [path.name for path in out.iterdir() if path.name.startswith(".")]
    assert run(command(log_root, out)) == 0
    assert collections(statements(out))[1] == 11
