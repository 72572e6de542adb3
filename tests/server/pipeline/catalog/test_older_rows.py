"""A change that is older than what the log has of its row is set aside, in whatever order files come."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.criteria import Area, Operation
from tests.process.ingest.reading import records
from tests.server.pipeline.feeds import Feed
from tests.server.pipeline.shapes import envelope, line, postgres

if TYPE_CHECKING:
    from pathlib import Path


def mysql(file: str, pos: int, server: int, ts_ms: int) -> dict[str, Any]:
    block = {"connector": "mysql", "name": "shop", "db": "shop", "table": "product"}
    return {**block, "file": file, "pos": pos, "server_id": server, "ts_ms": ts_ms}


def change(source: dict[str, Any], key: int, value: int | None) -> bytes:
    """Return the line of an update of a row, or of its removal."""
    if value is None:
        return line(envelope("d", source, before={"id": key}))
    return line(envelope("u", source, after={"id": key, "v": value}))


def state(root: Path) -> dict[str, int]:
    rows: dict[str, int] = {}
    for record in records(root / "shop"):
        if record.area == Area.DATA and record.primary_key is not None:
            rows.pop(record.primary_key, None)
            if record.operation != Operation.REMOVE:
                rows[record.primary_key] = json.loads(record.after or b"")["v"]
    return rows


def run(root: Path, *lines: bytes, **options: Any) -> Feed:
    """Ingest a file in a run of its own."""
    feed = Feed(root, **options)
    feed.batch(*lines)
    feed.driver.flush(ended=True)
    feed.close()
    return feed


NEWER = (change(postgres(200, 20), 1, 2), change(postgres(210, 21), 2, None))
OLDER = (change(postgres(100, 10), 1, 1), change(postgres(110, 11), 2, 1))


def test_an_older_file_in_a_later_run_overrides_nothing(log_root: Path) -> None:
    run(log_root, *NEWER)
    feed = run(log_root, *OLDER, change(postgres(120, 12), 3, 7))
    assert state(log_root) == {"1": 2, "3": 7}
    reasons = [each["reason"] for each in feed.quarantine()]
    assert len(reasons) == 2
    assert all("older than what the log has of its row" in reason for reason in reasons)


def test_older_changes_are_taken_with_the_option(log_root: Path) -> None:
    run(log_root, *NEWER)
    run(log_root, *OLDER, takes_older=True)
    assert state(log_root) == {"1": 1, "2": 1}


def test_positions_of_tables_do_not_bound_each_other(log_root: Path) -> None:
    run(log_root, *NEWER)
    feed = run(log_root, change(postgres(100, 10, "customer"), 1, 9))
    assert feed.driver.counters.quarantined == 0


@pytest.mark.parametrize(
    "later",
    [
        pytest.param(mysql("db2-bin.000002", 5, 2, 2_000), id="another server"),
        pytest.param(mysql("db1-bin.000001", 5, 1, 2_000), id="the counter was reset"),
    ],
)
def test_a_low_position_of_another_log_is_not_older(log_root: Path, later: Any) -> None:
    run(log_root, change(mysql("db1-bin.000007", 900, 1, 1_000), 1, 1))
    run(log_root, change(later, 1, 2))
    assert state(log_root) == {"1": 2}


def test_a_late_file_of_the_former_server_is_older_by_its_time(log_root: Path) -> None:
    run(log_root, change(mysql("db2-bin.000002", 5, 2, 2_000), 1, 2))
    feed = run(log_root, change(mysql("db1-bin.000007", 900, 1, 1_000), 1, 1))
    assert state(log_root) == {"1": 2}
    assert len(feed.quarantine()) == 1


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[dict[str, int], list[list[bytes]]]:
    """Draw a history, and its lines in files that come in any order."""
    rows: dict[str, int] = {}
    files: list[list[bytes]] = [[] for _ in range(draw(st.integers(1, 4)))]
    for lsn in range(1, draw(st.integers(1, 12)) + 1):
        key, removed = draw(st.integers(1, 3)), draw(st.integers(0, 3)) == 0
        rows.pop(str(key), None)
        if not removed:
            rows[str(key)] = lsn
        text = change(postgres(lsn, lsn), key, None if removed else lsn)
        files[draw(st.integers(0, len(files) - 1))].append(text)
    return rows, draw(st.permutations(files))


@settings(max_examples=25)
@given(deliveries(), st.data())
def test_the_newest_position_of_a_row_wins_in_any_order_of_files(
    tmp_path_factory: pytest.TempPathFactory,
    case: tuple[dict[str, int], list[list[bytes]]],
    data: st.DataObject,
) -> None:
    wanted, files = case
    root = tmp_path_factory.mktemp("log")
    feed = Feed(root)
    for lines in files:
        feed.batch(*lines)
        if data.draw(st.booleans()):
            feed.driver.flush(ended=True)
    feed.driver.flush(ended=True)
    feed.close()
    assert state(root) == wanted
