"""The columns of a record, and the text of a transaction's lead.

A record is one row of the log: one mutation of one entity, or the lead of a transaction. The columns are listed
here in the order of the file. The first eight are the *head*, which routing and filtering need. The last three
are the *body*::

    version      int64                           relative to the segment's base_version in a file,
                                                 absolute elsewhere
    index        int32                           0 = the transaction's lead, 1.. = mutations in source order
    area         uint8                           1 SCHEMA, 2 DATA, 3 INFRASTRUCTURE (leads)
    operation    uint8                           1 UPSERT, 2 REMOVE, 3 TRANSACTION (leads), 4 EXPIRE
    entity_type  dictionary<int32, utf8>         the table or collection; null on a lead
    key_hash     uint64                          keys.py, of (entity type, key); 0 for a null key
    primary_key  utf8                            canonical key text; null on a lead and on a truncate
    changed      list<dictionary<int32, utf8>>   columns that an update changed; null otherwise
    change       binary (a UTF-8 JSON object)    the columns as changed; nullable
    before       binary (a UTF-8 JSON object)    the row before; nullable
    after        binary (a UTF-8 JSON object)    the row after; nullable; a lead's is ``lead_text``

Records are sorted by (version, index) without gaps: versions rise by one, and the indexes of each version are
0, 1, 2, …

Images are the source's text, byte for byte. They are never parsed and rendered again.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec
import orjson
import pyarrow as pa

from tailrace.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

HEAD_COLUMNS: Final = (
    "version",
    "index",
    "area",
    "operation",
    "entity_type",
    "key_hash",
    "primary_key",
    "changed",
)
"""The columns of a head, in the order of the file."""

BODY_COLUMNS: Final = ("change", "before", "after")
"""The body columns, in the order of the file."""

NAME_TYPE: Final = pa.dictionary(pa.int32(), pa.utf8())
"""Arrow type of entity types and column names. The dictionary of a file grows by deltas."""

_TEXTS: Final = {"entity_type": pa.utf8(), "changed": pa.list_(pa.utf8())}

RECORD_SCHEMA: Final = pa.schema(
    [
        pa.field("version", pa.int64(), nullable=False),
        pa.field("index", pa.int32(), nullable=False),
        pa.field("area", pa.uint8(), nullable=False),
        pa.field("operation", pa.uint8(), nullable=False),
        pa.field("entity_type", NAME_TYPE),
        pa.field("key_hash", pa.uint64(), nullable=False),
        pa.field("primary_key", pa.utf8()),
        pa.field("changed", pa.list_(NAME_TYPE)),
        pa.field("change", pa.binary()),
        pa.field("before", pa.binary()),
        pa.field("after", pa.binary()),
    ]
)

TEXT_SCHEMA: Final = pa.schema(
    [
        pa.field(column.name, _TEXTS.get(column.name, column.type))
        for column in RECORD_SCHEMA
        if column.name != "key_hash"
    ]
)
"""RECORD_SCHEMA before encoding: names are texts, and the hash of the key is not computed yet."""

decode_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
"""Decoder of an image: column → JSON text of its value. It does not check UTF-8 inside values."""

BUFFERS_OF_HEAD: Final = 19
"""Number of Arrow buffers in a batch's head: two per fixed-width column, three for the key, four for the name
lists."""
BUFFERS_OF_BODY: Final = 3
"""Number of Arrow buffers per body column: bitmap, offsets, data."""

BATCH_ROWS_MAX: Final = 16_384
"""Number of rows at which a record batch is complete."""

BATCH_BYTES_MAX: Final = 4 << 20
"""Maximum size of a record batch, in bytes. A larger row is a batch by itself."""


def body_places(rows: int, *, nullable: bool) -> tuple[int, int]:
    """Return the offsets in a body column at which the Arrow offsets and the data begin; a bitmap begins at 0.

    Args:
        rows: Number of rows in the batch.
        nullable: True if the column has a bitmap.
    """
    offsets = (rows + 63) // 64 * 8 if nullable else 0
    return offsets, offsets + (rows + 2) // 2 * 8


def misplaced_body(
    buffers: Sequence[tuple[int, int]], rows: int, starts: Iterable[int], nullable: int
) -> str | None:
    """Return the first body column that is not where a reader expects it; None if all are.

    Readers compute the places of bodies instead of reading them from the batch's metadata.

    Args:
        buffers: Offset and length of each buffer of the batch, from its metadata.
        rows: Number of rows in the batch.
        starts: Computed start of each body column.
        nullable: Bit i is set if body column i begins with a bitmap.
    """
    for place, (name, start) in enumerate(zip(BODY_COLUMNS, starts, strict=True)):
        offsets, values = body_places(rows, nullable=bool(nullable >> place & 1))
        first = BUFFERS_OF_HEAD + BUFFERS_OF_BODY * place
        found = [at - start for at, _ in buffers[first : first + BUFFERS_OF_BODY]]
        if found != [0, offsets, values]:
            return name
    return None


def multiplicity_of(change: bytes) -> int | None:
    """Return the number in a ``change`` of the form ``{"diff": number}``; None for any other form.

    Records of entity types without keys use this form to state how often a row was added or removed. Older logs
    may have numbers that `count_fault` refuses today.
    """
    found = _COUNT.fullmatch(change)
    return None if found is None else int(found[1])


def count_fault(change: bytes) -> str | None:
    """Return the fault of a ``change`` that counts rows, but not by a 64-bit integer; None if there is none."""
    found = _NUMBER_AS_COUNT.fullmatch(change)
    count = multiplicity_of(change)
    if found is None or (count is not None and fits_count(count)):
        return None
    shown = found[1][:_SHOWN_MAX].decode() + "…" * (len(found[1]) > _SHOWN_MAX)
    return f"counts rows by {shown}: a count is a whole number of 64 bits"


def fits_count(count: int) -> bool:
    """Return True if a number is in the range of counts, 64 bits with a sign."""
    return -(1 << 63) <= count < 1 << 63


_SPACE: Final = rb"[ \t\n\r]*"
_COUNT: Final = re.compile(rb'\{"diff":%b(-?[0-9]{1,4000})%b\}%b' % (_SPACE, _SPACE, _SPACE))
"""Matches a count; int() accepts at most 4,300 digits."""
_NUMBER_AS_COUNT: Final = re.compile(
    rb'\{"diff":%b(-?[0-9][-+.0-9eE]*)%b\}%b' % (_SPACE, _SPACE, _SPACE)
)
_SHOWN_MAX: Final = 40


def lead_text(
    *,
    transaction_id: str | None,
    counts: Mapping[str, int],
    source_count: int | None = None,
    source: object = None,
    source_timestamp: int | None = None,
    **extras: object,
) -> bytes:
    """Return the ``after`` of a transaction's lead. Its counts let a reader prove that no record is missing.

    Args:
        transaction_id: The source's name for the transaction.
        counts: Number of records by entity type, after consolidation; their sum is ``mutation_count``.
        source_count: Number of source rows before consolidation; None: equal to the number of records.
        source: Origin of the transaction, any JSON value; None omits it.
        source_timestamp: Time at which the source committed the transaction, in microseconds.
        extras: ``late``, ``of``, ``snapshot``, ``expected_count``, ``without_end``, ``quarantined``, and
            others; None omits a member.
    """
    mutation_count = sum(counts.values())
    document: dict[str, object] = {
        "transaction_id": transaction_id,
        "mutation_count": mutation_count,
        "counts": dict(counts),
        "source_count": mutation_count if source_count is None else source_count,
    }
    optional = {"source": source, "source_timestamp": source_timestamp, **extras}
    document.update((name, value) for name, value in optional.items() if value is not None)
    return orjson.dumps(document)


_COUNTED: Final = frozenset({"mutation_count", "counts", "schema_changes"})
"""Fields of a lead that the writer computes from the records after it."""


def check_lead(
    transaction_id: object, source_timestamp: object, lead_extras: Mapping[str, object]
) -> None:
    """Refuse fields of a lead that a program may not give.

    Raises:
        InvalidRequest: A field has a wrong type, or is one that the writer counts.
    """
    for name in _COUNTED & lead_extras.keys():
        raise InvalidRequest(f"{name} of a lead is counted by the writer; choose another name")
    if not isinstance(transaction_id, str | None):
        raise InvalidRequest(f"transaction_id {transaction_id!r}: must be a text or None")
    if source_timestamp is not None and (
        type(source_timestamp) is not int or not -(1 << 63) <= source_timestamp < 1 << 63
    ):
        raise InvalidRequest(
            f"source_timestamp {source_timestamp!r}: must be a number of µs since 1970, or None"
        )


def lead_of(
    transaction_id: str | None,
    source_timestamp: int | None,
    extras: Mapping[str, Any],
    counts: dict[str, int],
    schema_changes: int,
) -> bytes:
    """Return the text of a program's lead; ``counts`` includes the records of schema changes.

    Raises:
        InvalidRequest: One of the ``extras`` cannot be written as JSON.
    """
    extras = dict(extras)
    if schema_changes:
        extras.setdefault("source_count", sum(counts.values()) - schema_changes)
        extras["schema_changes"] = schema_changes
    try:
        return lead_text(
            transaction_id=transaction_id,
            counts=counts,
            source_timestamp=source_timestamp,
            **extras,
        )
    except TypeError as error:
        raise InvalidRequest(f"a lead must be JSON: {error}") from error
