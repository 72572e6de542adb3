"""Tables as files: Parquet, Arrow, lines of JSON or CSV, by the suffix of the name.

A file gets its name only when it is complete. In all forms except JSON, a row has its key, the position and
time of its last change, and the columns of the table. Parquet and Arrow have typed columns, or texts on
request; CSV has texts.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol

from tailrace.errors import InvalidRequest
from tailrace_server.cli.tables.cells import OTHERS, line_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tailrace.reads.state import StateRow
    from tailrace_server.cli.tables.cells import Cells
    from tailrace_server.cli.tables.typed_cells import TypedCells

TYPED: Final = (".parquet", ".arrow")
"""Suffixes of the forms with typed columns."""
_PLACE: Final = ("_primary_key", "_version", "_index", "_commit_timestamp")


class TableFile(Protocol):
    """A file that rows are written to, in order."""

    def write(self, rows: Sequence[StateRow]) -> None:
        """Append rows."""

    def end(self) -> None:
        """Write the end of the file, such as a footer."""


@contextmanager
def table_file(path: Path, cells: Cells, typed: TypedCells | None) -> Iterator[TableFile]:
    """Write a file; it gets its name when the context is left without an error, and is deleted otherwise.

    Args:
        path: Path of the file; its suffix selects the form.
        cells: The columns as texts.
        typed: The columns with types; None: columns are texts.

    Raises:
        InvalidRequest: The suffix is not that of a form.
        OSError: The file cannot be written.
    """
    # Write to a hidden file in the same folder, and rename it when it is complete: readers never see a part.
    make = form_of(path)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as sink:
            file = make(sink, cells, typed)
            try:
                yield file
            finally:
                # End the file even after an error: otherwise Arrow's writers would write their end when they
                # are garbage-collected, after the sink is closed.
                file.end()
            sink.flush()
        part.replace(path)
    finally:
        with suppress(FileNotFoundError):
            part.unlink()


def form_of(path: Path) -> _Make:
    """Return the function that opens a file of the form that a suffix selects.

    Raises:
        InvalidRequest: The suffix is not that of a form.
    """
    make = _FORMS.get(path.suffix.lower())
    if make is None:
        raise InvalidRequest(
            f"--output {str(path)!r}: the name must end with one of {', '.join(_FORMS)}, which "
            "sets the format"
        )
    return make


class _Lines:
    def __init__(self, sink: BinaryIO, _: Cells, __: TypedCells | None) -> None:
        self._sink = sink

    def write(self, rows: Sequence[StateRow]) -> None:
        self._sink.writelines(map(line_of, rows))

    def end(self) -> None:
        pass


class _Csv:
    def __init__(self, sink: BinaryIO, cells: Cells, _: TypedCells | None) -> None:
        import io

        self._cells = cells
        self._text = io.TextIOWrapper(sink, "utf-8", newline="", write_through=True)
        self._writer = csv.writer(self._text)
        self._writer.writerow((*_PLACE, *cells.columns, OTHERS))

    def write(self, rows: Sequence[StateRow]) -> None:
        for row in rows:
            values, others = self._cells.values(row)
            self._writer.writerow((*_place_of(row), *values, others))

    def end(self) -> None:
        self._text.flush()
        self._text.detach()  # the caller closes the sink


class _Batches:
    """A file of record batches, through a writer of pyarrow."""

    def __init__(
        self,
        sink: BinaryIO,
        cells: Cells,
        typed: TypedCells | None,
        open_writer: Callable[[BinaryIO, Any], Any],
    ) -> None:
        import pyarrow as pa

        self._pa = pa
        self._cells = cells
        self._typed = typed
        kinds = (pa.string(), pa.int64(), pa.int32(), pa.timestamp("us", "UTC"))
        texts = [pa.field(name, pa.string()) for name in (*cells.columns, OTHERS)]
        places = map(pa.field, _PLACE, kinds)
        self._schema = pa.schema([*places, *(texts if typed is None else typed.fields)])
        self._writer = open_writer(sink, self._schema)

    def write(self, rows: Sequence[StateRow]) -> None:
        columns = self._arrays([_place_of(row) for row in rows])
        if self._typed is None:
            found = map(self._cells.values, rows)
            columns += self._arrays([(*values, others) for values, others in found], len(_PLACE))
        else:
            columns += self._typed.arrays(rows)
        self._writer.write_batch(self._pa.record_batch(columns, schema=self._schema))

    def _arrays(self, lines: Sequence[tuple[Any, ...]], first: int = 0) -> list[Any]:
        """Return lines as arrays of the schema's columns, beginning with column number ``first``."""
        columns = zip(*lines, strict=True)
        return [
            self._pa.array(values, self._schema.field(place).type)
            for place, values in enumerate(columns, first)
        ]

    def end(self) -> None:
        self._writer.close()


def _parquet(sink: BinaryIO, cells: Cells, typed: TypedCells | None) -> _Batches:
    from pyarrow import parquet

    return _Batches(sink, cells, typed, parquet.ParquetWriter)


def _arrow(sink: BinaryIO, cells: Cells, typed: TypedCells | None) -> _Batches:
    from pyarrow import ipc

    return _Batches(sink, cells, typed, ipc.new_file)


def _place_of(row: StateRow) -> tuple[str, int, int, int | None]:
    return row.primary_key, *row.position, row.commit_timestamp or None


_Make = Callable[[BinaryIO, "Cells", "TypedCells | None"], TableFile]
_FORMS: Final[dict[str, _Make]] = {
    ".parquet": _parquet,
    ".arrow": _arrow,
    ".ndjson": _Lines,
    ".csv": _Csv,
}
