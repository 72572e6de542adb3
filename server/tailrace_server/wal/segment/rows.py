"""Rows for a segment: checked, normalised, and cut into batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace_server.wal.record.columns import BODY_COLUMNS, RECORD_SCHEMA
from tailrace_server.wal.record.keys import key_hash, key_hashes, type_seed
from tailrace_server.wal.record.text_columns import SMALL_LENGTH

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

_CODES_SCHEMA: Final = pa.schema(
    [
        pa.field(
            column.name, {"entity_type": pa.int32(), "changed": pa.list_(pa.int32())}[column.name]
        )
        if column.name in ("entity_type", "changed")
        else column
        for column in RECORD_SCHEMA
    ]
)
"""RECORD_SCHEMA with codes in place of names; the dictionaries are added when a batch is written."""

_ROW_BYTES: Final = 46
"""Size of a row's fixed-width part in bytes, offsets included."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Normalised rows, and their sizes in bytes."""

    batch: pa.RecordBatch
    """The rows in _CODES_SCHEMA."""
    ends: npt.NDArray[np.int64]
    """Cumulative size of the rows up to and including each, in bytes; ``base`` bytes lie before the first
    row."""
    base: int = 0

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def column(self, name: str) -> pa.Array:
        """Return a column by name."""
        return self.batch.column(_CODES_SCHEMA.get_field_index(name))

    def slice(self, start: int, stop: int) -> Rows:
        """Return the rows from ``start`` up to ``stop``; memory is shared."""
        base = self.base if start == 0 else int(self.ends[start - 1])
        return Rows(self.batch.slice(start, stop - start), self.ends[start:stop], base)

    def bytes_between(self, start: int, stop: int) -> int:
        """Return the bytes of the rows from ``start`` up to ``stop``."""
        return int(self.ends[stop - 1]) - (self.base if start == 0 else int(self.ends[start - 1]))

    def end_of_batch(self, start: int, *, rows_max: int, bytes_max: int) -> int:
        """Return the end of the longest range from ``start`` that stays within both bounds."""
        base = self.base if start == 0 else int(self.ends[start - 1])
        by_bytes = int(np.searchsorted(self.ends, base + bytes_max, "right"))
        return max(start, min(start + rows_max, by_bytes, len(self)))

    @classmethod
    def concat(cls, parts: Sequence[Rows]) -> Rows:
        """Join parts by copying them; the result has no sizes."""
        joined = pa.concat_batches([part.batch for part in parts])
        return cls(joined, np.zeros(joined.num_rows, np.int64))


class _Names:
    """A dictionary that only grows: name → code."""

    def __init__(self) -> None:
        self._codes: dict[str | None, int] = {}
        self._names: list[str] = []
        self._array = pa.array([], pa.utf8())

    def code(self, name: str) -> int:
        found = self._codes.get(name)
        if found is None:
            found = self._codes[name] = len(self._names)
            self._names.append(name)
        return found

    @property
    def names(self) -> list[str]:
        return self._names

    def array(self, *, may_grow: bool) -> pa.StringArray:
        """Return the names as an array.

        Arrow writes deltas only for a dictionary with at least one name. So if an empty dictionary may still
        grow, it gets an empty name.
        """
        if may_grow and not self._names:
            self.code("")
        if len(self._array) != len(self._names):
            self._array = pa.array(self._names, pa.utf8())
        return self._array

    def encode(self, names: pa.Array) -> pa.Int32Array:
        """Return the codes of names, which may be dictionary-encoded; null stays null."""
        if not pa.types.is_dictionary(names.type):
            names = pc.dictionary_encode(names)
        values = names.dictionary.to_pylist()
        # Only distinct names are looked up in Python. If the batch's own dictionary has the same order as ours,
        # its codes are ours already.
        own = np.array([self.code(value) for value in values], np.int32)
        if np.array_equal(own, np.arange(len(own))) and names.indices.type == pa.int32():
            return names.indices
        return pa.array(own, pa.int32()).take(names.indices)


class RowsEncoder:
    """Normalises the rows of one segment, and checks that they are dense and in order."""

    def __init__(self) -> None:
        self._types = _Names()
        self._columns = _Names()
        self._seeds = np.zeros(0, np.uint64)
        self._counts = np.zeros(0, np.int64)
        self._last: tuple[int, int] | None = None
        self.continues = False

    @property
    def transactions(self) -> int:
        """Number of versions encoded so far."""
        return 0 if self._last is None else self._last[0] + 1

    def counts(self) -> dict[str, int]:
        """Return the number of records encoded so far, by entity type; leads are not counted."""
        found = zip(self._types.names, self._counts.tolist(), strict=False)
        return {name: count for name, count in found if count}

    def dictionaries(self, *, may_grow: bool) -> tuple[pa.StringArray, pa.StringArray]:
        """Return the entity types and the column names encoded so far.

        Args:
            may_grow: True if more batches of the segment follow.
        """
        return self._types.array(may_grow=may_grow), self._columns.array(may_grow=may_grow)

    def encode(self, batch: pa.RecordBatch) -> Rows:
        """Return rows in normalised form.

        Raises:
            ValueError: The rows are not dense and in order, or a column has a wrong type.
        """
        names = batch.schema.names
        keys = _cast(batch.column("primary_key"), pa.utf8())
        changed = batch.column("changed") if "changed" in names else None
        if batch.num_rows <= SMALL_LENGTH:
            codes, changed, hashes = self._encode_few(batch, keys, changed)
        else:
            self._check_order(_numbers(batch, "version"), _numbers(batch, "index"))
            codes = self._types.encode(batch.column("entity_type"))
            self._count(codes)
            hashes = batch.column("key_hash") if "key_hash" in names else self._hashes(codes, keys)
            changed = self._encode_changed(changed, len(keys))
        bodies = [
            _cast(batch.column(name), pa.binary())
            if name in names
            else pa.nulls(len(keys), pa.binary())
            for name in BODY_COLUMNS
        ]
        arrays = [
            *(
                _cast(batch.column(name), RECORD_SCHEMA.field(name).type)
                for name in ("version", "index", "area", "operation")
            ),
            codes,
            _cast(hashes, pa.uint64()),
            keys,
            changed,
            *bodies,
        ]
        ends = np.arange(1, len(keys) + 1, dtype=np.int64) * _ROW_BYTES
        for column in (keys, *bodies):
            ends += _data_ends(column)
        return Rows(pa.RecordBatch.from_arrays(arrays, schema=_CODES_SCHEMA), ends)

    def _encode_few(
        self, batch: pa.RecordBatch, keys: pa.StringArray, changed: pa.ListArray | None
    ) -> tuple[pa.Int32Array, pa.ListArray, pa.UInt64Array]:
        """Encode a few rows one by one, which is faster than numpy's calls; the result is the same."""
        columns = (batch.column("version").to_pylist(), batch.column("index").to_pylist())
        for version, index in zip(*columns, strict=True):
            self._check_next(version, index)
        types = batch.column("entity_type").to_pylist()
        codes = [None if name is None else self._types.code(name) for name in types]
        counts = np.zeros(len(self._types.names), np.int64)
        counts[: len(self._counts)] = self._counts
        for code in codes:
            if code is not None:
                counts[code] += 1
        self._counts = counts
        if changed is not None:
            lists = changed.to_pylist()
            own = [
                None if names is None else [self._columns.code(name) for name in names]
                for names in lists
            ]
            changed = pa.array(own, _CODES_SCHEMA.field("changed").type)
        else:
            changed = pa.nulls(len(keys), _CODES_SCHEMA.field("changed").type)
        if "key_hash" in batch.schema.names:
            hashes = batch.column("key_hash")
        else:
            texts = zip(types, keys.to_pylist(), strict=True)
            hashes = pa.array(
                [
                    0 if name is None or key is None else key_hash(type_seed(name), key)
                    for name, key in texts
                ],
                pa.uint64(),
            )
        return pa.array(codes, pa.int32()), changed, hashes

    def _check_next(self, version: int, index: int) -> None:
        if self._last is None:
            self.continues = index > 0
            # A segment may begin within a transaction. Its first row then counts as the successor of an
            # imagined one.
            self._last = (0, index - 1) if self.continues else (-1, 0)
        last_version, last_index = self._last
        if (version, index) not in ((last_version, last_index + 1), (last_version + 1, 0)):
            raise _out_of_order(self._last, (version, index))
        self._last = (version, index)

    def _check_order(self, versions: npt.NDArray[Any], indexes: npt.NDArray[Any]) -> None:
        if self._last is None:
            self.continues = bool(indexes[0] > 0)
            self._last = (0, int(indexes[0]) - 1) if self.continues else (-1, 0)
        versions = np.concatenate([[self._last[0]], versions]).astype(np.int64)
        indexes = np.concatenate([[self._last[1]], indexes]).astype(np.int64)
        # Dense and in order: the next index of the same version, or index 0 of the next version.
        step = np.diff(versions)
        right = np.where(step == 0, np.diff(indexes) == 1, (step == 1) & (indexes[1:] == 0))
        if not right.all():
            row = int(np.argmin(right))
            raise _out_of_order(
                (versions[row], indexes[row]), (versions[row + 1], indexes[row + 1])
            )
        self._last = (int(versions[-1]), int(indexes[-1]))

    def _count(self, codes: pa.Int32Array) -> None:
        known = len(self._types.names)
        found = codes.drop_null() if codes.null_count else codes
        # The dictionary may have grown since the last batch, so the old counts can be the shorter array.
        counts = np.bincount(np.asarray(found), minlength=known).astype(np.int64)
        counts[: len(self._counts)] += self._counts
        self._counts = counts

    def _hashes(self, codes: pa.Int32Array, keys: pa.StringArray) -> pa.UInt64Array:
        names = self._types.names
        if len(self._seeds) != len(names):
            self._seeds = np.array([type_seed(name) for name in names], np.uint64)
        if not len(self._seeds):
            return pa.array(np.zeros(len(keys), np.uint64))
        places = np.asarray(codes.fill_null(0) if codes.null_count else codes)
        hashes = key_hashes(self._seeds[places], keys)
        if codes.null_count:
            # A lead has no entity type; its hash is 0 by definition.
            hashes[np.asarray(codes.is_null())] = 0
        return pa.array(hashes)

    def _encode_changed(self, changed: pa.ListArray | None, rows: int) -> pa.ListArray:
        list_type = pa.list_(pa.int32())
        if changed is None or changed.null_count == rows:
            return pa.nulls(rows, list_type)
        # A slice of a list array shares the values of all rows: take only those of these rows, with offsets
        # from 0.
        offsets = np.asarray(changed.offsets)
        values = changed.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        codes = self._columns.encode(values)
        mask = changed.is_null() if changed.null_count else None
        starts = pa.array(offsets - offsets[0], pa.int32())
        return pa.ListArray.from_arrays(starts, codes, type=list_type, mask=mask)


def _out_of_order(before: tuple[int, int], after: tuple[int, int]) -> ValueError:
    return ValueError(
        f"records must be consecutive: ({before[0]}, {before[1]}) is followed by ({after[0]}, "
        f"{after[1]})"
    )


def _numbers(batch: pa.RecordBatch, name: str) -> npt.NDArray[Any]:
    return np.asarray(batch.column(name))


def _cast(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    return array if array.type == wanted else array.cast(wanted)


def _data_ends(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return the cumulative size of a binary column up to and including each row, in bytes."""
    offsets = np.frombuffer(column.buffers()[1], np.int32)[
        column.offset : column.offset + len(column) + 1
    ]
    return offsets[1:].astype(np.int64) - int(offsets[0])
