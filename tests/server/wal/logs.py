"""What the tests of the log share: mutations, a plain picture of what a log shows, writers as processes."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psutil

from tailrace.criteria import Area, Operation
from tailrace_server.wal import transaction_buffer
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.columns import BODY_COLUMNS
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.segment.reader import BatchReader
from tailrace_server.wal.state.commit_log import CommitLog
from tests.support import failpoints

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

    from tailrace_server.wal.state.view import LogView

Row = tuple[Any, ...]
"""Running number, version, index, area, operation, type, hash, key, changed, change, before, after, time."""

VERSION, INDEX, AREA, KEY, AFTER = 1, 2, 3, 7, 11


class SteppingClock:
    """A clock that tests set; ``now`` stands still unless it is moved."""

    def __init__(self, now: int = 1_000_000) -> None:
        self.time = now

    def monotonic(self) -> float:
        return self.time / 1e6

    def now(self) -> int:
        return self.time

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing in the log sleeps by the clock")


def segment_path(catalog: Path, name: str) -> Path:
    """Return the path of a segment, in a folder that has of a catalog what segments need."""
    (catalog / "segments").mkdir(exist_ok=True)
    return catalog / "segments" / "1" / name


def upsert(key: str, value: int = 1, entity_type: str = "order") -> Mutation:
    """Return an insert of a small row."""
    return Mutation(entity_type, key, after=b'{"id":"%s","value":%d}' % (key.encode(), value))


def update(key: str, before: int, after: int) -> Mutation:
    """Return an update of a small row."""
    images = [b'{"id":"%s","value":%d}' % (key.encode(), value) for value in (before, after)]
    return Mutation("order", key, before=images[0], after=images[1])


def remove(key: str) -> Mutation:
    """Return a removal."""
    return Mutation("order", key, Operation.REMOVE, before=b'{"id":"%s"}' % key.encode())


def write(root: Path, catalog: str, transactions: int, *, per_commit: int = 1) -> None:
    """Write and publish transactions of three records, numbered by their keys.

    The first transaction of a catalog has a SCHEMA record besides.
    """
    with LogWriter.open(root, catalog) as writer:
        first = writer.state.last_version
        for number in range(first + 1, first + transactions + 1):
            key = str(number)
            rows = [upsert(key), update(f"{key}+", 1, number), remove(f"{key}-")]
            writer.append(rows, transaction_id=key)
            if number % per_commit == 0:
                writer.commit()


def rows_of(path: Path, view: LogView | None = None) -> list[Row]:
    """Return all that a view shows, by default the newest."""
    view = CommitLog.open(path).view if view is None else view
    with BatchReader(path) as reader:
        return [row for place in range(len(view)) for row in batch_rows(reader, view, place)]


def batch_rows(reader: BatchReader, view: LogView, place: int) -> list[Row]:
    """Return the records of one batch."""
    ref = view.batch(place)
    head, body = reader.head(ref), reader.body(ref, BODY_COLUMNS)
    columns = (
        range(ref.first_row, ref.first_row + ref.rows),
        head.versions.tolist(),
        head.indexes.tolist(),
        head.areas.tolist(),
        head.operations.tolist(),
        [head.entity_types[code] if code >= 0 else None for code in head.type_codes.tolist()],
        head.key_hashes.tolist(),
        head.primary_keys.to_pylist(),
        head.changed.to_pylist(),
        *(body[name].to_pylist() for name in BODY_COLUMNS),
        view.timestamps_of(head.versions).tolist(),
    )
    return list(zip(*columns, strict=True))


def transactions_in(rows: list[Row]) -> list[str]:
    """Return the keys of the first mutation of each version, which number the transactions of ``write``."""
    keys: dict[int, str] = {}
    for row in rows:
        if row[AREA] == Area.DATA:
            keys.setdefault(row[VERSION], row[KEY])
    return list(keys.values())


def write_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have log writers write every segment as a file, as small ones are not."""
    monkeypatch.setattr(transaction_buffer, "ROWS_MAX", 0)


@contextmanager
def armed(text: str) -> Iterator[None]:
    """Arm failpoints in this process for a while."""
    failpoints.arm(text)
    try:
        yield
    finally:
        failpoints.arm("")


def python(code: str, *arguments: object, failing: str = "") -> subprocess.Popen[str]:
    """Start Python code as a process of its own, with failpoints armed."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=failpoints.environment(failing),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def upkeep_processes() -> list[psutil.Process]:
    """Return those that this process has started; other tests may have left it a JVM."""
    children = psutil.Process().children()
    while any(each.is_running() and not each.cmdline() for each in children):
        time.sleep(0)  # a program that has just begun has no arguments for a moment
    return [each for each in children if "tailrace_server.wal.upkeep.process" in each.cmdline()]


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for a process; return its exit status and what it wrote."""
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err
