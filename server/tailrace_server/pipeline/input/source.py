"""The interface of a source: one kind of input, such as Debezium's messages.

To add a source, write a class that implements `Source` in a folder of its own below `pipeline/sources`, and add
a line to `sources.registry`. The command line, the driver and Spark's tasks use only this interface::

    input folder ──read──▶ DataFrame of lines ──line_decoder──▶ Change rows ──▶ grouping, log

By default, `Source.read` reads the lines of all text files of a folder.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from typing import (
    TYPE_CHECKING,
    ClassVar,
    Final,
    NamedTuple,
    Protocol,
    TypeAlias,
    runtime_checkable,
)

from tailrace_server.wal.record.unavailable import unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from tailrace_server.pipeline.input.change import Change, FileSplit
    from tailrace_server.pipeline.input.table_bindings import Bindings
    from tailrace_server.wal.record.unavailable import Unavailable
    from tailrace_server.wal.schema.mapping import SchemaMapping

_GLOB: Final = re.compile(r"[\[\]{}*?\\]")
"""The characters in a folder's name that Spark would interpret as a pattern."""


def read_text_files(spark: SparkSession, folder: Path, batch_bytes: int) -> DataFrame:
    """Return a streaming DataFrame of the lines of all files below a folder; see `Source.read`."""
    return (
        spark.readStream.format("text")
        .option("recursiveFileLookup", "true")
        # Spark skips files that are older than the newest file by more than this.
        .option("maxFileAge", "36500d")
        .option("maxBytesPerTrigger", str(batch_bytes))
        # Hadoop's default file system looks for a checksum file next to each file; a colon in the file's name
        # makes the name of that checksum file invalid.
        .option("fs.file.impl", "org.apache.hadoop.fs.RawLocalFileSystem")
        .option("fs.file.impl.disable.cache", "true")
        .load(_GLOB.sub(r"\\\g<0>", str(folder)))
        .selectExpr(
            "cast(value as binary) as value",
            "_metadata.file_path as file",
            "_metadata.file_block_start as block",
            "unix_micros(_metadata.file_modification_time) as modified_us",
        )
    )


DecodedMessage: TypeAlias = "Change | str | None"
"""The result of decoding one message.

A `Change` is a row, a BEGIN or END mark, or a message for quarantine. A text is the kind of a message that is
not about a row, in the singular, such as "heartbeat"; messages are counted by kind. None is a message without
content, such as a blank line.
"""

DecodeLine: TypeAlias = (
    "Callable[[FileSplit, int, bytes], DecodedMessage | Iterable[DecodedMessage]]"
)
"""A function that decodes a line, given its split, its number in the split from 1, and its text.

It returns the decoded message, or, for a line with several messages, all of them in order. The rows of one line
have different places.
"""


class DecodedColumns(NamedTuple):
    """The rows of some lines, decoded by columns; all other lines have to be decoded one by one."""

    rows: pa.RecordBatch
    """The rows, of `ROWS`; none is a snapshot row."""
    lines: npt.NDArray[np.int64]
    """The place of each row's line among the lines; rises."""
    origins: Mapping[tuple[str, str, str, str], int]
    """Origin of rows (the fields of `RowOrigin`) → place of its first line."""


@runtime_checkable
class ColumnDecoder(Protocol):
    """A `DecodeLine` that also decodes many lines by columns."""

    def __call__(
        self, split: FileSplit, number: int, line: bytes
    ) -> DecodedMessage | Iterable[DecodedMessage]:
        """Decode a line; see `DecodeLine`."""

    def columns(
        self, split: FileSplit, number: int, lines: pa.BinaryArray
    ) -> DecodedColumns | None:
        """Decode some of the lines of a split by columns; the state between lines stays as it is.

        Args:
            split: The split.
            number: The number of the first line.
            lines: Consecutive lines.

        Returns:
            The rows; None if no line can be decoded by columns.
        """

    def row_came(self, split: FileSplit) -> None:
        """Change the state between lines: a row that was decoded by columns comes before the next line."""


class Source(Protocol):
    """One kind of input with its options.

    Implement this as a frozen dataclass whose fields are the options (`option_fields`). A source is pickled to
    Spark's workers: its module must be importable there, and its fields must be picklable.
    """

    name: ClassVar[str]
    """The name in the command ``tailrace ingest NAME`` and of the checkpoint's folder; must never change."""
    title: ClassVar[str]
    """The kind of the lines, for the help of that command."""
    keyless: frozenset[str] = frozenset()
    """Entity types of tables without a key, whose rows are counted; full names, or their last parts."""
    placeholders: tuple[str, ...] = ()
    """Placeholders for values that were not sent, in addition to Debezium's default; see
    `wal.record.unavailable`."""

    @abstractmethod
    def line_decoder(
        self, mapping: SchemaMapping | None, record_bytes_max: int, bindings: Bindings
    ) -> DecodeLine:
        """Return a decoder for the lines of one task, given in order; the decoder may keep state between lines.

        The decoder never raises because of a line's content: it returns a QUARANTINED change for a line that
        cannot be used.

        Args:
            mapping: The declared types. A row that does not fit them goes to quarantine.
            record_bytes_max: Maximum total size of a row's images, in bytes. A larger row goes to quarantine.
            bindings: The catalog's bindings. Rows of another table or connector than those bound go to
                quarantine, unless an option of the source names these. A source that sets no `Change.table` can
                ignore the bindings.
        """

    @abstractmethod
    def restated(self, change: Change) -> bytes:
        """Return a line that decodes to an equal change, for a row that goes to quarantine after decoding."""

    def remarks(self, bindings: Bindings) -> Iterable[str]:
        """Return remarks on the options for the end of a run, given the bindings after the run."""
        return ()

    def read(self, spark: SparkSession, folder: Path, batch_bytes: int) -> DataFrame:
        """Return a streaming DataFrame of the lines of all files below a folder, with `lines.LINES_SCHEMA`.

        Args:
            spark: The Spark session.
            folder: The input folder.
            batch_bytes: Maximum total size of the files of a batch; a larger file is a batch of its own.
        """
        return read_text_files(spark, folder, batch_bytes)

    @property
    def unavailable(self) -> Unavailable:
        """The test for placeholders of values that an update did not change and the source did not send."""
        return unavailable(self.placeholders)

    def counts(self, entity_type: str) -> bool:
        """Return True if the rows of an entity type are counted because they have no key.

        The whole row is then the key, as `wal.record.keys.row_text` encodes it. An update has `Change.old_key`,
        unless it leaves the row unchanged. Updates and removals have ``before``.
        """
        return entity_type in self.keyless or entity_type.rpartition(".")[2] in self.keyless

    def transaction_key(self, transaction_id: str) -> str:
        """Return the transaction key of a transaction id: the part of the id that all its rows share."""
        return transaction_id

    def tells_shape(self, reason: str) -> bool:
        """Return True if a quarantine reason names the real format of the line, such as CSV.

        Such a reason is a constant text, ``format: advice``. At its end, an ingest reports the count of each.
        """
        return False

    def position_name(self, file: str) -> str:
        """Return the name of the source position that stores the number of consumed lines of a file."""
        return f"file:{file}"
