"""One scalar for all types that a column has had, and each value by its own."""

from __future__ import annotations

import msgspec
import pytest

from tailrace.schema import Column, Origin, Schema
from tailrace_server.api.graphql.column_readings import histories, reading_of
from tailrace_server.api.graphql.errors import ValueUnfit
from tailrace_server.api.graphql.scalars import BigInt, Date, Decimal, Json, Timestamp


def stated(sql_type: str | None, encoding: str = "json") -> Column:
    return Column("c", sql_type=sql_type, encoding=encoding, origin=Origin.DEBEZIUM, id=1)


BYTES_2 = stated("DECIMAL(10,2)", "decimal.bytes(2)")
BYTES_4 = stated("DECIMAL(12,4)", "decimal.bytes(4)")
MILLIS = stated("TIMESTAMP", "debezium.Timestamp")
MICROS = stated("TIMESTAMP", "debezium.MicroTimestamp")


@pytest.mark.parametrize(
    ("types", "scalar"),
    [
        ([BYTES_2, BYTES_4], Decimal),
        ([MILLIS, MICROS], Timestamp),
        ([stated("SMALLINT"), stated("INTEGER")], int),
        ([stated("INTEGER"), stated("BIGINT")], BigInt),
        ([stated("INTEGER"), stated("DOUBLE")], float),
        ([stated("BIGINT"), stated("DOUBLE")], Decimal),
        ([stated("INTEGER"), stated("DOUBLE"), stated("BIGINT")], Decimal),
        ([stated("INTEGER"), BYTES_2], Decimal),
        ([stated("INTEGER"), stated("VARCHAR")], str),
        ([stated("BOOLEAN"), stated("SMALLINT")], str),
        ([stated("DATE"), MICROS], str),
        ([MILLIS, stated("JSON")], Json),
        ([stated("VARCHAR"), stated(None)], Json),
        ([stated("DATE", "debezium.Date")], Date),
    ],
)
def test_the_scalar_holds_all_that_the_types_show(types: list[Column], scalar: object) -> None:
    for order in (types, types[::-1]):
        assert reading_of(order[-1], order[:-1]).scalar is scalar


@pytest.mark.parametrize(
    ("now", "then", "raw", "shown"),
    [
        (BYTES_4, BYTES_2, b'"AfQ="', b'"5.00"'),
        (BYTES_4, BYTES_4, b'"AfQ="', b'"0.0500"'),
        (MICROS, MILLIS, b"1500", b'"1970-01-01T00:00:01.500000"'),
        (MICROS, MICROS, b"1500", b'"1970-01-01T00:00:00.001500"'),
        (stated("VARCHAR"), stated("INTEGER"), b"5", b'"5"'),
        (stated("VARCHAR"), stated("BOOLEAN"), b"true", b'"true"'),
        (stated("VARCHAR"), MILLIS, b"0", b'"1970-01-01T00:00:00"'),
        (stated("INTEGER"), stated("VARCHAR"), b'"5"', b'"5"'),
        (stated("BIGINT"), stated("INTEGER"), b"5", b'"5"'),
        (stated("DOUBLE"), stated("BIGINT"), b"9007199254740993", b'"9007199254740993"'),
        (stated("DOUBLE"), stated("INTEGER"), b"5", b"5"),
        (stated("JSON"), BYTES_2, b'"AfQ="', b'"AfQ="'),
    ],
)
def test_a_value_is_read_by_its_own_type(
    now: Column, then: Column, raw: bytes, shown: bytes
) -> None:
    reading = reading_of(now, [then])
    assert reading.of(then)(raw) == shown
    found = reading.value(raw, then)
    assert found == (msgspec.Raw(shown) if reading.scalar is Json else msgspec.json.decode(shown))
    assert reading.value(b"null", then) is None


@pytest.mark.parametrize(
    ("field", "later", "raw", "shown"),
    [
        (stated("BIGINT"), stated("DECIMAL"), b"3", b'"3"'),
        (stated("BIGINT"), stated("DECIMAL"), b"1.5", None),
        (stated("INTEGER"), stated("BIGINT"), b"5", b"5"),
        (stated("INTEGER"), stated("BIGINT"), b"5000000000", None),
        (stated("INTEGER"), BYTES_2, b'"AfQ="', None),
        (stated("INTEGER"), stated("VARCHAR"), b'"5"', None),
        (stated("INTEGER"), stated("JSON"), b"5", b"5"),
        (BYTES_2, stated("JSON"), b'"1234"', None),
        (stated("VARCHAR"), stated("JSON"), b'"x"', b'"x"'),
        (stated("VARCHAR"), stated("JSON"), b"[]", None),
        (stated("BOOLEAN"), stated("JSON"), b"true", b"true"),
        (MILLIS, stated("JSON"), b"5", None),
        (MILLIS, stated("INTEGER"), b"5", None),
        (MILLIS, MICROS, b"1500", b'"1970-01-01T00:00:00.001500"'),
    ],
)
def test_a_type_that_came_later_is_shown_only_where_it_says_the_same(
    field: Column, later: Column, raw: bytes, shown: bytes | None
) -> None:
    read = reading_of(field, []).of(later)
    if shown is not None:
        assert read(raw) == shown
        return
    with pytest.raises(ValueUnfit) as caught:
        read(raw)
    assert caught.value.code == "VALUE_INVALID"


def test_what_was_only_inferred_is_read_as_the_first_stated_type() -> None:
    """Its values are those of the source from before its types were known."""
    inferred = Column("c", sql_type="BIGINT", id=1)
    schemas = [Schema(id, {"t": (each,)}) for id, each in enumerate((inferred, MILLIS, MICROS), 1)]
    reading = reading_of(MICROS, histories(schemas[:-1])[1])
    assert reading.scalar is Timestamp
    assert reading.of(inferred)(b"1500") == b'"1970-01-01T00:00:01.500000"'
    text = Column("c", sql_type="JSON", id=1)
    mixed = reading_of(stated("VARCHAR"), [inferred, text])
    assert (mixed.scalar, mixed.of(inferred)(b"5")) == (Json, b"5")


@pytest.mark.parametrize("column", [None, Column("c", id=1)])
def test_a_value_of_an_unknown_type_is_read_by_the_newest(column: Column | None) -> None:
    reading = reading_of(stated("INTEGER"), [] if column is None else [column])
    assert reading.scalar is int
    assert reading.of(column)(b"5") == b"5"
    assert reading.of(column)(b'"__debezium_unavailable_value"') == b"null"


@pytest.mark.parametrize(
    "types", [("INTEGER", "BIGINT"), ("INTEGER", "VARCHAR"), ("BOOLEAN", "JSON")]
)
def test_what_was_not_sent_is_null_in_every_scalar_and_of_every_type(
    types: tuple[str, str],
) -> None:
    before, now = map(stated, types)
    for reading in (reading_of(now, [before]), reading_of(before, [])):
        for column in (before, now, None):
            assert reading.of(column)(b'"__debezium_unavailable_value"') == b"null"
            assert reading.value(b'"__debezium_unavailable_value"', column) is None
