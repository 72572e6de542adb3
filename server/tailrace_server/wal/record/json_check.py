"""Whether bodies are what they must be, UTF-8 JSON objects, for whole columns of them.

By a parser that takes them as lines; once there have been many, by compiled code, which leaves to the parser
what it doubts.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace_server.wal.record.text_columns import addresses_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import ModuleType

_SHOWN: Final = 100
"""Bytes of a body in an error."""
_AT_ONCE: Final = 256 << 10
"""Bytes of bodies that are put together, on average: they stay in the cache."""
COMPILED_FROM: Final = 500_000
"""So many objects took half as long as it takes to load compiled code, 0.5 s: more are to be expected."""

_seen = 0
"""Objects that this process has looked at."""


class _Object(msgspec.Struct, gc=False):
    """Any JSON object: a decoder skips members that it does not know, and checks them on its way."""


_decoder: Final = msgspec.json.Decoder(_Object)


class NoObject(NamedTuple):
    """A body that is none."""

    row: int
    reason: str
    """What is wrong, with the beginning of the body."""


def compiled_for(objects: int) -> ModuleType | None:
    """Return `json_machine` to look at so many objects; None as long as there have been few."""
    global _seen
    _seen += objects
    if _seen < COMPILED_FROM:
        return None
    return import_module("tailrace_server.wal.record.json_check_compiled")


def first_no_object(bodies: pa.BinaryArray) -> NoObject | None:
    """Return the first body that is not a UTF-8 JSON object, None if all are; nulls do not count.

    Of 110 bytes: 0.3 µs a body, more where one has space around its braces; compiled 0.13.
    """
    try:
        bodies.cast(pa.string())  # neither way looks into texts
    except pa.ArrowInvalid:
        return _first(bodies, range(len(bodies)))
    machine = compiled_for(len(bodies) - bodies.null_count)
    if machine is not None:
        return _first(bodies, _doubtful(bodies, machine))
    return None if _are_objects(bodies.drop_null()) else _first(bodies, range(len(bodies)))


def _doubtful(bodies: pa.BinaryArray, machine: ModuleType) -> Iterator[int]:
    """Yield the rows that compiled code is not sure of."""
    first, stop = bodies.offset, bodies.offset + len(bodies)
    column = addresses_of(bodies)
    while (row := machine.first_doubtful(*column, first, stop)) >= 0:
        yield row - bodies.offset
        first = row + 1


def _are_objects(bodies: pa.BinaryArray) -> bool:
    """Return whether all are objects, or False where that cannot be told from lines.

    As lines they are decoded by one call. Where each begins and ends with a brace, a line break between two
    cannot lie within a value: neither within a text, as it is not escaped, nor behind ``}`` and before ``{``.
    So each holds at least one object, and if there are as many objects as bodies, it holds one.
    """
    if not len(bodies):
        return True
    _, offsets, data = bodies.buffers()
    places = np.frombuffer(offsets, np.int32)[bodies.offset : bodies.offset + len(bodies) + 1]
    starts, stops = places[:-1], places[1:]
    if (starts == stops).any():
        return False
    octets = np.frombuffer(data, np.uint8)
    if (octets[starts] != ord("{")).any() or (octets[stops - 1] != ord("}")).any():
        return False
    step = max(1, _AT_ONCE * len(bodies) // int(places[-1] - places[0]))
    try:
        return all(
            _objects_in(bodies.slice(place, step)) == min(step, len(bodies) - place)
            for place in range(0, len(bodies), step)
        )
    except (msgspec.MsgspecError, RecursionError):
        return False


def _objects_in(bodies: pa.BinaryArray) -> int:
    """Return how many objects there are in bodies."""
    together = pa.ListArray.from_arrays(pa.array([0, len(bodies)], pa.int32()), bodies)
    lines = pc.binary_join(together, b"\n")[0].as_buffer()
    return len(_decoder.decode_lines(lines))


def _first(bodies: pa.BinaryArray, rows: Iterable[int]) -> NoObject | None:
    """Return the first of some that is no object, told one by one."""
    for row in rows:
        body = bodies[row].as_py()
        if body is None:
            continue
        try:
            body.decode()
            _decoder.decode(body)
        except (UnicodeDecodeError, msgspec.MsgspecError, RecursionError) as error:
            return NoObject(row, f"is not a UTF-8 JSON object: {error}: {body[:_SHOWN]!r}")
    return None
