"""SQL over gRPC, as the client has it: typed rows, an Arrow stream, and errors that arrive whole."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import tailrace
from tailrace.errors import InvalidRequest
from tests.conformance.shop import upsert
from tests.server.sql.misfits import MISFITS, write_misfit

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.inprocess import ModelWriter

VALUES = """
    SELECT 9223372036854775807 AS "whole", 12.50::DECIMAL(30,2) AS price, 'nan'::DOUBLE AS number,
        DATE '2024-02-29' AS day, TIME '13:37:00.25' AS clock, TIMESTAMP '2024-02-29 13:37:00' AS local,
        TIMESTAMPTZ '2024-02-29 13:37:00+00' AS moment, 'a'::BLOB AS bytes, NULL::INT AS missing,
        {'cents': [0.10::DECIMAL(4,2), NULL]} AS nested, MAP {'k': DATE '2024-02-29'} AS days,
        TIMESTAMP_NS '2024-02-29 13:37:00.000000001' AS fine
"""


async def test_values_are_pythons_with_pyarrow_and_without(serve: Any, writer: ModelWriter) -> None:
    writer.write([upsert("1")])
    served = await serve()
    async with tailrace.connect(served.target) as client:
        async with client.sql("shop", VALUES, wait_for=1) as answer:
            (found,) = [row async for row in answer]
        assert found.pop("number") != found.get("number")
        assert found == {
            "whole": 2**63 - 1,
            "price": Decimal("12.50"),
            "day": date(2024, 2, 29),
            "clock": time(13, 37, 0, 250_000),
            "local": datetime(2024, 2, 29, 13, 37),
            "moment": datetime(2024, 2, 29, 13, 37, tzinfo=UTC),
            "bytes": b"a",
            "missing": None,
            "nested": {"cents": [Decimal("0.10"), None]},
            "days": {"k": date(2024, 2, 29)},
            "fine": "2024-02-29 13:37:00.000000001",
        }
        assert (answer.header.version, answer.end.rows) == (1, 1)
        assert answer.header.closed_until == answer.header.commit_timestamp + 1
        async with client.sql_arrow("shop", "SELECT * FROM range(100000) t(i)") as arrow:
            table = await arrow.to_arrow()
        assert table == pa.table({"i": range(100_000)})
        assert arrow.end.rows == 100_000


async def test_a_value_that_does_not_fit_is_null_with_its_text_on_request(
    serve: Any, log_root: Path
) -> None:
    write_misfit(log_root)
    served = await serve()
    text = "SELECT day, _misfits FROM item"
    async with tailrace.connect(served.target) as client:
        with pytest.raises(InvalidRequest, match="misfits null"):
            async with client.sql("shop", "SELECT day FROM item") as answer:
                [row async for row in answer]
        async with client.sql("shop", text, misfits="null") as answer:
            assert [row async for row in answer] == [{"day": None, "_misfits": MISFITS}]
        async with client.sql_arrow("shop", text, misfits="null") as arrow:
            assert (await arrow.to_arrow()).to_pylist() == [{"day": None, "_misfits": MISFITS}]
        changes = "SELECT after.day, _misfits FROM CHANGES('item', $from, $to)"
        async with client.poll("shop", changes, misfits="null") as poll:
            rows = [row async for row in await anext(poll)]
            assert rows == [{"day": None, "_misfits": f'{{"after":{MISFITS}}}'}]
        with pytest.raises(InvalidRequest, match="write refuse or null"):
            client.sql("shop", text, misfits="text")  # type: ignore[arg-type]


async def test_a_parameter_is_a_value_and_never_sql(serve: Any, writer: ModelWriter) -> None:
    served = await serve()
    async with tailrace.connect(served.target) as client:
        for value, shown in (
            (2**63 - 1, "9223372036854775807"),
            (Decimal("12.50"), "12.50"),
            (True, "true"),
            (None, None),
            ("'; DROP TABLE product --", "'; DROP TABLE product --"),
            ([1, 2], "[1, 2]"),
        ):
            asked = client.sql("shop", "SELECT $x::TEXT AS x", parameters={"x": value})
            async with asked as answer:
                assert [row async for row in answer] == [{"x": shown}]


async def test_what_cannot_be_answered_arrives_as_it_was_told(
    serve: Any, writer: ModelWriter
) -> None:
    writer.write([upsert("1", name="chair")])
    served = await serve()
    async with tailrace.connect(served.target) as client:
        for text, told in (
            ("SELECT name FRM product", "line 1, column"),
            ("SELECT * FROM products", "did you mean product"),
            ("SELECT names FROM product", "did you mean name"),
            ("SELECT * FROM 'orders.csv'", "no table"),
            ("COPY product TO 'x'", "not supported"),
            ("ATTACH 'x.db'", "not supported"),
            ("SELECT 1 AS a, 2 AS a", "two columns of the answer have the name 'a'"),
            ("SELECT repeat('x', 2000000)", "select fewer columns"),
            ("  ", "statement: it is empty"),
        ):
            with pytest.raises(InvalidRequest) as error:
                async with client.sql("shop", text, max_message_bytes=1 << 20) as answer:
                    [row async for row in answer]
            assert told in str(error.value), text
