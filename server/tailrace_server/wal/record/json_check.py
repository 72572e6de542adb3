"""Checks that bodies are UTF-8 JSON objects, for a whole column at once.

A compiled loop finds the bodies that may be none, and a parser decides. Without the loop the parser reads all.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import pyarrow as pa

from tailrace_server.machine_code.loader import loops
from tailrace_server.wal.record.text_columns import addresses_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tailrace_server.machine_code.loader import Loops

_SHOWN: Final = 100
"""Bytes of a body that an error shows."""


class _Object(msgspec.Struct, gc=False):
    """Any JSON object. The decoder checks the members, which are all unknown, and skips them."""


_decoder: Final = msgspec.json.Decoder(_Object)


class NotAnObject(NamedTuple):
    """A body that is not a UTF-8 JSON object."""

    row: int
    """Row of the column."""
    reason: str
    """The fault, with the begin of the body."""


def first_non_object(bodies: pa.BinaryArray) -> NotAnObject | None:
    """Return the first body that is not a UTF-8 JSON object, None if all are. Nulls are accepted.

    A body of 110 bytes takes 0.13 µs, and 1 µs by the parser.
    """
    try:
        # Arrow checks UTF-8, which neither the parser nor the loop does inside of texts.
        bodies.cast(pa.string())
    except pa.ArrowInvalid:
        return _first(bodies, range(len(bodies)))
    machine = loops(len(bodies))
    rows = range(len(bodies)) if machine is None else _doubtful(bodies, machine)
    return _first(bodies, rows)


def _doubtful(bodies: pa.BinaryArray, machine: Loops) -> Iterator[int]:
    """Yield the rows that the loop does not accept: they may still be objects."""
    first, stop = bodies.offset, bodies.offset + len(bodies)
    column = addresses_of(bodies)
    while (row := machine.first_doubtful(*column, first, stop)) >= 0:
        yield row - bodies.offset
        first = row + 1


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
