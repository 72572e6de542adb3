"""Avro types without parts, and the interface of all types.

A value has bytes and three other forms: the *decoded* form of the Avro library, the *row* form, and Avro JSON.
Rows are hashable, and two rows are equal if and only if their data are equal. The decoded form of a scalar is
also its row form, with one exception: every NaN becomes the same object, so that a record with a NaN equals its
duplicate.

Zero and minus zero are equal, as in Materialize. Logical types are not interpreted: a timestamp is its number
and a decimal is its bytes, so that a value is written exactly as it was read.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any, Final, Protocol

from tailrace_server.cdcv2.errors import DataMisfit

if TYPE_CHECKING:
    from collections.abc import Hashable

NAN: Final = math.nan
"""The only NaN object in rows. Tuples compare by identity first, so rows with this NaN are equal."""


class AvroType(Protocol):
    """A compiled Avro type."""

    name: str
    """Name of the type as a branch of a union: the full name of a named type, else the name of the type."""
    kind: str
    """The kind of the type's rows. Rows of different kinds are never equal; rows of one kind may be, even of
    two types.
    """
    plain: bool
    """True if the decoded form is also the row form."""

    def row(self, decoded: Any) -> Hashable:
        """Return the row form of a value that the Avro library decoded."""

    def encode(self, value: Any, out: bytearray) -> None:
        """Append the binary form of a row value.

        Raises:
            DataMisfit: The value does not fit this type; ``out`` may have a part of it.
        """

    def of_json(self, value: Any) -> Hashable:
        """Return the row form of Avro JSON.

        Raises:
            DataMisfit: The JSON is not of this type.
        """

    def to_json(self, value: Any) -> Any:
        """Return the Avro JSON of a row value."""

    def skip(self, raw: bytes, at: int) -> int:
        """Return the index after the binary value at ``at``, and check every number in the value.

        Raises:
            DataMisfit: A number or an index is out of range.
            IndexError: The bytes end before the value does.
        """


class Scalar:
    """A type whose decoded form, row form and JSON are equal."""

    plain = True
    name: str
    kind: str

    def row(self, decoded: Hashable) -> Hashable:
        """Return the value itself."""
        return decoded

    def to_json(self, value: Any) -> Any:
        """Return the value itself."""
        return value

    def misfit(self, value: object) -> DataMisfit:
        """Return the error for a value of another type."""
        return DataMisfit(f"{value!r} is no {self.name}")


class Null(Scalar):
    """The null type; its values have no bytes."""

    name = kind = "null"

    def encode(self, value: Any, out: bytearray) -> None:
        """Append nothing."""
        if value is not None:
            raise self.misfit(value)

    def of_json(self, value: Any) -> None:
        """Return None."""
        if value is not None:
            raise self.misfit(value)

    def skip(self, raw: bytes, at: int) -> int:
        """Return ``at`` unchanged."""
        return at


class Boolean(Scalar):
    """A boolean: one byte, 0 or 1."""

    name, kind = "boolean", "number"

    def encode(self, value: Any, out: bytearray) -> None:
        """Append one byte."""
        out.append(self.of_json(value))

    def of_json(self, value: Any) -> bool:
        """Return a boolean; numbers are refused."""
        if not isinstance(value, bool):
            raise self.misfit(value)
        return value

    def skip(self, raw: bytes, at: int) -> int:
        """Return the index after one byte."""
        if raw[at] > 1:
            raise DataMisfit(f"{raw[at]} is no boolean")
        return at + 1


class Integer(Scalar):
    """An ``int`` of 32 bits or a ``long`` of 64 bits, in zigzag encoding.

    Seven bits a byte, the lowest first.
    """

    kind = "number"

    def __init__(self, name: str, bits: int) -> None:
        self.name = name
        self._limit = 1 << (bits - 1)

    def encode(self, value: Any, out: bytearray) -> None:
        """Append one to ten bytes."""
        if type(value) is not int or not -self._limit <= value < self._limit:
            self.of_json(value)  # raises the right error
        # Zigzag: 0, -1, 1, -2 become 0, 1, 2, 3, so that small numbers of either sign have few bytes.
        rest = value << 1 if value >= 0 else ~(value << 1)
        while rest > 127:
            out.append(rest & 127 | 128)
            rest >>= 7
        out.append(rest)

    def of_json(self, value: Any) -> int:
        """Return a number in range, without a fraction or an exponent."""
        if type(value) is not int:
            raise self.misfit(value)
        if not -self._limit <= value < self._limit:
            raise DataMisfit(f"{value} is beyond a {self.name}")
        return value

    def skip(self, raw: bytes, at: int) -> int:
        """Return the index after the number."""
        return self.read(raw, at)[1]

    def read(self, raw: bytes, at: int) -> tuple[int, int]:
        """Return the number at ``at``, and the index after it.

        Raises:
            DataMisfit: The number is out of range, or longer than ten bytes.
            IndexError: The bytes end within the number.
        """
        begin, shift, zigzag = at, 0, 0
        while True:
            byte = raw[at]
            at += 1
            zigzag |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
            # A number of 64 bits has at most ten bytes: do not build a larger one.
            if at - begin > 10:
                break
        # Undo zigzag: the lowest bit is the sign.
        value = zigzag >> 1 ^ -(zigzag & 1)
        if at - begin > 10 or not -self._limit <= value < self._limit:
            raise DataMisfit(f"number at byte {begin} is beyond a {self.name}")
        return value, at


class Floating(Scalar):
    """A ``float`` of 32 bits or a ``double`` of 64 bits."""

    kind, plain = "number", False

    def __init__(self, name: str, layout: str) -> None:
        self.name = name
        self._struct = struct.Struct(layout)

    def row(self, decoded: Any) -> float:
        """Return the number; every NaN becomes `NAN`."""
        value: float = decoded
        # Only a NaN differs from itself.
        return value if value == value else NAN

    def encode(self, value: Any, out: bytearray) -> None:
        """Append four or eight bytes."""
        try:
            out += self._struct.pack(self.of_json(value))
        except OverflowError:
            raise DataMisfit(f"{value!r} is beyond a {self.name}") from None

    def of_json(self, value: Any) -> float:
        """Return the number. JSON lacks NaN, Infinity and -Infinity, so these are given as texts."""
        if value in ("NaN", "Infinity", "-Infinity"):
            value = float(value)
        # In Python a bool is an int: refuse it here.
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.misfit(value)
        return self.row(float(value))

    def to_json(self, value: Any) -> Any:
        """Return the number; NaN and infinite numbers as texts, since JSON lacks them."""
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"

    def skip(self, raw: bytes, at: int) -> int:
        """Return the index after four or eight bytes."""
        return skipped(raw, at, self._struct.size)


class Bytes(Scalar):
    """A length and that many bytes; in JSON a text with one character, U+0000 to U+00FF, for each byte."""

    name = kind = "bytes"

    def encode(self, value: Any, out: bytearray) -> None:
        """Append the length and the bytes."""
        if not isinstance(value, bytes):
            raise self.misfit(value)
        LONG.encode(len(value), out)
        out += value

    def of_json(self, value: Any) -> bytes:
        """Return the bytes that a text encodes."""
        return bytes_of_text(value, self.name)

    def to_json(self, value: Any) -> str:
        """Return the text that encodes bytes."""
        return str(value, "latin-1")

    def skip(self, raw: bytes, at: int) -> int:
        """Return the index after the bytes."""
        size, at = LONG.read(raw, at)
        return skipped(raw, at, size)


class String(Scalar):
    """A text: its length in bytes, then UTF-8."""

    name, kind = "string", "text"

    def encode(self, value: Any, out: bytearray) -> None:
        """Append the length and the text."""
        if not isinstance(value, str):
            raise self.misfit(value)
        try:
            text = value.encode()
        except UnicodeEncodeError as error:
            raise DataMisfit(f"{value!r} has no UTF-8 form: {error.reason}") from None
        LONG.encode(len(text), out)
        out += text

    def of_json(self, value: Any) -> str:
        """Return the text."""
        if not isinstance(value, str):
            raise self.misfit(value)
        return value

    def skip(self, raw: bytes, at: int) -> int:
        """Return the index after the text."""
        size, at = LONG.read(raw, at)
        return skipped(raw, at, size)


class Fixed(Scalar):
    """A number of bytes that the schema fixes; in JSON a text, as for `Bytes`."""

    kind = "bytes"

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self._size = size

    def encode(self, value: Any, out: bytearray) -> None:
        """Append the bytes."""
        if not isinstance(value, bytes) or len(value) != self._size:
            raise DataMisfit(f"{value!r} is not {self._size} bytes")
        out += value

    def of_json(self, value: Any) -> bytes:
        """Return the bytes that a text encodes."""
        found = bytes_of_text(value, self.name)
        if len(found) != self._size:
            raise DataMisfit(f"{value!r} is not {self._size} bytes")
        return found

    def to_json(self, value: Any) -> str:
        """Return the text that encodes bytes."""
        return str(value, "latin-1")

    def skip(self, raw: bytes, at: int) -> int:
        """Return the index after the bytes."""
        return skipped(raw, at, self._size)


class EnumType(Scalar):
    """One of several symbols, encoded as its index."""

    kind = "text"

    def __init__(self, name: str, symbols: list[str]) -> None:
        self.name = name
        self._index = {symbol: i for i, symbol in enumerate(symbols)}

    def encode(self, value: Any, out: bytearray) -> None:
        """Append the index of the symbol."""
        LONG.encode(self._index[self.of_json(value)], out)

    def of_json(self, value: Any) -> str:
        """Return the symbol."""
        if not isinstance(value, str) or value not in self._index:
            raise DataMisfit(f"{value!r} is not a symbol of {self.name}")
        return value

    def skip(self, raw: bytes, at: int) -> int:
        """Return the index after the symbol."""
        index, at = LONG.read(raw, at)
        if not 0 <= index < len(self._index):
            raise DataMisfit(f"{self.name} has no symbol {index}")
        return at


INT: Final = Integer("int", 32)
LONG: Final = Integer("long", 64)
PRIMITIVES: Final[dict[str, AvroType]] = {
    "null": Null(),
    "boolean": Boolean(),
    "int": INT,
    "long": LONG,
    "float": Floating("float", "<f"),
    "double": Floating("double", "<d"),
    "bytes": Bytes(),
    "string": String(),
}
"""Primitive types by name. They are immutable, so all schemas share them."""


def bytes_of_text(value: Any, name: str) -> bytes:
    """Return the bytes that the characters of a text encode.

    Raises:
        DataMisfit: The value is not a text, or has a character above U+00FF.
    """
    if not isinstance(value, str):
        raise DataMisfit(f"{value!r} is no {name}")
    try:
        return value.encode("latin-1")
    except UnicodeEncodeError:
        raise DataMisfit(f"{value!r} holds characters that stand for no byte") from None


def skipped(raw: bytes, at: int, size: int) -> int:
    """Return the index ``size`` bytes after ``at``.

    Raises:
        DataMisfit: ``size`` is negative.
        IndexError: The bytes end before that index.
    """
    if size < 0:
        raise DataMisfit(f"length {size} at byte {at} is negative")
    if at + size > len(raw):
        raise IndexError(f"{size} bytes at byte {at}")
    return at + size
