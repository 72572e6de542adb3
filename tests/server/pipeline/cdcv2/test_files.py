"""Reading parts of files. Refused messages, damaged blocks and other schemas: `test_ingest`, `test_cutting`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tailrace_server.cdcv2.schema import documented_schema
from tailrace_server.pipeline.cdcv2.files import (
    FilePart,
    StreamSchema,
    parts_of_file,
    read_part,
)
from tailrace_server.pipeline.cdcv2.updates import joined
from tests.server.pipeline.cdcv2.streams import (
    SCHEMA,
    make_history,
    mangle,
    put,
    statements,
    to_container,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace_server.pipeline.cdcv2.cutting import CutMessages


@pytest.mark.parametrize("ending", ["avro", "json"])
def test_parts_of_a_file_hold_together_what_the_file_does(tmp_path: Path, ending: str) -> None:
    from tailrace_server.cdcv2 import write_line

    told = mangle(statements(make_history(1, 60, 10, 5), 3, 61), 1)
    lines = b"".join(write_line(SCHEMA.form, message) for message in told)
    content = lines if ending == "json" else b""
    if ending == "avro":
        parts = [to_container(told[start : start + 9]) for start in range(0, len(told), 9)]
        # One file of many blocks: the blocks of the others under the first one's header and sync.
        sync = parts[0][-16:]
        head = parts[0][: parts[0].index(sync) + 16]
        content = head
        for part in parts:
            mine = part[-16:]
            content += part[part.index(mine) + 16 : -16] + sync
    path = tmp_path / f"f.{ending}"
    put(path, content)
    whole = list(read_part(FilePart(str(path), 1, 0, len(content), len(content)), SCHEMA))
    everything = shown_sorted(whole)
    assert sum(each.messages for each in whole) == len(told)
    for wanted in (37, 500, len(content)):
        cuts = parts_of_file(str(path), 1, len(content), wanted)
        found = [each for split in cuts for each in read_part(split, SCHEMA)]
        assert shown_sorted(found) == everything
        assert sum(each.messages for each in found) == len(told)


def shown_sorted(messages: list[CutMessages]) -> tuple[Any, ...]:
    rows = joined([batch for each in messages for batch in each.updates])
    columns = rows.select(["data", "time", "diff", "message"]).to_pydict()
    told = sorted(each for some in messages for each in some.progress)
    return sorted(zip(*columns.values(), strict=True)), told


def test_columns_have_sql_types_and_encodings_by_their_avro_types() -> None:
    kinds: dict[str, Any] = {
        "id": "long",
        "at": {"type": "long", "logicalType": "timestamp-micros"},
        "price": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        "name": ["null", "string"],
        "any": ["int", "string"],
    }
    fields = [{"name": name, "type": kind} for name, kind in kinds.items()]
    schema = StreamSchema(
        json.dumps(documented_schema({"type": "record", "name": "data", "fields": fields}))
    )
    columns, key = json.loads(schema.listing(("id",)))
    assert key == ["id"]
    assert columns == [
        ["id", "BIGINT", "json", False],
        ["at", "TIMESTAMP", "debezium.MicroTimestamp", False],
        ["price", "DECIMAL(9,2)", "decimal.bytes(2)", False],
        ["name", "VARCHAR", "json", True],
        ["any", "JSON", "json", False],
    ]


def test_a_key_is_its_columns_or_the_row_and_none_where_a_column_is_null() -> None:
    values = {"id": 7, "name": None, "price": 3}
    assert SCHEMA.key(values, ("id",)) == "7"
    assert SCHEMA.key(values, ("id", "price")) == "[7,3]"
    assert SCHEMA.key(values, ("name",)) is None
    assert SCHEMA.key(values, ()) == "[7,null,3]"
