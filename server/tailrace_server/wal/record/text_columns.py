"""Columns of texts as they lie in memory, in three forms: values of Python, addresses, an array of Arrow.

Of a small commit a few values are wanted, of a large batch machine code wants addresses. Both would pay for
Arrow arrays that nobody looks at: ten calls a column, of code that has left the processor's caches
wherever some milliseconds lie between two commits. So an array is made for who asks for it.

The memory is laid out as Arrow's, little-endian::

    validity   a bit a record, lowest first; left out where nothing is null
    offsets    records + 1 int32: where each begins in what follows, and where the last ends
    values     bytes; of lists of names: an int32 each, its place in the dictionary
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
    from collections.abc import Callable, Iterable

_V = TypeVar("_V")
_NAMES_TYPE: Final = pa.list_(NAME_TYPE)
_bounds = struct.Struct("<ii").unpack_from


class Addresses(NamedTuple):
    """Where a column lies; good for as long as the column lives."""

    validity: int
    """0 where nothing is null."""
    offsets: int
    values: int


def addresses_of(array: pa.StringArray | pa.BinaryArray) -> Addresses:
    """Return where an array lies; its first row is the one at its offset."""
    validity, offsets, values = (buffer and buffer.address for buffer in array.buffers())
    return Addresses(validity or 0, offsets or 0, values or 0)


@dataclass(eq=False)
class _Column:
    """What both kinds have: which records have a value, and where it is.

    Views of memory, in bytes, that keeps what it holds; they may be longer than the column.
    """

    _rows: int
    _validity: memoryview | None
    _offsets: memoryview
    _values: memoryview

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it looks at."""
        validity = 0 if self._validity is None else self._validity.nbytes
        return validity + self._offsets.nbytes + self._values.nbytes

    @property
    def all_null(self) -> bool:
        """Whether no record has a value."""
        if self._validity is None:
            return self._rows == 0
        octets, bits = divmod(self._rows, 8)
        if self._validity[:octets].tobytes().count(0) < octets:
            return False
        return not bits or not self._validity[octets] & ((1 << bits) - 1)

    @property
    def addresses(self) -> Addresses:
        """Where the column lies."""
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
        """Return ``value`` of where each of some records' begins and ends; None where it is null."""
        validity, offsets = self._validity, self._offsets
        return [
            value(*_bounds(offsets, 4 * row))
            if validity is None or validity[row >> 3] >> (row & 7) & 1
            else None
            for row in rows
        ]


@dataclass(eq=False)
class Texts(_Column):
    """Strings or bytes, one a record, or null."""

    _kind: pa.DataType
    """utf8 or binary."""

    @classmethod
    def of(cls, array: pa.StringArray | pa.BinaryArray) -> Texts:
        """Return an array's values."""
        array = _unsliced(array)
        validity, offsets, values = map(_memory, array.buffers())
        validity = validity if array.null_count else None
        return cls(len(array), validity, offsets or _NOTHING, values or _NOTHING, array.type)

    def values(self, rows: Iterable[int]) -> list[bytes | None]:
        """Return the bytes of some records: for a few of them."""
        return self._each(rows, lambda start, stop: self._values[start:stop].tobytes())

    @cached_property
    def array(self) -> pa.StringArray | pa.BinaryArray:
        """The column in Arrow's form."""
        buffers = [*self._buffers, pa.py_buffer(self._values)]
        return pa.Array.from_buffers(self._kind, self._rows, buffers)


class Dictionary(NamedTuple):
    """The names that codes stand for."""

    array: pa.StringArray
    names: tuple[str, ...]

    @classmethod
    def of(cls, array: pa.StringArray) -> Dictionary:
        """Return an array's."""
        return cls(array, tuple(array.to_pylist()))


@dataclass(eq=False)
class NameLists(_Column):
    """Lists of names, one a record, or null; its values are their codes."""

    _dictionary: Dictionary

    @classmethod
    def of(cls, array: pa.ListArray) -> NameLists:
        """Return an array's lists of dictionary-encoded names."""
        array = _unsliced(array)
        validity, offsets, *_ = map(_memory, array.buffers())
        validity = validity if array.null_count else None
        codes = array.values.indices.to_numpy(zero_copy_only=False).astype(np.int32)
        dictionary = Dictionary.of(array.values.dictionary)
        return cls(len(array), validity, offsets or _NOTHING, codes.view(np.uint8).data, dictionary)

    @property
    def names(self) -> tuple[str, ...]:
        """What the codes stand for."""
        return self._dictionary.names

    def values(self, rows: Iterable[int]) -> list[list[str] | None]:
        """Return the lists of some records: for a few of them."""
        return self._each(rows, self._names)

    @cached_property
    def array(self) -> pa.ListArray:
        """The column in Arrow's form."""
        codes = pa.Array.from_buffers(
            pa.int32(), len(self._values) // 4, [None, pa.py_buffer(self._values)]
        )
        names = pa.DictionaryArray.from_arrays(codes, self._dictionary.array, safe=False)
        return pa.Array.from_buffers(_NAMES_TYPE, self._rows, [*self._buffers], children=[names])

    def _names(self, start: int, stop: int) -> list[str]:
        codes = struct.unpack_from(f"<{stop - start}i", self._values, 4 * start)
        return [self._dictionary.names[code] for code in codes]


_NOTHING: Final = memoryview(b"")


def _memory(buffer: pa.Buffer | None) -> memoryview | None:
    return None if buffer is None else memoryview(buffer)


def _unsliced(array: pa.Array) -> pa.Array:
    """Return the same array with its first element at the beginning of its buffers."""
    return pa.concat_arrays([array, array.slice(0, 0)]) if array.offset else array


__all__ = ["Addresses", "Dictionary", "NameLists", "Texts"]
