"""Output of SQL answers: as a table for a person, as lines of JSON, or as CSV."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from tailrace_server.cli.tables.cells import GAP, NULL, cut, is_number
from tailrace_server.cli.terminal.output import printable
from tailrace_server.reads.sql_forms import form_of, python_values
from tailrace_server.reads.sql_request import SqlForm
from tailrace_server.sql.shown import CDC_JSON

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tailrace_server.cli.terminal.output import Palette

_PIECE_BYTES: Final = 1 << 16
_encode_json: Final = msgspec.json.Encoder(decimal_format="string").encode


def text_lines(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], palette: Palette
) -> Iterator[bytes]:
    """Yield the lines of a table for a person; columns are as wide as the first batch needs."""
    widths: list[int] = []
    right: list[bool] = []
    for batch in batches:
        # Do not cut the only column of an answer, such as the plan of a statement, nor the JSON of a change,
        # whose most useful members come last.
        columns = [
            [
                _cell(each, whole=len(schema) == 1 or name == CDC_JSON)
                for each in python_values(name, column)
            ]
            for name, column in zip(schema.names, batch.columns, strict=True)
        ]
        if not widths:
            widths, right = _widths(schema, columns)
            yield palette.bold(_line(map(printable, schema.names), widths, right)).encode() + b"\n"
        for row in zip(*columns, strict=True):
            yield _line(row, widths, right).encode() + b"\n"
    if not widths:
        widths, right = _widths(schema, [[] for _ in schema])
        yield palette.bold(_line(map(printable, schema.names), widths, right)).encode() + b"\n"


def _widths(schema: pa.Schema, columns: list[list[str]]) -> tuple[list[int], list[bool]]:
    pairs = [*zip(map(printable, schema.names), columns, strict=True)]
    widths = [max(map(len, (name, *column))) for name, column in pairs]
    return widths, [bool(column) and all(map(is_number, column)) for _, column in pairs]


def _line(texts: Iterable[str], widths: list[int], right: list[bool]) -> str:
    cells = zip(texts, widths, right, strict=True)
    return GAP.join(
        each.rjust(width) if to_right else each.ljust(width) for each, width, to_right in cells
    ).rstrip()


def _cell(value: Any, *, whole: bool) -> str:
    if value is None:
        return NULL
    as_json = isinstance(value, dict | list | bytes | bool)
    text = _encode_json(value).decode() if as_json else str(value)
    return printable(text) if whole else cut(printable(text))


def json_lines(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Yield a line with a JSON object for each row, in the form of a server's answer.

    Raises:
        InvalidRequest: Two columns have the same name.
    """
    form = form_of(SqlForm.LINES, schema)
    for batch in batches:
        yield from (piece.data for piece in form.messages(batch, _PIECE_BYTES))


def csv_lines(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Yield CSV with a header line; lists and structures are written as JSON, bytes as base64."""
    from pyarrow import csv

    as_text = [
        pa.types.is_nested(each.type)
        or pa.types.is_binary(each.type)
        or pa.types.is_interval(each.type)
        for each in schema
    ]
    kinds = [pa.string() if text else each.type for each, text in zip(schema, as_text, strict=True)]
    flat = pa.schema([*zip(schema.names, kinds, strict=True)])
    head = pa.BufferOutputStream()
    csv.write_csv(flat.empty_table(), head)
    yield head.getvalue().to_pybytes()
    options = csv.WriteOptions(include_header=False)
    for batch in batches:
        columns = [
            pa.array(map(_as_text, python_values(name, column)), pa.string()) if text else column
            for name, column, text in zip(schema.names, batch.columns, as_text, strict=True)
        ]
        lines = pa.BufferOutputStream()
        csv.write_csv(pa.record_batch(columns, schema=flat), lines, options)
        yield lines.getvalue().to_pybytes()


def _as_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    text = _encode_json(value).decode()
    return text[1:-1] if isinstance(value, bytes) else text
