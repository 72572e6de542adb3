"""Filters: what is in and what is not, as DuckDB judges it; and what a filter cannot say."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace.errors import InvalidRequest
from tailrace.schema import Column
from tailrace_server.filters.binding import bind
from tailrace_server.filters.parsing import parse
from tailrace_server.filters.tree import columns_in
from tailrace_server.typed.forms import form_of

COLUMNS = (
    Column("stock", sql_type="INTEGER"),
    Column("price", sql_type="DECIMAL(8,2)"),
    Column("weight", sql_type="DOUBLE"),
    Column("name", sql_type="VARCHAR"),
    Column("active", sql_type="BOOLEAN"),
    Column("day", sql_type="DATE"),
    Column("made", sql_type="TIMESTAMP", encoding="debezium.Timestamp"),
)
OTHERS = (
    Column("note", sql_type="JSON"),
    Column("image", sql_type="VARBINARY", encoding="base64"),
)
VALUES: dict[str, list[Any]] = {
    "stock": [-3, 0, 1, 2, 100, 2_147_483_647],
    "price": [Decimal(each) for each in ("-1.50", "0.00", "0.01", "100.00", "999999.99")],
    "weight": [-1.5, 0.0, 0.1, 100.0, float("nan"), float("inf")],
    "name": ["", "A", "Ab", "aB", "a%b", "a_b", "ä", "x\ny", "😀", "paid"],
    "active": [True, False],
    "day": [date(1, 1, 1), date(2024, 2, 29), date(9999, 12, 31)],
    "made": [datetime(1970, 1, 1), datetime(2024, 2, 29, 13, 37, 0, 250_000)],
}
LITERALS = {
    "stock": ["-3", "0", "1", "2.5", "100", "-2.5", "1e2", "99999999999", "NULL"],
    "price": ["0", "0.005", "0.01", "100", "1000000", "-9999999.991", "NULL"],
    "weight": ["0", "0.1", "100", "CAST('NaN' AS DOUBLE)", "CAST('Infinity' AS DOUBLE)", "NULL"],
    "name": ["''", "'A'", "'a%b'", "'ä'", "'it''s'", "NULL"],
    "active": ["TRUE", "false", "NULL"],
    "day": ["'2024-02-29'", "DATE '0001-01-01'", "CAST('2024-03-01' AS DATE)", "NULL"],
    "made": ["'1970-01-01'", "TIMESTAMP '2024-02-29 13:37:00.25'", "'2024-02-29 13:37:00.2505'"],
}
PATTERNS = ["%", "", "A%", "%b", "a\\%b", "a_b", "_", "x%y", "ä", "A_", "%\\_%", "(.*)", "[a]"]

orders = st.sampled_from(["=", "<>", "!=", "<", "<=", ">", ">="])


@st.composite
def leaves(draw: st.DrawFn) -> str:
    """Return one condition."""
    column = draw(st.sampled_from([*LITERALS]))
    one, other = (draw(st.sampled_from(LITERALS[column])) for _ in range(2))
    kind = draw(st.sampled_from(["order", "in", "between", "null", "distinct", "like", "flag"]))
    no = draw(st.sampled_from(["", "NOT "]))
    if kind == "order":
        order = draw(orders) if column != "active" else draw(st.sampled_from(["=", "<>"]))
        return draw(st.sampled_from([f"{column} {order} {one}", f"{one} {order} {column}"]))
    if kind == "in":
        return f"{column} {no}IN ({one}, {other})"
    if kind == "between" and column != "active":
        return f"{column} {no}BETWEEN {one} AND {other}"
    if kind == "distinct":
        return f"{column} IS {no}DISTINCT FROM {one}"
    if kind == "like":
        like = draw(st.sampled_from(["LIKE", "ILIKE"]))
        return f"name {no}{like} '{draw(st.sampled_from(PATTERNS))}' ESCAPE '\\'"
    if kind == "flag":
        return draw(st.sampled_from(["active", "active IS TRUE", "active IS NOT FALSE"]))
    return f"{column} IS {no}NULL"


conditions = st.recursive(
    leaves(),
    lambda inner: st.one_of(
        st.builds("({} AND {})".format, inner, inner),
        st.builds("({} OR {} AND {})".format, inner, inner, inner),
        st.builds("NOT {}".format, inner.map("({})".format)),
    ),
    max_leaves=6,
)
rows = st.lists(
    st.fixed_dictionaries(
        {name: st.one_of(st.none(), st.sampled_from(found)) for name, found in VALUES.items()}
    ),
    min_size=1,
    max_size=6,
)


def batch_of(found: list[dict[str, Any]]) -> pa.RecordBatch:
    """Return rows as typed columns."""
    schema = pa.schema([(column.name, form_of(column).type) for column in COLUMNS])
    return pa.RecordBatch.from_pylist(found, schema)


@pytest.fixture(scope="module")
def database() -> Any:
    """Return a database that judges."""
    with duckdb.connect(config={"threads": 1}) as found:
        yield found


@given(text=conditions, found=rows)
def test_what_is_in_is_what_duckdb_says(
    database: Any, text: str, found: list[dict[str, Any]]
) -> None:
    """True, false and unknown, for each row."""
    batch = batch_of(found)
    mask = bind(parse(text), COLUMNS, {}).mask.of(batch).to_pylist()
    database.register("found", pa.Table.from_batches([batch]))
    typed = text.replace("'2024-02-29 13:37:00.2505'", "TIMESTAMP '2024-02-29 13:37:00.2505'")
    assert mask == [
        judged for (judged,) in database.execute(f"SELECT {typed} FROM found").fetchall()
    ]


@pytest.mark.parametrize(
    ("text", "digits", "expected"),
    [
        ("n > 1.5", ["1.50", "1.6", "1e1", None, "9" * 90], [False, True, True, None, True]),
        ("n = 100", ["1e2", "100.000", "1" + "0" * 80], [True, True, False]),
        ("n IN (1, 0.1)", ["1.0", "0.10", "2", None], [True, True, False, None]),
        ("n < 1e400", ["1", "-" + "9" * 500], [True, True]),
        ("n > 1", ["1e-2147483647", "1e2147483647", "1e" + "9" * 20], [False, True, True]),
        ("n = 0", ["0e-2147483647", "0e" + "9" * 20, "-1e-" + "9" * 20], [True, True, False]),
        # Of so many digits Arrow keeps the lower bits: 5.
        ("n = 5", [str(2**256 + 5), "5"], [False, True]),
    ],
)
def test_numbers_that_have_no_digits_stated_are_compared_exactly(
    text: str, digits: list[str | None], expected: list[bool | None]
) -> None:
    """Whatever their digits."""
    batch = pa.record_batch({"n": pa.array(digits, pa.string())})
    columns = (Column("n", sql_type="DECIMAL"),)
    assert bind(parse(text), columns, {}).mask.of(batch).to_pylist() == expected


NUMBERS = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(["", "-"]),
        st.from_regex(r"0|[1-9][0-9]{0,90}", fullmatch=True) | st.just("1" * 5_000),
        st.just("") | st.from_regex(r"\.[0-9]{1,40}", fullmatch=True),
        st.just("") | st.from_regex(r"[eE][-+]?[0-9]{1,22}", fullmatch=True),
    ),
)
"""Every number of JSON."""


def place_of(text: str) -> tuple[int, ...]:
    """Return what orders numbers as JSON means them, without any arithmetic on their digits."""
    significand, _, power = text.lower().partition("e")
    whole, _, fraction = significand.removeprefix("-").partition(".")
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return (0,)
    sign = -1 if text[0] == "-" else 1
    highest = int(power or 0) - len(fraction) + len(digits)
    return (sign, sign * highest, *(sign * int(each) for each in digits.rstrip("0")), -sign)


@given(
    st.lists(NUMBERS, min_size=1, max_size=4),
    st.sampled_from(["0", "1", "-0.5", "100", "5e-30", "9" * 90, "1e990", "-1e-990"]),
    orders,
)
@example([str(2**256 + 5)], "5", "=")
def test_every_number_of_json_is_compared_exactly(
    digits: list[str], literal: str, order: str
) -> None:
    """In a column of numbers, and among other values in one whose type is unknown."""
    compare = {"=": "__eq__", "<>": "__ne__", "!=": "__ne__"} | dict(
        zip(["<", "<=", ">", ">="], ["__lt__", "__le__", "__gt__", "__ge__"], strict=True)
    )
    expected = [getattr(place_of(each), compare[order])(place_of(literal)) for each in digits]
    mixed = ['"x"', *digits, '{"a":1e400}', None]
    for column, values, found in (
        (Column("n", sql_type="DECIMAL"), digits, expected),
        (Column("n"), mixed, [None, *expected, None, None]),
    ):
        batch = pa.record_batch({"n": pa.array(values, pa.string())})
        for text in (f"n {order} {literal}", f"n IN ({literal}, {literal})"):
            if "IN" in text and order != "=":
                continue
            assert bind(parse(text), (column,), {}).mask.of(batch).to_pylist() == found
    texts = bind(parse("n = 'x'"), (Column("n"),), {}).mask
    batch = pa.record_batch({"n": pa.array(mixed, pa.string())})
    assert texts.of(batch).to_pylist() == [True, *[None] * (len(digits) + 2)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("note > 1", [True, None, None, None, None, None]),
        ("note = 'a\\'", [None, True, None, None, None, None]),
        ("note LIKE '_\\\\'", [None, True, None, None, None, None]),
        ("note = TRUE", [None, None, True, None, None, None]),
        ("note IS NOT TRUE", [True, True, False, True, True, True]),
        ("note IN (2.0, 3)", [True, None, None, None, None, None]),
        ("note IS DISTINCT FROM 2", [False, True, True, True, True, True]),
        ("note IS NULL", [False, False, False, False, False, True]),
        ("note = NULL", [None, None, None, None, None, None]),
        ("note = :value", [None, True, None, None, None, None]),
        ("note < :number::INT", [True, None, None, None, None, None]),
    ],
)
def test_values_of_a_type_that_is_not_known_are_compared_by_their_kind(
    text: str, expected: list[bool | None]
) -> None:
    """With a value of another kind SQL does not know."""
    notes = ["2", '"a\\\\"', "true", "[1]", '{"a":2}', None]
    batch = pa.record_batch({"note": pa.array(notes, pa.string())})
    used = {
        name: value for name, value in (("value", "a\\"), ("number", "1e400")) if f":{name}" in text
    }
    assert bind(parse(text), (Column("note"),), used).mask.of(batch).to_pylist() == expected


def test_parameters_become_what_their_columns_are() -> None:
    """So one text serves many."""
    condition = parse("price >= :min AND name <> :name AND day > :since")
    values = {"min": "100", "name": "A", "since": "2024-01-01"}
    mask = bind(condition, COLUMNS, values).mask
    row = {"price": Decimal(100), "name": "'A'", "day": date(2024, 2, 29)}
    found = [row, {**row, "name": "A"}, {**row, "price": Decimal("99.99")}]
    assert mask.of(batch_of(found)).to_pylist() == [True, False, False]


def test_a_parameter_is_a_value_whatever_is_in_it() -> None:
    """And texts are compared by their code points alone: no collation, no case, no other form of a letter."""
    names = ["' OR 1=1 --", "a", "A", "Z", "ä", "a\u0308"]
    batch = batch_of([{"name": each} for each in names])
    mask = bind(parse("name = :name"), COLUMNS, {"name": names[0]}).mask
    assert mask.of(batch).to_pylist() == [True] + [False] * 5
    assert bind(parse("name = 'ä'"), COLUMNS, {}).mask.of(batch).to_pylist() == [False] * 4 + [
        True,
        False,
    ]
    between = bind(parse("name BETWEEN 'A' AND 'Z'"), COLUMNS, {}).mask
    assert between.of(batch).to_pylist() == [False, False, True, True, False, False]


def test_as_many_terms_as_there_may_be_are_read_and_judged() -> None:
    """In one list, and one beside the other."""
    batch = batch_of([{"stock": 1}, {"stock": 9_000}])
    for text in (
        f"stock IN ({','.join(map(str, range(2, 10_000)))})",
        " OR ".join(f"stock={number}" for number in range(8_000, 9_001, 2)),
    ):
        assert bind(parse(text), COLUMNS, {}).mask.of(batch).to_pylist() == [False, True]


def test_a_column_is_named_once_however_often_it_is_asked() -> None:
    """In the order of the text; a name in quotes is any name."""
    found = columns_in(parse('b > 1 AND (a < 2 OR NOT b = 3) AND "odd ""name" IS NULL'))
    assert [each.text for each in found] == ["b", "a", 'odd "name']


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "give one condition"),
        ("stock = 1; price = 2", "give one condition"),
        ("stock >", r"character \d+: the condition cannot be parsed after 'stock >'"),
        ("stock = 1 AND name = 'its", "character 22: this bracket, quote or comment is not closed"),
        ("stock = 1 /* OR TRUE", "character 11: this bracket, quote or comment is not closed"),
        ("stock IN ()", "IN takes values in brackets"),
        ('name = "paid"', "character 8: .* write a text in single quotes"),
        ("STOCK = 1", "there is no column 'STOCK'; did you mean stock"),
        ("stock" + "[1]" * 2_000 + " = 1", "character 6: there is nothing in square brackets"),
        ("stock" + "::INT" * 2_000 + " > 2", "is not a column|at most 64 deep"),
        ("a." * 2_000 + "b = 1", "at most 64 deep|without its table"),
        ("stock = 1 OR TRUE", "TRUE is not a supported condition"),
        ("name = 'a' COLLATE \"de_DE\"", "character 8: .* is not a value"),
        (
            "stock = CAST('NaN' AS DOUBLE)",
            "character 14: 'NaN' is not a number that this column can",
        ),
        ("weight = NaN", "character 10: NaN is not a value"),
        ("(" * 300 + "active" + ")" * 300, "at most 64 deep"),
        ("NOT " * 5_000 + "active", "at most 64 deep"),
        ("SELECT 1", "SELECT 1 is not a supported condition"),
        ("DROP TABLE product", "is not a supported condition"),
        ("stock IN (SELECT 1)", "is not a supported condition"),
        ("stock > 3 && stock < 5", "character 11: && is not supported: write AND"),
        ("stock > 3 || stock < 5", r"character 11: \|\| is not supported: write OR"),
        ("stock + 1 > 2", r"character 1: stock \+ 1 is not a column"),
        ("stock > price", "character 9: price is not a value"),
        ("name = lower('A')", "is not a value"),
        ("product.stock = 1", "without its table"),
        ("name ~ 'a'", "is not a supported condition"),
        ("name LIKE 'a' ESCAPE 'ab'", "ESCAPE needs one character"),
        ("name LIKE 'a\\'", "ends with its escape character"),
        (f"name LIKE '{'a' * 1_001}'", "at most 1000 characters"),
        (
            "stock = 1 OR stocks = 2",
            "character 14: there is no column 'stocks'; did you mean stock",
        ),
        ("stock = 'x'", "character 9: 'stock' is compared with a number"),
        (
            "name = 1",
            "'name' is compared with a text in single quotes; if it holds numbers, declare",
        ),
        ("active > FALSE", "without order"),
        ("day = DATE '2023-02-29'", "this day does not exist"),
        ("day = TIMESTAMP '2023-02-28 00:00:00'", "compared with a day"),
        ("made = '2024-02-29T13:37:00Z'", "it has a time zone"),
        ("stock LIKE '1%'", "is not a text"),
        ("stock = 1e9999", "at most 1,000 digits"),
        ("weight = 1e400", "exceeds the range"),
        ("image = 'x'", "'image' is VARBINARY in encoding base64, which supports only IS NULL"),
        ("note = 1 OR note IN ('x', 2)", "character 13: the type of 'note' is unknown"),
        ("note = DATE '2024-02-29'", "the type of 'note' is unknown"),
        ("stock = :min::DATE", "'stock' is compared with a number"),
        ("stock = :max", "the parameter 'max' has no value"),
        ("stock = :min", "parameter 'min': 'a' is not a number"),
        ("stock = 1", "no condition uses the parameter 'min'"),
        ("stock IN (" + ",".join(["1"] * 10_001) + ")", "at most 10000 columns and values"),
        ("name = '" + "a" * (64 << 10) + "'", "longer than 65536 bytes"),
    ],
)
def test_what_a_filter_cannot_say_is_refused_with_its_place(text: str, told: str) -> None:
    """Each in words that say what to do."""
    with pytest.raises(InvalidRequest, match=told):
        bind(parse(text), (*COLUMNS, *OTHERS), {"min": "a"})


@pytest.mark.parametrize("column", ["stock", "weight"])
@pytest.mark.parametrize("text", ["1_00", "\u0661", ""])
def test_a_parameter_is_a_number_only_as_sql_writes_it(column: str, text: str) -> None:
    """Python reads an underscore between digits, and digits of other scripts."""
    with pytest.raises(InvalidRequest, match=f"'{text}' is not a number"):
        bind(parse(f"{column} = :n"), COLUMNS, {"n": text})
