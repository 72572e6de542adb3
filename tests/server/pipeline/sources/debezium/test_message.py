"""What a message says of its transaction, position and time; whole lines are in test_decoder.py."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace_server.pipeline.input.change import NO_POSITION, UNORDERED
from tailrace_server.pipeline.sources.debezium.message import (
    SourceBlock,
    id_of,
    image_of,
    position_of,
    salvaged_id,
    source_name,
    timestamp_of,
    total_order,
    unwrap,
)
from tailrace_server.pipeline.sources.debezium.refusals import Unusable
from tests.server.pipeline.shapes import end, envelope, line, postgres


def message_of(text: dict[str, Any]) -> Any:
    message, _, _ = unwrap(line(text))
    assert message is not None
    return message


@pytest.mark.parametrize(
    ("block", "position"),
    [
        ({"lsn": 9, "sequence": '["7","9"]'}, (7, 9, 0)),
        ({"lsn": 9}, (9, 9, 0)),
        ({"lsn": 9, "sequence": "[null,9]"}, (9, 9, 0)),
        ({"lsn": 9, "sequence": "damaged"}, (9, 9, 0)),
        ({"file": "binlog.000012", "pos": 4, "row": 1}, (12, 4, 1)),
        ({"file": "binlog", "pos": 4}, (0, 4, 0)),
        ({"lsn": "9", "sequence": '["7","9"]'}, (7, 9, 0)),
        ({"lsn": "1:20::0:0"}, NO_POSITION),
        ({"commit_scn": "20", "scn": "10", "ssn": 3}, (20, 10, 3)),
        ({"scn": "10"}, (10, 10, 0)),
        ({"commit_lsn": "00000000:00000001:0002"}, (0x10002 >> 16, 0x2 << 48, 0)),
        ({}, NO_POSITION),
    ],
)
def test_the_position_is_in_commit_order(
    block: dict[str, Any], position: tuple[int, int, int]
) -> None:
    assert position_of(SourceBlock(**block)) == position


def test_rows_of_a_commit_follow_the_lsn_and_the_number_of_each() -> None:
    def of(commit: int, change: int, serial: int | None) -> tuple[int, int, int]:
        return position_of(
            SourceBlock(
                commit_lsn=f"00000025:{commit:08x}:00a2",
                change_lsn=f"ffffffff:ffffffff:{change:04x}",
                event_serial_no=serial,
            )
        )

    rows = [of(1, 0xFFFF, 2**32), of(2, 1, None), of(2, 1, 1), of(2, 2, 0), of(3, 0, 0)]
    assert rows == sorted(set(rows))
    assert all(0 <= number < 2**64 for row in rows for number in row)


@pytest.mark.parametrize(
    ("order", "number"), [(None, UNORDERED), (3, 3), ("3", 3), (0, 0), (2**63 - 1, 2**63 - 1)]
)
def test_the_order_may_be_a_number_or_its_text(order: object, number: int) -> None:
    block = {"id": "7", "total_order": order}
    assert total_order(message_of(envelope("c", postgres(1), transaction=block))) == number


@pytest.mark.parametrize("order", ["x", -1, 2**63])
def test_an_order_that_is_none_is_refused(order: object) -> None:
    block = {"id": "7", "total_order": order}
    with pytest.raises(Unusable, match=r"transaction\.total_order"):
        total_order(message_of(envelope("c", postgres(1), transaction=block)))


def test_the_time_is_the_finest_that_is_told() -> None:
    message = message_of(envelope("c", postgres(1)))
    assert timestamp_of(message, SourceBlock(ts_us=5, ts_ms=1)) == 5
    assert timestamp_of(message, SourceBlock(ts_ms=2)) == 2_000
    assert timestamp_of(message, SourceBlock()) == 1_700_000_000_001_000
    assert timestamp_of(message, SourceBlock(ts_ms=2**60)) is None


def test_metadata_has_its_id_as_text() -> None:
    assert id_of(message_of(end("7:1", 2))) == "7:1"
    assert id_of(message_of({"status": "END", "id": 7})) == "7"
    assert id_of(message_of({"status": "END", "id": None})) is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b'{"op":"c","transaction":{"id":"7:1","total_order":', "7:1"),
        (b'{"source":{"txId":571,"lsn":', "571"),
        (b'{"source":{"gtid":"a-b:7"', "a-b:7"),
        (b"{", None),
    ],
)
def test_the_transaction_of_half_a_line_is_found(text: bytes, found: str | None) -> None:
    assert salvaged_id(text) == found


def test_what_is_wrapped_too_deep_is_refused() -> None:
    text: dict[str, Any] = envelope("c", postgres(1), after={"id": 1})
    for _ in range(3):
        text = {"schema": None, "payload": text}
    assert message_of(text).op == "c"
    with pytest.raises(Unusable, match="wrapped too deeply"):
        unwrap(line({"schema": None, "payload": text}))


def test_the_source_is_named_by_what_there_is() -> None:
    assert source_name(SourceBlock(connector="mysql", name="shop")) == "mysql:shop"
    assert source_name(SourceBlock(name="shop")) == "shop"
    assert source_name(SourceBlock()) is None


def test_an_image_is_an_object_or_absent() -> None:
    message = message_of(envelope("c", postgres(1), before=None, after=[1]))
    assert image_of(message.before) is None
    with pytest.raises(Unusable, match="not a JSON object"):
        image_of(message.after)


def test_a_row_without_its_envelope_is_no_metadata_whatever_its_status() -> None:
    with pytest.raises(Unusable, match="row without its envelope"):
        unwrap(line({"id": "7", "status": "END", "total": 12}))


@pytest.mark.parametrize("name", ["value", "payload"])
def test_a_key_stands_beside_a_value_or_a_payload(name: str) -> None:
    message = envelope("d", postgres(1), before={"code": "x"})
    assert unwrap(line({"key": {"code": "x"}, name: message}))[1] == b'{"code":"x"}'
