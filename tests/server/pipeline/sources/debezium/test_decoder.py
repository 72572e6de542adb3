"""Lines of Debezium's JSON as changes, marks and quarantined lines."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.pipeline.input.change import (
    BEGIN,
    CHANGE,
    END,
    INSERT,
    QUARANTINED,
    SNAPSHOT,
    UNPLACED,
    Change,
    FileSplit,
    from_table,
    position_bytes,
    to_batch,
)
from tailrace_server.pipeline.sources.debezium.message import restated
from tests.server.pipeline.shapes import decode, decoder, end, envelope, line, postgres

EXACT = (
    b'{"id":9007199254740993,"price":0.10,"e":1e2,"long":12345678901234.567890123456789,'
    b'"text":"gr\\u00fc\xc3\x9fe \xf0\x9f\x8c\x8a","z":null,"a":{"y":1, "x":[ 1,2 ]},'
    b'"big":-9223372036854775809}'
)


def one(text: bytes | dict[str, object], **options: Any) -> Change:
    [change] = decode(text, **options)
    return change


def with_image(after: bytes) -> bytes:
    return line(envelope("c", postgres(1), after="@")).replace(b'"@"', after)


def test_images_are_the_bytes_of_the_source() -> None:
    change = one(with_image(EXACT))
    assert change.after == EXACT
    assert change.primary_key == "9007199254740993"
    assert change.before is None


VALUES = st.none() | st.text() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)


@given(st.dictionaries(st.text(), VALUES), st.booleans())
def test_any_image_survives_byte_for_byte(row: dict[str, object], escaped: bool) -> None:
    image = json.dumps(row | {"id": 1}, ensure_ascii=escaped).encode()
    change = one(with_image(image))
    assert (change.kind, change.after, change.primary_key) == (CHANGE, image, "1")


@pytest.mark.parametrize(
    "wrap",
    [
        lambda m: m,
        lambda m: {"schema": {"type": "struct"}, "payload": m},
        lambda m: {"key": None, "value": m},
        lambda m: {"key": {"id": 1}, "value": {"schema": {}, "payload": m}},
        lambda m: {"key": json.dumps({"id": 1}), "value": json.dumps(m)},
        lambda m: {"key": {"schema": {}, "payload": {"id": 1}}, "value": m},
    ],
    ids=["bare", "schema", "value", "key", "strings", "key with schema"],
)
def test_every_wrapping_gives_the_same_change(wrap: object) -> None:
    message = envelope("c", postgres(5, 7), after={"id": 1, "name": "Öl"})
    change = one(wrap(message), keys={"product": ("id",)})  # type: ignore[operator]
    assert (change.kind, change.operation, change.entity_type) == (CHANGE, INSERT, "product")
    assert (change.primary_key, change.transaction) == ("1", "7")
    assert change.after is not None
    assert json.loads(change.after) == {"id": 1, "name": "Öl"}


def test_metadata_is_told_from_rows() -> None:
    begin, finish = decode(end("571:12", None, "BEGIN"), {"payload": end("571:15", 2)})
    assert (begin.kind, begin.transaction, begin.number) == (BEGIN, "571", None)
    assert (finish.kind, finish.transaction, finish.number) == (END, "571", 2)
    assert finish.transaction_id == "571:15"


@pytest.mark.parametrize(
    ("source", "transaction", "key"),
    [
        (postgres(5, 7), {"id": "7:44", "total_order": 1}, "7"),
        (postgres(5, 7), None, "7"),
        ({"table": "t", "gtid": "a-b:5", "file": "b.000001", "pos": 4}, None, "a-b:5"),
        ({"table": "t", "file": "b.000001", "pos": 4}, None, "file=b.000001,pos=4"),
        ({"table": "t"}, {"id": "0000:0001:02"}, "0000:0001:02"),
    ],
)
def test_the_transaction_is_that_of_the_first_name_given(
    source: object, transaction: object, key: str
) -> None:
    change = one(envelope("c", source, after={"id": 1}, transaction=transaction))
    assert change.transaction == key


def test_a_line_that_the_source_does_not_group_stands_alone() -> None:
    message = envelope("c", {"table": "t"}, after={"id": 1})
    first, second = decode(message, message)
    assert first.transaction != second.transaction
    assert first.transaction_id is None


def test_snapshot_rows_are_numbered_by_run_and_another_change_ends_a_run() -> None:
    ops = "crrruur"
    rows = decode(*(envelope(op, postgres(5, 7), after={"id": n}) for n, op in enumerate(ops)))
    read = [row for row in rows if (row.transaction or "").startswith(SNAPSHOT)]
    assert [row.total_order for row in read] == [0, 1, 2, 0]
    assert [row.transaction for row in read] == [
        *[f"{SNAPSHOT}f\x000\x000"] * 3,
        f"{SNAPSHOT}f\x000\x001",
    ]


def test_places_sort_in_commit_order() -> None:
    """The transaction that began first (LSN 100) committed last, and its rows come last."""
    early = envelope("c", postgres(110, 2, sequence='["90","110"]'), after={"id": 1})
    late = envelope("c", postgres(100, 1, sequence='["120","100"]'), after={"id": 2})
    first = envelope("c", postgres(80, 0, sequence='[null,"80"]'), after={"id": 2})
    places = [change.place for change in decode(first, early, late)]
    assert places == sorted(places)


def test_mysql_places_sort_by_file_number_and_position() -> None:
    spots = [
        ("bin.000009", 900, 0),
        ("bin.000010", 4, 0),
        ("bin.000010", 4, 1),
        ("bin.1000000", 4, 0),
    ]
    rows = [
        envelope("c", {"table": "t", "file": f, "pos": p, "row": r}, after={"id": 1})
        for f, p, r in spots
    ]
    places = [change.place for change in decode(*rows)]
    assert places == sorted(places)
    assert len(set(places)) == 4


def test_positions_of_sql_server_and_oracle_sort_by_commit() -> None:
    blocks: list[dict[str, Any]] = [
        *({"commit_lsn": f"{lsn}:0005"} for lsn in ("00000027:00000758", "00000027:0000075A")),
        *({"scn": "9", "commit_scn": scn} for scn in ("99", "100", 101)),
    ]
    rows = [envelope("c", {"table": "t"} | block, after={"id": 1}) for block in blocks]
    sqlserver, oracle = decode(*rows[:2]), decode(*rows[2:])
    for places in ([row.place for row in sqlserver], [row.place for row in oracle]):
        assert places == sorted(set(places))


@pytest.mark.parametrize("block", [{"commit_lsn": "?"}, {"commit_lsn": None}, {"scn": ""}])
def test_a_position_that_cannot_be_read_is_none(block: dict[str, object]) -> None:
    [row] = decode(envelope("c", {"table": "t"} | block, after={"id": 1}))
    assert position_bytes(row.place) == UNPLACED


@pytest.mark.parametrize(
    "key", [5, "sku-1", "{6F9619FF}", '{"a":1}', '"', "null ", {"a": 1, "b": "xä"}, {"a": "null"}]
)
@pytest.mark.parametrize(
    "source",
    [
        postgres(17, 5, sequence='["11","17"]', ts_us=1_700_000_000_000_001),
        postgres(17),
        {
            "connector": "mysql",
            "name": "srv",
            "table": "product",
            "file": "b.000003",
            "pos": 7,
            "row": 2,
        },
        {
            "connector": "sqlserver",
            "name": "srv",
            "table": "product",
            "commit_lsn": "00000027:00000758:0005",
        },
        {"connector": "oracle", "name": "srv", "table": "product", "commit_scn": "2483472"},
        {"table": "product"},
    ],
    ids=["postgresql", "postgresql without transaction", "mysql", "sqlserver", "oracle", "unknown"],
)
def test_a_row_that_is_set_aside_says_all_that_its_message_said(
    key: object, source: object
) -> None:
    block = {"id": "5:17", "total_order": 3}
    for message in (
        envelope("d", source),
        envelope("u", source, before={"id": 1}, after={"id": 1}, transaction=block),
    ):
        change = one({"key": key, "value": message})
        again = one(restated(change))
        # Without a transaction a line is its own, and so named by its place; ids are texts from here on.
        # The key is its text, without the names of its columns.
        transaction, names = change.transaction, change.key_names
        assert again._replace(transaction=transaction, key_names=names) == change


def test_what_says_nothing_is_counted_only() -> None:
    fed = decoder()
    lines = [
        b"",
        b"  ",
        b"null",
        b'{"key":{"id":1},"value":null}',
        b'{"schema":null,"payload":null}',
    ]
    assert list(fed.feed(FileSplit("f"), lines)) == []
    [split] = fed.finish()
    assert (split.line, split.number) == (5, 5)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"op":"c"', "it ends before it is complete"),
        (b'{"op":"c","after":{"id":"\\ud800"}}', "half of a surrogate pair"),
        (b'{"a":1}', "no op"),
        (b'{"op":"c","source":{"table":"t\xff"}}', "not UTF-8 at byte"),
        (line(envelope("x", postgres(1), after={"id": 1})), "unknown op 'x'"),
        (line(envelope("c", {}, after={"id": 1})), "no source.table"),
        (line(envelope("c", postgres(1), after=[1])), "not a JSON object"),
        (line(envelope("c", postgres(5) | {"lsn": 2**63}, after={"id": 1})), "lsn"),
        (line(envelope("c", postgres(-1), after={"id": 1})), "lsn"),
        (line(end("5", -1)), "event_count"),
        (line({"status": "MAYBE", "id": "5"}), "neither BEGIN nor END"),
    ],
)
def test_a_line_that_cannot_be_used_goes_to_quarantine_whole(text: bytes, reason: str) -> None:
    good = envelope("c", postgres(1), after={"id": 1})
    first, bad, last = decode(good, text, good)
    assert (first.kind, bad.kind, last.kind) == (CHANGE, QUARANTINED, CHANGE)
    assert reason in (bad.reason or "")
    assert (bad.raw, bad.file, bad.line) == (text, "f", 2)


@pytest.mark.parametrize("cut", range(1, 200, 7))
def test_a_quarantined_row_still_counts_for_its_transaction(cut: int) -> None:
    message = envelope("c", postgres(1, 42), after={"sku": 1})
    [bad] = decode(message)
    assert (bad.kind, bad.transaction) == (QUARANTINED, "42")
    torn = line({"transaction": {"id": "42:7"}} | {"op": "c", "pad": "x" * 300})[:-cut]
    [bad] = decode(torn)
    assert (bad.kind, bad.transaction) == (QUARANTINED, "42")


def test_images_above_the_limit_go_to_quarantine() -> None:
    change = one(
        envelope("c", postgres(1), after={"id": 1, "blob": "x" * 100}), max_record_bytes=99
    )
    assert (change.kind, change.reason) == (QUARANTINED, "images above 99 bytes")


def test_lines_consumed_by_an_earlier_run_are_skipped() -> None:
    fed = decoder({("f", 0): 2})
    rows = [line(envelope("c", postgres(n), after={"id": n})) for n in range(1, 5)]
    assert [c.primary_key for c in fed.feed(FileSplit("f"), rows[:3])] == ["3"]
    assert [c.primary_key for c in fed.feed(FileSplit("f"), rows[3:])] == ["4"]


def test_changes_travel_as_tables() -> None:
    changes = decode(with_image(EXACT), b"{", end("5", 2), envelope("t", postgres(4)), b"\xff" * 3)
    assert list(from_table(to_batch(changes))) == changes
    assert list(from_table(to_batch([]))) == []


@given(st.binary(max_size=60))
def test_no_bytes_raise(text: bytes) -> None:
    for change in decode(text):
        assert change.kind in (CHANGE, BEGIN, END, QUARANTINED)
