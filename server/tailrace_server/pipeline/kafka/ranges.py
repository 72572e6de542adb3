"""Ranges of offsets, read by Spark tasks: each task reads a piece of one partition, as lines.

The pieces of a partition are blocks of one file, ``TOPIC+PARTITION+FIRST OFFSET``.
"""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from confluent_kafka import KafkaError, TopicPartition

from tailrace_server.pipeline.feed.source import SourceUnreachable
from tailrace_server.pipeline.kafka.errors import source_error
from tailrace_server.pipeline.kafka.formats import line_maker
from tailrace_server.pipeline.kafka.partitions import AT_ONCE, Partition, consumer
from tailrace_server.pipeline.transactions.lines import LINES_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tailrace_server.pipeline.kafka.options import KafkaOptions
    from tailrace_server.pipeline.kafka.partitions import Offsets

_LINES: Final = 2_500
_BYTES: Final = 8 << 20
"""Number and size of the lines that a task passes on at a time."""
_PATIENCE_S: Final = 60.0
"""Time without any message after which a task gives up, in seconds."""
_ROWS_MIN: Final = 20_000
"""Size from which a range is divided further; a task costs as much as reading some thousand messages."""

RANGES_SCHEMA: Final = pa.schema(
    [
        pa.field("task", pa.int32()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("first", pa.int64()),
        pa.field("start", pa.int64()),
        pa.field("stop", pa.int64()),
    ]
)
"""A piece of a partition: the offsets from start to stop, exclusive. Its partition begins at ``first`` in the
batch."""


def file_of(partition: Partition, first: int) -> str:
    """Return the name of a partition's lines in a batch, as Kafka Connect's sinks name files."""
    # Absolute, as it is then named like a file below the root.
    return f"/{partition.topic}+{partition.number}+{first:010}"


def ranges_of(starts: Offsets, stops: Offsets, tasks: int) -> pa.Table:
    """Return the pieces of some partitions as a table of `RANGES_SCHEMA`.

    Args:
        starts: First offset of each partition.
        stops: Offset at which the batch ends, exclusive, of each partition.
        tasks: Number of tasks to aim at.
    """
    total = sum(stops[each] - starts[each] for each in stops)
    size = max(_ROWS_MIN, math.ceil(total / tasks))
    pieces = [
        (*each, starts[each], start, min(start + size, stop))
        for each, stop in stops.items()
        for start in range(starts[each], stop, size)
    ]
    rows = [(task, *piece) for task, piece in enumerate(pieces)]
    columns = zip(*rows, strict=True)
    return pa.table(
        [
            pa.array(values, field.type)
            for values, field in zip(columns, RANGES_SCHEMA, strict=True)
        ],
        schema=RANGES_SCHEMA,
    )


def lines_batch(file: str, block: int, lines: list[bytes], batch_id: int) -> pa.RecordBatch:
    """Return lines of one file as a batch of `LINES_SCHEMA`; ``batch_id`` is the log's id of the batch."""
    columns = [
        pa.array(lines, pa.binary()),
        pa.repeat(file, len(lines)),
        pa.repeat(pa.scalar(block, pa.int64()), len(lines)),
        pa.repeat(pa.scalar(batch_id, pa.int64()), len(lines)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=LINES_SCHEMA)


@dataclass(frozen=True)
class OffsetRangeReader:
    """Reads pieces in a task: a function for ``mapInArrow``."""

    options: KafkaOptions
    batch_id: int
    """The log's id of the batch; lines are ordered by it."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the lines of the ranges in batches of `RANGES_SCHEMA`, as batches of `LINES_SCHEMA`."""
        for batch in batches:
            for piece in batch.to_pylist():
                partition = Partition(piece["topic"], piece["partition"])
                file = file_of(partition, piece["first"])
                for lines in self._read(partition, piece["start"], piece["stop"]):
                    yield lines_batch(file, piece["start"], lines, self.batch_id)

    def _read(self, partition: Partition, start: int, stop: int) -> Iterator[list[bytes]]:
        line_of = line_maker(self.options)
        with closing(consumer(self.options)) as reader:
            reader.assign([TopicPartition(*partition, start)])
            at, lines, size = start, list[bytes](), 0
            while at < stop:
                first = reader.poll(_PATIENCE_S)
                if first is None:
                    raise SourceUnreachable(f"{partition}: no message for {_PATIENCE_S:g} s")
                for each in (first, *reader.consume(AT_ONCE, 0)):  # without waiting for so many
                    error = each.error()
                    if error is not None and error.code() != KafkaError._PARTITION_EOF:
                        raise source_error(error, str(partition))
                    offset = each.offset() or 0
                    if error is None and offset < stop:
                        lines.append(line_of(each))
                        size += len(lines[-1])
                    at = offset + (error is None)
                    if at >= stop:
                        break
                if at >= stop or len(lines) >= _LINES or size >= _BYTES:
                    yield lines
                    lines, size = [], 0
