"""Whether bodies are what they must be, UTF-8 JSON objects, for whole columns of them."""

from __future__ import annotations

from itertools import pairwise
from typing import Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

_SHOWN: Final = 100
"""Bytes of a body in an error."""


class _Object(msgspec.Struct, gc=False):
    """Any JSON object: a decoder skips members that it does not know, and checks them on its way."""


_check: Final = msgspec.json.Decoder(_Object).decode


class NoObject(NamedTuple):
    """A body that is none."""

    row: int
    reason: str
    """What is wrong, with the beginning of the body."""


def first_no_object(bodies: pa.BinaryArray) -> NoObject | None:
    """Return the first body that is not a UTF-8 JSON object, None if all are; nulls do not count.

    Nothing is built: 0.15 µs for a body of 110 bytes.
    """
    if bodies.null_count == len(bodies):
        return None
    try:
        bodies.cast(pa.string())  # the decoder does not look into texts
        _check_each(bodies.drop_null())
    except (pa.ArrowInvalid, msgspec.MsgspecError, RecursionError):
        return _first(bodies)
    return None


def _check_each(bodies: pa.BinaryArray) -> None:
    """Decode each where it lies, which takes a third less time than to make ``bytes`` of it first."""
    _, offsets, data = bodies.buffers()
    places = np.frombuffer(offsets, np.int32)[bodies.offset : bodies.offset + len(bodies) + 1]
    memory = memoryview(data or b"")
    for start, stop in pairwise(places.tolist()):
        _check(memory[start:stop])


def _first(bodies: pa.BinaryArray) -> NoObject | None:
    for row, body in enumerate(bodies.to_pylist()):
        if body is None:
            continue
        try:
            body.decode()
            _check(body)
        except (UnicodeDecodeError, msgspec.MsgspecError, RecursionError) as error:
            return NoObject(row, f"is not a UTF-8 JSON object: {error}: {body[:_SHOWN]!r}")
    return None
