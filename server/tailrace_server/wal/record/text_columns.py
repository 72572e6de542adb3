"""Columns of texts and of name lists as views of memory, converted to Arrow arrays on demand; small arrays.

A column can be read in three forms: as Python values, as memory addresses, and as an Arrow array. A small
commit needs a few Python values. Compiled code, which handles large batches, needs addresses. Creating an Arrow
array takes ten calls per column. Between two commits the code of these calls is evicted from the processor's
caches, so both uses would pay for arrays that they do not need. An array is therefore created when it is first
read.

For the same reason `int64s` and similar functions use ``struct`` and ``frombuffer`` in place of numpy's
constructors: every small array calls these two, so they stay cached. The first call of any other numpy function
costs 20 to 50 µs (docs/adr/0016).

The memory has Arrow's layout, little-endian::

    validity   one bit a record, lowest first; absent if nothing is null
    offsets    records + 1 int32: where each record begins in the values, and where the last one ends
    values     the bytes of the texts; for name lists one int32 a name, its place in the dictionary
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from tailrace_server.wal.record.columns import NAME_TYPE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

_V = TypeVar("_V")
_NAMES_TYPE: Final = pa.list_(NAME_TYPE)
_bounds = struct.Struct("<ii").unpack_from


class Addresses(NamedTuple):
    """Memory addresses of a column's buffers; valid as long as the column exists."""

    validity: int
    """Address of the bitmap; 0 if nothing is null."""
    offsets: int
    """Address of the offsets."""
    values: int
    """Address of the texts' bytes, or of the codes of names."""


def addresses_of(array: pa.StringArray | pa.BinaryArray) -> Addresses:
    """Return the addresses of an array's buffers, in which its first row is row ``array.offset``."""
    validity, offsets, values = (buffer and buffer.address for buffer in array.buffers())
    return Addresses(validity or 0, offsets or 0, values or 0)


def packed(texts: Sequence[bytes]) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Concatenate texts; return the offsets (one more than there are texts) and the bytes."""
    offsets = np.zeros(len(texts) + 1, np.int32)
    np.cumsum([*map(len, texts)], out=offsets[1:])
    return offsets, np.frombuffer(b"".join(texts) or b"\0", np.uint8)


@dataclass(eq=False)
class _Column:
    """Views of a column's buffers, in bytes; a view may be longer than necessary."""

    _rows: int
    """Number of records in the column."""
    _validity: memoryview | None
    _offsets: memoryview
    _values: memoryview

    @property
    def nbytes(self) -> int:
        """Size of the memory that the views span, in bytes."""
        validity = 0 if self._validity is None else self._validity.nbytes
        return validity + self._offsets.nbytes + self._values.nbytes

    @property
    def all_null(self) -> bool:
        """True if every record is null."""
        if self._validity is None:
            return self._rows == 0
        # Compare whole bytes of the bitmap first; the last byte may have arbitrary bits after the column's end.
        octets, bits = divmod(self._rows, 8)
        if self._validity[:octets].tobytes().count(0) < octets:
            return False
        return not bits or not self._validity[octets] & ((1 << bits) - 1)

    @property
    def addresses(self) -> Addresses:
        """Memory addresses of the buffers."""
        validity, offsets = self._buffers
        values = pa.py_buffer(self._values)
        return Addresses(
            0 if validity is None else validity.address, offsets.address, values.address
        )

    @property
    def _buffers(self) -> tuple[pa.Buffer | None, pa.Buffer]:
        validity = None if self._validity is None else pa.py_buffer(self._validity)
        return validity, pa.py_buffer(self._offsets)

    def _each(self, rows: Iterable[int], value: Callable[[int, int], _V]) -> list[_V | None]:
        """Return ``value(start, stop)`` for each of some records; None for nulls."""
        validity, offsets = self._validity, self._offsets
        # Bit ``row & 7`` of byte ``row >> 3`` is set if the record has a value.
        return [
            value(*_bounds(offsets, 4 * row))
            if validity is None or validity[row >> 3] >> (row & 7) & 1
            else None
            for row in rows
        ]


@dataclass(eq=False)
class Texts(_Column):
    """A column of strings or bytes."""

    _kind: pa.DataType
    """Arrow type of the array: utf8 or binary."""

    @classmethod
    def of(cls, array: pa.StringArray | pa.BinaryArray) -> Texts:
        """Return the column of an array; the memory is shared."""
        array = _unsliced(array)
        validity, offsets, values = map(_memory, array.buffers())
        validity = validity if array.null_count else None
        return cls(len(array), validity, offsets or _NOTHING, values or _NOTHING, array.type)

    def values(self, rows: Iterable[int]) -> list[bytes | None]:
        """Return the bytes of some records. Use this for a few records only; ``array`` is cheaper for many."""
        return self._each(rows, lambda start, stop: self._values[start:stop].tobytes())

    def strings(self, rows: Iterable[int]) -> list[str | None]:
        """Return the strings of some records, like ``values``."""
        return [None if each is None else each.decode() for each in self.values(rows)]

    def bytes_between(self, start: int, stop: int) -> bytes:
        """Return a range of the concatenated bytes of all texts."""
        return self._values[start:stop].tobytes()

    @cached_property
    def array(self) -> pa.StringArray | pa.BinaryArray:
        """The column as an Arrow array that shares its memory."""
        buffers = [*self._buffers, pa.py_buffer(self._values)]
        return pa.Array.from_buffers(self._kind, self._rows, buffers)


class Dictionary(NamedTuple):
    """The names of a dictionary-encoded column, by code."""

    array: pa.StringArray
    names: tuple[str, ...]

    @classmethod
    def of(cls, array: pa.StringArray) -> Dictionary:
        """Return the dictionary of an array of names."""
        return cls(array, tuple(array.to_pylist()))


@dataclass(eq=False)
class NameLists(_Column):
    """A column of name lists. Its values are int32 codes of a dictionary."""

    _dictionary: Dictionary

    @classmethod
    def of(cls, array: pa.ListArray) -> NameLists:
        """Return the column of an array of lists of dictionary-encoded names."""
        array = _unsliced(array)
        validity, offsets, *_ = map(_memory, array.buffers())
        # Drop the bitmap of a column without nulls, so that reads do not check it.
        validity = validity if array.null_count else None
        codes = array.values.indices.to_numpy(zero_copy_only=False).astype(np.int32)
        dictionary = Dictionary.of(array.values.dictionary)
        return cls(len(array), validity, offsets or _NOTHING, codes.view(np.uint8).data, dictionary)

    @property
    def names(self) -> tuple[str, ...]:
        """The dictionary's names, by code."""
        return self._dictionary.names

    def values(self, rows: Iterable[int]) -> list[list[str] | None]:
        """Return the lists of some records. For a few records only."""
        return self._each(rows, self._names)

    @cached_property
    def array(self) -> pa.ListArray:
        """The column as an Arrow array that shares its memory."""
        # A view keeps its memory alive, and Arrow keeps the views: nothing is copied.
        codes = pa.Array.from_buffers(
            pa.int32(), len(self._values) // 4, [None, pa.py_buffer(self._values)]
        )
        names = pa.DictionaryArray.from_arrays(codes, self._dictionary.array, safe=False)
        return pa.Array.from_buffers(_NAMES_TYPE, self._rows, [*self._buffers], children=[names])

    def without(self, unsaid: NDArray[np.bool_]) -> NameLists:
        """Return the column with nulls in place of some lists.

        Args:
            unsaid: Mask of the records that become null.
        """
        if not unsaid.any():
            return self
        # Taking from a null place yields null, which keeps the other lists as they are.
        places = pa.array(np.arange(len(unsaid)), pa.int64(), mask=unsaid)
        return NameLists.of(self.array.take(places))

    def _names(self, start: int, stop: int) -> list[str]:
        codes = struct.unpack_from(f"<{stop - start}i", self._values, 4 * start)
        return [self._dictionary.names[code] for code in codes]


_NOTHING: Final = memoryview(b"")


def _memory(buffer: pa.Buffer | None) -> memoryview | None:
    return None if buffer is None else memoryview(buffer)


def _unsliced(array: pa.Array) -> pa.Array:
    """Return an equal array whose buffers begin with its first element."""
    return pa.concat_arrays([array, array.slice(0, 0)]) if array.offset else array


SMALL_LENGTH: Final = 48
"""Largest length for which the functions below are faster than numpy."""

_INT64, _INT32 = np.dtype(np.int64), np.dtype(np.int32)


def int64s(numbers: Sequence[int]) -> NDArray[np.int64]:
    """Return a read-only array, shape (n,)."""
    return np.frombuffer(struct.pack(f"={len(numbers)}q", *numbers), _INT64)


def repeated(number: int, count: int) -> NDArray[np.int64]:
    """Return an array of one number ``count`` times, shape (count,); efficient for any count."""
    return int64s([number] * count) if count <= SMALL_LENGTH else np.full(count, number)


def int32s(numbers: Sequence[int]) -> NDArray[np.int32]:
    """Return a read-only array, shape (n,)."""
    return np.frombuffer(struct.pack(f"={len(numbers)}i", *numbers), _INT32)
