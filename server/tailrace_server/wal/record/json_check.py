"""Checks that bodies are UTF-8 JSON objects, for a whole column at once.

Two ways give the same answers: a parser that reads the bodies as lines, and compiled code. The compiled code
is loaded once a process has seen many bodies. It leaves doubtful texts to the parser.
"""

from __future__ import annotations

import re
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
"""Bytes of a body that an error shows."""
_AT_ONCE: Final = 256 << 10
"""Bytes of bodies that are parsed by one call, on average, so that they stay in the processor's cache."""
COMPILED_FROM: Final = 500_000
"""Objects after which compiled code is loaded. To parse so many takes half of the 0.5 s that loading takes."""

_seen = 0
"""Objects that this process has checked so far."""


class _Object(msgspec.Struct, gc=False):
    """Any JSON object. The decoder checks the members, which are all unknown, and skips them."""


_decoder: Final = msgspec.json.Decoder(_Object)


class NotAnObject(NamedTuple):
    """A body that is not a UTF-8 JSON object."""

    row: int
    """Row of the column."""
    reason: str
    """The fault, with the begin of the body."""


def compiled_for(objects: int) -> ModuleType | None:
    """Count objects that are about to be checked; return the compiled code, or None while there were few."""
    global _seen
    _seen += objects
    if _seen < COMPILED_FROM:
        return None
    return import_module("tailrace_server.wal.record.json_check_compiled")


def first_non_object(bodies: pa.BinaryArray) -> NotAnObject | None:
    """Return the first body that is not a UTF-8 JSON object, None if all are. Nulls are accepted.

    A body of 110 bytes takes 0.3 µs, compiled 0.13 µs. Space around the braces makes the parser slower.
    """
    try:
        # Arrow checks UTF-8, which neither the parser nor the compiled code does inside of texts.
        bodies.cast(pa.string())
    except pa.ArrowInvalid:
        return _first(bodies, range(len(bodies)))
    machine = compiled_for(len(bodies) - bodies.null_count)
    if machine is not None:
        return _first(bodies, _doubtful(bodies, machine))
    return None if _are_objects(bodies.drop_null()) else _first(bodies, range(len(bodies)))


def _doubtful(bodies: pa.BinaryArray, machine: ModuleType) -> Iterator[int]:
    """Yield the rows that compiled code does not accept: they may still be objects."""
    first, stop = bodies.offset, bodies.offset + len(bodies)
    column = addresses_of(bodies)
    while (row := machine.first_doubtful(*column, first, stop)) >= 0:
        yield row - bodies.offset
        first = row + 1


def _are_objects(bodies: pa.BinaryArray) -> bool:
    """Return True if all bodies are certainly objects.

    The bodies, none of them null, are joined by line breaks and decoded by one call. Each begins with ``{``
    and ends with ``}``, so no value can reach over a line break: a text cannot hold one unescaped, and ``}``
    followed by ``{`` is no part of a value. Each body thus holds at least one object. If there are as many
    objects as bodies, each holds exactly one.
    """
    if not len(bodies):
        return True
    _, offsets, data = bodies.buffers()
    places = np.frombuffer(offsets, np.int32)[bodies.offset : bodies.offset + len(bodies) + 1]
    starts, stops = places[:-1], places[1:]
    if (starts == stops).any():
        return False
    octets = np.frombuffer(data, np.uint8)
    # Space around the braces is valid JSON too; such bodies are left to the check one by one.
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
    """Return how many objects bodies hold, joined by line breaks.

    Raises:
        msgspec.MsgspecError: A line is not an object.
        RecursionError: A value nests too deeply.
    """
    together = pa.ListArray.from_arrays(pa.array([0, len(bodies)], pa.int32()), bodies)
    lines = pc.binary_join(together, b"\n")[0].as_buffer()
    return len(_decoder.decode_lines(lines))


def _first(bodies: pa.BinaryArray, rows: Iterable[int]) -> NotAnObject | None:
    """Decode some bodies one by one; return the first that is not an object."""
    for row in rows:
        body = bodies[row].as_py()
        if body is None:
            continue
        try:
            body.decode()
            _decoder.decode(body)
        except (UnicodeDecodeError, msgspec.MsgspecError, RecursionError) as error:
            fault = json_fault(body, error)
            return NotAnObject(row, f"is not a UTF-8 JSON object: {fault}: {body[:_SHOWN]!r}")
    return None


def json_fault(data: bytes | str, error: Exception) -> str:
    """Return what is wrong with a text that is no JSON, as the error of the parser does not always name it.

    The parser calls a text that ends early truncated input, and half of a surrogate pair the same, or an
    unexpected end of a hex escape.
    """
    said = str(error)
    if not any(each in said for each in ("truncated", "surrogate", "hex escape")):
        return said
    text = data.encode(errors="surrogatepass") if isinstance(data, str) else data
    for found in _ESCAPES.finditer(text):
        if found[1] is not None:
            return (
                f"it has half of a surrogate pair, {found[1].decode()} at byte {found.start()}, which UTF-8 "
                "cannot hold: write both halves, or the character"
            )
    return "it ends before it is complete"


_ESCAPES: Final = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
"""Escaped backslashes and whole pairs, which are passed over, and half of a pair: group 1."""
