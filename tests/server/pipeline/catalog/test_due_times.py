"""Which values say when a row is due."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tailrace.errors import InvalidRequest
from tailrace.schema import Column, Origin
from tailrace_server.pipeline.catalog.due_times import NEVER, DueTimes, UnreadTimes, time_column
from tailrace_server.wal.record.unavailable import DEFAULT
from tailrace_server.wal.schema.mapping import SchemaMapping

SECOND = 1_000_000
DAY = 86_400 * SECOND


@pytest.mark.parametrize(
    ("sql_type", "encoding", "value", "due"),
    [
        ("TIMESTAMP", "debezium.Timestamp", "1500", 1_500_000),
        ("TIMESTAMP", "debezium.NanoTimestamp", "1999", 1),
        ("TIMESTAMP", "debezium.MicroTimestamp", "9223372036825200000", 9223372036825200000),
        ("TIMESTAMP", "debezium.Timestamp", "9223372036832400000", NEVER),
        ("TIMESTAMP", "debezium.MicroTimestamp", "-9223372036832400000", -9223372036832400000),
        ("TIMESTAMP", "json", '"1970-01-02T00:00:01"', DAY + SECOND),
        ("TIMESTAMP WITH TIME ZONE", "debezium.ZonedTimestamp", '"1970-01-01T01:00:00+01:00"', 0),
        ("DATE", "debezium.Date", "1", 2 * DAY),
        ("DATE", "json", '"1970-01-01"', DAY),
        ("DATE", "json", "null", NEVER),
    ],
)
def test_a_moment_is_due_when_it_is_past_and_a_day_when_it_has_ended(
    sql_type: str, encoding: str, value: str, due: int
) -> None:
    unread = UnreadTimes()
    column = Column("until", sql_type=sql_type, encoding=encoding, origin=Origin.DECLARED, id=7)
    then = column, Column("until", sql_type=sql_type, encoding=encoding, id=7)
    images = pa.array([f'{{"until":{value}}}'.encode(), b"{}", None], pa.binary())
    for written in then:  # what was inferred is read as it is declared
        found = DueTimes(column, DEFAULT, unread).of(images, [written])
        assert found.tolist() == [due, NEVER, NEVER]
    assert DueTimes(column, DEFAULT, unread).of(images, []).tolist() == [NEVER] * 3
    assert unread.count == 0


@pytest.mark.parametrize("value", ['"soon"', "1.5", "[1]", "9" * 40])
def test_another_value_is_never_due_and_counted(value: str) -> None:
    unread = UnreadTimes()
    column = Column("at", sql_type="TIMESTAMP", encoding="debezium.Timestamp", id=1)
    images = pa.array([f'{{"at":{value}}}'.encode()] * 2, pa.binary())
    assert DueTimes(column, DEFAULT, unread).of(images, [column]).tolist() == [NEVER, NEVER]
    assert unread.count == 2
    assert unread.first.startswith(f"at is {value[:40]}")


@pytest.mark.parametrize("column", [("BIGINT", "json"), ("TIME", "debezium.MicroTime")])
def test_a_column_that_says_no_moment_is_refused_with_what_to_declare(
    column: tuple[str, str],
) -> None:
    sql_type, encoding = column
    mapping = SchemaMapping.parse('[entity_types.t]\nttl = "at"', "m")
    columns = [Column("at", sql_type=sql_type, encoding=encoding)]
    reason = (
        rf"m: entity_types.t.ttl: column at is {sql_type} in encoding {encoding}.*\.columns\.at\]"
    )
    with pytest.raises(InvalidRequest, match=reason):
        time_column(mapping, "t", columns, "at")
    declared = '[entity_types.t.columns.at]\ntype = "TIMESTAMP"\nencoding = "debezium.Timestamp"'
    mapping = SchemaMapping.parse(f'[entity_types.t]\nttl = "at"\n{declared}', "m")
    found = time_column(mapping, "t", columns, "at")
    assert found is not None
    assert (found.sql_type, found.encoding) == ("TIMESTAMP", "debezium.Timestamp")
