"""Streams of messages through `ForeachBatchSink`, in the columns of Spark's Kafka connector and others."""

from __future__ import annotations

import logging
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from tailrace.errors import InvalidRequest, UnknownWriter, WriterFenced
from tailrace_server.pipeline.foreach_batch import ForeachBatchSink
from tailrace_server.pipeline.sources.debezium.source import Debezium
from tailrace_server.pipeline.transactions.settings import Rules
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.verify import verify
from tests.process.commands import environment
from tests.process.ingest.kafka_program import Message, messages_of, start, table_of, write_file
from tests.process.ingest.killable import Killable
from tests.process.ingest.reading import data, leads, published
from tests.process.ingest.test_ingest import finish, row
from tests.rules.test_documented_programs import blocks
from tests.server.pipeline.shapes import BY_ID
from tests.support.polling import wait_until
from tests.support.programs import Program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from tests.process.ingest.conftest import Source

pytestmark = pytest.mark.slow

WAITING = Rules(idle_s=3600.0)


def sink_into(folder: Source, *, writer: str = "stream", **options: Any) -> ForeachBatchSink:
    options = {"rules": WAITING, "source": Debezium(keys=BY_ID), **options}
    return ForeachBatchSink(folder.settings.log, "shop", writer=writer, **options)


def contents(source: Source) -> tuple[object, object]:
    """Return all that readers see of a catalog, but times of commits."""
    assert verify(source.catalog).sound
    return data(source.catalog), leads(source.catalog)


@pytest.mark.parametrize("rows", [0, 1_000])
def test_any_frame_of_strings_will_do(source: Source, rows: int) -> None:
    """No files and no offsets; batches numbered by a program."""
    frames = [
        [(text.decode(),) for text in lines]
        for lines in ([row(1, 7), b"{", row(2, 8)], [finish(7, 1), row(3, 8), finish(8, 2)])
    ]
    with sink_into(source, small_batch_rows=rows) as sink:
        for number, frame in enumerate(frames):
            for _ in range(2):
                sink.batch(source.spark.createDataFrame(frame, "value string"), number)
    assert [body["source_count"] for body in leads(source.catalog)] == [1, 2]
    positions = CommitLog.open(source.catalog).state.source_positions
    assert not [name for name in positions if name.startswith(("file:", "offset:"))]


@pytest.mark.parametrize("rows", [0, 1_000])
def test_a_stream_of_files_goes_through_foreach_batch_once_over_restarts(
    source: Source, tmp_path: Path, rows: int
) -> None:
    """Files are taken by time, and a batch whose end Spark forgot is repeated; a lost checkpoint is refused."""

    def run(checkpoint: str = "checkpoint") -> None:
        lines = source.spark.readStream.format("text").load(str(source.input))
        with sink_into(source, small_batch_rows=rows) as sink:
            query = (
                lines.select("value", "_metadata")
                .writeStream.foreachBatch(sink.batch)
                .option("checkpointLocation", str(tmp_path / checkpoint))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()

    def add(number: int, *lines: bytes) -> None:
        file = source.add(*lines)
        os.utime(file, (1_700_000_000 + number,) * 2)

    # 1. One batch of two files. The second one is shorter, so Spark lays it out first; it ends a transaction
    #    that the other one has begun.
    add(1, row(1, 7), b"{", *(row(number, 7) for number in range(2, 40)))
    add(2, row(40, 7), finish(7, 40))
    run()
    assert [body["source_count"] for body in leads(source.catalog)] == [40]
    assert [each.primary_key for each in data(source.catalog)] == [str(n) for n in range(1, 41)]
    # 2. A restart takes the new file alone, and one whose last end was forgotten commits nothing again.
    add(3, row(41, 8), finish(8, 1))
    run()
    for forgotten in (tmp_path / "checkpoint" / "commits").glob("*1*"):
        forgotten.unlink()
    run()
    add(4, row(42, 9), finish(9, 1))
    run()
    assert [body["source_count"] for body in leads(source.catalog)] == [40, 1, 1]
    # 3. Under another checkpoint Spark would send everything again.
    with pytest.raises(StreamingQueryException, match=r"checkpoint is new or was lost.*take_over"):
        run("another")
    assert published(source.catalog) == 3


class Topics:
    """A stream in the columns of the Kafka connector: a batch for each file of a folder."""

    def __init__(self, source: Source, folder: Path) -> None:
        self.source = source
        self.folder = folder
        self.batches = 0

    def add(self, *messages: Message) -> None:
        """Add a batch."""
        write_file(self.folder, self.batches, messages)
        self.batches += 1

    def run(self, checkpoint: str = "checkpoint", **options: Any) -> None:
        """Read what is there."""
        with sink_into(self.source, **options) as sink:
            checkpoint = str(self.folder.with_name(checkpoint))
            sink.run(start(self.source.spark, self.folder, checkpoint))


@pytest.fixture
def topics(source: Source, tmp_path: Path) -> Topics:
    return Topics(source, tmp_path / "topics")


def lines_of(messages: Iterable[Message]) -> list[bytes]:
    """Return messages as the lines of a file: with key and TAB, as a consumer prints them."""
    found = []
    for each in messages:
        key = b"" if each.key is None else each.key + b"\t"
        found.append(key + (b"null" if each.value is None else each.value))
    return found


@pytest.mark.parametrize("rows", [0, 1_000])
def test_a_stream_makes_the_log_that_the_files_of_its_partitions_make(
    source: Source, make_source: Callable[[str], Source], tmp_path: Path, rows: int
) -> None:
    """In any order of rows and tasks, with keys, tombstones and lines that cannot be used."""
    batches = messages_of(100, partitions=2, batches=2)
    with sink_into(source, small_batch_rows=rows, source=Debezium()) as sink:
        for number, batch in enumerate(batches):
            frame = source.spark.createDataFrame(table_of(batch))
            sink.batch(frame.repartition(3, "value"), number)
        nothing = source.spark.createDataFrame(table_of([]))
        sink.batch(nothing, len(batches))
        sink.driver.flush(ended=True)
    other = make_source("files")
    for number, batch in enumerate(batches):
        ordered = sorted(batch, key=lambda m: (m.topic, m.partition, m.offset))
        for (topic, partition), found in groupby(ordered, key=lambda m: (m.topic, m.partition)):
            part = list(found)
            name = f"{topic}+{partition}+{part[0].offset:010}.json"
            file = other.add(*lines_of(part), name=name)
            os.utime(file, (1_700_000_000 + number,) * 2)
    other.ingest(source=Debezium(), rules=WAITING)
    assert contents(source) == contents(other)
    positions = CommitLog.open(source.catalog).state.source_positions
    assert {n: v for n, v in positions.items() if n.startswith(("offset:", "file:"))} == {
        f"offset:{topic}/{partition}": f"{max(m.offset for m in batch_of) + 1}:"
        for (topic, partition), batch_of in _by_partition(batches).items()
    }


def _by_partition(batches: Iterable[list[Message]]) -> dict[tuple[str, int], list[Message]]:
    found: dict[tuple[str, int], list[Message]] = {}
    for batch in batches:
        for each in batch:
            found.setdefault((each.topic, each.partition), []).append(each)
    return found


def change(offset: int, partition: int = 0) -> Message:
    return Message(None, row(offset), "shop.public.product", partition, offset)


@pytest.mark.parametrize("rows", [0, 1_000])
def test_a_lost_checkpoint_repeats_nothing_and_loses_nothing(topics: Topics, rows: int) -> None:
    """The new stream reads from the beginning, in batches of another size, and goes on behind the log."""
    topics.add(*map(change, range(4)))
    topics.add(*map(change, range(4, 8)), change(0, partition=1))
    topics.run(small_batch_rows=rows)
    with pytest.raises(UnknownWriter, match=r"checkpoint is new or was lost.*take_over"):
        topics.run("second", small_batch_rows=rows)
    for file in topics.folder.glob("*.parquet"):
        file.unlink()
    topics.add(*map(change, range(6)))
    topics.add(*map(change, range(6, 11)), change(0, partition=1), change(1, partition=1))
    topics.run("second", take_over=True, small_batch_rows=rows)
    keys = [int(each.primary_key or "") for each in data(topics.source.catalog)]
    assert sorted(keys) == sorted([*range(11), 0, 1])
    topics.add(change(11))
    topics.run("second", small_batch_rows=rows)
    assert published(topics.source.catalog) == 14


def test_a_gap_is_an_error_until_it_is_accepted(
    topics: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    topics.add(*map(change, range(4)))
    topics.run()
    topics.add(change(6), change(7))
    with pytest.raises(
        InvalidRequest, match=r"missing.*: 4 to 5 of shop.public.product/0\..*accept_gaps"
    ):
        topics.run()
    assert published(topics.source.catalog) == 4
    with caplog.at_level(logging.WARNING):
        topics.run(accept_gaps=True)
    assert "without the missing offsets 4 to 5 of shop.public.product/0" in caplog.text
    assert published(topics.source.catalog) == 6


def test_a_topic_that_was_created_again_is_refused(topics: Topics) -> None:
    topics.add(*map(change, range(4)))
    topics.run()
    topics.add(*map(change, range(2)))
    with pytest.raises(
        InvalidRequest, match=r"returns offset 0 of .* after offset 3.*created again"
    ):
        topics.run()


def test_a_checkpoint_of_another_catalog_is_refused(
    topics: Topics, make_source: Callable[[str], Source]
) -> None:
    topics.add(change(0))
    topics.run()
    topics.add(change(1))
    topics.source = make_source("other")
    with pytest.raises(
        UnknownWriter, match="the log has no batch of this writer, so the checkpoint"
    ):
        topics.run()


def test_two_streams_need_two_writer_names(topics: Topics) -> None:
    topics.add(change(0))
    with sink_into(topics.source) as first:
        first.run(start(topics.source.spark, topics.folder, str(topics.folder.with_name("one"))))
        with pytest.raises(UnknownWriter, match="give a second stream its own writer name"):
            topics.run("two")
        topics.add(change(1))
        with pytest.raises(WriterFenced):
            first.run(
                start(topics.source.spark, topics.folder, str(topics.folder.with_name("one")))
            )


@pytest.mark.parametrize(
    ("columns", "rows", "message"),
    [
        ("line string", [("{}",)], "no column value, only line; select the message"),
        ("value int", [(1,)], "column value is int; cast it to string or binary"),
        (
            "value string, key long",
            [("{}", 1)],
            "column key is bigint; cast it to string or binary",
        ),
        ("value string, topic string", [("{}", "t")], "has topic, but not partition and offset"),
        (
            "value string, topic string, partition string, offset long",
            [("{}", "t", "0", 1)],
            "column partition is string; cast it to",
        ),
        (
            "value string, topic string, partition int, offset long",
            [("{}", "t", 0, None), ("{}", "t", 0, 2)],
            "a row has a null in topic, partition or offset",
        ),
        (
            "value string, topic string, partition int, offset long",
            [("{}", "t", 0, 2), ("{}", "t", 0, 2)],
            "partition t/0 has 2 rows at offsets 2 to 2: some offset comes twice",
        ),
    ],
)
def test_a_frame_that_cannot_be_read_is_refused_and_nothing_is_written(
    source: Source, columns: str, rows: list[tuple[object, ...]], message: str
) -> None:
    with sink_into(source, small_batch_rows=0) as sink:
        with pytest.raises(InvalidRequest, match=message):
            sink.batch(source.spark.createDataFrame(rows, columns), 0)
        sink.batch(source.spark.createDataFrame([(row(1).decode(),)], "value string"), 0)
    assert published(source.catalog) == 1


def test_what_becomes_due_is_done_without_a_call(topics: Topics) -> None:
    """A transaction without its end, and a publication, while the stream waits for more."""
    topics.add(Message(None, row(1, 7), "t", 0, 0))
    with sink_into(topics.source, rules=Rules(idle_s=0.2), publish_window_s=0.2) as sink:
        spark, checkpoint = topics.source.spark, str(topics.folder.with_name("checkpoint"))
        stream = start(spark, topics.folder, checkpoint, follow=True)
        with ThreadPoolExecutor(1) as threads:
            ended = threads.submit(sink.run, stream)
            wait_until(lambda: published(topics.source.catalog) == 1)
            for query in spark.streams.active:
                query.stop()
            ended.result()


@pytest.mark.timeout(600)
def test_a_stream_that_is_killed_between_and_in_batches_commits_every_line_once(
    topics: Topics, tmp_path: Path
) -> None:
    """Also if the checkpoint is lost with the last kill."""
    for number in range(4):
        topics.add(*map(change, range(3 * number, 3 * number + 3)))
    places = (topics.folder, topics.source.settings.log)
    for failpoints in ("pipeline.before_commit=kill@2", "pipeline.after_commit=kill@2"):
        program = Killable(
            tmp_path, "tests.process.ingest.kafka_program", *places, tmp_path / "checkpoint"
        )
        assert program.run(failpoints) < 0, program.said()
    topics.add(*map(change, range(12, 15)))
    again = Killable(
        tmp_path, "tests.process.ingest.kafka_program", *places, tmp_path / "new", "yes"
    )
    assert again.run() == 0, again.said()
    keys = [each.primary_key for each in data(topics.source.catalog)]
    assert keys == [str(number) for number in range(15)]


async def test_the_program_of_the_page_feeds_a_catalog(tmp_path: Path) -> None:
    """As it is printed, but for the connector and the end."""
    (program,) = blocks("ingest.md", "Kafka and other streams", "python")
    write_file(tmp_path / "topics", 0, messages_of(8, partitions=2, batches=1)[0])
    schema = "key binary, value binary, topic string, partition int, offset long"
    program = re.sub(
        r'format\("kafka"\).*?load\(\)',
        f'format("parquet").schema("{schema}").load("topics")',
        program.replace(", conf=CONNECTOR", "").replace(
            "writeStream.", "writeStream.trigger(availableNow=True)."
        ),
        flags=re.S,
    )
    (tmp_path / "kafka.py").write_text(program)
    command = sys.executable, "kafka.py"
    async with Program(*command, folder=tmp_path, environment=environment()) as running:
        status = await running.process.wait()
    assert (status, running.lines) == (0, []), running.notes
    assert [body["source_count"] for body in leads(tmp_path / "log" / "shop")] == [4, 4]
