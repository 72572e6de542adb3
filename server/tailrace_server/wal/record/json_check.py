"""Checks that the bodies of a whole column are UTF-8 JSON objects.

A compiled loop finds bodies that may not be objects, and a parser decides. Without the loop every body is
parsed.
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
"""Maximum length of a body in an error message, in bytes."""


class _Object(msgspec.Struct, gc=False):
    """Any JSON object: all members are unknown, so the decoder checks and skips them."""


_decoder: Final = msgspec.json.Decoder(_Object)


class NotAnObject(NamedTuple):
    """A body that is not a UTF-8 JSON object."""

    row: int
    """Row in the column."""
    reason: str
    """The fault, followed by the beginning of the body."""


def first_non_object(bodies: pa.BinaryArray) -> NotAnObject | None:
    """Return the first body that is not a UTF-8 JSON object; None if all are. Nulls are accepted.

    The loop needs 0.13 µs for a body of 110 bytes, the parser 1 µs.
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
    """Yield the rows that the loop does not accept; they may still be objects."""
    first, stop = bodies.offset, bodies.offset + len(bodies)
    column = addresses_of(bodies)
    while (row := machine.first_doubtful(*column, first, stop)) >= 0:
        yield row - bodies.offset
        first = row + 1


def _first(bodies: pa.BinaryArray, rows: Iterable[int]) -> NotAnObject | None:
    """Parse some bodies one by one; return the first that is not an object."""
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
    """Return the fault of an invalid JSON text, clearer than the parser's error.

    The parser reports half of a surrogate pair as truncated input or as an unexpected end of a hex escape.
    """
    said = str(error)
    if not any(each in said for each in ("truncated", "surrogate", "hex escape")):
        return said
    text = data.encode(errors="surrogatepass") if isinstance(data, str) else data
    for found in _ESCAPES.finditer(text):
        if found[1] is not None:
            return (
                f"it has half of a surrogate pair, {found[1].decode()} at byte {found.start()}, "
                "which UTF-8 does not allow: write both halves, or the character"
            )
    return "it ends before it is complete"


_ESCAPES: Final = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
"""Matches escaped backslashes and whole surrogate pairs, which are valid, and half of a pair, as group 1."""
