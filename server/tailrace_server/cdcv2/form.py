"""The Avro form of a CDCv2 stream: the conversion of statements to and from messages.

::

    message         one byte 0x00, then an array of updates      |  one byte 0x02, then a progress record

The data of an update is a *row*: a tuple of the values of its fields (`tailrace_server.cdcv2.scalars`).

A message can also be a line of Avro JSON, as in the example of Materialize's documentation::

    {"array":[{"data":{"id":5,"price":{"int":10}},"time":5,"diff":1}]}
    {"com.materialize.cdc.progress":{"lower":[0],"upper":[3],"counts":[]}}

The value of a union is an object whose only member is named after the branch. Blank lines are skipped, but
counted in line numbers. JSON has no NaN and no infinite numbers: they are the texts ``NaN``, ``Infinity`` and
``-Infinity``.
"""

from __future__ import annotations

import base64
import json
import struct
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

import fastavro

from tailrace.cdcv2 import Progress, Update
from tailrace_server.cdcv2 import schema as schemas
from tailrace_server.cdcv2.composites import RecordType
from tailrace_server.cdcv2.errors import DataMisfit, MessageUnreadable

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

    from tailrace.cdcv2 import Statement
    from tailrace_server.cdcv2.scalars import AvroType

UPDATES_BRANCH: Final = 0x00
PROGRESS_BRANCH: Final = 0x02
"""First byte of a progress message: the index of its branch in Avro encoding."""

DAMAGED: Final = (
    EOFError,
    LookupError,
    MemoryError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)
"""Errors that the Avro library raises for bytes that do not have the schema."""

_HIGH: Final = bytes(byte >> 7 for byte in range(256))
"""Translation table from each byte to its high bit. A set bit means that more bytes of a number follow."""
_OVERLONG: Final = b"\x01" * 9
"""Nine bytes in a row with the high bit set, after translation by `_HIGH`. Every number beyond 64 bits has
such bytes, and the Avro library would silently truncate the number. Other values may have them too, so
the bytes are then read again by a slow, exact reader.
"""


DEPTH_MAX: Final = 100
"""The deepest nesting of rows in a record that contains itself. JSON and Python's stack have higher limits,
with less clear errors.
"""


def _with_branch(
    decoded: Any, writer_schema: dict[Any, Any] | None, _reader_schema: object = None
) -> Any:
    # The Avro library calls this for numbers that `schema.decoder_schema` has marked.
    assert writer_schema is not None
    return writer_schema["type"], decoded


for _name in ("int", "long", "float", "double"):
    # The library's documented way to add a logical type. The table is shared by the whole process.
    fastavro.read.LOGICAL_READERS[f"{_name}-{schemas.BRANCH}"] = _with_branch


class AvroForm:
    """A compiled schema of a CDCv2 stream. Immutable; threads may share it."""

    def __init__(self, canonical: list[Any], text: str) -> None:
        """Compile a canonical schema that has been checked; callers use `of`."""
        self.text = text
        """The schema as it was given, as JSON text; the canonical form omits parts of it."""
        self.schema = canonical
        """The schema in parsing canonical form."""
        items = canonical[0]["items"]
        data = schemas.compile_type(items["fields"][0]["type"])
        assert isinstance(data, RecordType)
        self.data = data
        """The type of ``data``."""
        self.arity = schemas.arity(canonical)
        """Number of coordinates of product times, which are tuples; None if times are integers."""
        named: dict[str, AvroType] = {}
        self._updates = schemas.compile_type(canonical[0], named)
        self._progress = schemas.compile_type(canonical[1], named)
        # Two implementations of one schema: the types above encode, convert and check. The Avro library only
        # decodes, which it does faster, since it is compiled code.
        marked = schemas.decoder_schema(canonical)
        known: dict[str, Any] = {}
        self._updates_schema = fastavro.parse_schema(marked[0], known)
        self._progress_schema = fastavro.parse_schema(marked[1], known)
        self._nests = schemas.nests(canonical[0])
        """True if a record contains itself, so that the bytes of a row determine its depth."""

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the text of the schema; unpickling compiles it again."""
        return _form_of, (self.text, self.arity is not None)

    @classmethod
    def of(
        cls, schema: str | bytes | list[Any] | dict[str, Any], *, product_times: bool = False
    ) -> AvroForm:
        """Return the form of a schema.

        Args:
            schema: JSON text, or the parsed JSON.
            product_times: True to accept times that are records of longs, which is not documented. Times of
                statements are then tuples of integers, as in `tailrace.cdcv2.product`.

        Raises:
            SchemaDiffers: The schema is not the documented one; the error names the place.
        """
        if isinstance(schema, bytes):
            schema = str(schema, "utf-8", "replace")
        text = schema if isinstance(schema, str) else json.dumps(schema, separators=(",", ":"))
        return cls(schemas.parse(schema, product_times=product_times), text)

    @classmethod
    def of_data(cls, record: dict[str, Any]) -> AvroForm:
        """Return the form of a stream whose ``data`` has a given record schema.

        Raises:
            SchemaDiffers: The value is not a valid record schema.
        """
        return cls.of(schemas.documented_schema(record))

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields of ``data``, in the order of a row."""
        return tuple(name for name, _ in self.data.fields)

    def record_of(self, row: Sequence[Hashable]) -> dict[str, Hashable]:
        """Return a row as a mapping by field name; nested values stay in row form."""
        return dict(zip(self.fields, row, strict=True))

    def row_of(self, record: Mapping[str, Hashable]) -> tuple[Hashable, ...]:
        """Return the row of a mapping by field name.

        Raises:
            DataMisfit: A field is missing or unknown.
        """
        fields = self.fields
        for name in fields:
            if name not in record:
                raise DataMisfit("the field is missing", f".{name}")
        for name in record:
            if name not in fields:
                raise DataMisfit("the schema has no such field", f".{name}")
        return tuple(record[name] for name in fields)

    def text_of_row(self, row: Hashable) -> str:
        """Return a row as text, for `Reader.save`: the base64 of a message with only this row."""
        time: Any = 0 if self.arity is None else (0,) * self.arity
        return base64.b64encode(self.encode([Update(row, time, 1)])).decode()

    def row_of_text(self, text: str) -> Hashable:
        """Return the row in a text of `text_of_row`, for `Reader.restore`.

        Raises:
            ValueError: `text_of_row` did not make the text.
        """
        try:
            statement = self.decode(base64.b64decode(text, validate=True))
        except MessageUnreadable as error:
            raise ValueError(str(error)) from error
        if isinstance(statement, Progress) or len(statement) != 1:
            raise ValueError("not one row")
        return statement[0].data

    def decode(self, raw: bytes) -> Statement[int]:
        """Return the statement in the bytes of one message.

        Raises:
            MessageUnreadable: The message is cut off, too long, or not of this schema.
        """
        stream = BytesIO(raw)
        statement = self.read(stream)
        if stream.tell() != len(raw):
            raise MessageUnreadable(f"{len(raw) - stream.tell()} bytes behind the message")
        self.check_numbers(raw, 1)
        return statement

    def encode(self, statement: Statement[int]) -> bytes:
        """Return the bytes of one message.

        Raises:
            DataMisfit: A value does not fit the schema; the message names its field.
        """
        out = bytearray()
        self.write(statement, out)
        return bytes(out)

    def read(self, stream: BytesIO) -> Statement[int]:
        """Return the next message of a stream.

        The caller must then call `check_numbers`, to find truncated numbers.

        Raises:
            MessageUnreadable: The message is cut off, or not of this schema.
        """
        branch = stream.read(1)
        try:
            if branch == b"\x00":
                if self._nests:
                    # The Avro library recurses on the machine's stack, so deeply nested bytes would kill the
                    # process. Walk through them first on Python's stack, which raises RecursionError.
                    self._updates.skip(stream.getvalue(), stream.tell())
                return self._shallow(self._read_updates(stream))
            if branch == b"\x02":
                return self._read_progress(stream)
        except DAMAGED as error:
            raise MessageUnreadable(_explained(error)) from error
        except DataMisfit as error:
            raise MessageUnreadable(str(error)) from error
        raise MessageUnreadable(
            f"it begins with {branch.hex()}, neither an array of updates (00) nor progress (02)"
            if branch
            else "it is empty"
        )

    def write(self, statement: Statement[int], out: bytearray) -> None:
        """Append one message.

        Raises:
            DataMisfit: A value does not fit the schema; ``out`` then has a part of the message.
        """
        if isinstance(statement, Progress):
            out.append(PROGRESS_BRANCH)
            self._progress.encode(row_of_progress(statement), out)
        else:
            out.append(UPDATES_BRANCH)
            self._updates.encode(tuple(statement), out)

    def of_json(self, value: Any) -> Statement[int]:
        """Return the statement of one message, given its parsed Avro JSON.

        Raises:
            DataMisfit: The JSON is not a message; the error names the part.
        """
        match value:
            case {"array": updates} if len(value) == 1:
                rows: Any = self._updates.of_json(updates)
                return self._shallow([Update(*row) for row in rows])
            case {schemas.PROGRESS: progress} if len(value) == 1:
                row: Any = self._progress.of_json(progress)
                return Progress(*row)
        raise DataMisfit(
            f'neither {{"array": …}} nor {{"{schemas.PROGRESS}": …}}, each as the only name'
        )

    def to_json(self, statement: Statement[int]) -> dict[str, Any]:
        """Return the Avro JSON of one message. Only values of unions are checked.

        Raises:
            DataMisfit: A value of a union fits no branch.
        """
        if isinstance(statement, Progress):
            return {schemas.PROGRESS: self._progress.to_json(row_of_progress(statement))}
        return {"array": self._updates.to_json(statement)}

    def check_numbers(self, raw: bytes, messages: int) -> None:
        """Check that every number in the decoded messages is in range.

        Args:
            raw: The bytes of the messages.
            messages: The number of messages.

        Raises:
            MessageUnreadable: A number is beyond 64 bits, or an index is out of range.
        """
        # The common case costs one translation and one search; the slow walk is only for suspects.
        if _OVERLONG not in raw.translate(_HIGH):
            return
        at = 0
        try:
            for _ in range(messages):
                at = (self._progress if raw[at] else self._updates).skip(raw, at + 1)
        except DataMisfit as error:
            raise MessageUnreadable(error.reason) from error

    def _shallow(self, updates: list[Update[int]]) -> list[Update[int]]:
        """Return updates unchanged, after a check of their depth.

        Raises:
            DataMisfit: A row nests deeper than `DEPTH_MAX`.
        """
        if self._nests:
            for i, update in enumerate(updates):
                if _is_deeper(update.data, DEPTH_MAX):
                    raise DataMisfit(f"nested more than {DEPTH_MAX} deep", f"[{i}].data")
        return updates

    def _read_updates(self, stream: BytesIO) -> list[Update[int]]:
        decoded: Any = fastavro.schemaless_reader(
            stream, self._updates_schema, None, return_named_type=True
        )
        make = Update._make
        if self.arity is not None:
            row = self.data.row
            return [
                make((row(each["data"]), _tuple(each["time"]), each["diff"])) for each in decoded
            ]
        if self.data.flat:
            # The common case, and the fastest: decoded values are row values.
            return [
                make((tuple(each["data"].values()), each["time"], each["diff"])) for each in decoded
            ]
        row = self.data.row
        return [make((row(each["data"]), each["time"], each["diff"])) for each in decoded]

    def _read_progress(self, stream: BytesIO) -> Progress[int]:
        decoded: Any = fastavro.schemaless_reader(stream, self._progress_schema, None)
        if self.arity is not None:
            return Progress(
                tuple(map(_tuple, decoded["lower"])),
                tuple(map(_tuple, decoded["upper"])),
                tuple((_tuple(each["time"]), each["count"]) for each in decoded["counts"]),
            )
        return Progress(
            tuple(decoded["lower"]),
            tuple(decoded["upper"]),
            tuple((each["time"], each["count"]) for each in decoded["counts"]),
        )


def _form_of(text: str, product_times: bool) -> AvroForm:
    return AvroForm.of(text, product_times=product_times)


def _tuple(time: dict[str, int]) -> Any:
    """Return a product time as a tuple."""
    return tuple(time.values())


def row_of_progress(progress: Progress[int]) -> tuple[Hashable, ...]:
    """Return a progress statement as the row of its record."""
    return progress.lower, progress.upper, progress.counts


def _is_deeper(row: object, than: int) -> bool:
    return isinstance(row, tuple) and (than == 0 or any(_is_deeper(part, than - 1) for part in row))


def _explained(error: Exception) -> str:
    """Return the description of an error of the Avro library."""
    if isinstance(error, (EOFError, IndexError)):
        return "it ends in the middle, or names a branch that does not exist"
    if isinstance(error, RecursionError):
        return f"its data nests more than {DEPTH_MAX} deep"
    return f"not Avro of this schema: {error}"


def read_line(form: AvroForm, line: str | bytes, where: str = "") -> Statement[int]:
    """Return the statement of one line.

    Args:
        form: The schema.
        line: The text, with or without a line break.
        where: The place of the line, for errors.

    Raises:
        MessageUnreadable: The line is not the JSON of a message of this schema; the message names the field.
    """
    try:
        return form.of_json(json.loads(line, object_pairs_hook=_object, parse_constant=_refuse))
    except DataMisfit as error:
        raise MessageUnreadable(str(error), where) from error
    except (ValueError, RecursionError) as error:
        raise MessageUnreadable(f"not JSON: {error}", where) from error


def read_lines(form: AvroForm, lines: Iterable[str | bytes]) -> Iterator[Statement[int]]:
    """Yield the statements of lines.

    Raises:
        MessageUnreadable: A line is not a message; the message has the number of the line, from 1.
    """
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield read_line(form, line, f"line {number}")


def write_line(form: AvroForm, statement: Statement[int]) -> bytes:
    """Return one line, with its line break.

    Raises:
        DataMisfit: A value does not fit the schema; the message names its field.
    """
    form.encode(statement)  # checks every value, which `to_json` does not
    text = json.dumps(form.to_json(statement), ensure_ascii=False, separators=(",", ":"))
    return text.encode() + b"\n"


def write_lines(form: AvroForm, statements: Iterable[Statement[int]]) -> Iterator[bytes]:
    """Yield the lines of statements.

    Raises:
        DataMisfit: A value does not fit the schema.
    """
    for statement in statements:
        yield write_line(form, statement)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    # Python would silently use the last of two members of one name.
    if len(found) < len(pairs):
        raise ValueError("a name stands twice in one object")
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")
