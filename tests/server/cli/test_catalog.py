"""``tailrace catalog create``, ``set``, ``unset`` and ``show``, as their user sees them; and ``log trim``."""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING

import orjson
import pytest

from tailrace_server.cli.application import run
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.sequences.settings import newest_settings
from tailrace_server.wal.state.commit_log import CommitLog
from tests.server.wal.logs import SteppingClock, upsert, write

if TYPE_CHECKING:
    from pathlib import Path

LONG_AGO = 1_000_000


def tailrace(*arguments: object) -> tuple[int, str, str]:
    """Run a command; return its exit status and what it wrote."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run([*map(str, arguments)])
        out.flush()
    return status, out.buffer.getvalue().decode(), err.getvalue()


def settings_of(root: Path) -> dict[str, int]:
    log = CommitLog.open(root / "shop")
    return dict(newest_settings(log.store, log.uuid).settings)


def write_old(root: Path, versions: int) -> None:
    with LogWriter.open(root, "shop", clock=SteppingClock(LONG_AGO)) as writer:
        for number in range(versions):
            writer.append([upsert(str(number))])
            writer.commit()


def test_set_show_and_unset(log_root: Path) -> None:
    write(log_root, "shop", 2)
    at = ("--log", log_root)
    status, out, _ = tailrace("catalog", "set", "shop", "max_lookback=7d", "max_bytes=200GiB", *at)
    assert status == 0
    assert "max_lookback  7d\n" in out
    assert "max_bytes  200GiB\n" in out
    status, out, _ = tailrace("catalog", "show", "shop", *at, "--json")
    shown = orjson.loads(out)
    assert shown["oldest"] == "1:0"
    assert shown["oldestTimestamp"] > 0
    assert shown["settings"] == {"max_lookback": 7 * 86_400_000_000, "max_bytes": 200 << 30}
    assert (shown["bytes"] > 0, shown["bytesOver"]) == (True, 0)
    status, out, note = tailrace("catalog", "set", "shop", "max_lookback=168h", *at)
    assert (status, "nothing was changed" in note) == (0, True)
    assert tailrace("catalog", "unset", "shop", "max_bytes", *at)[0] == 0
    status, out, _ = tailrace("catalog", "show", "shop", *at)
    assert "max_bytes  not set\n" in out
    assert "oldest retained  1:0, committed " in out
    _, out, _ = tailrace("log", "inspect", log_root / "shop")
    assert "max_lookback  7d" in out


def test_a_catalog_is_created_with_its_settings_once(log_root: Path) -> None:
    arguments = ("catalog", "create", "shop", "max_lookback=1d", "--log", log_root)
    assert tailrace(*arguments)[0] == 0
    assert settings_of(log_root) == {"max_lookback": 86_400_000_000}
    status, _, error = tailrace(*arguments)
    assert status != 0
    assert "already exists; use tailrace catalog set to change" in error
    write(log_root, "shop", 1)
    assert settings_of(log_root) == {"max_lookback": 86_400_000_000}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("set", "shop", "max_lookbak=7d"), "did you mean max_lookback?"),
        (("set", "shop", "max_lookback"), "write NAME=VALUE, such as max_lookback=7d"),
        (("set", "shop", "max_lookback=7"), "the unit is missing; write it as in 7d"),
        (("set", "shop", "max_lookback=1m"), "at least 10m"),
        (("set", "shop", "max_bytes=1GiB", "max_bytes=2GiB"), "max_bytes is given twice"),
        (("unset", "shop", "max_byte"), "did you mean max_bytes?"),
        (("set", "shpo", "max_bytes=1GiB"), "shpo"),
        (
            ("set", "shop", "bodies=3d"),
            "bodies is a setting of an entity type: name one with --entity-type",
        ),
        (("set", "shop", "max_bytes=1GiB", "--entity-type", "order"), "leave --entity-type out"),
        (("set", "shop", "bodies=5m", "--entity-type", "order"), "at least 10m"),
        (
            ("set", "shop", "bodies", "--entity-type", "order"),
            "write NAME=VALUE, such as bodies=3d",
        ),
        (("set", "shop", "bodies=3d", "--entity-type", "odrer"), "'odrer'; did you mean order?"),
        (("create", "sh op"), "is not a valid name of a catalog"),
        (("create", "other", "max_bytes=-1GiB"), "must not be negative"),
    ],
)
def test_what_is_wrong_is_told_and_changes_nothing(
    log_root: Path, arguments: tuple[str, ...], told: str
) -> None:
    write(log_root, "shop", 1)
    status, _, error = tailrace("catalog", *arguments, "--log", log_root)
    assert status != 0
    assert told in error
    assert settings_of(log_root) == {}
    assert not (log_root / "other").exists()


def test_log_trim_without_a_version_goes_by_the_settings(log_root: Path) -> None:
    write_old(log_root, 3)
    write(log_root, "shop", 1)
    catalog = log_root / "shop"
    status, _, error = tailrace("log", "trim", catalog)
    assert status != 0
    assert (
        "give --before, or set how long versions are retained: tailrace catalog set shop" in error
    )
    tailrace("catalog", "set", "shop", "max_lookback=1d", "--log", log_root)
    _, out, _ = tailrace("catalog", "show", "shop", "--log", log_root)
    assert "trim to version 4, by the next writer or tailrace log trim" in out
    status, _, note = tailrace("log", "trim", catalog)
    assert status == 0
    assert "oldest retained position: 4:0" in note
    _, out, _ = tailrace("catalog", "show", "shop", "--log", log_root)
    assert "oldest retained  4:0, committed" in out
    assert "due" not in out


def test_bodies_of_an_entity_type_go_by_log_trim_where_no_writer_is(log_root: Path) -> None:
    write_old(log_root, 3)
    write(log_root, "shop", 1)
    catalog, at = log_root / "shop", ("--log", log_root)
    status, out, _ = tailrace("catalog", "set", "shop", "bodies=36h", "--entity-type", "order", *at)
    assert (status, "order  bodies=36h\n" in out) == (0, True)
    status, _, note = tailrace("log", "trim", catalog)
    assert (status, "bodies removed: " in note, "oldest retained position: 1:0" in note) == (
        0,
        True,
        True,
    )
    _, out, _ = tailrace("catalog", "show", "shop", *at)
    assert "order  bodies=36h, only heads below version 4\n" in out
    _, out, _ = tailrace("catalog", "show", "shop", *at, "--json")
    assert orjson.loads(out)["entityTypes"] == {
        "order": {"settings": {"bodies": 129_600_000_000}, "bodiesFrom": 4}
    }
    _, out, _ = tailrace("log", "inspect", catalog)
    assert "order  bodies=36h, only heads below version 4" in out
    _, out, _ = tailrace("log", "inspect", catalog, "--record", "2:1")
    assert "bodies removed: the entity type" in out
    tailrace("catalog", "unset", "shop", "bodies", "--entity-type", "order", *at)
    _, out, _ = tailrace("catalog", "show", "shop", *at)
    assert "order  only heads below version 4\n" in out
