"""What ``tailrace export delta`` and ``tailrace catalog gate`` say, and what they refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.clock import SystemClock
from tailrace_server.cli.application import run
from tailrace_server.wal.gate import put_up_gate
from tailrace_server.wal.state.commit_log import CommitLog
from tests.server.export.delta.lakes import gone, item, open_shop, put

if TYPE_CHECKING:
    from pathlib import Path


def delta(root: Path, lake: Path, *more: str) -> int:
    return run(
        ["export", "delta", "--log", str(root), "--catalog", "shop", "--to", str(lake), *more]
    )


def gate(root: Path, *more: str) -> int:
    return run(["catalog", "gate", "shop", "--log", str(root), *more])


def test_it_says_what_it_wrote_and_how_far_the_tables_are(
    log_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = tmp_path / "lake"
    with open_shop(log_root) as writer:
        put(writer, item(1, 1), item(2, 2))
        assert delta(log_root, lake) == 0
        put(writer, item(1, 2), gone(2))
        assert delta(log_root, lake) == 0
        assert delta(log_root, lake) == 0
    told = capsys.readouterr().err.replace(str(lake), "LAKE").splitlines()
    assert told == [
        "· version 1 is in the tables: item 2 rows (Delta version 0)",
        "· the tables in LAKE are at version 1",
        "· version 2 is in the tables: item 1 row, 1 removed (Delta version 1)",
        "· the tables in LAKE are at version 2",
        "· the tables in LAKE are at version 2",
    ]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--gate"], "add --follow"),
        (["--gate", "--follow", "--every", "1s"], "--every: with --gate"),
        (["--misfits", "drop"], "write refuse or null"),
        (["--keep", "90m"], "a number of whole hours"),
        (["--keep", "soon"], "write a length of time as"),
        (["--follow", "--every", "often"], "write a length of time as"),
        (["--type", "items"], "no such entity type; did you mean item"),
    ],
)
def test_options_that_mean_nothing_are_refused_by_name(
    log_root: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    reason: str,
) -> None:
    with open_shop(log_root) as writer:
        put(writer, item(1, 1))
    assert delta(log_root, tmp_path / "lake", *options) == 2
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "lake").exists()


def test_a_gate_is_shown_and_taken_away(log_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_shop(log_root) as writer:
        put(writer, item(1, 1))
        assert gate(log_root) == 0
        put_up_gate(CommitLog.open(log_root / "shop"), "delta", "/lake", [], SystemClock())
        assert gate(log_root) == 0
        put(writer, item(2, 2))
        put(writer, item(3, 3))
        assert gate(log_root) == 0
        assert gate(log_root, "--remove") == 0
        assert gate(log_root, "--remove") == 0
    none = "· catalog shop has no gate: commits are published by their writers"
    assert capsys.readouterr().err.splitlines() == [
        none,
        "· publication of shop waits for delta at /lake: no version waits",
        "· publication of shop waits for delta at /lake: versions 2 to 3 wait",
        "· removed the gate delta at /lake; 2 versions published",
        none,
    ]


def test_the_log_is_inspected_with_its_gate(
    log_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_shop(log_root) as writer:
        put(writer, item(1, 1))
        put_up_gate(CommitLog.open(log_root / "shop"), "delta", "/lake", [], SystemClock())
        put(writer, item(2, 2))
    assert run(["log", "inspect", str(log_root / "shop")]) == 0
    shown = capsys.readouterr().out
    assert "1  by the gate delta at /lake  1 committed, not published" in shown
    assert " gate " in shown
