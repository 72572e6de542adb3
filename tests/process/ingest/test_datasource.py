"""The data source ``tailrace``: batch and stream writes, each once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

from tailrace.errors import InvalidRequest
from tailrace.schema import Origin
from tailrace_server.pipeline.dataframe.catalog_write import TaskCommit
from tailrace_server.pipeline.dataframe.datasource import (
    TailraceDataSource,
    TaskMessage,
    _commits,
    register,
)
from tailrace_server.pipeline.dataframe.sink import ROWS_AT_ONCE
from tailrace_server.pipeline.dataframe.write_options import Options
from tailrace_server.wal.catalog import create_catalog, list_catalogs
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.verify import verify
from tests.process.ingest.reading import data, leads, published
from tests.process.ingest.sink_program import (
    COLUMNS,
    add_frame,
    check_transactions,
    run,
    start_stream,
)
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.slow

SCHEMA = pa.schema(
    [
        ("transaction_id", pa.string()),
        ("operation", pa.string()),
        ("entity_type", pa.string()),
        ("primary_key", pa.string()),
        ("before", pa.string()),
        ("after", pa.string()),
    ]
)


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


def changes(spark: SparkSession, transactions: range, rows: int = 3, parts: int = 2) -> DataFrame:
    """Return changes, sorted into partitions of whole transactions."""
    table = pa.Table.from_pylist(
        [
            {
                "transaction_id": f"{t:06}",
                "operation": "upsert",
                "entity_type": "t" if t % 2 else "u",
                "primary_key": f"{t}-{r}",
                "before": '{"id":1}',
                "after": f'{{"id":1,"n":{r}}}',
            }
            for t in transactions
            for r in range(rows)
        ],
        schema=SCHEMA,
    )
    frame = spark.createDataFrame(table)
    return frame.repartitionByRange(parts, "transaction_id").sortWithinPartitions(
        "transaction_id", "primary_key"
    )


def save(frame: DataFrame, root: Path, **options: Any) -> None:
    writer = frame.write.format("tailrace").option("log", str(root)).option("catalog", "shop")
    for name, value in options.items():
        writer = writer.option(name, str(value))
    writer.mode("append").save()


def test_a_frame_becomes_versions_in_the_order_of_its_partitions(
    session: SparkSession, log_root: Path
) -> None:
    save(changes(session, range(1, 21)), log_root)
    save(changes(session, range(21, 31), parts=3), log_root)
    found = leads(log_root / "shop")
    assert [body["transaction_id"] for body in found] == [f"{t:06}" for t in range(1, 31)]
    assert (found[0]["counts"], found[0]["schema_changes"]) == ({"t": 4}, 1)
    assert found[2]["counts"] == {"t": 3}
    record = data(log_root / "shop")[1]
    assert (record.primary_key, record.changed, record.change) == ("1-1", ["n"], b'{"n":1}')
    view = CommitLog.open(log_root / "shop").view
    schema = view.schema_of(view.published)
    assert {t: [c.name for c in cs] for t, cs in schema.entity_types.items()} == {
        "t": ["id", "n"],
        "u": ["id", "n"],
    }


def test_of_a_large_frame_only_the_beginning_is_written_again_for_its_schema(
    session: SparkSession, log_root: Path
) -> None:
    rows = 3
    transactions = range(1, 3 * ROWS_AT_ONCE // rows)
    save(changes(session, transactions, rows), log_root)
    found = leads(log_root / "shop")
    assert [body["transaction_id"] for body in found] == [f"{t:06}" for t in transactions]
    assert [body.get("schema_changes", 0) for body in found[:3]] == [1, 1, 0]
    keys = [each.primary_key for each in data(log_root / "shop")]
    assert keys == [f"{t}-{r}" for t in transactions for r in range(rows)]
    assert verify(log_root / "shop").sound
    names = sorted(path.name for path in (log_root / "shop" / "segments").rglob("*.arrow"))
    assert [name.endswith("-rest.arrow") for name in names] == [True, False] * 2
    assert [name.endswith("-schema.arrow") for name in names].count(True) == 1
    assert names[1].endswith("-schema.arrow")


def test_a_batch_that_the_log_knows_is_skipped(session: SparkSession, log_root: Path) -> None:
    for _ in range(2):
        save(changes(session, range(1, 4)), log_root, batch=7)
    assert published(log_root / "shop") == 3
    save(changes(session, range(4, 6)), log_root, batch=8)
    save(changes(session, range(1, 4), parts=1), log_root, batch=7)
    assert published(log_root / "shop") == 5
    with pytest.raises(Exception, match=r"batch 7 of writer 'spark' is in the log .*other content"):
        save(changes(session, range(2, 5)), log_root, batch=7)
    with pytest.raises(Exception, match="batch numbers of a source must rise"):
        save(changes(session, range(4, 6)), log_root, batch=5)


def test_an_unpublished_write_is_released_by_the_next(
    session: SparkSession, log_root: Path
) -> None:
    for first in (1, 4):
        save(changes(session, range(first, first + 3)), log_root, publish="false")
        assert published(log_root / "shop") == 0
    save(changes(session, range(7, 9)), log_root)
    assert published(log_root / "shop") == 8


def test_contract_36_another_writer_needs_leave(session: SparkSession, log_root: Path) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        writer.publish()
    with pytest.raises(Exception, match="take_over"):
        save(changes(session, range(1, 4)), log_root)
    save(changes(session, range(1, 4)), log_root, take_over="true")
    assert published(log_root / "shop") == 3


def test_a_transaction_in_two_partitions_is_refused(session: SparkSession, log_root: Path) -> None:
    frame = changes(session, range(1, 2), rows=4).repartition(2, "primary_key")
    with pytest.raises(Exception, match="is in two partitions"):
        save(frame, log_root)
    assert not list_catalogs(log_root)


@pytest.mark.parametrize("partitions", [["A", "B", "A"], ["AX", "BA"]], ids="-".join)
def test_a_transaction_in_partitions_apart_is_refused(
    session: SparkSession, log_root: Path, partitions: list[str]
) -> None:
    rows = [[(id, "upsert", "t", id, None, '{"id":1}') for id in ids] for ids in partitions]
    spread = session.sparkContext.parallelize(rows, len(rows)).flatMap(lambda each: each)
    frame = session.createDataFrame(spread, ", ".join(f"{name} string" for name in SCHEMA.names))
    with pytest.raises(Exception, match="transaction 'A' is in two partitions"):
        save(frame, log_root)
    assert not list_catalogs(log_root)
    create_catalog(log_root, "shop")
    with pytest.raises(Exception, match="transaction 'A' is in two partitions"):
        save(frame, log_root)
    assert published(log_root / "shop") == 0
    assert not list((log_root / "shop" / "segments").rglob("*.arrow"))


def test_an_empty_frame_is_an_empty_commit(session: SparkSession, log_root: Path) -> None:
    save(changes(session, range(1, 4)).where("1 = 0"), log_root)
    assert published(log_root / "shop") == 0
    assert CommitLog.open(log_root / "shop").state.last_entry == 2


def test_overwriting_a_log_is_refused(session: SparkSession, log_root: Path) -> None:
    frame = changes(session, range(1, 4))
    with pytest.raises(Exception, match="supports only appends"):
        frame.write.format("tailrace").mode("overwrite").save(str(log_root / "shop"))


def test_a_stream_is_committed_batch_by_batch_and_once(
    session: SparkSession, log_root: Path, tmp_path: Path
) -> None:
    """Each run takes what is new; a run whose last commit Spark forgot commits nothing again."""
    frames = tmp_path / "frames"
    checkpoint = tmp_path / "checkpoint"

    def run() -> None:
        stream = session.readStream.format("parquet").schema(changes(session, range(1)).schema)
        query = (
            stream.load(str(frames))
            .writeStream.format("tailrace")
            .option("path", str(log_root / "shop"))
            .option("checkpointLocation", str(checkpoint))
            .option("writer", "stream")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    for first in (1, 11):
        changes(session, range(first, first + 10), parts=1).write.mode("append").parquet(
            str(frames)
        )
        run()
    assert published(log_root / "shop") == 20
    (checkpoint / "commits" / "1").unlink()
    (checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    run()
    assert [b["transaction_id"] for b in leads(log_root / "shop")] == [
        f"{t:06}" for t in range(1, 21)
    ]


def test_a_stream_and_writes_share_a_writer_and_lose_nothing(
    session: SparkSession, log_root: Path, tmp_path: Path
) -> None:
    frames, catalog, checkpoint = tmp_path / "frames", log_root / "shop", tmp_path / "checkpoint"
    add_frame(frames, 1, range(1, 2))
    run(session, "spark", frames, catalog, checkpoint)
    save(changes(session, range(100, 101)), log_root)
    for number in (2, 3):
        add_frame(frames, number, range(number, number + 1))
    run(session, "spark", frames, catalog, checkpoint)
    ids = [body["transaction_id"] for body in leads(catalog)]
    assert ids == ["000001", "000100", "000002", "000003"]
    # A second stream, and one whose checkpoint was lost, begin with batch 0 again.
    with pytest.raises(StreamingQueryException, match=r"checkpoint is new or was lost.*take_over"):
        run(session, "spark", frames, catalog, tmp_path / "second")
    assert CommitLog.open(catalog).state.last_version == 4
    add_frame(frames, 4, range(4, 5))
    run(session, "spark", frames, catalog, checkpoint)
    assert published(catalog) == 5


def test_numbers_of_foreach_batch_belong_to_the_checkpoint(
    session: SparkSession, log_root: Path, tmp_path: Path
) -> None:
    frames = tmp_path / "frames"
    add_frame(frames, 1, range(1, 2))

    def write(checkpoint: str, **options: Any) -> None:
        stream = session.readStream.schema(", ".join(f"{name} string" for name in COLUMNS))
        query = (
            stream.parquet(str(frames))
            .writeStream.foreachBatch(
                lambda frame, number: save(frame, log_root, batch=number, **options)
            )
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    save(changes(session, range(100, 101)), log_root, batch=0)
    write("first")
    with pytest.raises(StreamingQueryException, match=r"checkpoint is new or was lost"):
        write("second")
    write("second", take_over=True)
    assert [body["transaction_id"] for body in leads(log_root / "shop")] == [
        "000100",
        "000001",
        "000001",
    ]


FENCED = r"fenced: this writer's epoch is 1, but epoch 2 is held by newer on .*, run "


class Follower:
    """A stream of the writer ``older`` that follows a folder, in the session of the tests."""

    def __init__(self, session: SparkSession, folder: Path, log_root: Path) -> None:
        self.session = session
        self.frames = folder / "frames"
        self.checkpoint = folder / "checkpoint"
        self.catalog = log_root / "shop"
        add_frame(self.frames, 1, range(1, 4))
        self.query = start_stream(
            *(session, self.frames, self.catalog, self.checkpoint, "older"), follow=True
        )
        self.await_batch(0)

    def await_batch(self, number: int) -> None:
        """Wait until Spark has noted a batch as done, so that the query waits for the next."""
        note = self.checkpoint / "commits" / str(number)
        wait_until(lambda: note.exists() or not self.query.isActive)
        assert note.exists()

    def newer(self, *, take_over: bool) -> StreamingQuery:
        """Start a stream of the writer ``newer`` that reads the same to its end."""
        checkpoint = self.checkpoint.with_name("newer")
        return start_stream(
            *(self.session, self.frames, self.catalog, checkpoint, "newer"), take_over=take_over
        )


@pytest.fixture
def follower(session: SparkSession, tmp_path: Path, log_root: Path) -> Iterator[Follower]:
    follower = Follower(session, tmp_path, log_root)
    try:
        yield follower
    finally:
        follower.query.stop()


def test_contract_36_a_stream_of_another_writer_is_refused_while_one_lives_which_goes_on(
    follower: Follower, log_root: Path
) -> None:
    with pytest.raises(StreamingQueryException, match=r"'newer' is not one of older: .*take_over"):
        follower.newer(take_over=False).awaitTermination()
    with pytest.raises(Exception, match=r"'spark' is not one of older: .*take_over"):
        save(changes(follower.session, range(7, 9)), log_root)
    add_frame(follower.frames, 2, range(4, 7))
    follower.await_batch(1)
    check_transactions(follower.catalog, range(1, 7))


def test_contract_36_a_stream_that_wakes_up_after_a_take_over_is_fenced_with_the_name_of_the_holder(
    follower: Follower,
) -> None:
    """It waited for files, and Spark makes its writer anew for each batch: that opens nothing again."""
    follower.newer(take_over=True).awaitTermination()
    held = CommitLog.open(follower.catalog).state.last_entry
    add_frame(follower.frames, 2, range(4, 7))
    with pytest.raises(StreamingQueryException, match=FENCED):
        follower.query.awaitTermination(60)
    assert CommitLog.open(follower.catalog).state.last_entry == held
    follower.newer(take_over=False).awaitTermination()
    # Both writers have read the first file: a take-over of the sink does not know its sources.
    check_transactions(follower.catalog, [*range(1, 4), *range(1, 4), *range(4, 7)])


def test_a_batch_of_a_stream_is_committed_under_the_epoch_that_its_tasks_wrote_under(
    session: SparkSession, log_root: Path, tmp_path: Path
) -> None:
    """Under a newer one its segments would be orphans, which anyone may delete before the commit."""
    frames, catalog = tmp_path / "frames", log_root / "shop"
    for number in (1, 2, 3):
        add_frame(frames, number, range(3 * number, 3 * number + 3))
    run(session, "stream", frames, catalog, tmp_path / "checkpoint")
    assert CommitLog.open(catalog).state.epoch == 3
    check_transactions(catalog, range(3, 12))


def test_a_commit_without_a_write_is_refused() -> None:
    """What a continuous trigger would do."""
    with pytest.raises(InvalidRequest, match="continuous"):
        _commits([TaskMessage(TaskCommit(1, [], "")), None])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give the catalog"),
        ({"log": "/x"}, "give the catalog"),
        ({"log": "/x", "catalog": "y", "path": "/x/y"}, "give the catalog"),
        ({"path": "/x/y", "wirter": "z"}, "no option 'wirter'"),
        ({"log": "/x", "catalog": "a/b"}, "'a/b' is not a valid name of a catalog"),
        ({"log": "/x", "catalog": "../y"}, "is not a valid name of a catalog"),
        ({"path": "/x/y", "batch": "-1"}, "option batch is -1"),
        ({"path": "/x/y", "batch": "9" * 20}, "must be from 0"),
        ({"path": "/x/y", "batch": "z"}, "option columns or batch"),
        ({"path": "/x/y", "columns": "{"}, "option columns or batch"),
        ({"path": "/x/y", "columns": "[]"}, "entity type → columns"),
        ({"path": "/x/y", "columns": '{"t": {"fields": 1}}'}, "DataFrame's schema"),
        ({"path": "/x/y", "publish": "maybe"}, "true or false"),
    ],
)
def test_options_are_checked(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        Options.of(options)


def test_columns_may_be_handed_over(session: SparkSession, log_root: Path) -> None:
    save(changes(session, range(1, 3)), log_root, columns='{"t":["n","id","later"]}')
    view = CommitLog.open(log_root / "shop").view
    names = [column.name for column in view.schema_of(1).entity_types["t"]]
    assert names == ["n", "id", "later"]


def test_a_tables_schema_gives_its_columns_their_types(
    session: SparkSession, log_root: Path
) -> None:
    """From its own rows as JSON; later a wider type widens, and a column that is gone is dropped."""
    table = session.sql(
        "select cast(id as int) id, cast(1.50 as decimal(10,2)) price, "
        "timestamp_ntz'2024-01-02 03:04:05' made, array(1) parts from range(2)"
    )
    wider = session.sql("select id, cast(1.50 as decimal(12,2)) price from range(2)")
    before = """'{"made":"2024-01-02T03:04:05"}' before"""  # names a column as changed that is gone
    for batch, frame in enumerate((table, wider)):
        rows = frame.selectExpr(
            f"'t{batch}' transaction_id",
            "'upsert' operation",
            "'product' entity_type",
            "cast(id as string) primary_key",
            "to_json(struct(*)) after",
            before if batch else "null before",
        ).coalesce(1)
        save(rows, log_root, columns=json.dumps({"product": frame.schema.jsonValue()}))
    view = CommitLog.open(log_root / "shop").view
    first, second = (
        {
            column.name: (column.sql_type, column.nullable, column.dropped, column.origin)
            for column in view.schema_of(version).entity_types["product"]
        }
        for version in (1, 2)
    )
    assert first == {
        "id": ("INTEGER", False, False, Origin.TABLE),
        "price": ("DECIMAL(10,2)", False, False, Origin.TABLE),
        "made": ("TIMESTAMP", False, False, Origin.TABLE),
        "parts": ("JSON", False, False, Origin.TABLE),
    }
    assert second["id"] == ("BIGINT", False, False, Origin.TABLE)
    assert second["price"][0] == "DECIMAL(12,2)"
    assert second["made"][2]
    assert second["parts"][2]


def test_a_column_that_only_changed_names_is_in_the_schema_and_bodies_are_objects(
    session: SparkSession, log_root: Path
) -> None:
    """What subscribers to columns take for granted."""
    columns = "transaction_id string, operation string, entity_type string, primary_key string, "
    columns += "changed array<string>, after string, change string"
    row = ("A", "upsert", "t", "1", ["price"], "{}")
    save(session.createDataFrame([(*row, '{"price":1}')], columns), log_root)
    schema = CommitLog.open(log_root / "shop").view.schema_of(1)
    assert [column.name for column in schema.entity_types["t"]] == ["price"]
    with pytest.raises(Exception, match="column change of transaction 'A', t, key '1' is not a"):
        save(session.createDataFrame([(*row, "garbage")], columns), log_root)
    assert published(log_root / "shop") == 1


def test_the_source_has_its_name() -> None:
    assert TailraceDataSource.name() == "tailrace"
