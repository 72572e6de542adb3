"""Finds the names in JSON objects, for whole columns of them, without a parse of each.

The images of a batch lie in one buffer. A name ends at ``":``; the bytes before it, back to the
opening quote, are hashed as 8-byte words taken backwards, all rows at once, and looked up among the
names known. Only rows with a name that is not known are parsed, and a name inside a nested object
counts as not known. So no unknown name is missed, except if two hashes collide (2^-64 for two given names).

Texts that this cannot read (a space before a colon, an escaped quote in a name) are found and parsed instead.

After many rows compiled code takes over: it walks through each object and looks names up by the same hash.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tailrace_server.wal.record.json_check import compiled_for
from tailrace_server.wal.record.text_columns import addresses_of

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

_QUOTE, _COLON, _BACKSLASH, _SPACE = 0x22, 0x3A, 0x5C, 0x20
_PAD: Final = 8
_LOW_7: Final = np.uint64(0x7F7F7F7F7F7F7F7F)
_QUOTES: Final = np.uint64(0x2222222222222222)
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
_MASK: Final = (1 << 64) - 1
_CHUNK: Final = 4_096
"""Names hashed together: their arrays stay in the cache, and below malloc's threshold for a map."""
_AT_ONCE: Final = 256 << 10
"""Bytes of images searched together, on average; for the same reasons."""
_NAME_WORDS_MAX: Final = 32
"""Names above 255 bytes are left to the parser."""

Words = np.ndarray[Any, np.dtype[np.uint64]]


class KnownNames:
    """A set of (group, name), looked up by hash for many at once. Groups are small numbers."""

    def __init__(self) -> None:
        """Begin empty."""
        self._hashes: set[int] = set()
        self._bits = 4
        self._table = np.zeros(1 << self._bits, np.uint64)

    def add(self, group: int, name: str) -> None:
        """Add a name as JSON writes it: without quotes, escapes as they are."""
        value = _hash_of(group, name.encode())
        if value in self._hashes:
            return
        self._hashes.add(value)
        slot = value >> (64 - self._bits)
        if self._table[slot]:
            self._grow()
        else:
            self._table[slot] = value

    def contains(self, hashes: Words) -> npt.NDArray[np.bool_]:
        """Return for each hash whether it is that of a known name."""
        found: npt.NDArray[np.bool_] = self._table[hashes >> np.uint64(64 - self._bits)] == hashes
        return found

    @property
    def table(self) -> tuple[int, int]:
        """Address of the table of hashes, valid until a name is added, and the bits of its size."""
        return self._table.ctypes.data, self._bits

    def _grow(self) -> None:
        """Widen the table until no two names share a slot."""
        values = np.array(sorted(self._hashes), np.uint64)
        while True:
            self._bits += 1
            slots = values >> np.uint64(64 - self._bits)
            if len(np.unique(slots)) == len(slots):
                break
        self._table = np.zeros(1 << self._bits, np.uint64)
        self._table[slots] = values


def rows_with_unknown_names(
    images: pa.Array, groups: npt.NDArray[np.int64], known: KnownNames
) -> npt.NDArray[np.int64]:
    """Return the rows to be parsed: those that may hold a name that is not known in their group.

    Args:
        images: Binary or string array of JSON objects, known to be such. A null row may be returned if
            there are bytes behind it.
        groups: Group of each row.
        known: The known names.
    """
    compiled = compiled_for(len(images))
    if compiled is not None:
        marks = np.zeros(len(images), np.bool_)
        column, rows = addresses_of(images), len(images)
        compiled.mark_unknown(*column, images.offset, rows, groups.ctypes.data, *known.table, marks)
        return np.flatnonzero(marks)
    size = images.nbytes // max(len(images), 1) + 1
    step = _AT_ONCE // size + 1
    found = [
        _unknown_of_part(images.slice(place, step), groups[place : place + step], known) + place
        for place in range(0, len(images), step)
    ]
    return np.concatenate(found) if found else np.empty(0, np.int64)


def _unknown_of_part(
    images: pa.Array, groups: npt.NDArray[np.int64], known: KnownNames
) -> npt.NDArray[np.int64]:
    """Return the rows to be parsed among some of the rows, in Python."""
    # 1. A name ends with a quote directly before a colon. A colon behind a space may follow a name as well, so
    #    its row is parsed. Any other colon ends no name.
    buffer, offsets = _buffer_of(images)
    colons = np.flatnonzero(buffer == _COLON)
    before = buffer[colons - 1]
    apart = colons[before <= _SPACE]
    ends = colons[before == _QUOTE] - 1
    # 2. A quote behind one backslash is part of a text. Behind two or more the parser must decide.
    slashes = buffer[ends - 1] == _BACKSLASH
    if slashes.any():
        doubtful = slashes & (buffer[ends - 2] == _BACKSLASH)
        apart = np.concatenate([apart, ends[doubtful]])
        ends = ends[~slashes]
    # 3. Hash the names and look them up, a chunk at a time.
    per_row = np.diff(np.searchsorted(ends, offsets + _PAD))
    group_of = np.repeat(groups, per_row)
    known_ends = np.empty(len(ends), np.bool_)
    escapes = bool((buffer == _BACKSLASH).any())
    for start in range(0, len(ends), _CHUNK):
        part = slice(start, start + _CHUNK)
        hashes, readable = _hashes_before(buffer, ends[part], group_of[part], escapes)
        known_ends[part] = known.contains(hashes) & readable
    # 4. From places in the buffer to rows.
    unknown = np.concatenate([ends[~known_ends], apart])
    if not len(unknown):
        return np.empty(0, np.int64)
    return np.unique(np.searchsorted(offsets, unknown - _PAD, "right") - 1)


def _buffer_of(images: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return the bytes of the rows behind some zeros, and where each row begins and the last ends."""
    _, offset_buffer, data = images.buffers()
    count = len(images)
    raw = np.frombuffer(offset_buffer, np.int32)[images.offset : images.offset + count + 1]
    start, stop = int(raw[0]), int(raw[-1])
    padded = np.zeros(_PAD + stop - start + 1, np.uint8)
    if data is not None:
        padded[_PAD:-1] = np.frombuffer(data, np.uint8)[start:stop]
    return padded, raw.astype(np.int64) - start


def _hashes_before(
    buffer: npt.NDArray[np.uint8],
    ends: npt.NDArray[np.int64],
    groups: npt.NDArray[np.int64],
    escapes: bool,
) -> tuple[Words, npt.NDArray[np.bool_]]:
    """Return the hash of the name before each closing quote, and whether it could be read.

    Args:
        buffer: The bytes, behind `_PAD` zeros.
        ends: The closing quotes.
        groups: Group of each.
        escapes: Whether there is a backslash anywhere.
    """
    # Every name at once, 8 bytes a turn, from its closing quote backwards. `active` are the names whose opening
    # quote has not been reached; the words overlap, since ``strides`` is one byte.
    words: Words = np.ndarray((len(buffer) - 7,), "<u8", buffer.data, strides=(1,))
    found = (groups.astype(np.uint64) + np.uint64(1)) * _FACTOR
    readable = np.ones(len(ends), np.bool_)
    active, hashes, at = None, found, ends - 8
    for _ in range(_NAME_WORDS_MAX):
        word = words[np.maximum(at, 0)]
        quotes = _bytes_that_are_quotes(word)
        above = _above_highest(quotes)
        # Bytes above the last quote in the word belong to the name; the rest is what came before.
        hashes = _mix(hashes ^ (word & above))
        if active is None:
            found = hashes
        else:
            found[active] = hashes
        opened = quotes != 0
        if escapes:
            closed = np.flatnonzero(opened)
            wrong = closed[_escaped(buffer, at[closed], above[closed])]
            readable[wrong if active is None else active[wrong]] = False
        left = np.flatnonzero(~opened)
        if not len(left):
            return found, readable
        active = left if active is None else active[left]
        hashes, at = hashes[left], at[left] - 8
    readable[active] = False
    return found, readable


def _bytes_that_are_quotes(word: Words) -> Words:
    """Return 0x80 in each byte that is a quote, 0 in the others; no carry crosses a byte."""
    differing = word ^ _QUOTES
    return ~(((differing & _LOW_7) + _LOW_7) | differing | _LOW_7)


def _above_highest(marks: Words) -> Words:
    """Return a mask of the bytes above the highest one marked; of all bytes where none is."""
    filled = (marks >> np.uint64(7)) * np.uint64(0xFF)
    for shift in (8, 16, 32):
        filled |= filled >> np.uint64(shift)
    return ~filled


def _escaped(
    buffer: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], above: Words
) -> npt.NDArray[np.bool_]:
    """Return True if a backslash is before the opening quote, which is then none."""
    quote = at + 7 - np.bitwise_count(above).astype(np.int64) // 8
    found: npt.NDArray[np.bool_] = buffer[quote - 1] == _BACKSLASH
    return found


def _mix(values: Words) -> Words:
    product = values * _FACTOR
    return product ^ (product >> np.uint64(29))


def _hash_of(group: int, name: bytes) -> int:
    value = ((group + 1) * int(_FACTOR)) & _MASK
    rest = b'"' + name
    while True:
        chunk = rest[-8:]
        rest = rest[:-8]
        if chunk[:1] == b'"' and not rest:
            word = int.from_bytes(chunk[1:].rjust(8, b"\0"), "little")
        else:
            word = int.from_bytes(chunk, "little")
        product = ((value ^ word) * int(_FACTOR)) & _MASK
        value = product ^ (product >> 29)
        if not rest:
            return value
