"""Which Delta types columns get, what their values are there, and what becomes of columns that change."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from tailrace.schema import Column
from tailrace_server.export.delta.table import LakeColumns
from tailrace_server.typed.misfits import OnMisfit
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import SchemaMapping
from tests.server.export.delta.lakes import (
    export,
    hows,
    item,
    lake_rows,
    open_shop,
    put,
    state_rows,
)

if TYPE_CHECKING:
    from pathlib import Path

LAST_MICRO = 839 * 3_600 * 1_000_000 - 1
_KINDS: list[tuple[str, str, Any, str, Any]] = [
    ("BOOLEAN", "json", True, "boolean", True),
    ("SMALLINT", "json", -32768, "short", -32768),
    ("INTEGER", "json", 2147483647, "integer", 2147483647),
    ("BIGINT", "json", 2**63 - 1, "long", 2**63 - 1),
    ("REAL", "json", 0.5, "float", 0.5),
    ("DOUBLE", "json", 0.1, "double", 0.1),
    (
        "DECIMAL(38,2)",
        "decimal.string",
        "9" * 36 + ".25",
        "decimal(38,2)",
        Decimal("9" * 36 + ".25"),
    ),
    ("DECIMAL(40,2)", "decimal.string", "9" * 38 + ".25", "string", "9" * 38 + ".25"),
    ("DECIMAL(6,2)", "decimal.bytes(2)", "AfQ=", "decimal(6,2)", Decimal("5.00")),
    ("VARCHAR(9)", "json", "text", "string", "text"),
    ("VARBINARY", "base64", "AAH/", "binary", b"\x00\x01\xff"),
    ("DATE", "debezium.Date", 19782, "date", date(2024, 2, 29)),
    ("TIME", "debezium.MicroTime", 49_020_250_000, "string", "13:37:00.250000"),
    ("TIME", "debezium.MicroTime", 86_400_000_000, "string", "24:00:00.000000"),
    ("TIME", "debezium.MicroTime", -3_020_399_000_001, "string", "-838:59:59.000001"),
    ("TIME", "debezium.Time", 3_020_399_999, "string", "838:59:59.999"),
    ("TIME", "debezium.Time", 49_020_250, "string", "13:37:00.250"),
    ("TIME", "debezium.NanoTime", -1, "string", "-00:00:00.000000001"),
    ("TIME", "json", "13:37", "string", "13:37:00.000000"),
    ("TIME", "json", "-26:15:00.5", "string", "-26:15:00.500000"),
    (
        *("TIMESTAMP", "debezium.Timestamp", 1_709_213_820_250, "timestamp_ntz"),
        datetime(2024, 2, 29, 13, 37, 0, 250_000),
    ),
    (
        *("TIMESTAMP", "debezium.NanoTimestamp", 1_709_213_820_250_000_001, "string"),
        "2024-02-29 13:37:00.250000001",
    ),
    (
        *("TIMESTAMP WITH TIME ZONE", "debezium.ZonedTimestamp"),
        *(
            "2024-02-29T13:37:00.25+02:00",
            "timestamp",
            datetime(2024, 2, 29, 11, 37, 0, 250_000, UTC),
        ),
    ),
    ("JSON", "json", {"a": [1, None]}, "string", '{"a":[1,null]}'),
]


def test_values_are_those_of_the_source_in_the_type_that_delta_has_for_them(
    log_root: Path, tmp_path: Path
) -> None:
    """Written with the table, and changed by a merge."""
    declared = (
        "[entity_types.item]\nkey = ['id']\n[entity_types.item.columns.id]\ntype = 'BIGINT'\n"
    )
    for place, (sql_type, encoding, *_) in enumerate(_KINDS):
        declared += (
            f"[entity_types.item.columns.c{place}]\ntype = '{sql_type}'\nencoding = '{encoding}'\n"
        )
    values = {f"c{place}": kind[2] for place, kind in enumerate(_KINDS)}
    lake = tmp_path / "lake"
    with LogWriter.open(log_root, "shop", mapping=SchemaMapping.parse(declared)) as writer:
        put(writer, Mutation("item", "1", after=orjson.dumps({"id": 1, **values})))
        export(log_root, lake)
        nulls = dict.fromkeys(values)
        put(writer, Mutation("item", "2", after=orjson.dumps({"id": 2, **values})))
        put(writer, Mutation("item", "1", after=orjson.dumps({"id": 1, **nulls})))
        assert hows(export(log_root, lake)) == {"item": "merged"}
    fields = {field.name: field.type for field in DeltaTable(str(lake / "item")).schema().fields}
    first, second = lake_rows(lake / "item")
    for place, kind in enumerate(_KINDS):
        found = fields[f"c{place}"]
        assert getattr(found, "type", found) == kind[3], kind
        assert first[f"c{place}"] is None
        assert second[f"c{place}"] == kind[4], kind


@given(st.lists(st.integers(-LAST_MICRO, LAST_MICRO)))
def test_every_time_of_mysql_has_its_exact_text(counts: list[int]) -> None:
    time = Column("t", sql_type="TIME", encoding="debezium.MicroTime")
    own: dict[str, Any] = {"counted": False, "stated": {}, "placeholders": ()}
    columns = LakeColumns.of("item", [time], on_misfit=OnMisfit.RAISE, **own)
    images = pa.array([b'{"t":%d}' % each for each in counts], pa.binary())
    (found,) = columns.columns_of(columns.reader.read(images, [time]).batch)
    for count, text in zip(counts, found.to_pylist(), strict=True):
        hours, minutes, seconds = text.removeprefix("-").split(":")
        whole, fraction = seconds.split(".")
        micros = ((int(hours) * 60 + int(minutes)) * 60 + int(whole)) * 1_000_000 + int(fraction)
        assert (micros, text[0] == "-") == (abs(count), count < 0)


@pytest.mark.parametrize(
    ("mapping", "names"),
    [
        ("[entity_types.item.columns.note]\ndropped = true", ["id", "price"]),
        ("[entity_types.thing]\nrenamed_from = 'item'", ["id", "price", "note"]),
    ],
)
def test_a_column_that_is_dropped_goes_and_a_renamed_entity_type_stays_where_it_is(
    log_root: Path, tmp_path: Path, mapping: str, names: list[str]
) -> None:
    lake = tmp_path / "lake"
    with open_shop(log_root) as writer:
        put(writer, item(1, 1, note="a"), item(2, 2, note="b"))
    export(log_root, lake)
    name = "thing" if "thing" in mapping else "item"
    with LogWriter.open(log_root, "shop", mapping=SchemaMapping.parse(mapping)) as writer:
        put(writer, Mutation(name, "2", after=b'{"id":2,"price":7}'))
    done = export(log_root, lake)
    assert hows(done) == {name: "merged" if name == "thing" else "rewritten"}
    assert [each.name for each in lake.iterdir()] == ["item"]
    table = pa.table(DeltaTable(str(lake / "item")).scan())
    assert table.column_names == ["_tailrace_key", "_tailrace_version", *names]
    assert lake_rows(lake / "item") == state_rows(log_root, name)
    # It is found again by its identity, whatever it is called.
    assert export(log_root, lake).steps == ()


@pytest.mark.parametrize("apart", [False, True])
def test_a_column_that_is_added_again_has_no_values_of_the_dropped_one(
    log_root: Path, tmp_path: Path, apart: bool
) -> None:
    lake = tmp_path / "lake"
    with open_shop(log_root) as writer:
        put(writer, item(1, 1, note="a"), item(2, 2, note="b"))
    export(log_root, lake)
    dropped = "[entity_types.item.columns.note]\ndropped = true"
    with LogWriter.open(log_root, "shop", mapping=SchemaMapping.parse(dropped)) as writer:
        put(writer, item(3, 3))
    if apart:
        export(log_root, lake)
    with open_shop(log_root) as writer:
        put(writer, item(2, 2, note="new"))
    export(log_root, lake)
    table = pa.table(DeltaTable(str(lake / "item")).scan())
    found = dict(zip(table["id"].to_pylist(), table["note"].to_pylist(), strict=True))
    assert found == {1: None, 2: "new", 3: None}
