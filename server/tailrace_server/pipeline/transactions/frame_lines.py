"""The lines of any DataFrame of messages: its columns, the order of its rows, and the offsets that they have.

=====================  ============================================================================
column                 meaning
=====================  ============================================================================
value                  the message, string or binary; null is a tombstone
key                    optional: the key of the message, JSON as string or binary
topic, partition,      optional, all three: rows are ordered by them, and the log stores the offsets
offset
_metadata              optional, of Spark's file source: rows are ordered by file and line
file, block,           optional: the columns of `lines.LINES_SCHEMA`
modified_us
=====================  ============================================================================

Other columns are ignored. Rows without offsets and files keep the order of the frame.

A small frame is read once, by one job. A larger frame is read once too and persisted, except that the first job
has read up to the limit of each partition. To persist every frame would take three times as long for a small
one; so the caller expects the size of the batch before.

The lines of one partition in a batch are a file ``TOPIC+PARTITION+FIRST OFFSET``. Kafka Connect's sinks name
files in this way.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.transactions.lines import LINES_SCHEMA
from tailrace_server.wal.source_batches import BatchContent
from tailrace_server.wal.source_offsets import OffsetRange

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame

_PARTITION: Final = ("topic", "partition")
_OFFSETS: Final = (*_PARTITION, "offset")
_FILES: Final = ("file", "block", "modified_us")
_TEXTS: Final = ("string", "binary")
_WHOLE: Final = ("tinyint", "smallint", "int", "bigint")
_TYPES: Final = {
    "value": _TEXTS,
    "key": _TEXTS,
    "topic": ("string",),
    "partition": _WHOLE,
    "offset": _WHOLE,
}
_ROW: Final = "row"
"""The number of a row in the order of the frame."""


class _TaskLines(NamedTuple):
    """The figures of the lines of one partition in one task."""

    topic: str | None
    partition: int | None
    task: int
    rows: int
    numbered: int
    """Number of rows with an offset."""
    first: Any
    last: Any
    checksum: int | None
    first_name: str | None
    last_name: str | None


class FrameLines:
    """The lines of one batch. Close it: Spark may have persisted them."""

    def __init__(
        self, frame: DataFrame, batch_id: int, small_rows: int, *, expect_small: bool
    ) -> None:
        """Read the frame.

        Args:
            frame: The batch.
            batch_id: The log's id of the batch; lines without files are ordered by it.
            small_rows: Maximum number of lines that are collected.
            expect_small: False to persist the frame before its size is known.

        Raises:
            InvalidRequest: A column is missing, has another type or a null, or the rows have no order.
        """
        self._has_offsets = _check_columns(frame)
        self._has_files = bool({"file", "_metadata"} & set(frame.columns))
        self._frame = frame.selectExpr(*_expressions(frame.columns, batch_id))
        self._table: pa.Table | None = None
        if expect_small:
            # A limit ends early, but loses the order of the tasks, which the column `row` restores.
            table = self._frame.limit(small_rows + 1).toArrow()
            self._table = table if table.num_rows <= small_rows else None
        self._is_persisted = self._table is None
        if self._is_persisted:
            self._frame = self._frame.persist()
        try:
            self._parts = [*_parts(self._frame if self._table is None else self._table)]
            if self._table is None and self.content.rows <= small_rows:
                self._table = self._frame.toArrow()
            self.offsets = self._checked()
            """The offsets of each partition; empty if the frame has none."""
        except BaseException:
            self.close()
            raise

    @property
    def is_small(self) -> bool:
        """True if the lines are collected."""
        return self._table is not None

    @property
    def content(self) -> BatchContent:
        """The count and the checksum of the lines."""
        checksum = sum(part.checksum or 0 for part in self._parts)
        return BatchContent(sum(part.rows for part in self._parts), checksum % (1 << 64))

    def collected(self, positions: Mapping[str, int | str]) -> pa.Table:
        """Return the lines whose offsets the log lacks as a table of `LINES_SCHEMA`; only of a small batch."""
        assert self._table is not None
        table = self._table
        if self._has_offsets:
            parts = self._files(positions)
            partition = pc.cast(table["partition"], pa.string())
            texts = pc.binary_join_element_wise(table["topic"], partition, "/")
            places = pc.index_in(texts, pa.array(map(str, self.offsets), pa.string()))
            for name in ("file", "next"):
                table = _with(table, name, parts[name].take(places.combine_chunks()))
            table = table.filter(pc.greater_equal(table["offset"], table["next"]))
            table = table.sort_by([(name, "ascending") for name in _OFFSETS])
        else:
            table = table.sort_by(_ROW)
        return table.select(LINES_SCHEMA.names).cast(LINES_SCHEMA)

    def distributed(self, positions: Mapping[str, int | str]) -> DataFrame:
        """Return the lines whose offsets the log lacks as a frame of `LINES_SCHEMA`."""
        if not self._has_offsets:
            return self._frame.select(*LINES_SCHEMA.names)
        import pyspark.sql.functions as f

        files = self._frame.sparkSession.createDataFrame(self._files(positions))
        rows = self._frame.drop("file").join(f.broadcast(files), [*_PARTITION])
        # Kafka's connector gives ranges of a partition to tasks in order. A shuffle may have changed that.
        ordered = sorted(self._parts, key=lambda part: (part.topic, part.partition, part.task))
        if not all(
            one.last < other.first for one, other in pairwise(ordered) if one[:2] == other[:2]
        ):
            rows = rows.repartitionByRange(*_OFFSETS)
        return (
            rows.where("offset >= next")
            .sortWithinPartitions(*_OFFSETS)
            .withColumn("block", f.spark_partition_id().cast("long"))
            .select(*LINES_SCHEMA.names)
        )

    def close(self) -> None:
        """Free what Spark has persisted."""
        if self._is_persisted:
            self._frame.unpersist()

    def _files(self, positions: Mapping[str, int | str]) -> pa.Table:
        """Return name and first offset that the log lacks, for each of `offsets`."""
        first = [max(each.first, each.next_in(positions) or 0) for each in self.offsets]
        files = [
            # Absolute, as it is then named like a file below the root.
            f"/{each.topic}+{each.partition}+{start:010}"
            for each, start in zip(self.offsets, first, strict=True)
        ]
        return pa.table(
            {
                "topic": pa.array([each.topic for each in self.offsets], pa.string()),
                "partition": pa.array([each.partition for each in self.offsets], pa.int32()),
                "file": pa.array(files, pa.string()),
                "next": pa.array(first, pa.int64()),
            }
        )

    def _checked(self) -> tuple[OffsetRange, ...]:
        """Check the order of the lines, and return the offsets of each partition."""
        if not self._has_offsets:
            if not self._has_files:
                _refuse_files(self._parts)
            return ()
        found: dict[tuple[str, int], OffsetRange] = {}
        rows: dict[tuple[str, int], int] = {}
        for part in self._parts:
            if part.topic is None or part.partition is None or part.numbered < part.rows:
                raise InvalidRequest(
                    "a row has a null in topic, partition or offset; fill them in every row, or "
                    "drop these columns"
                )
            key = part.topic, part.partition
            known = found.get(key, OffsetRange(*key, part.first, part.last))
            found[key] = known._replace(
                first=min(part.first, known.first), last=max(part.last, known.last)
            )
            rows[key] = rows.get(key, 0) + part.rows
        for key, each in found.items():
            if rows[key] > each.last - each.first + 1:
                raise InvalidRequest(
                    f"partition {each} has {rows[key]} rows at offsets {each.first} to {each.last}: "
                    "some offset comes twice; select each message once, or drop the columns topic, "
                    "partition and offset"
                )
        return tuple(found.values())


def _check_columns(frame: DataFrame) -> bool:
    """Check the columns of a frame; return True if it has offsets."""
    types = dict(frame.dtypes)
    if "value" not in types:
        raise InvalidRequest(
            f"the frame has no column value, only {', '.join(types) or 'none'}; select the message "
            "of each row as value, a string or binary"
        )
    given = [name for name in _OFFSETS if name in types]
    if given and len(given) < len(_OFFSETS):
        lacking = " and ".join(name for name in _OFFSETS if name not in types)
        raise InvalidRequest(
            f"the frame has {' and '.join(given)}, but not {lacking}; select all three, so that the "
            "log stores the offsets, or none"
        )
    for name, kinds in _TYPES.items():
        if name in types and types[name] not in kinds:
            raise InvalidRequest(f"column {name} is {types[name]}; cast it to {' or '.join(kinds)}")
    return bool(given)


def _expressions(columns: Iterable[str], batch_id: int) -> list[str]:
    """Return the columns of a frame as SQL: `LINES_SCHEMA`, the offsets, and what `_parts` adds up."""
    columns = set(columns)
    value = "coalesce(cast(value as binary), cast('null' as binary))"
    if "key" in columns:
        # A TAB divides key and message, as kafka-console-consumer prints them.
        value = f"concat(coalesce(concat(cast(key as binary), X'09'), X''), {value})"
    has_offsets = "offset" in columns
    topic, partition, offset = _OFFSETS if has_offsets else ("null", "null", "null")
    if "file" in columns and not has_offsets:
        file, block, modified = _FILES
    elif "_metadata" in columns and not has_offsets:
        file, block = "_metadata.file_path", "_metadata.file_block_start"
        modified = "unix_micros(_metadata.file_modification_time)"
    else:
        file, block = "''", "0" if has_offsets else "spark_partition_id()"
        modified = str(batch_id)
    return [
        f"{value} as value",
        f"{file} as file",
        f"cast({block} as long) as block",
        f"cast({modified} as long) as modified_us",
        f"cast({topic} as string) as topic",
        f"cast({partition} as int) as partition",
        f"cast({offset} as long) as offset",
        # Spark knows the name only in the stage that reads the file.
        "input_file_name() as name",
        "spark_partition_id() as task",
        f"monotonically_increasing_id() as {_ROW}",
        f"crc32({value}) as crc",
    ]


def _parts(lines: DataFrame | pa.Table) -> Iterable[_TaskLines]:
    """Yield the figures of lines, by partition and task."""
    keys = [*_PARTITION, "task"]
    if isinstance(lines, pa.Table):
        figures = [([], "count_all"), ("offset", "count"), ("offset", "min"), ("offset", "max")]
        figures += [("crc", "sum"), ("name", "min"), ("name", "max")]
        found = lines.group_by(keys).aggregate(figures)
    else:
        import pyspark.sql.functions as f

        found = (
            lines.groupBy(*keys)
            .agg(
                *(f.count(f.lit(1)), f.count("offset"), f.min("offset"), f.max("offset")),
                *(f.sum("crc"), f.min("name"), f.max("name")),
            )
            .toArrow()
        )
    return map(
        _TaskLines._make, zip(*(column.to_pylist() for column in found.columns), strict=True)
    )


def _refuse_files(parts: Iterable[_TaskLines]) -> None:
    """Refuse lines of several files that are not named: Spark orders its files by size.

    Raises:
        InvalidRequest: The lines are from several files.
    """
    names = sorted({name for part in parts for name in (part.first_name, part.last_name) if name})
    if len(names) > 1:
        raise InvalidRequest(
            f"a batch has several files, {names[0]} and others, and Spark reads them in order of "
            "size, not of time; select _metadata in addition to value, so that they are written "
            "by time, name and line"
        )


def _with(table: pa.Table, name: str, column: pa.Array) -> pa.Table:
    """Return a table with a column, in place of one of that name."""
    names = table.column_names
    return table.drop_columns([name] if name in names else []).append_column(name, column)
