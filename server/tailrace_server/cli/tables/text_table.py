"""Rows as a table for a person: columns as wide as the first rows need, cut to what fits the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace_server.cli.output import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.reads.state import StateRow
    from tailrace_server.cli.output import Palette
    from tailrace_server.cli.tables.cells import Cells

GAP: Final = "  "
_CELL_MAX: Final = 40
"""Characters of a cell; a longer one is cut, and says so."""
NULL: Final = "–"


class TextTable:
    """Formats rows; the widths are those of the first ones."""

    def __init__(self, cells: Cells, palette: Palette, width: int | None) -> None:
        """Show some columns; ``width`` is that of the terminal, None where lines may be of any length."""
        self._cells = cells
        self._palette = palette
        self._width = width
        self._widths: list[int] = []
        self._right: list[bool] = []
        self._key_is_shown = True
        """Whether the key has a column of its own; not where it is one of the table's."""
        self.hidden = 0
        """Columns that do not fit."""

    def lines(self, rows: Sequence[StateRow]) -> list[bytes]:
        """Return the lines of rows; the first ones begin with the heads of the columns."""
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
        """Choose the widths, and return the line of the heads."""
        first = [values[0] if values else None for _, values, _ in found]
        keys = [row.primary_key for row, _, _ in found]
        self._key_is_shown = first != keys
        heads = [*(("key",) if self._key_is_shown else ()), *map(printable, self._cells.columns)]
        texts = [self._texts(row, values) for row, values, _ in found]
        columns = [*zip(*texts, strict=True)] if texts else [() for _ in heads]
        self._right = [all(map(is_number, column)) and bool(column) for column in columns]
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
    """Return a cell's text, shortened where it is long."""
    return text if len(text) <= _CELL_MAX else text[: _CELL_MAX - 1] + "…"


def is_number(text: str) -> bool:
    """Return whether a cell belongs to the right."""
    return text == NULL or text.lstrip("-").replace(".", "", 1).isdigit()
