r"""Answers in SQL as bytes: rows of JSON, or pieces of an Arrow stream, cut into messages.

::

    ROWS      [1,"chair","1.50"]\n             for clients that know the columns' types
    OBJECTS   {"id":1,"name":"chair"},        for a JSON page
    LINES     {"id":1,"name":"chair"}\n        for lines of JSON
    ARROW     pieces that are an Arrow stream once they are joined

In JSON a decimal is a text, as no digit may be lost; days and times are ISO 8601, bytes are base64, and a float
that is no number is ``"NaN"``, ``"Infinity"`` or ``"-Infinity"``.
"""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec
import pyarrow as pa

from tailrace.errors import InvalidRequest
from tailrace_server.capture.querying.asked import SqlForm

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_encode: Final = msgspec.json.Encoder(decimal_format="string").encode
_NO_NUMBERS: Final = {math.inf: "Infinity", -math.inf: "-Infinity"}


class AnswerColumn(NamedTuple):
    """One column of an answer, or a member of one."""

    name: str
    type: str
    """As Arrow writes it; of a structure ``struct``, of a list ``list``, of a map ``map``."""
    members: tuple[AnswerColumn, ...]
    """Of a structure; of a list its element; of a map key and value."""


class Piece(NamedTuple):
    """A message of an answer."""

    data: bytes
    rows: int


class AnswerForm(Protocol):
    """Makes the messages of one answer, in any one thread at a time."""

    def messages(self, batch: pa.RecordBatch, nbytes: int) -> list[Piece]:
        """Return rows in messages of about so many bytes; a larger one has one row."""

    def end(self) -> bytes:
        """Return what stands behind the last row."""


def answer_columns(schema: pa.Schema) -> tuple[AnswerColumn, ...]:
    """Return the columns of an answer."""
    return tuple(map(_column, schema))


def _column(field: pa.Field) -> AnswerColumn:
    kind = field.type
    if pa.types.is_map(kind):
        return AnswerColumn(field.name, "map", (_column(kind.key_field), _column(kind.item_field)))
    if pa.types.is_struct(kind):
        return AnswerColumn(field.name, "struct", tuple(map(_column, kind)))
    if pa.types.is_nested(kind) and hasattr(kind, "value_field"):
        return AnswerColumn(field.name, "list", (_column(kind.value_field),))
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return AnswerColumn(field.name, str(kind), ())


def form_of(form: SqlForm, schema: pa.Schema) -> AnswerForm:
    """Return what makes the messages of an answer.

    Raises:
        InvalidRequest: Two columns have one name, which JSON cannot tell apart.
    """
    if form is SqlForm.ARROW:
        return _ArrowPieces(schema)
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise InvalidRequest(
                f"two columns of the answer are called {name!r}: give one of them another name with AS"
            )
    return _Json(schema, form)


class _ArrowPieces:
    def __init__(self, schema: pa.Schema) -> None:
        self._sink = io.BytesIO()
        self._writer = pa.ipc.new_stream(self._sink, schema)

    def messages(self, batch: pa.RecordBatch, nbytes: int) -> list[Piece]:
        found = []
        for part in _parts(batch, nbytes):
            self._writer.write_batch(part)
            found.append(Piece(self._taken(), len(part)))
        return found

    def end(self) -> bytes:
        self._writer.close()
        return self._taken()

    def _taken(self) -> bytes:
        data = self._sink.getvalue()
        self._sink.seek(0)
        self._sink.truncate()
        return data


def _parts(batch: pa.RecordBatch, nbytes: int) -> Iterator[pa.RecordBatch]:
    """Yield a batch in parts of about so many bytes, none empty."""
    if len(batch) <= 1 or batch.nbytes <= nbytes:
        if len(batch):
            yield batch
        return
    half = len(batch) // 2
    yield from _parts(batch.slice(0, half), nbytes)
    yield from _parts(batch.slice(half), nbytes)


class _Json:
    def __init__(self, schema: pa.Schema, form: SqlForm) -> None:
        self._schema = schema
        self._names = None if form is SqlForm.ROWS else schema.names
        self._behind = b"," if form is SqlForm.OBJECTS else b"\n"

    def messages(self, batch: pa.RecordBatch, nbytes: int) -> list[Piece]:
        rows: Iterator[Sequence[Any] | dict[str, Any]]
        rows = zip(*map(self._values, self._schema, batch.columns), strict=True)
        if self._names is not None:
            names = self._names
            rows = (dict(zip(names, row, strict=True)) for row in rows)
        found: list[Piece] = []
        lines: list[bytes] = []
        size = 0
        for row in rows:
            line = _encode(row) + self._behind
            if lines and size + len(line) > nbytes:
                found.append(Piece(b"".join(lines), len(lines)))
                lines, size = [], 0
            lines.append(line)
            size += len(line)
        if lines:
            found.append(Piece(b"".join(lines), len(lines)))
        return found

    def end(self) -> bytes:
        return b""

    def _values(self, field: pa.Field, column: pa.Array) -> list[Any]:
        """Return the values of a column, as JSON has them.

        Raises:
            InvalidRequest: One is beyond every calendar that JSON's readers have.
        """
        if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
            column = column.cast(pa.string())  # Python has no such time; the text is exact
        try:
            values: list[Any] = column.to_pylist()
        except (ValueError, OverflowError) as error:
            raise InvalidRequest(
                f"column {field.name!r} has a value that cannot be shown ({error}): write {field.name}::TEXT"
            ) from None
        return [*map(_numbers_told, values)] if _has_floats(column.type) else values


def _has_floats(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return _has_floats(kind.key_type) or _has_floats(kind.item_type)
    if pa.types.is_struct(kind):
        return any(_has_floats(field.type) for field in kind)
    if hasattr(kind, "value_type"):
        return _has_floats(kind.value_type)
    return bool(pa.types.is_floating(kind))


def _numbers_told(value: Any) -> Any:
    """Return a value in which floats that are no numbers are texts: JSON has none."""
    if isinstance(value, float):
        return value if math.isfinite(value) else _NO_NUMBERS.get(value, "NaN")
    if isinstance(value, dict):
        return {name: _numbers_told(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [*map(_numbers_told, value)]
    return value
