"""Rows as cells of text, in the order of the schema's columns, and as a table for a person.

A cell has the exact value that the source wrote: a JSON string without its quotes, a number digit for digit, an
object or list as JSON. A null and a column that is missing in the row's image are None. Members of an image
that are not columns of the schema, for example since the column was renamed, come as JSON in a last column.

The columns of the table for a person are as wide as the first rows need; columns that do not fit are hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from tailrace_server.cli.terminal.output import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.reads.state import StateRow
    from tailrace.schema import Schema
    from tailrace_server.cli.terminal.output import Palette

OTHERS: Final = "_others"
"""Name of the last column, for members of an image that are not columns of the schema."""
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_text: Final = msgspec.json.Decoder(str).decode


@dataclass(frozen=True, slots=True)
class Cells:
    """The columns of a table that are printed."""

    columns: tuple[str, ...]

    @classmethod
    def of(cls, schema: Schema, entity_type: str, chosen: Sequence[str]) -> Cells:
        """Return the columns of an entity type, key columns first; only the chosen ones, if any are chosen."""
        known = [each for each in schema.entity_types.get(entity_type, ()) if not each.dropped]
        known.sort(key=lambda column: column.key or len(known) + 1)
        names = [each.name for each in known if not chosen or each.name in chosen]
        return cls((*names, *(name for name in chosen if name not in names)))

    def values(self, row: StateRow) -> tuple[list[str | None], str | None]:
        """Return the values of the columns, and the other members of the image as JSON or None."""
        members = {} if row.image is None else _members(row.image)
        values = [
            None if (raw := members.pop(name, None)) is None else _value(bytes(raw))
            for name in self.columns
        ]
        return values, msgspec.json.encode(members).decode() if members else None


def _value(raw: bytes) -> str | None:
    if raw == b"null":
        return None
    return _text(raw) if raw.startswith(b'"') else raw.decode()


def line_of(row: StateRow) -> bytes:
    """Return a row as a line of JSON, with the image unchanged except for line ends between its tokens."""
    image = b"null" if row.image is None else row.image.replace(b"\n", b" ").replace(b"\r", b" ")
    omitted = b',"omittedBytes":%d' % row.omitted_bytes if row.omitted_bytes else b""
    count = b',"count":%d' % row.count if row.count != 1 else b""
    return b'{"primaryKey":%b,"version":%d,"index":%d,"commitTimestamp":%d,"row":%b%b%b}\n' % (
        *(msgspec.json.encode(row.primary_key), row.position.version, row.position.index),
        *(row.commit_timestamp, image, omitted, count),
    )


GAP: Final = "  "
_CELL_MAX: Final = 40
"""Maximum number of characters in a cell; a longer text is cut and ends with "…"."""
NULL: Final = "–"


class TextTable:
    """Formatter of rows as lines of a table; the first rows determine the widths."""

    def __init__(self, cells: Cells, palette: Palette, width: int | None) -> None:
        """Store the columns; ``width`` is the width of the terminal, None for lines of any length."""
        self._cells = cells
        self._palette = palette
        self._width = width
        self._widths: list[int] = []
        self._right: list[bool] = []
        self._key_is_shown = True
        """True if the key is printed in its own column, because the first column does not equal it."""
        self.hidden = 0
        """Number of columns that do not fit."""

    def lines(self, rows: Sequence[StateRow]) -> list[bytes]:
        """Return the lines of rows; the first call also returns a line with the names of the columns."""
        found = [(row, *self._cells.values(row)) for row in rows]
        lines = []
        if not self._widths:
            lines.append(self._palette.bold(self._begin(found)))
        for row, values, others in found:
            texts = self._texts(row, values)
            extra = f"{GAP}{self._palette.dim('+ ' + printable(others))}" if others else ""
            times = f"{GAP}× {row.count:,}" if row.count != 1 else ""
            lines.append(self._line(texts) + times + extra)
        return [line.encode() + b"\n" for line in lines]

    def _begin(self, found: Sequence[tuple[StateRow, list[str | None], str | None]]) -> str:
        """Choose the widths, and return the line with the names of the columns."""
        # 1. Print the key in its own column only if the first column is not the key.
        first = [values[0] if values else None for _, values, _ in found]
        keys = [row.primary_key for row, _, _ in found]
        self._key_is_shown = first != keys
        heads = [*(("key",) if self._key_is_shown else ()), *map(printable, self._cells.columns)]
        texts = [self._texts(row, values) for row, values, _ in found]
        columns = [*zip(*texts, strict=True)] if texts else [() for _ in heads]
        self._right = [all(map(is_number, column)) and bool(column) for column in columns]
        # 2. Take columns from the left until the line is full, but at least one.
        left = self._width
        for head, column in zip(heads, columns, strict=True):
            width = max(len(head), *map(len, column)) if column else len(head)
            if left is not None and self._widths and width + len(GAP) > left:
                break
            self._widths.append(width)
            left = None if left is None else left - width - len(GAP)
        self.hidden = len(heads) - len(self._widths)
        return self._line(heads)

    def _texts(self, row: StateRow, values: Sequence[str | None]) -> list[str]:
        keys = (row.primary_key,) if self._key_is_shown else ()
        return [NULL if each is None else cut(printable(each)) for each in (*keys, *values)]

    def _line(self, texts: Sequence[str]) -> str:
        padded = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(texts, self._widths, self._right, strict=False)
        ]
        return GAP.join(padded).rstrip()


def cut(text: str) -> str:
    """Return a cell's text, shortened to the maximum length."""
    return text if len(text) <= _CELL_MAX else text[: _CELL_MAX - 1] + "…"


def is_number(text: str) -> bool:
    """Return True if a cell is a number or null, so that its column may be aligned to the right."""
    return text == NULL or text.lstrip("-").replace(".", "", 1).isdigit()
