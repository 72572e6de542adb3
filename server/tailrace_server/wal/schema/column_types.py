"""SQL types of columns: inferred from JSON values, widened, and compared.

Inference uses five types. Each determines how the JSON text is read::

    BOOLEAN   BIGINT ──▶ DECIMAL   VARCHAR
       └─────────┴──────────┴─────────┴────▶ JSON      (any value; the end of all widening)

BIGINT is a 64-bit integer; DECIMAL is any other number, with its digits as written. A null has no type.
"""

from __future__ import annotations

import math
import re
import struct
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, Inexact, InvalidOperation
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import orjson

from tailrace_server.wal.record.columns import decode_members
from tailrace_server.wal.record.unavailable import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tailrace_server.wal.record.unavailable import Unavailable

BOOLEAN: Final = "BOOLEAN"
BIGINT: Final = "BIGINT"
DECIMAL: Final = "DECIMAL"
VARCHAR: Final = "VARCHAR"
JSON: Final = "JSON"

_SHAPES_MAX: Final = 4_096
"""Maximum number of shapes to remember per entity type; beyond that, all shapes are forgotten."""
_LONG_NUMBER: Final = re.compile(rb"\d{19}")
_BY_KIND: Final[Mapping[type, str | None]] = {
    bool: BOOLEAN,
    int: BIGINT,
    float: DECIMAL,
    str: VARCHAR,
    list: JSON,
    dict: JSON,
    type(None): None,
}


def widened(one: str | None, other: str | None) -> str | None:
    """Return the narrowest inferred type that holds the values of two types; None means no type yet."""
    if one == other or other is None:
        return one
    if one is None:
        return other
    return DECIMAL if {one, other} == {BIGINT, DECIMAL} else JSON


class TypeInference:
    """Infers names and types of the columns of images, unless the image has a known shape.

    Two images have the same shape if they have the same names in the same order and values of the same kinds.
    So the common case takes one parse and one look-up.
    """

    def __init__(self, unavailable: Unavailable = DEFAULT) -> None:
        """Begin without known shapes.

        Args:
            unavailable: Recogniser of placeholders, which have no type.
        """
        self._unavailable = unavailable
        self._shapes: dict[str, set[tuple[Any, ...]]] = {}

    def unseen(
        self, entity_type: str, image: bytes, names: tuple[str, ...] = ()
    ) -> Iterable[tuple[str, str | None]]:
        """Return (name, type) of an image's columns; empty if its shape is known. The type of a null is None.

        Args:
            entity_type: Entity type of the image; each has shapes of its own.
            image: Text of a JSON object.
            names: Further columns that the record names; their type is None.

        Raises:
            msgspec.DecodeError: The image is not a JSON object.
        """
        try:
            columns = orjson.loads(image)
        except orjson.JSONDecodeError:
            columns = None  # `msgspec.Raw` accepts more: half of a surrogate pair, for instance
        # Two cases need the text of a value, not only its Python type: a placeholder may be a text or a list,
        # and integers beyond 64 bits are BIGINT or DECIMAL by their digits.
        if (
            type(columns) is not dict
            or self._unavailable.may_be_in(image)
            or _LONG_NUMBER.search(image)
        ):
            return (*self._typed(image), *((name, None) for name in names))
        shape = (*columns, *map(type, columns.values()), *names)
        shapes = self._shapes.get(entity_type)
        if shapes is None:
            shapes = self._shapes[entity_type] = set()
        elif shape in shapes:
            return ()
        if len(shapes) >= _SHAPES_MAX:
            shapes.clear()
        shapes.add(shape)
        found = [(name, _BY_KIND[type(value)]) for name, value in columns.items()]
        found.extend((name, None) for name in names if name not in columns)
        return found

    def _typed(self, image: bytes) -> list[tuple[str, str | None]]:
        return [
            (name, type_of(bytes(value), self._unavailable))
            for name, value in decode_members(image).items()
        ]

    def forget(self) -> None:
        """Forget all shapes; call this when returned columns are rolled back."""
        self._shapes.clear()


def type_of(value: bytes, unavailable: Unavailable = DEFAULT) -> str | None:
    """Return the inferred type of a JSON value; None for null and for placeholders."""
    first = value[:1]
    if first in (b"{", b"[", b'"'):
        return None if unavailable.is_one(value) else VARCHAR if first == b'"' else JSON
    if first in (b"t", b"f"):
        return BOOLEAN
    if first == b"n":
        return None
    digits = value.removeprefix(b"-")
    if not digits.isdigit() or len(digits) > 19:
        return DECIMAL
    return BIGINT if -(2**63) <= int(value) < 2**63 else DECIMAL


_TYPE: Final = re.compile(r"([A-Z]+(?: [A-Z]+)*)(?:\((\d{1,9})(?:,(\d{1,9}))?\))?")
_INTEGERS: Final = {"SMALLINT": 16, "INTEGER": 32, "BIGINT": 64}
_FLOATS: Final = ("REAL", "DOUBLE")
_NO_NUMBERS: Final = (b'"NaN"', b'"Infinity"', b'"-Infinity"')
"""Values of floats that are not numbers in JSON."""
_TEXTS: Final = ("VARCHAR", "UUID", "VARBINARY")
_TIMES: Final = ("DATE", "TIME", "TIMESTAMP", "TIME WITH TIME ZONE", "TIMESTAMP WITH TIME ZONE")
_PARAMETERS: Final = {"DECIMAL": 2, "VARCHAR": 1}
_PLAIN: Final = frozenset({*_INTEGERS, *_FLOATS, *_TEXTS, *_TIMES, BOOLEAN, DECIMAL, JSON})
_NUMBER: Final = re.compile(rb"-?(\d+)(?:\.(\d+))?([eE][+-]?\d+)?")

EXACTLY: Final = Context(
    prec=10_000, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[Inexact, InvalidOperation]
)
"""Decimal context that raises an error instead of rounding."""
_ENCODINGS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("Date", "Time", "MicroTime", "NanoTime", "Timestamp"), "number"),
    **dict.fromkeys(("MicroTimestamp", "NanoTimestamp", "Year", "MicroDuration"), "number"),
    **dict.fromkeys(("ZonedTime", "ZonedTimestamp", "Interval", "Json", "Xml"), "text"),
    **dict.fromkeys(("Uuid", "Enum", "EnumSet", "Bits"), "text"),
    "VariableScaleDecimal": "object",
}
"""Last part of the name of a Debezium logical type → kind of JSON value that encodes it."""
_DECIMAL_BYTES: Final = re.compile(r"decimal\.bytes\(-?\d{1,4}\)")
_OTHERS: Final = (
    *("json", "base64", "decimal.string"),
    *("connect.Date", "connect.Time", "connect.Timestamp"),
)


def known_type(sql_type: str) -> bool:
    """Return True if a mapping may declare this SQL type."""
    found = _TYPE.fullmatch(sql_type)
    if found is None or found[1] not in _PLAIN:
        return False
    given = (found[2] is not None) + (found[3] is not None)
    return given <= _PARAMETERS.get(found[1], 0)


def known_encoding(encoding: str) -> bool:
    """Return True if a mapping may declare this encoding."""
    if encoding.startswith("debezium."):
        return encoding.removeprefix("debezium.") in _ENCODINGS
    return encoding in _OTHERS or _DECIMAL_BYTES.fullmatch(encoding) is not None


def fault_of(
    sql_type: str, encoding: str, value: bytes, unavailable: Unavailable = DEFAULT
) -> str | None:
    """Return why a JSON value that is not null does not fit a type and encoding; None if it fits."""
    # Fast path: one regular expression accepts most valid values. Only the others are analysed.
    if _usual_values(sql_type, encoding).fullmatch(value):
        return None
    if type_of(value, unavailable) is None:
        return None  # the placeholder: the value has not changed
    kind = _kind_of(encoding)
    if kind is not None:
        found = _kind_of_value(value)
        return None if found == kind else f"{_shown(value)} is no {kind}, as {encoding} requires"
    base, first, second = parts_of(sql_type)
    if base == JSON:
        return None
    if base == BOOLEAN:
        return (
            None if value in (b"true", b"false") else f"{_shown(value)} is neither true nor false"
        )
    if base in _INTEGERS:
        return _integer_fault(_INTEGERS[base], value)
    if base in _FLOATS:
        return _float_fault(base, value)
    if base == DECIMAL:
        return _decimal_fault(first, second or 0, value)
    if value[:1] != b'"':
        return f"{_shown(value)} is not a text"
    if first is not None and len(orjson.loads(value)) > first:
        return f"{_shown(value)} is longer than {first}"
    return None


_NOTHING: Final = re.compile(b"(?!)")
"""A pattern without a match."""


@lru_cache(maxsize=1_024)
def _usual_values(sql_type: str, encoding: str) -> re.Pattern[bytes]:
    """Return a pattern that matches most values that fit a type and encoding, and no other values."""
    base, first, second = parts_of(sql_type)
    kind = _kind_of(encoding)
    pattern = rb'".*"' if base in (*_TEXTS, *_TIMES) else rb"-?\d+(?:\.\d+)?"
    if kind is not None:
        pattern = {"text": rb'".*"', "number": rb"-?\d.*", "object": rb"\{.*"}[kind]
    elif base == JSON:
        pattern = rb".*"
    elif base == BOOLEAN:
        pattern = rb"true|false"
    elif base in _INTEGERS:
        pattern = rb"-?\d{1,%d}" % {16: 4, 32: 9, 64: 18}[_INTEGERS[base]]
    elif base in _FLOATS:
        pattern = rb"-?\d{1,%d}(?:\.\d+)?" % {"REAL": 38, "DOUBLE": 308}[base]
    elif base == DECIMAL and first is not None:
        scale = second or 0
        if scale > first:
            return _NOTHING
        whole = rb"-?\d{1,%d}" % (first - scale) if first > scale else rb"-?0"
        pattern = whole + (rb"(?:\.\d{1,%d})?" % scale if scale else b"")
    elif first is not None:
        pattern = rb'"[ !#-\[\]-~]{0,%d}"' % first
    return re.compile(pattern, re.DOTALL)


def parts_of(sql_type: str) -> tuple[str, int | None, int | None]:
    """Return the name of an SQL type and its two parameters; None for a missing parameter."""
    found = _TYPE.fullmatch(sql_type)
    assert found is not None, sql_type
    first, second = (None if part is None else int(part) for part in found.groups()[1:])
    return found[1], first, second


def _kind_of(encoding: str) -> str | None:
    """Return the kind of JSON value that an encoding uses; None for ``json``: the SQL type decides."""
    if encoding.startswith("debezium."):
        return _ENCODINGS[encoding.removeprefix("debezium.")]
    if encoding.startswith("connect."):
        return "number"
    return None if encoding == "json" else "text"


def _kind_of_value(value: bytes) -> str:
    first = value[:1]
    return {b'"': "text", b"{": "object", b"[": "list", b"t": "truth", b"f": "truth"}.get(
        first, "number"
    )


def _integer_fault(bits: int, value: bytes) -> str | None:
    digits = value.removeprefix(b"-")
    if not digits.isdigit():
        return f"{_shown(value)} is not a whole number"
    if len(digits) > 19 or not -(1 << (bits - 1)) <= int(value) < 1 << (bits - 1):
        return f"{_shown(value)} is out of range"
    return None


def _float_fault(base: str, value: bytes) -> str | None:
    if value in _NO_NUMBERS:
        return None
    if _NUMBER.fullmatch(value) is None:
        return f"{_shown(value)} is not a number"
    # A number above the range of a double is infinite after conversion; ``struct`` checks the range of REAL.
    number = float(value)
    try:
        if base == "REAL":
            struct.pack("<f", number)
    except OverflowError:
        number = math.inf
    return f"{_shown(value)} is out of range" if math.isinf(number) else None


def _decimal_fault(precision: int | None, scale: int, value: bytes) -> str | None:
    found = _NUMBER.fullmatch(value)
    if found is None:
        return f"{_shown(value)} is not a number"
    if precision is None:
        return None
    # An exponent can be large, so the digits of such a number are not written out.
    if found[3]:
        fits = _fits_decimal(precision, scale, value)
    else:
        # Zeros at the end of the fraction and in front of the number do not count as digits.
        fraction = (found[2] or b"").rstrip(b"0")
        digits = (found[1] + fraction.ljust(scale, b"0")).lstrip(b"0")
        fits = len(fraction) <= scale and len(digits) <= precision
    return None if fits else f"{_shown(value)} has more digits"


def _fits_decimal(precision: int, scale: int, value: bytes) -> bool:
    """Return True if a decimal type holds a number with an exponent; its digits are not expanded."""
    try:
        number = Decimal(value.decode()).normalize(EXACTLY)
    except ArithmeticError:  # more than 10,000 digits, or an exponent of more than 18
        return False
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)
    return not number or (-exponent <= scale and number.adjusted() < precision - scale)


def _shown(value: bytes) -> str:
    text = value[:40].decode(errors="replace")
    return text if len(value) <= 40 else f"{text}…"


def joined(
    before: tuple[str | None, str], after: tuple[str | None, str]
) -> tuple[str | None, str] | None:
    """Return that of two (type, encoding) pairs which reads the values of both; None if neither does.

    Integers widen, REAL widens to DOUBLE, DECIMAL to more digits of the same scale, VARCHAR to more characters.
    Types of different encodings never join, as the same text means different values.
    """
    if before == after:
        return before
    if before[1] != after[1] or before[0] is None or after[0] is None:
        return None
    (base, first, second), (other, other_first, other_second) = (
        parts_of(before[0]),
        parts_of(after[0]),
    )
    for order in (tuple(_INTEGERS), _FLOATS):
        if base in order and other in order:
            return max(before, after, key=lambda each: order.index(each[0] or ""))
    if base != other or (second or 0) != (other_second or 0):
        return None
    if first is None or other_first is None:
        return before if first is None else after
    return before if first >= other_first else after


def may_become(inferred: str | None, sql_type: str, encoding: str) -> bool:
    """Return True if values of an inferred type can be values of a stated type, by their kind of JSON."""
    kind = _kind_of(encoding)
    base = parts_of(sql_type)[0]
    if inferred is None or (base == JSON and kind is None):
        return True
    if inferred == BOOLEAN:
        return base == BOOLEAN
    if inferred == VARCHAR:
        return kind == "text" or (kind is None and base in (*_TEXTS, *_TIMES))
    if inferred in (BIGINT, DECIMAL):
        return kind == "number" or (kind is None and base in (*_INTEGERS, *_FLOATS, DECIMAL))
    return kind == "object"
