r"""Encoding of SQL results: rows of JSON or an Arrow stream, cut into messages.

::

    ROWS      [1,"chair","1.50"]\n            for clients that know the columns' types
    OBJECTS   {"id":1,"name":"chair"},        for a JSON page
    LINES     {"id":1,"name":"chair"}\n        for lines of JSON
    ARROW     pieces of one Arrow stream, to be joined by the client

In JSON a decimal is a string, so that no digit is lost. Dates, times and intervals are in ISO 8601, and bytes
in base64. Floats without a JSON number are ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``.
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
    """One column of a result, or a member of a nested column."""

    name: str
    type: str
    """The type's name in Arrow; for nested types ``struct``, ``list`` or ``map``."""
    members: tuple[AnswerColumn, ...]
    """The fields of a struct, the element of a list, or key and value of a map; empty for other types."""


class Piece(NamedTuple):
    """A message of a result."""

    data: bytes
    rows: int
    """The number of rows in the message."""


class AnswerForm(Protocol):
    """Encoder of one result; it is used by one thread at a time."""

    def messages(self, batch: pa.RecordBatch, nbytes: int) -> list[Piece]:
        """Encode rows to messages of at most about ``nbytes`` bytes; a larger message has a single row."""

    def end(self) -> bytes:
        """Return the bytes after the last row."""


def answer_columns(schema: pa.Schema) -> tuple[AnswerColumn, ...]:
    """Return the columns of a result."""
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
    """Return the encoder for a result.

    Raises:
        InvalidRequest: The form is JSON, and two columns have the same name.
    """
    if form is SqlForm.ARROW:
        return _ArrowPieces(schema)
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise InvalidRequest(
                f"two columns of the answer have the name {name!r}: rename one of them with AS"
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
        # The bytes since the last call; those of the first call begin with the schema.
        data = self._sink.getvalue()
        self._sink.seek(0)
        self._sink.truncate()
        return data


def _parts(batch: pa.RecordBatch, nbytes: int) -> Iterator[pa.RecordBatch]:
    """Yield a batch in non-empty parts of at most about ``nbytes`` bytes, or of one row."""
    if len(batch) <= 1 or batch.nbytes <= nbytes:
        if len(batch):
            yield batch
        return
    # Rows differ in size, so halve until each part fits; slices copy nothing.
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
    """Return the values of a result's column as Python objects; values without a Python type are texts.

    Raises:
        InvalidRequest: A date or time is outside of the range of Python's types.
    """
    kind = column.type
    try:
        # Python's times have only microseconds, so cast nanoseconds to texts.
        if _has(_is_nanoseconds, kind):
            column = column.cast(_with_texts(kind))
        if kind == pa.time64("us") and pc.max(column.cast(pa.int64())).as_py() == _DAY_US:
            raise ValueError("24:00:00")  # Python would make it 00:00:00
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(
            f"column {name!r} has a value that cannot be sent ({error}): write {name}::TEXT"
        ) from None
    return [*map(_intervals_told, values)] if _has(pa.types.is_interval, kind) else values


def _is_nanoseconds(kind: pa.DataType) -> bool:
    """Return True if a type has nanoseconds, which Python's times cannot hold."""
    return bool((pa.types.is_timestamp(kind) or pa.types.is_time(kind)) and kind.unit == "ns")


def _with_texts(kind: pa.DataType) -> pa.DataType:
    """Return a type with texts, which are exact, in place of times in nanoseconds."""
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
    """Return True if ``is_one`` is true of a type or of a type nested in it."""
    if pa.types.is_map(kind):
        return _has(is_one, kind.key_type) or _has(is_one, kind.item_type)
    if pa.types.is_struct(kind):
        return any(_has(is_one, field.type) for field in kind)
    if hasattr(kind, "value_type"):
        return _has(is_one, kind.value_type)
    return bool(is_one(kind))


def _numbers_told(value: Any) -> Any:
    """Return a value in which NaN and infinite floats are texts, as JSON has no numbers for them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else _NO_NUMBERS.get(value, "NaN")
    return _each_told(_numbers_told, value)


def _intervals_told(value: Any) -> Any:
    """Return a value in which intervals are texts in ISO 8601; a sign is before the number of its part."""
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
