"""Typed DataFrames through Spark: all types and back by SQL, change feeds, snapshots, streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from tailrace_server.pipeline.dataframe.datasource import register
from tailrace_server.wal.catalog import list_catalogs
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.verify import verify
from tests.process.ingest.reading import data, leads, published
from tests.server.sql.test_query import ask

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


def save(frame: DataFrame, root: Path, **options: Any) -> None:
    """Write a frame of products."""
    given = {"log": root, "catalog": "shop", "entityType": "product", "key": "id", **options}
    writer = frame.write.format("tailrace")
    for name, value in given.items():
        writer = writer.option(name, str(value))
    writer.mode("append").save()


VALUES = """
    id, cast(id as byte) tiny, cast(id as short) small, cast(id as int) whole,
    cast(1.5 as float) real, double('NaN') nan, double('-Infinity') least,
    cast(12.50 as decimal(10,2)) price, cast('0.000000000000000001' as decimal(38,18)) fine,
    'a "quoted" \\\\ text\n' name, cast('é' as binary) photo, id = 1 flag,
    date'2024-02-29' day, timestamp'2024-02-29 13:37:00.123456Z' at,
    timestamp_ntz'2024-02-29 13:37:00.123456' local, interval '1 02:03:04.5' day to second span,
    array(1, null) numbers, map('k', 1.5D) extra,
    named_struct('x', 1, 'y', date'2024-02-29') place, null nothing, cast(null as int) missing
"""


def test_every_type_comes_back_by_sql(session: SparkSession, log_root: Path) -> None:
    save(session.sql(f"select {VALUES} from range(3)").repartition(2), log_root)
    columns = {
        column.name: (column.sql_type, column.encoding)
        for column in CommitLog.open(log_root / "shop").view.schema_of(1).columns("product")
    }
    assert columns["span"] == ("BIGINT", "debezium.MicroDuration")
    assert (columns["nothing"][0], columns["missing"][0]) == (None, "INTEGER")
    names = [name for name in columns if name not in ("photo",)]
    (row,) = ask(log_root, f"SELECT {', '.join(names)} FROM product WHERE id = 1")
    texts = {name: str(value) for name, value in zip(names, row, strict=True)}
    assert texts == {
        "id": "1",
        "tiny": "1",
        "small": "1",
        "whole": "1",
        "real": "1.5",
        "nan": "nan",
        "least": "-inf",
        "price": "12.50",
        "fine": "1E-18",
        "name": 'a "quoted" \\ text\n',
        "flag": "True",
        "day": "2024-02-29",
        "at": "2024-02-29 13:37:00.123456+00:00",
        "local": "2024-02-29 13:37:00.123456",
        "span": str((26 * 3_600 + 3 * 60 + 4) * 1_000_000 + 500_000),
        "numbers": "[1,null]",
        "extra": '{"k":1.5}',
        "place": '{"x":1,"y":"2024-02-29"}',
        "nothing": "None",
        "missing": "None",
    }
    assert ask(log_root, "SELECT photo FROM product WHERE id = 1") == [("é".encode(),)]


def test_a_change_feed_of_delta_goes_in_as_it_is(session: SparkSession, log_root: Path) -> None:
    """The columns are those of ``readChangeFeed``; its rows come in any order."""
    rows = [
        (1, "cup", "insert", 3, "2026-11-28 12:00:03"),
        (2, "jug", "insert", 3, "2026-11-28 12:00:03"),
        (1, "cup", "update_preimage", 5, "2026-11-28 12:00:05"),
        (1, "mug", "update_postimage", 5, "2026-11-28 12:00:05"),
        (2, "jug", "delete", 6, "2026-11-28 12:00:06"),
    ]
    feed = session.createDataFrame(
        rows, "id long, name string, _change_type string, _commit_version long, at string"
    )
    feed = feed.selectExpr("* except (at)", "cast(at as timestamp) _commit_timestamp")
    save(feed.repartition(4, "name"), log_root, batch=1)
    save(feed.coalesce(1), log_root, batch=1)
    assert published(log_root / "shop") == 3
    assert ask(log_root, "SELECT id, name FROM product") == [(1, "mug")]
    assert [each.changed for each in data(log_root / "shop") if each.version == 2] == [["name"]]
    times = [lead["source_timestamp"] % 60_000_000 for lead in leads(log_root / "shop")]
    assert times == [3_000_000, 5_000_000, 6_000_000]


def test_a_snapshot_is_the_difference_to_the_one_before(
    session: SparkSession, log_root: Path
) -> None:
    first = session.sql("select id, 'old' name from range(20000)")
    second = session.sql(
        "select id, if(id = 7, 'new', 'old') name from range(1, 20000) union all select 50000, 'old'"
    )
    for frame in (first, second):
        save(frame.repartition(3), log_root, mode="snapshot")
    assert published(log_root / "shop") == 2
    changes = [
        (each.primary_key, each.before, each.after)
        for each in data(log_root / "shop")
        if each.version == 2
    ]
    assert sorted(changes, key=lambda each: int(each[0] or 0)) == [
        ("0", b'{"id":0,"name":"old"}', None),
        ("7", b'{"id":7,"name":"old"}', b'{"id":7,"name":"new"}'),
        ("50000", None, b'{"id":50000,"name":"old"}'),
    ]
    assert verify(log_root / "shop").sound


def test_a_wrong_row_is_named_and_a_new_catalog_is_not_left(
    session: SparkSession, log_root: Path
) -> None:
    frame = session.sql("select cast(id % 5 as long) id, 'x' name from range(9)").repartition(3)
    with pytest.raises(Exception, match=r"product, key '[0-4]': the key has 2 rows"):
        save(frame, log_root)
    session.conf.set("spark.sql.caseSensitive", "true")
    try:
        with pytest.raises(Exception, match="'id' and 'ID' differ by case only"):
            save(frame.withColumn("ID", frame["name"]), log_root)
    finally:
        session.conf.unset("spark.sql.caseSensitive")
    with pytest.raises(Exception, match=r"column id is of type interval year.*cast it to a string"):
        save(session.sql("select interval '1' year id"), log_root)
    assert not list_catalogs(log_root)


def test_a_stream_of_typed_rows_is_committed_once(
    session: SparkSession, log_root: Path, tmp_path: Path
) -> None:
    """Each micro-batch is one version; the last one is repeated, and a second stream is refused."""
    frames, checkpoint = tmp_path / "frames", tmp_path / "checkpoint"

    def run(checkpoint: Path, columns: str = "id long, name string") -> None:
        query = (
            session.readStream.schema(columns)
            .parquet(str(frames))
            .writeStream.format("tailrace")
            .option("path", str(log_root / "shop"))
            .option("entityType", "product")
            .option("key", "id")
            .option("images", "full")
            .option("writer", "stream")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    for name in ("a", "b"):
        session.sql(f"select id, '{name}' name from range(5)").write.mode("append").parquet(
            str(frames)
        )
        run(checkpoint)
    (checkpoint / "commits" / "1").unlink()
    (checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    run(checkpoint)
    assert published(log_root / "shop") == 2
    assert {each.before for each in data(log_root / "shop") if each.version == 2} == {
        b'{"id":%d,"name":"a"}' % number for number in range(5)
    }
    with pytest.raises(StreamingQueryException, match="checkpoint is new or was lost"):
        run(tmp_path / "second")
    # A column cannot change to a type that does not hold the older values.
    session.sql("select id, 1 name from range(5)").write.mode("overwrite").parquet(str(frames))
    with pytest.raises(StreamingQueryException, match="'name' is INTEGER, which cannot hold"):
        run(checkpoint, "id long, name int")
    assert published(log_root / "shop") == 2
