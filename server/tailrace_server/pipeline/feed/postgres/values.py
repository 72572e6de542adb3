"""The types of PostgreSQL in the catalog, and the JSON texts of their values.

============================  =================================  ==========================================
type                          catalog                            JSON text
============================  =================================  ==========================================
boolean                       BOOLEAN                            true, false
smallint, integer, bigint     SMALLINT, INTEGER, BIGINT          the number
oid, xid, …                   BIGINT                             the number
real, double precision        REAL, DOUBLE                       the number, or "NaN", "Infinity", "-Infinity"
numeric(p,s), numeric         DECIMAL(p,s), DECIMAL              the number with all its digits; as above
bytea                         VARBINARY in base64                a text in base64
uuid                          UUID                               a text
json, jsonb                   JSON in debezium.Json              a text that has the JSON text
date, time, timetz            DATE, TIME, TIME WITH TIME ZONE    a text in PostgreSQL's ISO form
timestamp, timestamptz        TIMESTAMP, … WITH TIME ZONE        the same, a timestamptz in UTC
varchar(n), char(n)           VARCHAR(n)                         a text
a domain                      that of its base type              that of its base type
any other                     VARCHAR                            a text in PostgreSQL's form
============================  =================================  ==========================================

Any other type: text, enums, arrays, composites, ranges, intervals (in ISO 8601), money, bits, xml, hstore.
Dates and times beyond the years 1 to 9999 keep PostgreSQL's text, such as ``infinity`` or ``0044-03-15 BC``.

Values are the text form that PostgreSQL sends under `SESSION`.
"""

from __future__ import annotations

import re
from base64 import b64encode
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from tailrace_server.machine_code.loops.codes import TableText

if TYPE_CHECKING:
    from collections.abc import Callable

SESSION: Final = (
    "-c datestyle=ISO -c intervalstyle=iso_8601 -c timezone=UTC -c extra_float_digits=3 "
    "-c bytea_output=hex -c client_encoding=UTF8"
)
"""Settings of a session under which texts have the forms that this module reads."""


class ColumnType(NamedTuple):
    """The type of a column in the catalog, and the function that writes its values."""

    sql_type: str
    encoding: str
    json: Callable[[bytes], bytes]
    """Returns the JSON text of a value, given PostgreSQL's text."""

    @property
    def notation(self) -> TableText:
        """The same function, for compiled code."""
        return _NOTATIONS[self.json]


_PLAIN: Final = re.compile(rb'[^"\\\x00-\x1f]*')
_NUMBER: Final = re.compile(rb"-?[0-9]")


def json_text(value: bytes) -> bytes:
    """Return a text as a JSON string."""
    if _PLAIN.fullmatch(value):
        return b'"%b"' % value
    return orjson.dumps(value.decode())


def _same(value: bytes) -> bytes:
    return value


def _number(value: bytes) -> bytes:
    return value if _NUMBER.match(value) else b'"%b"' % value


def _truth(value: bytes) -> bytes:
    return b"true" if value == b"t" else b"false"


def _octets(value: bytes) -> bytes:
    return b'"%b"' % b64encode(bytes.fromhex(value[2:].decode()))


_NOTATIONS: Final[dict[Callable[[bytes], bytes], TableText]] = {
    _same: TableText.SAME,
    _number: TableText.NUMBER,
    _truth: TableText.TRUTH,
    _octets: TableText.OCTETS,
    json_text: TableText.STRING,
}
_TEXT: Final = ColumnType("VARCHAR", "json", json_text)
_BY_OID: Final[dict[int, ColumnType]] = {
    16: ColumnType("BOOLEAN", "json", _truth),
    17: ColumnType("VARBINARY", "base64", _octets),
    20: ColumnType("BIGINT", "json", _same),
    21: ColumnType("SMALLINT", "json", _same),
    23: ColumnType("INTEGER", "json", _same),
    26: ColumnType("BIGINT", "json", _same),  # oid
    28: ColumnType("BIGINT", "json", _same),  # xid
    700: ColumnType("REAL", "json", _number),
    701: ColumnType("DOUBLE", "json", _number),
    1700: ColumnType("DECIMAL", "json", _number),
    114: ColumnType("JSON", "debezium.Json", json_text),
    3802: ColumnType("JSON", "debezium.Json", json_text),
    1082: ColumnType("DATE", "json", json_text),
    1083: ColumnType("TIME", "json", json_text),
    1266: ColumnType("TIME WITH TIME ZONE", "json", json_text),
    1114: ColumnType("TIMESTAMP", "json", json_text),
    1184: ColumnType("TIMESTAMP WITH TIME ZONE", "json", json_text),
    2950: ColumnType("UUID", "json", json_text),
}
_NUMERIC: Final = 1700
_CHARACTERS: Final = (1042, 1043)
"""char(n) and varchar(n)."""
_HEADER: Final = 4
"""Added to modifiers of sized types."""

FIRST_USER_TYPE: Final = 16_384
"""The smallest oid of a type that is not PostgreSQL's own; such a type may be a domain."""


def column_type(oid: int, modifier: int) -> ColumnType:
    """Return the type of a column.

    Args:
        oid: Oid of the type; of the base type if it is a domain.
        modifier: Modifier of the type; -1 if it has none.
    """
    found = _BY_OID.get(oid, _TEXT)
    if modifier < _HEADER:
        return found
    size = modifier - _HEADER
    if oid in _CHARACTERS:
        return found._replace(sql_type=f"VARCHAR({size})")
    if oid == _NUMERIC:
        # Precision in the upper 16 bits; the scale has 11 bits with a sign. The catalog has no negative scale,
        # nor one above the precision.
        precision, scale = size >> 16 & 0xFFFF, ((size & 0x7FF) ^ 0x400) - 0x400
        if 0 <= scale <= precision:
            return found._replace(sql_type=f"DECIMAL({precision},{scale})")
    return found
