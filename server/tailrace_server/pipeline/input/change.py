"""The output of a source: changes, transaction marks and lines for quarantine.

A source is read in *splits*: a split is a file, or a range of a large file. The content of a split becomes rows
of one Arrow table of `CHANGE_SCHEMA`, distinguished by ``kind``. So tasks, the driver and the pending files of
the log all exchange tables of the same schema:

===========  ====================================================================================
kind         columns that are set, in addition to ``place``
===========  ====================================================================================
CHANGE       a change of one row: the columns from transaction to columns
BEGIN, END   transaction, transaction_id; END also ``number``, the rows that the source announces
QUARANTINED  reason, raw, file, block, line; transaction and entity type if they are known. For a
             statement that changed rows of a table (an *effect*) also source and ``table``; it is
             quarantined only if the log has rows of that table
SPLIT        the counts of a split: file, block, ``line`` = number of lines, ``total_order`` =
             number of messages, ``number`` = messages without a row; ``reason`` = those messages
             by kind, as JSON; ``raw`` = origin of the split's rows (`table_bindings`)
===========  ====================================================================================

The *place* of a row is its place in the source, as bytes that sort in the order of the source::

    8 × 3 bytes   source position, three numbers, big endian; zero where the source gives none
    8 bytes       modification time of the file in µs
    … NUL         path of the file
    8 bytes       byte offset of the split in the file
    5 + 3 bytes   line in the split, from 1; message in the line, from 0

The *transaction key* groups rows. It is the source's transaction id in a form that is equal for all rows of
the transaction (`Source.transaction_key`). A key that begins with NUL is of rows without a transaction: a
single line, or the rows of a snapshot, which are cut into versions by number.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt


def batch_of(rows: Iterable[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows as one record batch; the values of a row are in the order of the schema."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)],
        schema=schema,
    )


CHANGE, BEGIN, END, QUARANTINED, SPLIT = 1, 2, 3, 4, 5

INSERT, UPDATE, DELETE, READ, TRUNCATE = b"cudrt"
"""The operations of a CHANGE, each the ASCII code of a letter; READ is a row of a snapshot."""

NO_POSITION: Final = (0, 0, 0)
"""The source position of a row to which the source gives no position."""

SNAPSHOT: Final = "\0snapshot"
"""Prefix of the transaction key of snapshot rows; the split and the run in it follow."""

LINE: Final = "\0line"
"""Prefix of the transaction key of a single line without a transaction; the line's place follows."""

UNPLACED: Final = bytes(24)
"""The encoded `NO_POSITION`, as in a place."""

UNORDERED: Final = -1
"""The ``total_order`` of a row to which the source gives none."""

_PARTITION: Final = re.compile(
    rb"(?:^|[/_.-])partition[=_-]?(\d+)(?=[/_.-])|\+(\d+)\+\d+", re.ASCII
)
"""The topic partition in a path, as Kafka sinks write it: ``partition=3/…`` or ``topic+3+0042.json``."""
_POSITION = struct.Struct(">QQQQ")
_LINE = struct.Struct(">QQ")
LINE_LENGTH: Final = _LINE.size
"""Number of bytes at the end of a place for the split's offset, the line and the message in the line."""
_MESSAGE_BITS: Final = 24
LINE_MESSAGES: Final = 1 << _MESSAGE_BITS
"""Maximum number of messages in one line; the place has 24 bits for the number of the message."""


class FileSplit(NamedTuple):
    """A file, or the part of a file that begins at byte ``block``."""

    file: str
    """Path below the input folder; empty for lines that come from no file."""
    block: int = 0
    modified_us: int = 0
    """Modification time of the file, in microseconds since the epoch. `place` stores negative times as 0."""

    def place(
        self, line: int, position: tuple[int, int, int] = NO_POSITION, message: int = 0
    ) -> bytes:
        """Return the place of a row, as sortable bytes (layout at the head of this module).

        Args:
            line: Number of the line in the split, from 1 to 2^40 - 1.
            position: Source position; every number is in the range 0 to 2^64 - 1.
            message: Number of the message in the line, from 0; below `LINE_MESSAGES`.
        """
        return b"".join(
            (
                _POSITION.pack(*position, max(0, self.modified_us)),
                self.file.encode(errors="surrogatepass"),
                b"\0",
                _LINE.pack(self.block, line << _MESSAGE_BITS | message),
            )
        )


class Change(NamedTuple):
    """One row of `CHANGE_SCHEMA`; the head of this module lists the fields that each kind sets."""

    kind: int
    place: bytes
    """The row's place in the source, as `FileSplit.place` encodes it."""
    transaction: str | None = None
    """The transaction key."""
    transaction_id: str | None = None
    """The transaction id as the source writes it; None if the source gives none."""
    total_order: int = UNORDERED
    """The row's number in its transaction. For a snapshot row its number in the run, from 0. SPLIT: number of
    messages."""
    entity_type: str | None = None
    operation: int = 0
    primary_key: str | None = None
    """The row's key as canonical text; None for a truncate."""
    old_key: str | None = None
    """The previous key, if the change moved the row to another key."""
    before: bytes | None = None
    """The image before the change. Values that were not sent are placeholders (`Source.unavailable`)."""
    after: bytes | None = None
    timestamp: int | None = None
    """Time at which the source committed or wrote the change, in microseconds."""
    source: str | None = None
    """The connector and its name."""
    table: str | None = None
    """Full name of the row's table, unique in its connector; None if the source has no tables. QUARANTINED: a
    name for `Bindings.has_rows_of`."""
    columns: str | None = None
    """The source's listing of the entity type's columns; set on the transaction's first row of the type."""
    log: str | None = None
    """Name of the source's log that the position belongs to; None if there is no position."""
    number: int | None = None
    """END: number of rows announced. SPLIT: number of messages without a row. CHANGE: the marks of a snapshot
    row (`catalog.snapshots`). QUARANTINED: 1 if a declared type cannot hold a value."""
    reason: str | None = None
    raw: bytes | None = None
    file: str | None = None
    block: int | None = None
    line: int | None = None
    key_names: str | None = None
    """Names of the key columns as a JSON array; None if the source does not name them."""


CHANGE_SCHEMA: Final = pa.schema(
    [
        pa.field("kind", pa.int16(), nullable=False),
        pa.field("place", pa.binary(), nullable=False),
        pa.field("transaction", pa.string()),
        pa.field("transaction_id", pa.string()),
        pa.field("total_order", pa.int64(), nullable=False),
        pa.field("entity_type", pa.string()),
        pa.field("operation", pa.int16(), nullable=False),
        pa.field("primary_key", pa.string()),
        pa.field("old_key", pa.string()),
        pa.field("before", pa.binary()),
        pa.field("after", pa.binary()),
        pa.field("timestamp", pa.int64()),
        pa.field("source", pa.string()),
        pa.field("table", pa.string()),
        pa.field("columns", pa.string()),
        pa.field("log", pa.string()),
        pa.field("number", pa.int64()),
        pa.field("reason", pa.string()),
        pa.field("raw", pa.binary()),
        pa.field("file", pa.string()),
        pa.field("block", pa.int64()),
        pa.field("line", pa.int64()),
        pa.field("key_names", pa.string()),
    ]
)

ROWS: Final = pa.schema([*CHANGE_SCHEMA][: CHANGE_SCHEMA.get_field_index("number")])
"""The columns of a CHANGE, without the marks of snapshot rows."""


def quarantined(
    split: FileSplit,
    number: int,
    line: bytes,
    reason: str,
    *,
    transaction: str | None = None,
    transaction_id: str | None = None,
    entity_type: str | None = None,
    incompatible: bool = False,
    message: int = 0,
) -> Change:
    """Return a QUARANTINED change for a line that cannot be used.

    Args:
        split: The split of the line.
        number: The line's number in the split, from 1.
        line: The text of the line; if the line has several messages, of the one message.
        reason: The reason why the line cannot be used.
        transaction: Key of the line's transaction, if known.
        transaction_id: Id of that transaction.
        entity_type: Entity type of the line's row, if known.
        incompatible: True if the reason is a value that its declared type cannot hold.
        message: Number of the message in the line, from 0.
    """
    return Change(
        kind=QUARANTINED,
        place=split.place(number, message=message),
        transaction=transaction,
        transaction_id=transaction_id,
        entity_type=entity_type,
        number=1 if incompatible else None,
        reason=reason,
        raw=line,
        file=split.file,
        block=split.block,
        line=number,
    )


def is_effect(change: Change) -> bool:
    """Return True for a line about a statement that changed rows of a table."""
    return change.kind == QUARANTINED and change.table is not None


def to_batch(changes: Sequence[Change]) -> pa.RecordBatch:
    """Return changes as one record batch of `CHANGE_SCHEMA`."""
    return batch_of(changes, CHANGE_SCHEMA)


def from_table(table: pa.Table | pa.RecordBatch) -> Iterable[Change]:
    """Yield the rows of a table of `CHANGE_SCHEMA`."""
    # Pending files of earlier releases lack the columns that were added later.
    columns = [
        table.column(name).to_pylist() if name in table.schema.names else [None] * table.num_rows
        for name in CHANGE_SCHEMA.names
    ]
    return map(Change._make, zip(*columns, strict=True))


def line_of(place: bytes) -> tuple[str, int, int]:
    """Return file, byte offset of the split and line in the split from a place."""
    block, number = _LINE.unpack(place[-_LINE.size :])
    # Earlier releases stored the line without a message number: their values are below 2^24, the shift gives 0.
    line = number >> _MESSAGE_BITS or number
    return place[_POSITION.size : -_LINE.size - 1].decode(errors="surrogatepass"), block, line


def position_in(place: bytes) -> tuple[int, int, int]:
    """Return the source position from a place."""
    first, second, third, _ = _POSITION.unpack(place[: _POSITION.size])
    return first, second, third


def position_bytes(place: bytes) -> bytes:
    """Return the source position from a place, as bytes that sort in the order of positions."""
    return place[: len(UNPLACED)]


def arrival(place: bytes) -> bytes:
    """Return the arrival from a place: modification time, file, block and line, as sortable bytes."""
    return place[len(UNPLACED) :]


def positions_of(places: pa.BinaryArray) -> npt.NDArray[np.uint64]:
    """Return the source positions in places, shape (n, 3)."""
    texts = pc.binary_slice(places, 0, len(UNPLACED))
    data = pa.concat_arrays([texts, texts.slice(0, 0)]).buffers()[2]
    numbers = np.frombuffer(data or b"", ">u8", 3 * len(places))
    return numbers.reshape(-1, 3).astype(np.uint64)


def arrivals_of(places: pa.BinaryArray) -> pa.BinaryArray:
    """Return the arrivals in places."""
    # Arrow fails without an end.
    return pc.binary_slice(places, len(UNPLACED), pc.max(pc.binary_length(places)).as_py() or 0)


def file_of(arrived: bytes) -> bytes:
    """Return the file from an arrival, as bytes that sort by modification time, then by path."""
    return arrived[:-LINE_LENGTH]


@lru_cache(maxsize=4096)
def partition_of(file: bytes) -> bytes:
    """Return the partition of a Kafka topic from a file's path; empty if the path has none."""
    found = _PARTITION.search(file[8:-1])
    return (found[1] or found[2]) if found else b""
