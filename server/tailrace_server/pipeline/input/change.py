"""The output of a source: changes, transaction marks and lines for quarantine.

A source is read in *splits* (a file, or a range of a large one). Everything that a split holds becomes rows of
one Arrow table, `CHANGE_SCHEMA`, distinguished by ``kind``. So one kind of table travels between tasks, driver
and the pending segments of the log:

===========  ====================================================================================
kind         columns that are set, beside ``place``
===========  ====================================================================================
CHANGE       transaction … columns; a change of one row
BEGIN, END   transaction, transaction_id; END also ``number``, the rows that the source announces
QUARANTINED  reason, raw, file, block, line; transaction and entity type where they are known; or source and
             ``table``, of which a statement has changed rows: kept only if the log has rows of it
SPLIT        file, block, ``line`` lines with ``total_order`` messages; ``number`` of these gave nothing,
             ``reason`` counts those about no row by what they are, as JSON; ``raw`` says whose rows it has
             (`table_bindings`)
===========  ====================================================================================

*Place* is where a row stands in its source, as bytes that sort as the source does::

    8 × 3 bytes   source position, three numbers, big endian; zero where the source gives none
    8 bytes       modification time of the file in µs
    … NUL         path of the file
    8 bytes       byte offset of the split in the file
    5 + 3 bytes   line in the split, from 1; message in the line, from 0

The *transaction key* groups rows. It is the source's transaction id in a form that is equal for all
rows of a transaction (`Source.transaction_key`), or begins with NUL for what the source does not group: a
line alone, and the rows of a snapshot, which are cut into versions by number.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def batch_of(rows: Iterable[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows, whose values are in the order of the schema, as one record batch."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)],
        schema=schema,
    )


CHANGE, BEGIN, END, QUARANTINED, SPLIT = 1, 2, 3, 4, 5

INSERT, UPDATE, DELETE, READ, TRUNCATE = b"cudrt"
"""Operations, each the code of a letter; READ is a row of a snapshot."""

NO_POSITION: Final = (0, 0, 0)
"""Source position of a row whose source gives none."""

SNAPSHOT: Final = "\0snapshot"
"""Head of the transaction key of snapshot rows; the split follows, and the run of rows in it."""

LINE: Final = "\0line"
"""Head of the transaction key of a line that the source does not group; its place follows."""

UNPLACED: Final = bytes(24)
"""Position, as a place holds it, of a row without a position in its source."""

UNORDERED: Final = -1
"""`total_order` of a row whose source gives none."""

_PARTITION: Final = re.compile(
    rb"(?:^|[/_.-])partition[=_-]?(\d+)(?=[/_.-])|\+(\d+)\+\d+", re.ASCII
)
"""The partition in a file's path as sinks of Kafka write it: ``partition=3/…``, ``topic+3+0000042.json``."""
_POSITION = struct.Struct(">QQQQ")
_LINE = struct.Struct(">QQ")
LINE_LENGTH: Final = _LINE.size
"""Bytes of a place that tell the split, the line in it and the message in the line."""
_MESSAGE_BITS: Final = 24
LINE_MESSAGES: Final = 1 << _MESSAGE_BITS
"""Messages of one line that have places of their own."""


class FileSplit(NamedTuple):
    """The origin of lines: a file, or the part of it that begins at byte ``block``."""

    file: str
    """Path below the input folder; empty for lines that come from no file."""
    block: int = 0
    modified_us: int = 0
    """When the file was modified last, µs since the epoch; before it counts as the epoch."""

    def place(
        self, line: int, position: tuple[int, int, int] = NO_POSITION, message: int = 0
    ) -> bytes:
        """Return the place of a row: sortable bytes.

        Args:
            line: Number in the split, from 1; below 2^40.
            position: Of the source; every number lies in 0 … 2^64 - 1.
            message: Number in the line, from 0; below `LINE_MESSAGES`.
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
    """One row of `CHANGE_SCHEMA`; see the head of the module for what is set when."""

    kind: int
    place: bytes
    transaction: str | None = None
    transaction_id: str | None = None
    """As the source writes it; None where it has none."""
    total_order: int = UNORDERED
    """Place in the transaction; of a snapshot row its number in the run, from 0. SPLIT: messages."""
    entity_type: str | None = None
    operation: int = 0
    primary_key: str | None = None
    """Canonical text; None for a truncate."""
    old_key: str | None = None
    """The key before, where the change moved the row to another key."""
    before: bytes | None = None
    """A value in it that the source may not have sent is an unavailable one (`Source.unavailable`)."""
    after: bytes | None = None
    timestamp: int | None = None
    """When the source committed or wrote it, µs."""
    source: str | None = None
    table: str | None = None
    """Full name of the row's table, different for each; None where a source has no tables. QUARANTINED: a name
    as `Bindings.has_rows_of` takes it."""
    columns: str | None = None
    """The columns of the entity type as the source lists them, on a transaction's first row of it."""
    log: str | None = None
    """Name of the source's log that the position counts in; None where there is no position."""
    number: int | None = None
    """END: rows announced. SPLIT: messages that gave nothing. CHANGE: marks of a snapshot's row
    (`catalog.snapshots`). QUARANTINED: 1 if a declared type cannot hold it."""
    reason: str | None = None
    raw: bytes | None = None
    file: str | None = None
    block: int | None = None
    line: int | None = None
    key_names: str | None = None
    """Names of the key's columns as a JSON array; None where the source does not name them."""


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
    """Return a line that cannot be used as a QUARANTINED change.

    Args:
        split: Where the line comes from.
        number: The line's number in the split, from 1.
        line: The line.
        reason: Why it cannot be used.
        transaction: Key of the transaction that it belongs to, if it is known.
        transaction_id: Id of that transaction.
        entity_type: What it is a row of, if it is known.
        incompatible: Whether the reason is a value that its declared type cannot hold.
        message: Which message of the line it is, from 0; ``line`` is that message alone.
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
    """Return True for a line that says which table's rows a statement has changed."""
    return change.kind == QUARANTINED and change.table is not None


def to_batch(changes: Sequence[Change]) -> pa.RecordBatch:
    """Return changes as one record batch of `CHANGE_SCHEMA`."""
    return batch_of(changes, CHANGE_SCHEMA)


def from_table(table: pa.Table | pa.RecordBatch) -> Iterable[Change]:
    """Yield the rows of a table of `CHANGE_SCHEMA`."""
    # A pending file of an earlier release lacks the later columns.
    columns = [
        table.column(name).to_pylist() if name in table.schema.names else [None] * table.num_rows
        for name in CHANGE_SCHEMA.names
    ]
    return map(Change._make, zip(*columns, strict=True))


def line_of(place: bytes) -> tuple[str, int, int]:
    """Return file, byte offset of the split and line in the split from a place."""
    block, number = _LINE.unpack(place[-_LINE.size :])
    # A pending row of an earlier release has the line alone, which is less than any line in its place here.
    line = number >> _MESSAGE_BITS or number
    return place[_POSITION.size : -_LINE.size - 1].decode(errors="surrogatepass"), block, line


def position_in(place: bytes) -> tuple[int, int, int]:
    """Return the source position from a place."""
    first, second, third, _ = _POSITION.unpack(place[: _POSITION.size])
    return first, second, third


def position_bytes(place: bytes) -> bytes:
    """Return the source position from a place, as bytes that sort as positions do."""
    return place[: len(UNPLACED)]


def arrival(place: bytes) -> bytes:
    """Return the part of a place that says when and where the row arrived, also sortable."""
    return place[len(UNPLACED) :]


def file_of(arrived: bytes) -> bytes:
    """Return the part of an arrival that names the file; it sorts by modification time, then by path."""
    return arrived[:-LINE_LENGTH]


@lru_cache(maxsize=4096)
def partition_of(file: bytes) -> bytes:
    """Return the partition of a topic that a file's path names; empty where it names none."""
    found = _PARTITION.search(file[8:-1])
    return (found[1] or found[2]) if found else b""
