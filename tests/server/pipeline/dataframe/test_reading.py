"""The options of a read through the data source: mistakes are refused before Spark reads anything."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import IntegerType, StringType, StructType

from tailrace.errors import (
    CatalogReplaced,
    CursorAhead,
    HistoryReplaced,
    InvalidRequest,
    TailraceError,
)
from tailrace_server.pipeline.dataframe.reading import RangeReader, ReadSource, StreamReader
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.state.commit_log import CommitLog
from tests.server.log_read.histories import write
from tests.server.wal.logs import upsert

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def log(log_root: Path) -> Path:
    write(log_root, [[upsert(str(each))] for each in range(4)])
    return log_root


def source(root: Path, **options: Any) -> ReadSource:
    given = {"log": root, "catalog": "shop", "entitytype": "order"} | options
    return ReadSource.of({name: str(value) for name, value in given.items()})


def batch(root: Path, **options: Any) -> RangeReader:
    found = source(root, **options)
    return found.batch(found.columns)


def stream(root: Path, **options: Any) -> StreamReader:
    found = source(root, **options)
    return found.stream(found.columns)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"startingversio": 1},
            "option 'startingversio' is unknown; did you mean startingVersion?",
        ),
        ({"server": "127.0.0.1:7411"}, "give log or server: the folder of the log, or a server"),
        ({"writer": "me"}, "option 'writer' is unknown"),
        ({"entitytype": "ordr"}, "no entity type 'ordr'; did you mean order?"),
        ({"startingversion": 3, "endingversion": 2}, "the start 3 is after the end 2"),
        ({"catalog": "stop"}, "stop; check the log root and the catalog's name"),
        ({"maxrowsperbatch": 5}, "option maxRowsPerBatch is for streams"),
        ({"maxrowsperbatch": 0}, "option maxRowsPerBatch: '0' is not a whole number above zero"),
        ({"columns": "id,valued"}, "order has no column 'valued'; did you mean value?"),
        ({"where": "valued > 1"}, "there is no column 'valued'; did you mean value?"),
    ],
)
def test_a_wrong_batch_read_is_refused(log: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(TailraceError) as refused:
        batch(log, **options)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shape": "state"}, "a stream has the shape changes or captures"),
        ({"endingversion": 3}, "a stream has no end"),
        ({"startingversion": 9}, "the newest version of catalog 'shop' is 5"),
    ],
)
def test_a_wrong_stream_is_refused(log: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        stream(log, **options).initialOffset()


def test_a_stream_begins_with_a_version_a_time_or_the_oldest_version(log: Path) -> None:
    view = CommitLog.open(log / "shop").view
    at = datetime.fromtimestamp(view.timestamp_of(3) / 1e6, UTC).isoformat()
    for options, version in (
        ({}, 0),
        ({"startingversion": 3}, 2),
        ({"startingtimestamp": at}, 2),
        ({"startingversion": 6}, 5),
    ):
        assert stream(log, **options).initialOffset()["version"] == version


@pytest.mark.parametrize(
    ("limits", "ends"),
    [
        ({}, [5]),
        ({"maxversionsperbatch": 2}, [2, 4, 5]),
        # The first version has a record of the schema and two rows more.
        ({"maxrowsperbatch": 4}, [1, 3, 5]),
        ({"maxrowsperbatch": 1}, [1, 2, 3, 4, 5]),
        ({"maxrowsperbatch": 4, "maxversionsperbatch": 1}, [1, 2, 3, 4, 5]),
    ],
)
def test_a_batch_ends_with_a_version_within_its_limits(
    log: Path, limits: dict[str, int], ends: list[int]
) -> None:
    reader, found = stream(log, **limits), []
    offset = reader.initialOffset()
    while (end := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
        found.append(end["version"])
        offset = end
    assert found == ends
    # A trigger that reads all at once is not limited.
    assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable()) == offset
    assert reader.reportLatestOffset() == offset


def test_available_now_ends_with_the_newest_version_of_its_start(log: Path) -> None:
    reader = stream(log, maxversionsperbatch=4)
    reader.prepareForTriggerAvailableNow()
    with LogWriter.open(log, "shop") as writer:
        writer.append([upsert("9")])
    first = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    last = reader.latestOffset(first, reader.getDefaultReadLimit())
    assert (first["version"], last["version"]) == (4, 5)
    assert reader.latestOffset(last, reader.getDefaultReadLimit()) == last
    assert reader.partitions(last, last) == []


def test_a_checkpoint_of_another_log_or_history_is_refused(log: Path, tmp_path: Path) -> None:
    copy, other = tmp_path / "copy", tmp_path / "other"
    shutil.copytree(log, copy)
    write(other, [[upsert(str(each))] for each in range(9)])
    with LogWriter.open(log, "shop") as writer:
        writer.append([upsert("9")])
    offset = stream(log).latestOffset(stream(log).initialOffset(), ReadAllAvailable())
    with pytest.raises(CatalogReplaced):
        stream(other).latestOffset(offset, ReadAllAvailable())
    # The log was restored from a copy: first it ends before the checkpoint, then it has another history.
    with pytest.raises(CursorAhead):
        stream(copy).latestOffset(offset, ReadAllAvailable())
    with LogWriter.open(copy, "shop") as writer:
        writer.append([upsert("8")])
    with pytest.raises(HistoryReplaced):
        stream(copy).latestOffset(offset, ReadAllAvailable())
    with pytest.raises(HistoryReplaced):
        stream(copy).partitions(stream(copy).initialOffset(), offset)


def test_a_checkpoint_of_another_source_is_refused(log: Path) -> None:
    with pytest.raises(InvalidRequest, match="the checkpoint has no cursor of a log"):
        stream(log).partitions({"offset": 1}, {"offset": 2})


def test_a_schema_of_the_caller_has_the_columns_of_the_log(log: Path) -> None:
    found = source(log, columns="id,value")
    fitting = StructType().add("id", StringType()).add("value", IntegerType())
    found.batch(fitting)
    for given in (
        StructType().add("id", StringType()),
        StructType().add("id", IntegerType()).add("value", IntegerType()),
        StructType([*fitting]).add("more", IntegerType()),
    ):
        with pytest.raises(InvalidRequest, match="the given schema"):
            found.batch(given)
