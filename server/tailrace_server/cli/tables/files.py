"""Tables as files: Parquet, Arrow, lines of JSON, CSV; the name says which. A file is there once it is whole.

In all but JSON a row is its key, the place and time of its last change, and a column for each of the table's,
as texts: exact, whatever the source wrote. Who reads the file casts what it needs.
"""

from __future__ import annotations

import csv
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from tailrace.errors import InvalidRequest
from tailrace_server.cli.tables.cells import OTHERS, line_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from typing import BinaryIO

    from tailrace.reads.state import StateRow
    from tailrace_server.cli.tables.cells import Cells

_PLACE: Final = ("_primary_key", "_version", "_index", "_commit_timestamp")


class TableFile(Protocol):
    """Takes rows, in their order."""

    def write(self, rows: Sequence[StateRow]) -> None:
        """Append rows."""

    def end(self) -> None:
        """Write what belongs at the end."""


@contextmanager
def table_file(path: Path, cells: Cells) -> Iterator[TableFile]:
    """Write a file, which has its name once the context is left in good order; else nothing is left of it.

    Raises:
        InvalidRequest: The name has no suffix of a form that there is.
        OSError: It cannot be written.
    """
    make = form_of(path)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as sink:
            file = make(sink, cells)
            yield file
            file.end()
            sink.flush()
        part.replace(path)
    finally:
        with suppress(FileNotFoundError):
            part.unlink()


def form_of(path: Path) -> Callable[[BinaryIO, Cells], TableFile]:
    """Return what makes a file of the form that a name asks for.

    Raises:
        InvalidRequest: There is no such form.
    """
    make = _FORMS.get(path.suffix.lower())
    if make is None:
        raise InvalidRequest(
            f"--output {str(path)!r}: the name ends with one of {', '.join(_FORMS)}, which says what is written"
        )
    return make


class _Lines:
    def __init__(self, sink: BinaryIO, _: Cells) -> None:
        self._sink = sink

    def write(self, rows: Sequence[StateRow]) -> None:
        self._sink.writelines(map(line_of, rows))

    def end(self) -> None:
        pass


class _Csv:
    def __init__(self, sink: BinaryIO, cells: Cells) -> None:
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
        self._text.detach()  # the sink is closed by who opened it


class _Batches:
    """Record batches, for a writer of pyarrow's."""

    def __init__(
        self, sink: BinaryIO, cells: Cells, open_writer: Callable[[BinaryIO, Any], Any]
    ) -> None:
        import pyarrow as pa

        self._pa = pa
        self._cells = cells
        kinds = (pa.string(), pa.int64(), pa.int32(), pa.timestamp("us", "UTC"))
        texts = [(name, pa.string()) for name in (*cells.columns, OTHERS)]
        self._schema = pa.schema([*zip(_PLACE, kinds, strict=True), *texts])
        self._writer = open_writer(sink, self._schema)

    def write(self, rows: Sequence[StateRow]) -> None:
        found = [(_place_of(row), *self._cells.values(row)) for row in rows]
        lines = [(*place, *values, others) for place, values, others in found]
        columns = [
            self._pa.array(values, each.type)
            for each, values in zip(self._schema, zip(*lines, strict=True), strict=True)
        ]
        self._writer.write_batch(self._pa.record_batch(columns, schema=self._schema))

    def end(self) -> None:
        self._writer.close()


def _parquet(sink: BinaryIO, cells: Cells) -> _Batches:
    from pyarrow import parquet

    return _Batches(sink, cells, parquet.ParquetWriter)


def _arrow(sink: BinaryIO, cells: Cells) -> _Batches:
    from pyarrow import ipc

    return _Batches(sink, cells, ipc.new_file)


def _place_of(row: StateRow) -> tuple[str, int, int, int | None]:
    return row.primary_key, *row.position, row.commit_timestamp or None


_FORMS: Final[dict[str, Callable[[BinaryIO, Cells], TableFile]]] = {
    ".parquet": _parquet,
    ".arrow": _arrow,
    ".ndjson": _Lines,
    ".csv": _Csv,
}
