"""Print a line of JSON or a table, as commands show the contents of a server or a log."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


def print_json(value: Any) -> None:
    """Print a value as a line of JSON; bytes become text, and named tuples lists."""
    import orjson

    def plain(other: object) -> object:
        if isinstance(other, bytes):
            return other.decode(errors="replace")
        if isinstance(other, tuple):
            return list(other)
        raise TypeError(f"{type(other)} has no JSON form")

    sys.stdout.buffer.write(orjson.dumps(value, default=plain) + b"\n")
    sys.stdout.buffer.flush()


def print_table(rows: Sequence[Sequence[str]], numbers: Collection[int]) -> None:
    """Print rows with aligned columns, the columns at the places ``numbers`` to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            text.rjust(width) if place in numbers else text.ljust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
