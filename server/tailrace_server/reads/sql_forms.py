r"""Answers in SQL as bytes: rows of JSON, or pieces of an Arrow stream, cut into messages.

::

    ROWS      [1,"chair","1.50"]\n             for clients that know the columns' types
    OBJECTS   {"id":1,"name":"chair"},        for a JSON page
    LINES     {"id":1,"name":"chair"}\n        for lines of JSON
    ARROW     pieces that are an Arrow stream once they are joined

In JSON a decimal is a text, as no digit may be lost; days, times and intervals are ISO 8601, bytes are base64,
and a float that is no number is ``"NaN"``, ``"Infinity"`` or ``"-Infinity"``.
"""

from __future__ import annotations

import io
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import InvalidRequest
from tailrace_server.reads.sql_request import SqlForm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_encode: Final = msgspec.json.Encoder(decimal_format="string").encode
_DAY_US: Final = 86_400 * 1_000_000
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
        """Return the bytes behind the last row."""


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
        values = python_values(field.name, column)
        return [*map(_numbers_told, values)] if _has_floats(column.type) else values


def python_values(name: str, column: pa.Array) -> list[Any]:
    """Return the values of a column of an answer; what Python has no type for is a text.

    Raises:
        InvalidRequest: One is beyond every calendar that Python has.
    """
    kind = column.type
    try:
        if _has(_is_nanoseconds, kind):
            column = column.cast(_with_texts(kind))
        if kind == pa.time64("us") and pc.max(column.cast(pa.int64())).as_py() == _DAY_US:
            raise ValueError("24:00:00")  # Python would make it 00:00:00
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(
            f"column {name!r} has a value that cannot be shown ({error}): write {name}::TEXT"
        ) from None
    return [*map(_intervals_told, values)] if _has(pa.types.is_interval, kind) else values


def _is_nanoseconds(kind: pa.DataType) -> bool:
    """Return whether values have parts of a microsecond, which Python's times do not."""
    return bool((pa.types.is_timestamp(kind) or pa.types.is_time(kind)) and kind.unit == "ns")


def _with_texts(kind: pa.DataType) -> pa.DataType:
    """Return a type with texts, which are exact, in the place of nanoseconds."""
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_with_texts(each.type)) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(_with_texts(kind.key_type), _with_texts(kind.item_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_with_texts(kind.value_type), kind.list_size)
    if pa.types.is_list(kind):
        return pa.list_(_with_texts(kind.value_type))
    return pa.string() if _is_nanoseconds(kind) else kind


def _has_floats(kind: pa.DataType) -> bool:
    return _has(pa.types.is_floating, kind)


def _has(is_one: Callable[[pa.DataType], bool], kind: pa.DataType) -> bool:
    """Return whether a type is of some kind, or has a member that is."""
    if pa.types.is_map(kind):
        return _has(is_one, kind.key_type) or _has(is_one, kind.item_type)
    if pa.types.is_struct(kind):
        return any(_has(is_one, field.type) for field in kind)
    if hasattr(kind, "value_type"):
        return _has(is_one, kind.value_type)
    return bool(is_one(kind))


def _numbers_told(value: Any) -> Any:
    """Return a value in which floats that are no numbers are texts: JSON has none."""
    if isinstance(value, float):
        return value if math.isfinite(value) else _NO_NUMBERS.get(value, "NaN")
    return _each_told(_numbers_told, value)


def _intervals_told(value: Any) -> Any:
    """Return a value in which intervals are texts, as ISO 8601 has them: a sign comes before its number."""
    if not isinstance(value, pa.MonthDayNano):
        return _each_told(_intervals_told, value)
    months, days, nanoseconds = value
    date = "".join(f"{each}{unit}" for each, unit in ((months, "M"), (days, "D")) if each)
    seconds = f"{Decimal(nanoseconds).scaleb(-9).normalize():f}S"
    return f"P{date}T{seconds}" if nanoseconds or not date else f"P{date}"


def _each_told(told: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, dict):
        return {name: told(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [*map(told, value)]
    return value
