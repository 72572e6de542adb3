"""The human form: aligned, calm, cut to the terminal, and deaf to what data would make a terminal do."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

import pytest
from rich.cells import cell_len

from tailrace.capture import Capture, Heartbeat
from tailrace.criteria import Area, ContainerType, Operation
from tailrace.cursor import Cursor
from tailrace.position import TimestampMicros
from tailrace_server.cli.terminal.capture_text import TextForm
from tailrace_server.cli.terminal.output import Palette, day_text

PLAIN = Palette(enabled=False)
CATALOG = UUID(int=7)


def capture(**fields: Any) -> Capture:
    given: dict[str, Any] = {
        "catalog_uuid": CATALOG,
        "version": 41,
        "index": 1,
        "ordinal": 0,
        "commit_timestamp": TimestampMicros(1_700_000_000_123_000),
        "area": Area.DATA,
        "operation": Operation.UPSERT,
        "entity_type": "order",
        "primary_key": "1007",
        "changed": None,
        **fields,
    }
    return Capture(**given)


def rendered(*captures: Capture, width: int | None = None) -> list[list[str]]:
    form = TextForm(PLAIN, width=width)
    return [form.render(each).split() for each in captures]


def test_an_update_shows_what_became_of_each_changed_column() -> None:
    update = capture(
        changed=("status", "note"),
        before=b'{"id":1007,"status":"new"}',
        after=b'{"id":1007,"status":"paid","note":"x"}',
    )
    line = " ".join(rendered(update)[0])
    assert line.startswith("41:1 ")
    assert line.endswith('update order 1007 status "new" → "paid" note "x"')


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"after": b'{"total":0.10}'}, "insert order 1007 total 0.10"),
        ({"operation": Operation.REMOVE, "before": b'{"a":1}'}, "remove order 1007 a 1"),
        ({"operation": Operation.EXPIRE}, "expire order 1007"),
        ({"operation": Operation.REMOVE, "primary_key": None}, "truncate order *"),
        ({"changed": ("status", "total")}, "update order 1007 status, total"),
        (
            {
                "ordinal": 3,
                "container_type": ContainerType.ATTRIBUTE,
                "container_name": "total",
                "changed": ("total",),
            },
            "column order 1007 .total",
        ),
        ({"omitted_bytes": 5_000_000}, "insert order 1007 (5,000,000 bytes left out)"),
        ({"after": b"[1,2]"}, "insert order 1007 [1,2]"),
    ],
)
def test_every_kind_of_change_has_its_word(fields: dict[str, Any], words: str) -> None:
    assert " ".join(rendered(capture(**fields))[0]).endswith(words)


def test_the_key_is_not_repeated_and_a_removal_lists_no_nulls() -> None:
    form = TextForm(PLAIN)
    form.keys = {"order": frozenset({"id"})}
    image = b'{"id":1007,"total":null,"state":"paid"}'
    inserted = form.render(capture(after=image))
    assert inserted.endswith('insert    order     1007  total null  state "paid"')
    removed = form.render(capture(operation=Operation.REMOVE, before=image))
    assert removed.endswith('remove    order     1007  state "paid"')


def test_a_lead_tells_how_much_follows() -> None:
    lead = capture(
        index=0,
        area=Area.INFRASTRUCTURE,
        operation=Operation.TRANSACTION,
        entity_type=None,
        primary_key=None,
        after=b'{"transaction_id":"tx-9","mutation_count":3,"counts":{"order":3},"late":true,"of":7,"without_end":true}',
    )
    words = " ".join(rendered(lead)[0])
    assert words.endswith(
        'begin 3 changes counts {"order":3} transaction_id "tx-9" late true of 7 without_end true'
    )


def test_version_and_time_stand_only_where_they_change() -> None:
    first, second, third = rendered(capture(), capture(index=2), capture(version=42))
    assert first[0] == "41:1"
    assert second[:2] == [":2", "insert"]
    assert third[0] == "42:1"


def test_the_day_stands_where_it_changes_and_is_taken_for_today_at_first() -> None:
    lines = TextForm(PLAIN).captures(
        [
            capture(),
            capture(index=2),
            capture(version=42, commit_timestamp=TimestampMicros(1_700_000_000_456_000)),
            capture(version=43, commit_timestamp=TimestampMicros(1_700_200_000_000_000)),
        ]
    )
    days = [line for line in b"".join(lines).decode().splitlines() if line.startswith("──")]
    assert days == [
        f"── {day_text(at)} ──" for at in (1_700_000_000_123_000, 1_700_200_000_000_000)
    ]
    today = capture(commit_timestamp=TimestampMicros(time.time_ns() // 1_000))
    assert "──" not in TextForm(PLAIN).captures([today])[0].decode()


def test_columns_widen_and_stay_aligned() -> None:
    form = TextForm(PLAIN)
    lines = [
        form.render(capture(entity_type="order_item", after=b'{"n":1}')),
        form.render(capture(entity_type="顧客", primary_key="7", after=b'{"n":1}')),
        form.render(capture(entity_type="cart", primary_key="12", after=b'{"n":1}')),
    ]
    ends = {cell_len(line) for line in lines}
    assert len(ends) == 1, lines


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    image = b'{"name":"' + "длинное имя 顧客 ".encode() * 9 + b'","a":1,"b":2,"c":[1,2,3,4,5,6,7]}'
    form = TextForm(PLAIN, width=max(width, 62))
    line = form.render(capture(after=image))
    assert cell_len(line) <= max(width, 62)


def test_control_characters_in_data_do_not_reach_the_terminal() -> None:
    evil = capture(
        primary_key="\x1b[2J1", entity_type="a\nb", after='{"n":"\x9b31m\u202e"}'.encode()
    )
    line = TextForm(PLAIN).render(evil)
    assert line.isprintable()
    assert "\\u001b[2J1" in line


def test_a_change_of_the_schema_is_told_in_words() -> None:
    change = (
        b'{"changes":[{"what":"column_renamed","column":"price","from":"cost"},{"what":"column_changed",'
        b'"column":"n","from":{"sql_type":"BIGINT"},"to":{"sql_type":"JSON"}}]}'
    )
    fields: dict[str, Any] = {"area": Area.SCHEMA, "primary_key": None, "changed": ("price", "n")}
    (line,) = rendered(capture(change=change, before=b"{}", after=b"{}", **fields))
    words = " ".join(line)
    assert "schema order column renamed: price, before cost" in words
    assert "column changed: n, sql_type BIGINT → JSON" in words
    assert "schema order price, n" in " ".join(rendered(capture(**fields))[0])
    assert "schema order {}" in " ".join(rendered(capture(change=b"{}", **fields))[0])


def test_a_heartbeat_stands_back() -> None:
    beat = Heartbeat(44, Cursor(CATALOG, 44, 0), 1000, 3, 5.0)
    line = TextForm(PLAIN).heartbeat(beat).decode()
    assert "published 44, 1,000 records scanned, 3 matched" in line
