"""Records and leads of released transactions; columns are in tests/server/pipeline/catalog/test_columns.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import pytest

from tailrace_server.pipeline.catalog.columns import ColumnInference
from tailrace_server.pipeline.catalog.record_table import ROW_SCHEMA
from tailrace_server.pipeline.input.change import QUARANTINED
from tailrace_server.pipeline.sources.debezium.source import Debezium
from tailrace_server.pipeline.transactions.grouping import Released
from tailrace_server.pipeline.transactions.pieces import decode_plans, encode_plans
from tailrace_server.pipeline.transactions.records import RecordBuilder, lead
from tailrace_server.pipeline.transactions.tally import Tally, tally
from tests.server.pipeline.shapes import INT, TEXT, decode, end, envelope, listed, postgres

if TYPE_CHECKING:
    from tailrace_server.pipeline.input.change import Change


def numbered(order: int, table: str = "product") -> dict[str, object]:
    told = {"id": "7", "total_order": order}
    return envelope("c", postgres(1, 7, table), after={"id": order}, transaction=told)


def build(*messages: dict[str, object], **released: object) -> list[dict[str, object]]:
    return built(decode(*messages), **released)


def built(changes: list[Change], **released: object) -> list[dict[str, object]]:
    [known] = tally(changes, 0.0).values()
    builder = RecordBuilder(ColumnInference({}), Debezium())
    builder.add(Released(known, **released), changes)  # type: ignore[arg-type]
    assert builder.rows > 0
    table = builder.take()
    assert table.schema == ROW_SCHEMA
    assert builder.rows == 0
    rows: list[dict[str, object]] = table.to_pylist()
    return rows


def test_contract_08_the_lead_counts_survivors_and_source_rows() -> None:
    lead, first, second = build(
        envelope("c", postgres(1, 7), after={"id": 1, "n": 1}),
        envelope("u", postgres(2, 7), before={"id": 1, "n": 1}, after={"id": 1, "n": 2}),
        envelope("d", postgres(3, 7, "customer"), before={"id": 5}),
    )
    assert orjson.loads(lead["after"]) == {  # type: ignore[arg-type]
        "transaction_id": "7",
        "mutation_count": 2,
        "counts": {"customer": 1, "product": 1},
        "source_count": 3,
        "source": "postgresql:shop",
        "source_timestamp": 1_700_000_000_003_000,
        "source_log": "postgresql:shop",
        "source_position": f"{3:016x}{3:016x}{0:016x}",
    }
    assert [r["index"] for r in (lead, first, second)] == [0, 1, 2]
    assert (first["before"], first["changed"]) == (None, None)
    assert (second["operation"], second["before"]) == (2, b'{"id":5}')


def test_contract_08_the_lead_says_what_is_known_to_be_missing() -> None:
    changes = decode(envelope("c", postgres(1, 7), after={"id": 1}))
    known = Tally("7", "7", rows=1, quarantined=1, expected=4)
    builder = RecordBuilder(ColumnInference({}), Debezium())
    builder.add(Released(known), changes)
    body = orjson.loads(builder.take().to_pylist()[0]["after"])
    assert (body["source_count"], body["expected_count"], body["quarantined"]) == (1, 4, 1)


def test_contract_08_the_lead_says_that_only_the_begin_of_a_transaction_came() -> None:
    row = envelope("c", postgres(1, 7), after={"id": 1})
    begin = end("7", None, "BEGIN")
    assert lead_of(row, begin)["without_end"] is True
    assert "without_end" not in lead_of(row, begin, end("7", 1))
    assert "without_end" not in lead_of(row)
    assert "without_end" not in lead_of(row, begin, late_of=41)
    assert lead_of(begin, row, row) == lead_of(begin, row, row, through_tasks=True)


def lead_of(
    *messages: dict[str, object], late_of: int | None = None, through_tasks: bool = False
) -> dict[str, object]:
    [known] = tally(decode(*messages), 0.0).values()
    released = Released(known, late_of)
    if through_tasks:
        [released] = decode_plans(encode_plans([released]))
    return orjson.loads(lead(released, {}))  # type: ignore[no-any-return]


def test_a_late_lead_names_the_version_that_it_belongs_to() -> None:
    lead, _ = build(envelope("c", postgres(1, 7), after={"id": 1}), late_of=41)
    body = orjson.loads(lead["after"])  # type: ignore[arg-type]
    assert (body["late"], body["of"]) == (True, 41)


def test_a_transaction_that_cancels_itself_out_keeps_its_lead() -> None:
    [lead] = build(
        envelope("c", postgres(1, 7), after={"id": 1}),
        envelope("d", postgres(2, 7), before={"id": 1}),
    )
    body = orjson.loads(lead["after"])  # type: ignore[arg-type]
    assert (body["mutation_count"], body["source_count"]) == (0, 2)


def test_records_follow_the_order_that_the_transaction_tells() -> None:
    """Rows of one transaction arrive over two topics; total_order puts them right."""
    one, other = [numbered(n) for n in (3, 12)], [numbered(n, "order") for n in (1, 4)]
    _, *records = built(decode(*one, file="a") + decode(*other, file="b"))
    assert [r["primary_key"] for r in records] == ["1", "3", "4", "12"]


@pytest.mark.parametrize("orders", [(1, 2, 1), (2, 1, 3), (1, 1, 2), (5, None, 6)])
def test_an_order_that_repeats_falls_or_is_missing_does_not_move_a_row(
    orders: tuple[int | None, ...],
) -> None:
    """The rows' positions and their lines agree; what `total_order` says does not."""
    images = [
        envelope(
            "u" if n else "c",
            postgres(101 + n, 7),
            after={"id": 1, "n": n},
            transaction={"id": "7", "total_order": order},
        )
        for n, order in enumerate(orders)
    ]
    _, record = built(decode(*images))
    assert record["after"] == b'{"id":1,"n":2}'


def test_a_row_that_the_last_listing_cannot_hold_is_set_aside_and_the_lead_says_so() -> None:
    changes = decode(
        listed(1, {"a": TEXT}, tx=7, a="x"),
        listed(2, {"a": INT}, tx=7, a=2),
        listed(3, {"a": INT}, "customer", tx=7, a=1),
    )
    builder = RecordBuilder(ColumnInference({}), Debezium())
    builder.add(Released(Tally("7", "7", rows=3)), changes)
    lead, *kept = builder.take().to_pylist()
    body = orjson.loads(lead["after"])
    assert (body["source_count"], body["quarantined"]) == (2, 1)
    assert [each["entity_type"] for each in kept] == ["product", "customer"]
    [aside] = builder.set_aside
    assert (aside.kind, aside.entity_type, aside.line, aside.number) == (
        QUARANTINED,
        "product",
        1,
        1,
    )
    assert 'column a: "x" was written as VARCHAR in json' in (aside.reason or "")
    [again] = decode(aside.raw or b"")
    assert (again.entity_type, again.after) == ("product", changes[0].after)
