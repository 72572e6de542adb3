"""Change streams of CDCv2 on Spark, by the command, and killed at named places and at any moment."""

from __future__ import annotations

import random
import signal
from typing import TYPE_CHECKING

import orjson
import pytest

from tailrace.cdcv2 import CountExceeded, DiffsDisagree, Progress, Update
from tailrace_server.cdcv2 import write_line
from tailrace_server.pipeline.cdcv2.driver import FRONTIER
from tailrace_server.pipeline.cdcv2.folding import Folding, KeyConflict
from tailrace_server.pipeline.cdcv2.ingest import ingest_cdcv2
from tailrace_server.pipeline.cdcv2.settings import Cdcv2Settings
from tailrace_server.pipeline.run.progress import ProgressReporter
from tailrace_server.pipeline.run.stop_signals import Stopping
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.verify import verify
from tests.process.ingest.killable import INPUT, Command, end
from tests.process.ingest.reading import leads, records
from tests.server.pipeline.cdcv2.streams import (
    SCHEMA,
    make_history,
    mangle,
    put,
    read_purely,
    statements,
    write_files,
)
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tailrace.cdcv2 import Statement
    from tailrace.errors import TailraceError
    from tests.process.ingest.reading import Record

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

IN_THE_LOG = pytest.mark.nightly(
    "tests/server/wal/test_crash.py kills a writer at this place, tests/process/ingest/test_cdcv2.py the ingest"
    " before and after a commit"
)


def ingest(
    spark: SparkSession | None, folder: Path, log: Path, catalog: str, **changes: object
) -> list[Record]:
    """Take what is there; return what the catalog holds."""
    key: tuple[str, ...] = changes.pop("key", ("id",))  # type: ignore[assignment]
    settings = Cdcv2Settings(
        input=folder,
        log=log,
        catalog=catalog,
        folding=Folding(SCHEMA, "product", key),
        **changes,  # type: ignore[arg-type]
    )
    ingest_cdcv2(settings, ProgressReporter(quiet=True), stopping=Stopping(), spark=spark)
    return records(log / catalog)


def state_of(catalog: Path) -> int:
    """Return how many rows the files of the state have."""
    return sum(
        file.rows for file in CommitLog.open(catalog).state.pending if "index" not in file.path
    )


@pytest.mark.parametrize(
    "partitions",
    [
        1,
        2,
        pytest.param(
            8,
            marks=pytest.mark.nightly(
                "tests/process/ingest/test_cdcv2.py: two; tests/server/pipeline/cdcv2/test_pieces.py"
            ),
        ),
    ],
)
def test_contract_40_any_number_of_shares_gives_the_log_of_the_driver_and_of_the_pure_reader(
    spark: SparkSession, tmp_path: Path, log_root: Path, partitions: int
) -> None:
    """In two batches, the second by another number of shares, so that state is read by others than wrote it."""
    history = make_history(partitions, 150, 30, 12)
    told = mangle(statements(history, 10, 151), partitions, window=200)
    pure, reader = read_purely(told)
    folder = tmp_path / "in"
    key = ("id",) if partitions > 1 else ()
    write_files(folder, told[: len(told) // 2], 3)
    ingest(spark, folder, log_root, "spark", partitions=partitions, small_batch_rows=0, key=key)
    half = state_of(log_root / "spark")
    assert half > 10
    ingest(None, folder, log_root, "driver", key=key)
    write_files(folder, told[len(told) // 2 :], 3, prefix="second-")
    found = ingest(spark, folder, log_root, "spark", partitions=3, small_batch_rows=0, key=key)
    assert found == ingest(None, folder, log_root, "driver", key=key)
    assert len(leads(log_root / "spark")) == len(pure)
    assert {lead["time"]: lead["source_count"] for lead in leads(log_root / "spark")} == {
        time: len(rows) for time, rows in pure.items()
    }
    positions = CommitLog.open(log_root / "spark").state.source_positions
    assert positions[FRONTIER] == orjson.dumps(list(reader.frontier)).decode()
    assert state_of(log_root / "spark") == state_of(log_root / "driver")
    assert verify(log_root / "spark").sound


def test_a_large_batch_keeps_what_the_batch_before_it_said_of_a_key(
    spark: SparkSession, tmp_path: Path, log_root: Path
) -> None:
    """The second batch is too small to replace the first one's tier of the index; the third needs its row."""
    folder = tmp_path / "in"
    folder.mkdir()
    batches: list[list[Update[int]]] = [
        [Update((key, "old", None), 1, 1) for key in range(40)],
        [Update((7, "newer", None), 2, 1)],
        [Update((7, "newest", None), 3, 1)],
    ]
    found: dict[str, list[Record]] = {}
    for number, batch in enumerate(batches):
        progress = Progress((number,), (number + 2,), ((number + 1, len(batch)),))
        lines = [write_line(SCHEMA.form, each) for each in (batch, progress)]
        put(folder / f"{number}.json", b"".join(lines))
        found["spark"] = ingest(spark, folder, log_root, "spark", partitions=2, small_batch_rows=0)
        found["driver"] = ingest(None, folder, log_root, "driver")
    assert found["spark"] == found["driver"]


def test_what_tasks_find_wrong_is_raised_with_both_sides(
    spark: SparkSession, tmp_path: Path, log_root: Path
) -> None:
    a, b = (1, "a", None), (1, "b", None)
    cases: dict[str, tuple[type[TailraceError], list[Statement[int]]]] = {
        "diffs": (DiffsDisagree, [[Update(a, 1, 1)], [Update(a, 1, 2)]]),
        "count": (
            CountExceeded,
            [Progress((0,), (2,), ((1, 1),)), [Update(a, 1, 1), Update(b, 1, -1)]],
        ),
        "key": (
            KeyConflict,
            [Progress((0,), (2,), ((1, 2),)), [Update(a, 1, 1), Update(b, 1, 1)]],
        ),
    }
    for name, (error, messages) in cases.items():
        folder = tmp_path / name
        folder.mkdir()
        put(folder / "a.json", b"".join(write_line(SCHEMA.form, each) for each in messages))
        with pytest.raises(error, match="1") as caught:
            ingest(spark, folder, log_root, name, partitions=2, small_batch_rows=0)
        if error is not KeyConflict:
            assert caught.value.figures()["first_message"] == "a.json byte 0"
        assert CommitLog.open(log_root / name).state.last_version == 0


class Ingest(Command):
    """An ingest of a change stream with a key."""

    def __init__(self, folder: Path, log_root: Path, *options: str) -> None:
        schema = folder / "schema.avsc"
        schema.write_text(SCHEMA.text)
        given = ("--schema", str(schema), "--entity-type", "product", "--key", "id")
        super().__init__("cdcv2", folder, log_root, *given, *options)


def prepared(folder: Path, seed: int) -> Sequence[Record]:
    """Write the files of a stream, and return the log that an undisturbed run makes of it."""
    told = mangle(statements(make_history(seed, 60, 15, 8), 6, 61), seed, window=50)
    write_files(folder / INPUT, told, 5)
    reference = folder / "reference"
    reference.mkdir()
    return ingest(None, folder / INPUT, reference, "shop", batch_bytes=1)


@pytest.mark.parametrize(
    "failpoint",
    [
        "pipeline.before_commit=kill@2",
        "pipeline.after_commit=kill@3",
        pytest.param("segment.before_rename=kill@2", marks=IN_THE_LOG),
        pytest.param("entry.after_link=kill@4", marks=IN_THE_LOG),
        pytest.param("publication.before_link=kill@2", marks=IN_THE_LOG),
    ],
)
def test_contract_34_an_ingest_of_a_change_stream_killed_at_a_named_place_loses_and_doubles_nothing(
    tmp_path: Path, log_root: Path, failpoint: str
) -> None:
    expected = prepared(tmp_path, 5)
    command = Ingest(tmp_path, log_root, "--batch-bytes", "1B")
    assert command.run(failpoint) == -signal.SIGKILL
    assert command.run() == 0, command.said()
    assert records(command.catalog) == expected
    assert verify(command.catalog).sound


def test_contract_34_an_ingest_of_a_change_stream_survives_kills_at_any_moment(
    tmp_path: Path, log_root: Path
) -> None:
    """Twice in one process, once on Spark between the tasks of a batch, then to the end."""
    expected = prepared(tmp_path, 8)
    small = Ingest(tmp_path, log_root, "--batch-bytes", "1B")
    rng = random.Random(8)
    for _ in range(2):
        kill_at(small, rng.randint(1, 4))
    large = Ingest(
        *(tmp_path, log_root, "--batch-bytes", "24KiB", "--small-batch-rows", "0"),
        *("--master", "local[2]"),
    )
    kill_at(large, rng.randint(1, 3))
    assert large.run() == 0, large.said()
    assert records(large.catalog) == expected
    assert verify(large.catalog).sound


def kill_at(command: Ingest, files: int) -> None:
    """Run until so many more files of segments or state have appeared, and kill all of it then."""
    before = len(written(command.catalog))
    process = command.start()
    try:
        wait_until(
            lambda: process.poll() is not None or len(written(command.catalog)) >= before + files,
            120.0,
        )
    finally:
        end(process)


def written(catalog: Path) -> list[Path]:
    return list((catalog / "segments").rglob("*cdcv2*.arrow"))


def test_an_incomplete_stream_ends_with_status_3_and_says_what_is_missing(
    tmp_path: Path, log_root: Path
) -> None:
    command = Ingest(tmp_path, log_root)
    command.input.mkdir()
    lines: list[Statement[int]] = [
        Progress((0,), (9,), ((1, 1), (4, 2))),
        [Update((1, "a", None), 1, 1)],
    ]
    put(command.input / "a.json", b"".join(write_line(SCHEMA.form, each) for each in lines))
    assert command.run() == 3
    assert "time 4: 0 of 2 received" in command.said()
    assert [lead["time"] for lead in leads(command.catalog)] == [1]


def test_of_what_is_missing_the_first_is_told_and_how_much_more_there_is(
    tmp_path: Path, log_root: Path
) -> None:
    command = Ingest(tmp_path, log_root)
    command.input.mkdir()
    missing = Progress((0,), (100,), tuple((time, 1) for time in range(1, 32)))
    (command.input / "a.json").write_bytes(write_line(SCHEMA.form, missing))
    assert command.run() == 3
    reasons = [line for line in command.said().splitlines() if line.startswith("error: ")]
    assert reasons[19:] == ["error: time 20: 0 of 1 received", "error: and 11 more"]


def test_a_followed_folder_is_read_as_files_appear_until_a_signal(
    tmp_path: Path, log_root: Path
) -> None:
    command = Ingest(tmp_path, log_root, "--follow")
    command.input.mkdir()
    process = command.start()
    try:
        for time in (1, 2):
            lines: list[Statement[int]] = [
                Progress((time if time > 1 else 0,), (time + 1,), ((time, 1),)),
                [Update((time, "a", None), time, 1)],
            ]
            put(
                command.input / f"{time}.json",
                b"".join(write_line(SCHEMA.form, each) for each in lines),
            )
            wait_until(lambda time=time: published_of(command.catalog) == time)  # type: ignore[misc]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
    finally:
        end(process)


def published_of(catalog: Path) -> int:
    if not (catalog / "catalog.json").exists():
        return 0
    return CommitLog.open(catalog).view.published
