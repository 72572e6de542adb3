"""Folding of finished updates into the records of versions.

A finished time that has updates becomes a version. With key columns, one time changes a key at most once::

    (old, -1) and (new, +1)    UPSERT, before = old      a lone +1    UPSERT, before = the key's last row
    a lone -1                  REMOVE                    anything else is a KeyConflict

Without key columns the row itself is the key, and ``change`` is ``{"diff": d}``. The operation is REMOVE if and
only if the row's multiplicity becomes zero. A row that was removed more often than added has a negative
multiplicity. Such a row is written as an UPSERT, so that the last operation is a REMOVE only if the diffs add
up to zero.

The *index* (`INDEX`) stores the last row of each key; each commit adds the keys that it changed. The index
starts with the rows that the log holds when the stream begins (`seeding`).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from tailrace.criteria import Area, Operation
from tailrace.errors import TailraceError
from tailrace_server.pipeline.catalog.record_table import ROWS_PER_WRITE, record_table
from tailrace_server.pipeline.input.change import batch_of
from tailrace_server.wal.record.columns import lead_text
from tailrace_server.wal.record.images import difference, members, projection
from tailrace_server.wal.record.keys import key_hashes, type_seed
from tailrace_server.wal.segment.writer import SegmentReceipt, SegmentWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tailrace_server.pipeline.catalog.record_table import Row
    from tailrace_server.pipeline.cdcv2.files import StreamSchema

FINISHED: Final = pa.schema(
    [
        pa.field("hash", pa.uint64(), nullable=False),
        pa.field("time", pa.int64(), nullable=False),
        pa.field("diff", pa.int64(), nullable=False),
        pa.field("key", pa.large_string(), nullable=False),
        pa.field("image", pa.large_binary(), nullable=False),
    ]
)
"""Schema of finished updates, with rows as JSON; ``hash`` is the hash of the key, as in the log."""

INDEX: Final = pa.schema(
    [
        pa.field("hash", pa.uint64(), nullable=False),
        pa.field("key", pa.large_string(), nullable=False),
        pa.field("image", pa.large_binary()),
        pa.field("count", pa.int64(), nullable=False),
    ]
)
"""Schema of the index: the last row of each key, null if the key has no row. Without key columns only
``count`` is used, the row's multiplicity.
"""

EFFECTS: Final = pa.schema(
    [
        pa.field("time", pa.int64(), nullable=False),
        pa.field("key", pa.large_string()),
        pa.field("operation", pa.uint8(), nullable=False),
        pa.field("changed", pa.list_(pa.string())),
        pa.field("change", pa.large_binary()),
        pa.field("before", pa.large_binary()),
        pa.field("after", pa.large_binary()),
    ]
)
"""Schema of the records of versions. A row with a null key is no record: ``operation`` is then the number of
updates that had no effect.
"""

Time = int | tuple[int, ...]
"""A time of the stream: an integer or a tuple of integers."""

Last = tuple[bytes | None, int]
"""The image and the count in a row of the index."""


class KeyConflict(TailraceError):
    """One time changes a key in a way that no single row can represent.

    The source is wrong, or the key columns are not unique. A retry does not help.
    """

    code = "CDC_KEY_CONFLICT"

    def __init__(self, time: Time, key: str | None, reason: str) -> None:
        """Store the time, the key and the reason with the conflicting values."""
        super().__init__(f"time {time}, key {key}: {reason}")
        self.time = time
        self.key = key
        self.reason = reason

    def figures(self) -> dict[str, str]:
        """Return time, key and reason."""
        return {"time": str(self.time), "key": str(self.key), "reason": self.reason}


class Folding(NamedTuple):
    """The rules that turn rows into records."""

    schema: StreamSchema
    entity_type: str
    key: tuple[str, ...]
    """Names of the key columns; empty if the row itself is the key."""


class Folded(NamedTuple):
    """The result of folding the keys of one hash partition."""

    effects: pa.RecordBatch
    """The records, of `EFFECTS`."""
    index: pa.RecordBatch
    """The changed keys with their new rows, of `INDEX`."""


def finished_rows(updates: pa.RecordBatch, folding: Folding) -> pa.RecordBatch:
    """Return finished updates as a table of `FINISHED`.

    Raises:
        KeyConflict: A key column of a row is null.
    """
    schema, key_columns = folding.schema, folding.key
    keys: list[str] = []
    images: list[bytes] = []
    for row, data in enumerate(updates.column("data").to_pylist()):
        image, values = schema.image(data)
        key = schema.key(values, key_columns)
        if key is None:
            time = updates.column("time")[row].as_py()
            columns = ", ".join(key_columns)
            raise KeyConflict(time, None, f"a key column ({columns}) is null: {image.decode()}")
        keys.append(key)
        images.append(image)
    seeds = np.full(len(keys), type_seed(folding.entity_type), np.uint64)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(key_hashes(seeds, pa.array(keys, pa.string()))),
            updates.column("time"),
            updates.column("diff"),
            pa.array(keys, pa.large_string()),
            pa.array(images, pa.large_binary()),
        ],
        schema=FINISHED,
    )


def fold(rows: pa.RecordBatch, last_rows: Mapping[str, Last], *, keyed: bool) -> Folded:
    """Return the effects of finished updates on their keys.

    Args:
        rows: Of `FINISHED`, in any order: all updates of these keys that this commit finishes.
        last_rows: The last rows of the keys.
        keyed: True if there are key columns.

    Raises:
        KeyConflict: One time changes a key in a way that no single row can represent.
    """
    # 1. Sort by time: the changes of a key must be folded in order.
    order = np.argsort(rows.column("time").to_numpy(), kind="stable")
    ordered = rows.take(pa.array(order))
    columns = (
        ordered.column(name).to_pylist() for name in ("key", "hash", "time", "diff", "image")
    )
    by_key: dict[str, list[tuple[int, int, bytes]]] = {}
    hashes: dict[str, int] = {}
    for key, hashed, time, diff, image in zip(*columns, strict=True):
        held = by_key.get(key)
        if held is None:
            held = by_key[key] = []
            hashes[key] = hashed
        held.append((time, diff, image))
    # 2. Fold key by key. Only keys whose state has changed are written to the index.
    effects: list[tuple[Any, ...]] = []
    index: list[tuple[Any, ...]] = []
    for key, changes in by_key.items():
        last = last_rows.get(key, (None, 0))
        after = (_rows if keyed else _multiples)(key, changes, last, effects)
        if after != last:
            index.append((hashes[key], key, *after))
    return Folded(batch_of(effects, EFFECTS), batch_of(index, INDEX))


def _rows(
    key: str, changes: Sequence[tuple[int, int, bytes]], last: Last, effects: list[tuple[Any, ...]]
) -> Last:
    """Append the effects of the changes of one key to ``effects``; return the key's last row."""
    image = last[0]
    at = 0
    while at < len(changes):
        # 1. Collect the changes of one time: one added row, one removed row, or both. Anything else conflicts.
        time = changes[at][0]
        added: bytes | None = None
        removed: bytes | None = None
        start = at
        while at < len(changes) and changes[at][0] == time:
            _, diff, row = changes[at]
            if diff == 1 and added is None:
                added = row
            elif diff == -1 and removed is None:
                removed = row
            else:
                raise KeyConflict(time, key, _conflict(diff, added if diff > 0 else removed, row))
            at += 1
        # 2. The before-image is the removed row, as the source sent it; without a removed row it is the row in
        #    the index. Updates without effect are counted too, since the lead record has their total.
        before = removed if removed is not None else image
        image = added
        effect = _effect(time, key, before, added)
        effects.append(effect if effect is not None else _nothing(time, at - start))
        if effect is not None and at - start > 1:
            effects.append(_nothing(time, at - start - 1))
    return image, int(image is not None)


def _conflict(diff: int, first: bytes | None, second: bytes) -> str:
    if abs(diff) != 1:
        return f"diff {diff} of {second.decode()}; the diff of a row with a key must be 1 or -1"
    assert first is not None
    return f"two rows with diff {diff}: {first.decode()} and {second.decode()}"


def _effect(
    time: int, key: str, before: bytes | None, after: bytes | None
) -> tuple[Any, ...] | None:
    if after is None:
        return time, key, int(Operation.REMOVE), None, None, before, None
    if before is None:
        return time, key, int(Operation.UPSERT), None, None, None, after
    if before == after:
        return None
    new = members(after)
    changed = difference(members(before), new)
    upsert = int(Operation.UPSERT)
    return time, key, upsert, changed, projection(new, changed), before, after


def _nothing(time: int, updates: int) -> tuple[Any, ...]:
    return time, None, updates, None, None, None, None


def _multiples(
    key: str, changes: Sequence[tuple[int, int, bytes]], last: Last, effects: list[tuple[Any, ...]]
) -> Last:
    """Append the effects of the changes of one row's multiplicity to ``effects``.

    Return the last multiplicity.
    """
    count = last[1]
    for time, diff, row in changes:
        before = row if count else None
        count += diff
        after = row if count else None
        # A negative multiplicity is an UPSERT too, so that REMOVE means exactly zero.
        operation = int(Operation.UPSERT if count else Operation.REMOVE)
        change = orjson.dumps({"diff": diff})
        effects.append((time, key, operation, None, change, before, after))
    return None, count


def records(
    effects: pa.RecordBatch,
    entity_type: str,
    rows_per_table: int,
    times: Sequence[Time] | None = None,
) -> Iterator[tuple[pa.Table, int]]:
    """Yield tables of records, each with the number of versions up to its end.

    Args:
        effects: The effects of whole times, in any order.
        entity_type: The entity type of every row.
        rows_per_table: A table ends with the version that reaches this number of records.
        times: For product times: the list that the times of the effects are indexes into.
    """
    order = effects.sort_by([("time", "ascending"), ("key", "ascending")])
    rows: list[Row] = []
    held: list[tuple[Any, ...]] = []
    version = 0
    columns = (order.column(name).to_pylist() for name in EFFECTS.names)
    for effect in zip(*columns, strict=True):
        if held and held[0][0] != effect[0]:
            rows.extend(_version(version, entity_type, held, times))
            held.clear()
            version += 1
            # End a table only between two versions: a version must not be divided.
            if len(rows) >= rows_per_table:
                yield record_table(rows), version
                rows = []
        held.append(effect)
    if held:
        rows.extend(_version(version, entity_type, held, times))
        version += 1
    if rows:
        yield record_table(rows), version


def _version(
    version: int,
    entity_type: str,
    effects: Iterable[tuple[Any, ...]],
    times: Sequence[Time] | None,
) -> Iterator[Row]:
    """Yield the lead record and the other records of one time."""
    found = list(effects)
    time = found[0][0] if times is None else times[found[0][0]]
    told = [effect for effect in found if effect[1] is not None]
    # Rows with a null key are no records: they hold the number of updates without effect.
    updates = len(told) + sum(effect[2] for effect in found if effect[1] is None)
    lead = lead_text(
        transaction_id=str(time),
        counts=Counter({entity_type: len(told)}) if told else {},
        source_count=updates,
        source="cdcv2",
        time=time,
    )
    area, transaction = int(Area.INFRASTRUCTURE), int(Operation.TRANSACTION)
    yield version, 0, area, transaction, None, None, None, None, None, lead
    for index, (_, key, operation, changed, change, before, after) in enumerate(told, 1):
        yield (
            version,
            index,
            int(Area.DATA),
            operation,
            entity_type,
            key,
            changed,
            change,
            before,
            after,
        )


def write_segment(
    path: Path,
    effects: pa.RecordBatch,
    entity_type: str,
    times: Sequence[Time] | None = None,
) -> tuple[list[SegmentReceipt], int]:
    """Write effects as a segment.

    Args:
        path: The file of the segment.
        effects: The effects of whole times, in any order.
        entity_type: The entity type of every row.
        times: For product times: the list that the times of the effects are indexes into.

    Returns:
        The segment, as a list of one, and its number of versions.

    Raises:
        LogFull: There is no space for the segment.
    """
    versions = 0
    with SegmentWriter(path) as segment:
        for table, so_far in records(effects, entity_type, ROWS_PER_WRITE, times):
            segment.write(table)
            versions = so_far
        return [segment.close()], versions
