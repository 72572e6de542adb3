"""The ingest of CDCv2 from topics: each commit has the offsets, and the times that are finished before them.

Messages may come in any order and several times, so partitions need no order among each other. All batches run
in this process. Avro messages must have the schema of the stream: the registry says what schema they have.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final

import orjson

from tailrace.errors import InvalidRequest
from tailrace_server.cdcv2 import AvroForm, SchemaDiffers
from tailrace_server.pipeline.cdcv2.batch import SourceFile
from tailrace_server.pipeline.cdcv2.files import FRAME_WIDTH, OFFSET_WIDTH
from tailrace_server.pipeline.cdcv2.ingest import driver_of, open_writer, outcome_of
from tailrace_server.pipeline.feed.reconnection import Reconnection
from tailrace_server.pipeline.feed.source import SourceUnreachable
from tailrace_server.pipeline.kafka.partitions import NAME, Partitions
from tailrace_server.pipeline.kafka.schema_registry import UnreadableMessage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace_server.pipeline.cdcv2.driver import Cdcv2Driver
    from tailrace_server.pipeline.cdcv2.files import StreamSchema
    from tailrace_server.pipeline.cdcv2.ingest import Cdcv2Outcome
    from tailrace_server.pipeline.cdcv2.settings import Cdcv2Settings
    from tailrace_server.pipeline.kafka.options import KafkaOptions
    from tailrace_server.pipeline.kafka.partitions import Partition
    from tailrace_server.pipeline.run.metrics import IngestMetrics
    from tailrace_server.pipeline.run.progress import ProgressReporter
    from tailrace_server.pipeline.run.stop_signals import Stopping

_MESSAGES: Final = 100_000
_BATCH_BYTES: Final = 64 << 20
"""Number and size of the messages from which a batch is committed."""
_WAIT_S: Final = 0.1
"""Time of a turn without messages, in seconds."""


def ingest_topics(
    settings: Cdcv2Settings,
    options: KafkaOptions,
    reporter: ProgressReporter,
    *,
    stopping: Stopping,
    metrics: IngestMetrics,
) -> Cdcv2Outcome:
    """Run an ingest until the topics' present or the stream ends; with ``follow``, until a signal.

    Args:
        settings: The options of the ingest; ``input`` is not read.
        options: The topics and their brokers.
        reporter: Shows the progress.
        stopping: Ends the ingest when set.
        metrics: Exports the figures of the run.

    Raises:
        InvalidRequest: There is no such topic, or messages have another schema.
        SourceCompacted, SourceLost, SourceUnreachable, SourceRefused: As `run_kafka`.
        UnknownWriter: The catalog belongs to another writer.
        CdcError: Messages contradict each other; `Cdcv2Driver.batch` has further errors.
    """
    # A wrong name or address must not create a catalog.
    with closing(Partitions(options, reporter.complain)) as partitions:
        partitions.find({})
    with open_writer(settings) as writer:
        driver = driver_of(writer, settings)
        metrics.follow(driver)
        schemas = _Schemas(options, settings.folding.schema)
        reconnection = Reconnection(reporter, stopping, follow=settings.follow)
        while not (stopping.is_set() or driver.closed):
            try:
                with closing(Partitions(options, reporter.complain)) as partitions:
                    _read(partitions, driver, schemas, reconnection, reporter, stopping)
                break
            except SourceUnreachable as error:
                reconnection.failed(error)
        return outcome_of(driver, stopping)


def _read(
    partitions: Partitions,
    driver: Cdcv2Driver,
    schemas: _Schemas,
    reconnection: Reconnection,
    reporter: ProgressReporter,
    stopping: Stopping,
) -> None:
    settings = driver.settings
    partitions.find(driver.writer.state.source_positions)
    target = partitions.ends()
    size = min(settings.batch_bytes, _BATCH_BYTES)
    while not (stopping.is_set() or driver.closed):
        taken = partitions.take(_MESSAGES, size, _WAIT_S)
        schemas.check(taken)
        is_at_end = not settings.follow and partitions.has(target)
        # Offsets also move without messages, behind marks of producers and deleted messages.
        if taken or ((partitions.is_listing_old or is_at_end) and partitions.moved()):
            driver.batch([_file(*each) for each in taken.items()], partitions.moved())
            partitions.committed = dict(partitions.next)
        if is_at_end:
            return
        if not taken or partitions.is_listing_old:
            driver.counters.sources[NAME] = partitions.figures(partitions.ends(), driver.counters)
            reconnection.reached()
        if partitions.is_listing_old:
            partitions.find(driver.writer.state.source_positions)
        reporter.progress(driver.counters)


def _file(partition: Partition, messages: list[bytes]) -> SourceFile:
    name = f"{partition.topic}+{partition.number}"
    return SourceFile(name, name, sum(map(len, messages)), 0, tuple(messages))


class _Schemas:
    """The schemas of a registry that are that of the stream."""

    def __init__(self, options: KafkaOptions, schema: StreamSchema) -> None:
        self._options = options
        self._schema = schema
        self._same: set[bytes] = set()

    def check(self, taken: Mapping[Partition, list[bytes]]) -> None:
        """Compare the schemas of messages that are framed.

        Raises:
            InvalidRequest: No registry is given, or the schema is another one.
            SourceUnreachable, SourceRefused: The registry does not answer, or has no such schema.
        """
        for partition, messages in taken.items():
            heads = {each[OFFSET_WIDTH : OFFSET_WIDTH + FRAME_WIDTH] for each in messages}
            for head in heads - self._same:
                if head[:1] == b"\0" and len(head) == FRAME_WIDTH:
                    self._compare(int.from_bytes(head[1:], "big"), partition)
                    self._same.add(head)

    def _compare(self, number: int, partition: Partition) -> None:
        where = f"{partition}: schema {number}"
        try:
            definition = self._options.client_of_registry().definition(number)
            found = AvroForm.of(orjson.dumps(definition).decode(), product_times=True)
        except (UnreadableMessage, SchemaDiffers) as error:
            raise InvalidRequest(f"{where} is not that of the stream: {error}") from None
        self._schema.check_same(found, where)
