"""Values become Python's by type and encoding: exactly, or not at all."""

from __future__ import annotations

import base64
import json
import math
import pickle
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal, InvalidOperation
from functools import partial
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace import Column, ValueNotHeld
from tailrace.typed.row_reader import RowReader, untyped_row
from tailrace_server.wal.schema.decoding import Undecodable, decoding_of

Read = tuple[str | None, str, str, object]
"""SQL type, encoding, JSON text, value."""

EAST = timezone(timedelta(hours=5, minutes=30))
READ: list[Read] = [
    ("BOOLEAN", "json", "true", True),
    ("SMALLINT", "json", "-32768", -32768),
    ("BIGINT", "json", "9223372036854775807", 2**63 - 1),
    ("DOUBLE", "json", "1.5e300", 1.5e300),
    ("DOUBLE", "json", '"-Infinity"', -math.inf),
    ("REAL", "json", "16777217", 16777217.0),
    ("DECIMAL", "json", "0.10", Decimal("0.10")),
    ("DECIMAL(38,0)", "json", "1" * 38, Decimal("1" * 38)),
    ("DECIMAL(10,2)", "decimal.bytes(2)", '"LsY="', Decimal("119.74")),
    ("DECIMAL(10,2)", "decimal.bytes(-2)", '"/w=="', Decimal(-100)),
    ("DECIMAL", "decimal.string", '"12345678901234567890.123456789012345678901"', None),
    ("DECIMAL", "debezium.VariableScaleDecimal", '{"scale":3,"value":"AQ=="}', Decimal("0.001")),
    ("VARCHAR(3)", "json", '"é"', "é"),
    ("VARCHAR", "debezium.Enum", '"red"', "red"),
    ("UUID", "json", '"6f1c2a5e-0b0e-4d4f-9c39-5d3f6a1b2c3d"', None),
    ("VARBINARY", "base64", '"AP8="', b"\x00\xff"),
    ("VARBINARY", "debezium.Bits", '"AQ=="', b"\x01"),
    ("DATE", "json", '"2024-02-29"', date(2024, 2, 29)),
    ("DATE", "debezium.Date", "-719162", date(1, 1, 1)),
    ("TIME", "json", '"13:37:00.25"', time(13, 37, 0, 250_000)),
    ("TIME", "debezium.NanoTime", "86399999999000", time(23, 59, 59, 999_999)),
    ("TIME WITH TIME ZONE", "json", '"13:37+05:30"', time(13, 37, tzinfo=EAST)),
    ("TIMESTAMP", "json", '"2024-02-29 13:37:00"', datetime(2024, 2, 29, 13, 37)),
    ("TIMESTAMP", "debezium.Timestamp", "-1", datetime(1969, 12, 31, 23, 59, 59, 999_000)),
    ("TIMESTAMP", "connect.Timestamp", "0", datetime(1970, 1, 1)),
    (
        "TIMESTAMP WITH TIME ZONE",
        "debezium.ZonedTimestamp",
        '"2024-02-29T13:37:00.123456Z"',
        datetime(2024, 2, 29, 13, 37, 0, 123_456, UTC),
    ),
    ("INTEGER", "debezium.Year", "2024", 2024),
    ("BIGINT", "debezium.MicroDuration", "-5", -5),
    ("JSON", "json", '{"a":[1.10,null]}', {"a": [Decimal("1.10"), None]}),
    ("JSON", "debezium.Json", '"{\\"a\\":1.10}"', {"a": Decimal("1.10")}),
    (None, "json", "[1]", [1]),
]
MISFITS: list[tuple[str, str, str, str]] = [
    ("BOOLEAN", "json", "1", "neither true nor false"),
    ("SMALLINT", "json", "32768", "out of range"),
    ("BIGINT", "json", "1.5", "not a whole number"),
    ("BIGINT", "json", "true", "not a number"),
    ("DOUBLE", "json", "1e400", "out of range"),
    ("REAL", "json", "1e39", "out of range"),
    ("DECIMAL", "json", '"1"', "not a number"),
    ("DECIMAL", "decimal.string", '"NaN"', "not a number"),
    ("DECIMAL(10,2)", "decimal.bytes(2)", '"*"', "not base64"),
    ("DECIMAL(10,2)", "decimal.bytes(2)", '""', "bytes must be 1 to"),
    ("VARCHAR", "json", "5", "not a text"),
    ("UUID", "json", '"6f1c"', "not a UUID"),
    ("DATE", "json", '"2023-02-29"', "this day does not exist"),
    ("DATE", "debezium.Date", "2147483647", "infinity is sent as a day outside"),
    ("TIME", "json", '"24:00:00"', "must be before 24:00"),
    ("TIME", "debezium.MicroTime", "94500000000", "must be before 24:00"),
    ("TIME", "debezium.MicroTime", "-1", "must be before 24:00"),
    ("TIME", "debezium.NanoTime", "1", "parts of a microsecond"),
    ("TIMESTAMP", "debezium.MicroTimestamp", "9223372036825200000", "infinity is sent as"),
    ("TIMESTAMP", "debezium.NanoTimestamp", "1", "parts of a microsecond"),
    ("TIMESTAMP", "json", '"2024-02-29T13:37:00Z"', "it has a time zone"),
    ("TIMESTAMP WITH TIME ZONE", "json", '"2024-02-29T13:37:00"', "it has no time zone"),
    (
        "TIMESTAMP WITH TIME ZONE",
        "json",
        '"2024-02-29T13:37:00+24:00"',
        "this time zone does not exist",
    ),
    ("JSON", "debezium.Json", '"{"', "not JSON"),
]


def reader_of(sql_type: str | None, encoding: str) -> RowReader:
    return RowReader("product", [Column("value", sql_type=sql_type, encoding=encoding)])


@pytest.mark.parametrize(("sql_type", "encoding", "text", "value"), READ)
def test_a_value_is_what_its_column_says(
    sql_type: str | None, encoding: str, text: str, value: object
) -> None:
    found = reader_of(sql_type, encoding).read(b'{"value":%b}' % text.encode())["value"]
    if value is None:
        made = UUID if sql_type == "UUID" else Decimal
        value = made(json.loads(text))
    assert (found, type(found)) == (value, type(value))
    if isinstance(found, Decimal):
        assert str(found) == str(value)


@pytest.mark.parametrize(("sql_type", "encoding", "text", "reason"), MISFITS)
def test_a_value_that_the_type_cannot_hold_is_an_error_that_says_so(
    sql_type: str, encoding: str, text: str, reason: str
) -> None:
    with pytest.raises(ValueNotHeld, match=reason) as caught:
        reader_of(sql_type, encoding).read(b'{"value":%b}' % text.encode())
    assert caught.value.column == "value"
    assert sql_type in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


NUMBERS = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(["", "-"]),
        st.from_regex(r"0|[1-9][0-9]{0,30}", fullmatch=True) | st.just("9" * 5_000),
        st.just("") | st.from_regex(r"\.[0-9]{1,30}", fullmatch=True),
        st.just("") | st.from_regex(r"[eE][-+]?[0-9]{1,22}", fullmatch=True),
    ),
)
"""Every number of JSON."""


@given(NUMBERS)
@example("1e400")
@example("9" * 5_000)
@example("-1e99999999999999999999")
def test_every_number_of_json_is_read_exactly_or_named_with_its_column(number: str) -> None:
    """Also in a document, and beside columns that can be read."""
    try:
        exact: Decimal | None = Decimal(number)
    except InvalidOperation:
        exact = None
    image = b'{"id":1,"value":%b}' % number.encode()
    document = b'{"id":1,"value":{"in":[%b]}}' % number.encode()
    for read in (
        partial(untyped_row, "product"),
        reader_of(None, "json").read,
        reader_of("DECIMAL", "json").read,
    ):
        if exact is not None:
            assert read(image) == {"id": 1, "value": exact}
            continue
        with pytest.raises(ValueNotHeld, match="18 digits") as caught:
            read(image)
        assert caught.value.column == "value"
        assert caught.value.value == number[:40] + "…" * (len(number) > 40)
    if exact is not None:
        assert untyped_row("product", document)["value"] == {"in": [exact]}
    else:
        with pytest.raises(ValueNotHeld, match="18 digits"):
            untyped_row("product", document)
    # A double is the nearest one, as everywhere else.
    if math.isinf(float(number)):
        with pytest.raises(ValueNotHeld, match="out of range"):
            reader_of("DOUBLE", "json").read(image)
    else:
        assert reader_of("DOUBLE", "json").read(image)["value"] == float(number)


@pytest.mark.parametrize(
    ("sql_type", "encoding", "text", "reason"),
    [
        ("BIGINT", "json", "9" * 5_000, "out of range"),
        ("BIGINT", "json", "1e" + "9" * 20, "not a whole number"),
        ("DATE", "debezium.Date", "9" * 5_000, "out of range"),
        ("VARCHAR", "json", "1e" + "9" * 20, "not a text"),
        ("DECIMAL", "decimal.string", '"1e%s"' % ("9" * 20), "18 digits"),
        ("JSON", "debezium.Json", '"[1e%s]"' % ("9" * 20), "18 digits"),
        (None, "json", "[" * 100_000, "recursion|JSON"),
    ],
)
def test_a_number_beyond_those_of_python_is_named_in_every_type(
    sql_type: str | None, encoding: str, text: str, reason: str
) -> None:
    with pytest.raises(ValueNotHeld, match=reason):
        reader_of(sql_type, encoding).read(b'{"value":%b}' % text.encode())


def test_null_absent_and_not_sent_are_told_apart() -> None:
    columns = [Column(name, sql_type="VARCHAR") for name in ("null", "absent", "not sent", "other")]
    image = b'{"null":null,"not sent":"__debezium_unavailable_value","other":"x"}'
    row = RowReader("product", columns).read(image)
    assert row == {"null": None, "other": "x"}
    other = json.dumps({"null": None, "not sent": base64.b64encode(b"\xffgone").decode()})
    row = RowReader("product", columns, ["hex:ff676f6e65"]).read(other.encode())
    assert row == {"null": None}


@pytest.mark.parametrize(
    "value",
    ["n/a", ["n/a"], {"n/a": "n/a"}, [*b"n/a"], "bi9h", "6e2f61", '{"n/a":"n/a"}'],
    ids=str,
)
def test_a_placeholder_of_a_connector_is_known_in_every_form(value: object) -> None:
    image = json.dumps({"id": 1, "big": value}, separators=(",", ":")).encode()
    columns = [Column("id"), Column("big")]
    assert RowReader("product", columns, ["n/a"]).read(image) == {"id": 1}
    assert RowReader("product", columns).read(image) == {"id": 1, "big": value}


ENCODINGS = (
    *("debezium.Date", "connect.Date", "debezium.Time", "debezium.MicroTime", "debezium.NanoTime"),
    *("debezium.Timestamp", "debezium.MicroTimestamp", "debezium.NanoTimestamp"),
    *("decimal.bytes(3)", "decimal.bytes(0)", "decimal.bytes(-2)"),
)


@given(st.sampled_from(ENCODINGS), st.integers(-(2**63), 2**63 - 1), st.integers(0, 60))
@example("debezium.MicroTime", 100 * 3_600_000_000, 0)
def test_the_server_decodes_the_same_values_to_the_same_meaning(
    encoding: str, count: int, shift: int
) -> None:
    """What a server shows as text is what the client reads, as far as Python's type holds it."""
    column = Column(
        "value", sql_type="DECIMAL" if "decimal" in encoding else "TIME", encoding=encoding
    )
    count >>= shift
    if "decimal" in encoding:
        data = count.to_bytes(9, "big", signed=True)
        raw = json.dumps(base64.b64encode(data).decode()).encode()
    else:
        raw = str(count).encode()
    decoding = decoding_of(column)
    assert decoding is not None
    try:
        shown = json.loads(decoding.decode(raw))
    except Undecodable:
        with pytest.raises(ValueNotHeld):
            RowReader("product", [column]).read(b'{"value":%b}' % raw)
        return
    is_time = encoding.endswith("Time")
    beyond = is_time and (shown[0] == "-" or int(shown.partition(":")[0]) >= 24)
    fine = encoding.startswith("debezium.Nano") and count % 1_000 != 0
    if "decimal" not in encoding and "Date" not in encoding and (beyond or fine):
        with pytest.raises(ValueNotHeld, match=r"must be before 24:00|parts of a microsecond"):
            RowReader("product", [column]).read(b'{"value":%b}' % raw)
        return
    value = RowReader("product", [column]).read(b'{"value":%b}' % raw)["value"]
    match value:
        case Decimal():
            assert f"{value:f}" == shown
        case datetime() | date() | time():
            assert type(value).fromisoformat(shown) == value
