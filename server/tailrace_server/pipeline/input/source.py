"""The interface of a source: all that tailrace needs to know of one kind of input.

Adding a source takes a folder below `pipeline/sources` with a class that implements `Source`, and a line in
`sources.registry`. The command line, the driver and Spark's tasks know a source only by what is below::

    input folder ──read──▶ DataFrame of lines ──line_decoder──▶ Change rows ──▶ grouping, log

The default of `Source.read` takes the lines of all text files of a folder.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, TypeAlias

from tailrace_server.wal.record.unavailable import unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tailrace_server.pipeline.input.change import Change, FileSplit
    from tailrace_server.pipeline.input.table_bindings import Bindings
    from tailrace_server.wal.record.unavailable import Unavailable
    from tailrace_server.wal.schema.mapping import SchemaMapping

_GLOB: Final = re.compile(r"[\[\]{}*?\\]")
"""The characters of a folder's name that Spark would take for a pattern."""


def read_text_files(spark: SparkSession, folder: Path, batch_bytes: int) -> DataFrame:
    """Return the lines of all files below a folder, of `lines.LINES_SCHEMA`; see `Source.read`."""
    return (
        spark.readStream.format("text")
        .option("recursiveFileLookup", "true")
        # Spark would pass over files that are older than the newest by this much.
        .option("maxFileAge", "36500d")
        .option("maxBytesPerTrigger", str(batch_bytes))
        # Hadoop's own file system looks for a sum beside each file, under a name that a colon makes invalid.
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
"""A change, a mark or a message for quarantine (`changes`). A message about no row gives the name of what it
is, in the singular, as a heartbeat; it is counted by that. None for one without content, as a blank line."""

DecodeLine: TypeAlias = (
    "Callable[[FileSplit, int, bytes], DecodedMessage | Iterable[DecodedMessage]]"
)
"""Takes a split, the number of a line in it from 1, and the line. Gives what the line holds; of a line of
several messages, each in order. Rows of one line differ in place."""


class Source(Protocol):
    """One kind of input with its options.

    Implement it as a frozen dataclass whose fields are the options (`option_fields`). It is pickled
    to Spark's workers, so its module must be importable there, and its fields must pickle.
    """

    name: ClassVar[str]
    """Names the command ``tailrace ingest NAME`` and the checkpoint's folder; never changes."""
    title: ClassVar[str]
    """The kind of the lines, in the help of that command."""
    keyless: frozenset[str] = frozenset()
    """Tables without a key, whose rows are counted; entity types, or their last parts."""
    placeholders: tuple[str, ...] = ()
    """The placeholder for a value that was not sent, beside Debezium's default; see
    `wal.record.unavailable`."""

    @abstractmethod
    def line_decoder(
        self, mapping: SchemaMapping | None, record_bytes_max: int, bindings: Bindings
    ) -> DecodeLine:
        """Return what decodes the lines of one task, in order; it may keep state from line to line.

        It raises for nothing that a line holds: a line that cannot be used becomes a QUARANTINED change.

        Args:
            mapping: Declared types; a row that they cannot hold goes to quarantine.
            record_bytes_max: Rows whose images are larger together go to quarantine.
            bindings: Rows of another table than their entity type is bound to go to quarantine, and rows of
                another connector, unless an option of the source names them. A source whose rows have no
                `Change.table` needs no heed of it.
        """

    @abstractmethod
    def restated(self, change: Change) -> bytes:
        """Return a line that is decoded to an equal change, for a row that goes to quarantine later."""

    def remarks(self, bindings: Bindings) -> Iterable[str]:
        """Return the remarks about the options after a run, given the bindings of then."""
        return ()

    def read(self, spark: SparkSession, folder: Path, batch_bytes: int) -> DataFrame:
        """Return the stream of the lines of all files below a folder, of `lines.LINES_SCHEMA`.

        Args:
            spark: Where it is read.
            folder: The input.
            batch_bytes: Files of one batch, together; a larger file is a batch alone.
        """
        return read_text_files(spark, folder, batch_bytes)

    @property
    def unavailable(self) -> Unavailable:
        """Tells values that the source did not send, as an update did not touch them."""
        return unavailable(self.placeholders)

    def counts(self, entity_type: str) -> bool:
        """Return whether the rows of an entity type are counted, as their key is the whole row.

        Its changes have that key as `images.row_text` gives it. An update has `Change.old_key`, unless the
        row is what it was; it and a removal have ``before``.
        """
        return entity_type in self.keyless or entity_type.rpartition(".")[2] in self.keyless

    def transaction_key(self, transaction_id: str) -> str:
        """Return the form of a transaction id that all rows of the transaction share."""
        return transaction_id

    def tells_shape(self, reason: str) -> bool:
        """Return True if a quarantine reason says what the message really is, such as a line of a CSV file.

        Such a reason is a constant text, ``what it is: what to do``; an ingest counts each at its end.
        """
        return False

    def position_name(self, file: str) -> str:
        """Return the name under which the log keeps how many lines of a file it holds."""
        return f"file:{file}"
