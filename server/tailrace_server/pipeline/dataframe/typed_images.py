r"""The images of typed rows: Arrow columns become JSON objects, column by column, without Python work per row.

======================================  ===========================================================
column                                  member of the image
======================================  ===========================================================
boolean, integers, decimals             as JSON writes it
float, double                           a number; the texts ``"NaN"``, ``"Infinity"``, ``"-Infinity"``
string                                  a text, with the shortest escapes
binary                                  a text in base64
date, timestamp_ntz                     ``"2024-02-29"``, ``"2024-02-29T13:37:00.250000"``
timestamp                               the same in UTC, with ``Z``
time                                    ``"13:37:00.250000"``
interval, day to second                 a number of microseconds
array, struct                           a list, an object
map                                     an object; a key that is no text is named by its JSON text
void                                    null
======================================  ===========================================================

The columns of the catalog that hold these values are those of `write_options.columns_of`; `typed.forms` reads
the values back equal.
"""

from __future__ import annotations

import binascii
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

_QUOTE, _BACKSLASH, _SPACE = 0x22, 0x5C, 0x20
_NULL: Final = pa.scalar("null")


class _Texts(NamedTuple):
    """The values of a column as texts; null where the value is null."""

    array: pa.StringArray
    quoted: bool = False
    """True if each text belongs between quotes in JSON, and then needs no escapes."""


def images_of(columns: Sequence[tuple[str, pa.Array]]) -> pa.BinaryArray:
    """Return one JSON object for each row.

    Args:
        columns: Name and values of each column, in the order of the members; at least one.

    Raises:
        InvalidRequest: A text is not UTF-8, a time has nanoseconds, or Arrow's type has no form in JSON.
    """
    pieces: list[pa.Array | str] = []
    before = "{"
    for name, values in columns:
        try:
            texts = _texts(values)
        except InvalidRequest as error:
            raise InvalidRequest(f"column {name}: {error}") from None
        before += orjson.dumps(name).decode() + ":"
        # The quotes of a column without nulls are part of the pieces around it, which saves a copy.
        if texts.quoted and not texts.array.null_count:
            pieces += [before + '"', texts.array]
            before = '",'
        else:
            pieces += [before, _json(texts)]
            before = ","
    joined = pc.binary_join_element_wise(*pieces, before[:-1] + "}", "")
    return joined.cast(pa.binary())


def key_texts(columns: Sequence[pa.Array]) -> pa.StringArray:
    """Return the canonical text of each row's key (`wal.record.keys.key_text`); no value is null.

    Raises:
        InvalidRequest: As `images_of`.
    """
    if len(columns) > 1:
        pieces: list[pa.Array | str] = []
        for place, values in enumerate(columns):
            pieces += ["," if place else "[", _json(_texts(values))]
        return pc.binary_join_element_wise(*pieces, "]", "")
    values = _undecorated(columns[0])
    # The key is the text itself, without quotes and escapes.
    return _valid(values) if pa.types.is_string(values.type) else _plain(_texts(values))


def _json(texts: _Texts) -> pa.StringArray:
    """Return texts of JSON; ``null`` in place of nulls."""
    array = pc.binary_join_element_wise('"', texts.array, '"', "") if texts.quoted else texts.array
    return pc.coalesce(array, _NULL) if array.null_count else array


def _plain(texts: _Texts) -> pa.StringArray:
    """Return the texts without the quotes that floats have in place of numbers."""
    return pc.utf8_trim(texts.array, '"')


def _undecorated(values: pa.Array) -> pa.Array:
    """Return values without dictionary, extension type, or large offsets."""
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_large_string(values.type) or pa.types.is_string_view(values.type):
        return values.cast(pa.string())
    if pa.types.is_large_binary(values.type) or pa.types.is_binary_view(values.type):
        return values.cast(pa.binary())
    return values


def _texts(values: pa.Array) -> _Texts:
    """Return the texts of a column of any type."""
    values = _undecorated(values)
    kind = values.type
    types = pa.types
    if types.is_string(kind):
        return _Texts(_escaped(_valid(values)), quoted=True)
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_decimal(kind):
        return _Texts(values.cast(pa.string()))
    if types.is_floating(kind):
        return _Texts(_floats(values))
    if types.is_date32(kind):
        return _Texts(values.cast(pa.string()), quoted=True)
    if types.is_timestamp(kind):
        return _Texts(_timestamps(values), quoted=True)
    if types.is_time(kind):
        return _Texts(_cast(values, pa.time64("us")).cast(pa.string()), quoted=True)
    if types.is_duration(kind):
        return _Texts(_cast(values, pa.duration("us")).cast(pa.int64()).cast(pa.string()))
    if types.is_binary(kind):
        return _Texts(_base64(values), quoted=True)
    if types.is_list(kind):
        return _Texts(_listed(values, _json(_texts(values.values)), "[]"))
    if types.is_struct(kind):
        return _Texts(_structs(values))
    if types.is_map(kind):
        return _Texts(_maps(values))
    if types.is_null(kind):
        return _Texts(pa.nulls(len(values), pa.string()))
    raise InvalidRequest(f"values of type {kind} have no form in JSON; cast them to a string")


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return values.cast(kind)
    except pa.ArrowInvalid as error:
        raise InvalidRequest(f"{error}; times are exact to the microsecond") from None


def _valid(texts: pa.StringArray) -> pa.StringArray:
    """Return texts after a check that they are UTF-8, since Spark accepts any bytes as a string."""
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid as error:
        raise InvalidRequest(f"a text is not UTF-8: {error}") from None
    return texts


def _escaped(texts: pa.StringArray) -> pa.StringArray:
    """Return texts with the escapes of JSON."""
    # One look at all bytes decides, since most columns need no escape.
    _, offsets, data = texts.buffers()
    if data is None or not len(texts):
        return texts
    ends = np.frombuffer(offsets, np.int32)
    first, last = ends[texts.offset], ends[texts.offset + len(texts)]
    octets = np.frombuffer(data, np.uint8)[first:last]
    marked = octets[(octets < _SPACE) | (octets == _QUOTE) | (octets == _BACKSLASH)]
    if not len(marked):
        return texts
    # The backslash comes first: the other escapes contain it.
    found = np.flatnonzero(np.bincount(marked, minlength=_BACKSLASH + 1)).tolist()
    for octet in sorted(found, reverse=True):
        character = chr(octet)
        escape = orjson.dumps(character).decode()[1:-1]
        texts = pc.replace_substring(texts, character, escape)
    return texts


def _floats(values: pa.Array) -> pa.StringArray:
    texts = values.cast(pa.string())
    finite = pc.is_finite(values)
    if pc.all(finite).as_py() is not False:
        return texts
    named = pc.if_else(pc.greater(values, 0), '"Infinity"', '"-Infinity"')
    named = pc.if_else(pc.is_nan(values), '"NaN"', named)
    return pc.if_else(finite, texts, named)


def _timestamps(values: pa.Array) -> pa.StringArray:
    # Arrow counts from 1970 in UTC whatever the zone is. Without a zone its conversion is faster.
    zone = values.type.tz
    micros = _cast(values, pa.timestamp("us", zone)).view(pa.timestamp("us"))
    texts = pc.binary_replace_slice(micros.cast(pa.string()), 10, 11, "T")
    return texts if zone is None else pc.binary_join_element_wise(texts, "Z", "")


def _base64(values: pa.BinaryArray) -> pa.StringArray:
    """Return bytes in base64, with one call of the codec for all rows."""
    # 1. Copy each value to a place of whole groups of three bytes, so that no group has bytes of two values.
    ends = np.frombuffer(values.buffers()[1] or b"\0\0\0\0", np.int32).astype(np.int64)
    ends = ends[values.offset : values.offset + len(values) + 1]
    lengths = np.diff(ends)
    groups = (lengths + 2) // 3
    stops = np.cumsum(groups)
    starts = stops - groups
    total = int(stops[-1]) if len(stops) else 0
    padded = np.zeros(3 * total, np.uint8)
    data = np.frombuffer(values.buffers()[2] or b"", np.uint8)[ends[0] : ends[-1]]
    padded[np.arange(len(data)) + np.repeat(3 * starts - (ends[:-1] - ends[0]), lengths)] = data
    # 2. Encode all groups, then mark the bytes that were only added.
    encoded = np.frombuffer(binascii.b2a_base64(padded.tobytes(), newline=False), np.uint8).copy()
    last = 4 * stops - 1
    encoded[last[lengths % 3 != 0]] = ord("=")
    encoded[last[lengths % 3 == 1] - 1] = ord("=")
    offsets = np.zeros(len(values) + 1, np.int32)
    offsets[1:] = 4 * stops
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(encoded)]
    texts = pa.Array.from_buffers(pa.string(), len(values), buffers)
    return pc.if_else(values.is_valid(), texts, None) if values.null_count else texts


def _listed(values: pa.Array, elements: pa.StringArray, brackets: str) -> pa.StringArray:
    """Return the texts of elements, joined for each list or map; null where that is null."""
    lists = pa.ListArray.from_arrays(values.offsets, elements)
    joined = pc.binary_join(lists, ",")
    texts = pc.binary_join_element_wise(brackets[0], joined, brackets[1], "")
    return pc.if_else(values.is_valid(), texts, None) if values.null_count else texts


def _structs(values: pa.StructArray) -> pa.StringArray:
    names = [field.name for field in values.type]
    if not names:
        texts = pa.array(["{}"] * len(values), pa.string())
    else:
        members = [(name, values.field(place)) for place, name in enumerate(names)]
        texts = images_of(members).cast(pa.string())
    return pc.if_else(values.is_valid(), texts, None) if values.null_count else texts


def _maps(values: pa.MapArray) -> pa.StringArray:
    keys, items = _texts(values.keys), _json(_texts(values.items))
    # A member's name is a text, so the JSON text of another key is escaped.
    names = keys.array if keys.quoted else _escaped(_plain(keys))
    pairs = pc.binary_join_element_wise('"', names, '":', items, "")
    return _listed(values, pairs, "{}")
