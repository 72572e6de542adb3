"""`spark.read` and `spark.readStream` of a log: the same rows as without Spark, batch by batch, or an error."""

from __future__ import annotations

from datetime import UTC, date, datetime
from datetime import time as day_time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.types import DecimalType, LongType, TimestampNTZType, TimestampType, TimeType

import tailrace
import tailrace.log
from tailrace import Operation
from tailrace.cursor import Cursor
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import SchemaMapping
from tailrace_server.wal.upkeep.retention import delete_unnamed, trim
from tests.process.commands import ServerProcess
from tests.server.log_read.serving import serving

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TYPED = """
[entity_types.product]
key = ["id"]
[entity_types.product.columns]
id = { type = "BIGINT" }
name = { type = "VARCHAR" }
price = { type = "DECIMAL(10,2)" }
"""
VALUES: dict[str, tuple[str, str, Any, Any]] = {
    "small": ("SMALLINT", "json", 7, 7),
    "truth": ("BOOLEAN", "json", True, True),
    "real": ("REAL", "json", 1.5, 1.5),
    "double": ("DOUBLE", "json", "NaN", None),
    "wide": ("DECIMAL(50,2)", "decimal.string", "1" * 40 + ".25", "1" * 40 + ".25"),
    "narrow": ("DECIMAL(38,10)", "json", 0.25, Decimal("0.2500000000")),
    "bytes": ("VARBINARY", "base64", "AAE=", b"\x00\x01"),
    "day": ("DATE", "debezium.Date", 19_782, date(2024, 2, 29)),
    "clock": ("TIME", "json", "13:37:00.25", day_time(13, 37, 0, 250_000)),
    "clock_ms": ("TIME", "debezium.Time", 1_500, day_time(0, 0, 1, 500_000)),
    "clock_ns": ("TIME", "debezium.NanoTime", 1_000_000_001, 1_000_000_001),
    "moment": (
        "TIMESTAMP",
        "json",
        "2024-02-29T13:37:00.000001",
        datetime(2024, 2, 29, 13, 37, 0, 1),
    ),
    "moment_ms": ("TIMESTAMP", "debezium.Timestamp", 1_001, datetime(1970, 1, 1, 0, 0, 1, 1_000)),
    "moment_ns": ("TIMESTAMP", "debezium.NanoTimestamp", 1_000_000_001, 1_000_000_001),
    "instant": (
        "TIMESTAMP WITH TIME ZONE",
        "json",
        "2024-02-29T13:37:00+01:00",
        datetime(2024, 2, 29, 12, 37, tzinfo=UTC),
    ),
    "document": ("JSON", "json", {"a": [1, None]}, '{"a":[1,null]}'),
    "nothing": ("VARCHAR", "json", None, None),
}
"""Column → its type and encoding, a value in an image, and the value in Spark."""


def image(key: int, name: str, price: str = "1") -> bytes:
    return b'{"id":%d,"name":"%s","price":%s}' % (key, name.encode(), price.encode())


def inserted(key: int, name: str = "cup") -> Mutation:
    return Mutation("product", str(key), after=image(key, name))


def updated(key: int, old: str, new: str) -> Mutation:
    return Mutation("product", str(key), before=image(key, old), after=image(key, new))


def removed(key: int, old: str) -> Mutation:
    return Mutation("product", str(key), Operation.REMOVE, before=image(key, old))


HISTORY = [
    [inserted(1), inserted(2), inserted(3)],
    [updated(1, "cup", "mug"), removed(2, "cup")],
    [inserted(each) for each in range(10, 20)],
    [updated(1, "mug", "jug")],
    [removed(3, "cup"), inserted(4)],
]


def append(root: Path, *history: list[Mutation], catalog: str = "shop") -> None:
    """Write transactions; each is a commit."""
    with LogWriter.open(root, catalog, mapping=SchemaMapping.parse(TYPED)) as writer:
        for mutations in history:
            writer.append(mutations)
            writer.commit(publish=True)


@pytest.fixture
def log(log_root: Path) -> Path:
    append(log_root, *HISTORY)
    return log_root


def frame(spark: SparkSession, root: Path, **options: Any) -> DataFrame:
    return spark.read.format("tailrace").options(**placed(root, options)).load()


def placed(root: Path, options: dict[str, Any]) -> dict[str, str]:
    given = {"log": root, "catalog": "shop", "entityType": "product"} | options
    return {name: str(value) for name, value in given.items() if value is not None}


def plain(rows: DataFrame) -> list[dict[str, Any]]:
    """Return the rows in Python, with times in UTC."""
    return [
        {
            name: value.astimezone(UTC) if name.endswith("timestamp") and value else value
            for name, value in row.asDict().items()
        }
        for row in rows.collect()
    ]


@pytest.mark.parametrize(
    ("options", "read"),
    [
        ({}, {}),
        ({"startingVersion": 2, "endingVersion": 4}, {"starting": 2, "ending": 4}),
        (
            {"where": "name = 'cup'", "columns": "_change_type,id"},
            {"where": "name = 'cup'", "columns": ["_change_type", "id"]},
        ),
        (
            {"deduplicationMode": "netChanges", "computeUpdates": "true"},
            {"deduplication": "netChanges", "compute_updates": True},
        ),
        ({"shape": "state", "version": 3}, {"shape": "state", "at": 3}),
        ({"shape": "captures", "entityType": None}, {"shape": "captures", "entity_type": None}),
    ],
)
def test_a_frame_has_the_rows_of_a_read_without_spark(
    spark: SparkSession, log: Path, options: dict[str, Any], read: dict[str, Any]
) -> None:
    found = plain(frame(spark, log, **options, rowsPerPart=4))
    expected = tailrace.log.read(log, "shop", **{"entity_type": "product", **read}).read_all()
    wanted = expected.to_pylist()
    if read.get("shape") == "state":  # whose rows have no order
        found, wanted = (sorted(rows, key=lambda row: row["id"]) for rows in (found, wanted))
    assert found == wanted


def test_reads_through_a_server_have_the_same_rows_and_never_show_the_token(
    spark: SparkSession, log: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    every = tailrace.log.read(log, "shop", "product").read_all().to_pylist()
    with serving(log) as address:
        options = {"log": None, "server": address, "token": "secretword"}
        changes = frame(spark, log, **options, rowsPerPart=2)
        state = frame(spark, log, **options, shape="state")
        assert changes.rdd.getNumPartitions() == 3
        assert plain(changes) == every
        assert sorted(map(str, plain(state))) == sorted(
            map(str, plain(frame(spark, log, shape="state")))
        )
        stream = Stream(spark, tmp_path, log, **options, maxRowsPerBatch=7)
        assert [row for rows in stream.run() for row in rows] == summary(every)
        append(log, [inserted(30)])
        assert stream.run() == [[(6, 30, "insert")]]
        with pytest.raises(PySparkException, match="no entity type 'products'") as refused:
            frame(spark, log, **options, entityType="products")
    with pytest.raises(PySparkException, match=f"{address}: .*; start it with") as away:
        frame(spark, log, **options)
    plans = changes._jdf.queryExecution().toString() + state._jdf.queryExecution().toString()
    checkpoint = b"".join(each.read_bytes() for each in tmp_path.rglob("*") if each.is_file())
    shown = f"{plans} {refused.value} {away.value} {checkpoint!r} {caplog.text}"
    assert "secretword" not in shown


def test_values_have_the_types_of_spark(spark: SparkSession, log_root: Path) -> None:
    columns = "\n".join(
        f'{name} = {{ type = "{kind}", encoding = "{encoding}" }}'
        for name, (kind, encoding, _, _) in VALUES.items()
    )
    mapping = SchemaMapping.parse(f"[entity_types.product.columns]\n{columns}")
    after = orjson.dumps({name: written for name, (_, _, written, _) in VALUES.items()})
    with LogWriter.open(log_root, "shop", mapping=mapping) as writer:
        writer.append([Mutation("product", "1", after=after)])
    rows = frame(spark, log_root, columns=",".join(VALUES))
    (found,) = [row.asDict() for row in rows.collect()]
    assert str(found.pop("double")) == "nan"
    found["instant"] = found["instant"].astimezone(UTC)
    assert found == {name: value for name, (*_, value) in VALUES.items() if name != "double"}
    kinds = {each.name: each.dataType for each in rows.schema}
    assert kinds["narrow"] == DecimalType(38, 10)
    assert (kinds["moment"], kinds["instant"]) == (TimestampNTZType(), TimestampType())
    assert (kinds["clock"], kinds["moment_ns"]) == (TimeType(), LongType())


def test_a_frame_stays_as_it_is_made_and_its_cursor_continues(
    spark: SparkSession, log: Path
) -> None:
    changes, state = frame(spark, log), frame(spark, log, shape="state")
    before = plain(changes), plain(state)
    append(log, [Mutation("product", "5", after=b'{"id":5,"name":"pan","price":1,"more":2}')])
    assert (plain(changes), plain(state)) == before
    for each in (changes, state):
        rest = frame(spark, log, startingCursor=each.schema["_commit_version"].metadata["cursor"])
        assert [(row["id"], row["more"]) for row in plain(rest)] == [(5, 2)]
    # A read of what is not there yet is empty, and stays empty.
    nothing = frame(spark, log, startingVersion=7)
    append(log, [inserted(6)])
    assert plain(nothing) == []


def test_filters_of_spark_leave_the_same_rows(spark: SparkSession, log: Path) -> None:
    wanted = "_commit_version > 1 and _change_type in ('insert', 'delete') and name = 'cup'"
    rows = plain(frame(spark, log).where(wanted))
    assert {row["_commit_version"] for row in rows} == {2, 3, 5}
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        assert plain(frame(spark, log, rowsPerPart=1).where(wanted)) == rows
        # The first versions are not read, so there are fewer partitions.
        count = frame(spark, log, rowsPerPart=1).where(wanted).rdd.getNumPartitions()
        assert count < frame(spark, log, rowsPerPart=1).rdd.getNumPartitions()
        state = frame(spark, log, shape="state").where("id = 1")
        assert [row["name"] for row in plain(state)] == ["jug"]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


class Stream:
    """A stream from a log into Parquet files, run until it has caught up."""

    def __init__(self, spark: SparkSession, folder: Path, root: Path, **options: Any) -> None:
        self._spark, self._folder, self._root, self._options = spark, folder, root, options
        self.batches: list[tuple[int, list[tuple[Any, ...]]]] = []
        """The rows of each batch, as (version, key, change type)."""

    def start(self, **options: Any) -> StreamingQuery:
        given = placed(self._root, self._options | options)
        rows = self._spark.readStream.format("tailrace").options(**given).load()
        writer = rows.writeStream.option("checkpointLocation", str(self._folder / "checkpoint"))
        return writer.foreachBatch(self._take).trigger(availableNow=True).start()

    def _take(self, rows: DataFrame, number: int) -> None:
        names = ("_commit_version", "id", "_change_type")
        self.batches.append(
            (number, [tuple(row[name] for name in names) for row in rows.collect()])
        )

    def run(self, **options: Any) -> list[list[tuple[Any, ...]]]:
        """Run it; return the rows of its new batches."""
        done = len(self.batches)
        query = self.start(**options)
        query.awaitTermination()
        return [rows for _, rows in self.batches[done:] if rows]


def summary(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(each["_commit_version"], each["id"], each["_change_type"]) for each in rows]


def test_a_stream_has_every_change_once_in_batches_of_whole_versions(
    spark: SparkSession, log: Path, tmp_path: Path
) -> None:
    every = summary(tailrace.log.read(log, "shop", "product").read_all().to_pylist())
    stream = Stream(spark, tmp_path, log, maxRowsPerBatch=7, rowsPerPart=3)
    batches = stream.run()
    assert [row for rows in batches for row in rows] == every
    # The third version has more rows than a batch may have, so it is a batch of its own.
    assert [sorted({version for version, *_ in rows}) for rows in batches] == [
        [1],
        [2],
        [3],
        [4, 5],
    ]
    append(log, [inserted(30)], [inserted(31)], [inserted(32)])
    assert stream.run(maxRowsPerBatch=None, maxVersionsPerBatch=2) == [
        [(6, 30, "insert"), (7, 31, "insert")],
        [(8, 32, "insert")],
    ]
    # Nothing new is nothing twice. The start of the options is for the first run alone.
    assert stream.run(startingVersion=1) == []


def test_a_stream_begins_after_a_position_inside_a_version(
    spark: SparkSession, log: Path, tmp_path: Path
) -> None:
    rows = tailrace.log.read(log, "shop", "product").read_all().to_pylist()
    at = next(place for place, row in enumerate(rows) if row["_change_type"] == "delete")
    inside = rows[at - 1]["_position"]  # the update before the removal, in one version
    found = Stream(spark, tmp_path, log, startingCursor=inside).run()
    assert [row for batch in found for row in batch] == summary(rows[at:])


def test_a_wrong_read_is_refused_before_spark_reads(spark: SparkSession, log: Path) -> None:
    with pytest.raises(PySparkException, match=r"option 'startingversio' .*mean startingVersion\?"):
        frame(spark, log, startingVersio=1)
    with pytest.raises(
        PySparkException, match=r"no entity type 'products'; did you mean product\?"
    ):
        frame(spark, log, entityType="products")
    with pytest.raises(PySparkException, match=r"begins with version 9, but the newest .* is 5"):
        frame(spark, log, startingVersion=9).collect()


def test_columns_that_differ_by_case_only_are_refused(spark: SparkSession, log_root: Path) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([Mutation("product", "1", after=b'{"id":1,"Name":2,"name":3}')])
    with pytest.raises(PySparkException, match="columns 'Name' and 'name'"):
        frame(spark, log_root)
    assert plain(frame(spark, log_root, columns="name")) == [{"name": 3}]


def test_trimmed_versions_are_an_error_and_never_a_part_of_the_rows(
    spark: SparkSession, log: Path, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path, log, maxVersionsPerBatch=1)
    every, late = frame(spark, log), frame(spark, log, startingVersion=5)
    (tmp_path / "old").mkdir()
    old = Stream(spark, tmp_path / "old", log)
    append(log, [inserted(40)])
    assert len(stream.run()) == 6
    trimmed(log, 4)
    gone = r"no longer in the log, which has 4:0 to"
    with pytest.raises(PySparkException, match=gone):
        every.collect()
    with pytest.raises(PySparkException, match=gone):
        frame(spark, log, startingVersion=2).collect()
    with pytest.raises(StreamingQueryException, match=gone):
        old.run(startingVersion=1)
    assert summary(plain(late)) == [(5, 3, "delete"), (5, 4, "insert")]
    assert {row["_commit_version"] for row in plain(frame(spark, log))} == {4, 5, 6}
    # A stream that continues behind the trim does not need what is gone, whatever its options say.
    append(log, [inserted(41)])
    assert stream.run(startingVersion=1) == [[(7, 41, "insert")]]


def trimmed(root: Path, before: int) -> None:
    """Delete the versions before a version."""
    trim(root / "shop", before, 0)
    delete_unnamed(root / "shop", 0)


def test_a_checkpoint_of_another_catalog_is_refused(
    spark: SparkSession, log: Path, tmp_path: Path
) -> None:
    stream, other = Stream(spark, tmp_path, log), tmp_path / "other"
    stream.run()
    append(other, *HISTORY, [inserted(50)])
    with pytest.raises(StreamingQueryException, match="CatalogReplaced"):
        stream.run(log=other)
    append(log, [inserted(51)])
    assert stream.run() == [[(6, 51, "insert")]]


async def test_a_subscriber_continues_at_a_position_that_spark_printed(
    spark: SparkSession, log: Path
) -> None:
    rows = plain(frame(spark, log, startingVersion=2))
    server = ServerProcess(log)
    async with server.up(), tailrace.connect(server.grpc) as client:
        for row in (rows[1], rows[-1]):  # inside a version, and after the newest one
            data = tailrace.Criteria(area=tailrace.Area.DATA, entity_type=("product",))
            append(log, [inserted(60 + row["id"])])
            # Both change rows of an update have one position; each other record has one change row.
            records = (
                tailrace.log.read(
                    log,
                    "shop",
                    shape="captures",
                    starting=Cursor.parse(row["_position"]),
                    columns=["version", "index", "area"],
                )
                .read_all()
                .to_pylist()
            )
            expected = [
                (each["version"], each["index"]) for each in records if each["area"] == "data"
            ]
            async with client.subscribe("shop", data, after=row["_position"]) as captures:
                found = [await anext(captures) for _ in expected]
            assert [(each.version, each.index) for each in found] == expected
            assert found[-1].primary_key == str(60 + row["id"])
