"""Columns as Debezium announces them, and what their values mean; says it anew, to judge the readers by.

A meaning is a Decimal, a moment in nanoseconds since 1970 (`Moment`), a truth or a text.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, NewType

Moment = NewType("Moment", int)
Meaning = Decimal | Moment | bool | str


@dataclass(frozen=True)
class Kind:
    """A type and an encoding."""

    name: str
    field: dict[str, Any]
    """The column in a schema block, without its name."""
    sql_type: str
    encoding: str
    scalar: str
    """Of GraphQL."""
    unit: int = 0
    """Nanoseconds of one count; 0 where it does not count."""
    scale: int = 0
    whole_max: int = 0
    """First number that it cannot hold; 0 where it holds none."""

    @property
    def family(self) -> str:
        return "moment" if self.unit else "number" if self.whole_max else self.name

    def holds(self, meaning: Meaning) -> bool:
        """Whether it has an exact form of a meaning of its family."""
        if self.unit:
            return isinstance(meaning, int) and meaning % self.unit == 0
        if not self.whole_max:
            return True
        assert isinstance(meaning, Decimal)
        exact = meaning.quantize(Decimal(1).scaleb(-self.scale)) == meaning
        return exact and -self.whole_max <= meaning < self.whole_max

    def written(self, meaning: Meaning) -> Any:
        """Return the JSON value."""
        if self.unit:
            assert isinstance(meaning, int)
            return meaning // self.unit
        if self.encoding.startswith("decimal.bytes"):
            assert isinstance(meaning, Decimal)
            unscaled = int(meaning.scaleb(self.scale))
            data = unscaled.to_bytes((unscaled.bit_length() + 8) // 8, "big", signed=True)
            return base64.b64encode(data).decode()
        return int(meaning) if isinstance(meaning, Decimal) else meaning


def _counts(name: str, unit: int, library: str = "io.debezium.time") -> Kind:
    prefix = "debezium" if library == "io.debezium.time" else "connect"
    field = {"type": "int64", "name": f"{library}.{name}"}
    return Kind(name + prefix, field, "TIMESTAMP", f"{prefix}.{name}", "Timestamp", unit=unit)


def _decimal(precision: int, scale: int) -> Kind:
    parameters = {"scale": str(scale), "connect.decimal.precision": str(precision)}
    field = {
        "type": "bytes",
        "name": "org.apache.kafka.connect.data.Decimal",
        "parameters": parameters,
    }
    sql_type, encoding = f"DECIMAL({precision},{scale})", f"decimal.bytes({scale})"
    bound = 10 ** (precision - scale)
    return Kind(sql_type, field, sql_type, encoding, "Decimal", scale=scale, whole_max=bound)


INT: Final = Kind("int", {"type": "int32"}, "INTEGER", "json", "Int", whole_max=1 << 31)
LONG: Final = Kind("long", {"type": "int64"}, "BIGINT", "json", "BigInt", whole_max=1 << 63)
MONEY: Final = _decimal(10, 2)
FINE_MONEY: Final = _decimal(12, 4)
MILLIS: Final = _counts("Timestamp", 1_000_000)
MICROS: Final = _counts("MicroTimestamp", 1_000)
NANOS: Final = _counts("NanoTimestamp", 1)
CONNECT_MILLIS: Final = _counts("Timestamp", 1_000_000, "org.apache.kafka.connect.data")
TEXT: Final = Kind("text", {"type": "string"}, "VARCHAR", "json", "String")
ENUM: Final = Kind(
    "enum",
    {"type": "string", "name": "io.debezium.data.Enum"},
    "VARCHAR",
    "debezium.Enum",
    "String",
)
TRUTH: Final = Kind("truth", {"type": "boolean"}, "BOOLEAN", "json", "Boolean")
KINDS: Final = (
    *(INT, LONG, MONEY, FINE_MONEY, MILLIS, MICROS, NANOS, CONNECT_MILLIS),
    *(TEXT, ENUM, TRUTH),
)


def kind_of(sql_type: str | None, encoding: str) -> Kind:
    """Return the kind that a column of the log is."""
    (found,) = (each for each in KINDS if (each.sql_type, each.encoding) == (sql_type, encoding))
    return found


def meaning_of(value: Any, kind: Kind) -> Meaning:
    """Return what a JSON value of a kind means."""
    if kind.unit:
        assert type(value) is int
        return Moment(value * kind.unit)
    if kind.encoding.startswith("decimal.bytes"):
        number = int.from_bytes(base64.b64decode(value), "big", signed=True)
        return Decimal(number).scaleb(-kind.scale)
    if kind.whole_max:
        assert type(value) is int
        return Decimal(value)
    assert type(value) is (bool if kind is TRUTH else str)
    return value


def meaning_shown(value: Any, kind: Kind) -> Meaning:
    """Return what a typed field of GraphQL says of a value of a kind, whatever scalar the field has."""
    if kind.unit:
        moment = datetime.fromisoformat(value).replace(tzinfo=UTC)
        micros = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        fraction = value.rpartition(".")[2] if "." in value else ""
        return Moment(micros * 1_000 + int(fraction[6:9].ljust(3, "0") if fraction[6:] else 0))
    if kind.whole_max:
        return Decimal(str(value))
    if kind is TRUTH:
        return value if isinstance(value, bool) else {"true": True, "false": False}[value]
    assert isinstance(value, str)
    return value
