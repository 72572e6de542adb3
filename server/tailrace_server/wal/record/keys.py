"""The canonical text of a key, and the hash of (entity type, primary key) by which the router looks up keys.

All arithmetic is modulo 2^64. Bytes are read as 8-byte little-endian words, the last padded with zeros::

    word_hash(h, bytes):   for each word w:   h = (h ^ w) * 0x9E3779B97F4A7C15;   h ^= h >> 32
                           at the end:        h = (h ^ length in bytes) * 0xD6E8FEB86659FD93;   h ^= h >> 32

    type_seed(type)      = word_hash(0, UTF-8 of the type)
    key_hash(seed, key)  = word_hash(seed, UTF-8 of the key), with 0 replaced by 1;  0 is the hash of a null key

The hash distributes keys over a hash table. It does not resist keys that are chosen to collide, so callers
compare the keys themselves where hashes are equal.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np
import orjson
import pyarrow as pa

from tailrace_server.machine_code.loader import WORD, address, loops
from tailrace_server.wal.record.text_columns import addresses_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import msgspec
    import numpy.typing as npt

_WORD_FACTOR: Final = 0x9E3779B97F4A7C15
_LENGTH_FACTOR: Final = 0xD6E8FEB86659FD93
_MASK: Final = (1 << 64) - 1
_ONE_BY_ONE_MAX: Final = 8
"""Number of keys up to which they are hashed one by one: calling the compiled loop costs more."""


@lru_cache(1_024)
def type_seed(entity_type: str) -> int:
    """Return the seed for the key hashes of an entity type."""
    return _word_hash(0, entity_type.encode())


def key_hash(seed: int, primary_key: str) -> int:
    """Return the hash of one key, given the seed of its entity type; always positive."""
    return _word_hash(seed, primary_key.encode()) or 1


def key_hashes(
    seeds: npt.NDArray[np.uint64], keys: pa.StringArray | pa.BinaryArray | pa.LargeBinaryArray
) -> npt.NDArray[np.uint64]:
    """Return the hashes of many keys; 0 where the key is null.

    Args:
        seeds: ``type_seed`` of each row's entity type, shape (n,).
        keys: The keys, shape (n,).
    """
    # The loop continues each row's hash in place, beginning with its seed, so it needs a copy.
    hashes = seeds.astype(np.uint64)
    machine = loops(len(keys), _ONE_BY_ONE_MAX + 1)
    if machine is not None:
        is_large = int(pa.types.is_large_binary(keys.type))
        at = *addresses_of(keys), keys.offset, len(keys), is_large
        machine.hash_texts(*at, address(hashes, WORD))
        return hashes
    texts = keys.cast(pa.large_binary()).to_pylist()
    found = (
        0 if text is None else _word_hash(seed, text) or 1
        for seed, text in zip(hashes.tolist(), texts, strict=True)
    )
    return np.fromiter(found, np.uint64, len(keys))


def _word_hash(value: int, data: bytes) -> int:
    for place in range(0, len(data), 8):
        word = int.from_bytes(data[place : place + 8], "little")
        # Masked to 64 bits, where the arithmetic of the compiled loop wraps by itself.
        value = ((value ^ word) * _WORD_FACTOR) & _MASK
        value ^= value >> 32
    value = ((value ^ len(data)) * _LENGTH_FACTOR) & _MASK
    return value ^ (value >> 32)


def key_text(texts: Sequence[bytes | msgspec.Raw]) -> str | None:
    """Return the canonical text of a key, given the JSON texts of its columns; None if one is null.

    A single column yields its plain text: a string without quotes, any other value as written. Several columns
    yield a compact JSON array, with strings in their shortest escaped form and other values as written.

    Different keys with the same number of columns have different texts. The only exception is a single column
    that is a string in one key and of another type in the other: ``1`` and ``"1"``. A column has one type, so
    these are never two rows. If a column is altered to text, the keys of its rows stay the same.
    """
    values = [bytes(text) for text in texts]
    if not values or b"null" in values:
        return None
    if len(values) == 1:
        value = values[0]
        return str(orjson.loads(value)) if value[:1] == b'"' else value.decode()
    return _array(values)


def row_text(texts: Sequence[bytes | msgspec.Raw]) -> str:
    """Return the canonical text of a row that is its own key: a compact JSON array of its values.

    Trailing nulls are omitted, so a row keeps its text when its table gets a new column that is null in the
    row.
    """
    values = [bytes(text) for text in texts]
    while values and values[-1] == b"null":
        values.pop()
    return _array(values)


def _array(values: Sequence[bytes]) -> str:
    parts = (orjson.dumps(orjson.loads(v)) if v[:1] == b'"' else v for v in values)
    return (b"[%b]" % b",".join(parts)).decode()
