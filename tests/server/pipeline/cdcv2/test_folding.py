"""From finished updates to effects and records. Whole streams: `test_ingest`, with product times too."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest

from tailrace.criteria import Operation
from tailrace_server.pipeline.cdcv2.folding import (
    Folded,
    Folding,
    KeyConflict,
    Last,
    finished_rows,
    fold,
    records,
)
from tailrace_server.pipeline.cdcv2.updates import updates_table
from tests.server.pipeline.cdcv2.streams import SCHEMA, Row


def folded(
    *updates: tuple[Row, int, int],
    key: tuple[str, ...] = ("id",),
    last_rows: dict[str, Last] | None = None,
) -> Folded:
    """Fold updates of rows, as (row, time, diff)."""
    data = []
    for row, _, _ in updates:
        out = bytearray()
        SCHEMA.form.data.encode(row, out)
        data.append(bytes(out))
    times, diffs = (np.array([each[n] for each in updates], np.int64) for n in (1, 2))
    table = updates_table(pa.array(data, pa.large_binary()), times, diffs, np.zeros_like(times))
    rows = finished_rows(table, Folding(SCHEMA, "product", key))
    return fold(rows, last_rows or {}, keyed=bool(key))


def shown(found: Folded) -> list[tuple[Any, ...]]:
    """Return time, key, operation, changed columns, and the names before and after."""
    return [
        (
            each["time"],
            each["key"],
            each["operation"],
            each["changed"],
            *(image and orjson.loads(image)["name"] for image in (each["before"], each["after"])),
        )
        for each in found.effects.to_pylist()
    ]


def test_times_are_folded_in_order_whatever_order_they_come_in() -> None:
    found = folded(
        ((1, "c", None), 3, -1),
        ((1, "b", None), 2, -1),
        ((1, "c", None), 2, 1),
        ((1, "b", None), 1, 1),
        ((1, "a", None), 1, -1),
        last_rows={"1": (b'{"id":1,"name":"a","price":null}', 1)},
    )
    upsert, remove = int(Operation.UPSERT), int(Operation.REMOVE)
    assert [each for each in shown(found) if each[1]] == [
        (1, "1", upsert, ["name"], "a", "b"),
        (2, "1", upsert, ["name"], "b", "c"),
        (3, "1", remove, None, "c", None),
    ]
    assert [(each["image"], each["count"]) for each in found.index.to_pylist()] == [(None, 0)]


def test_a_row_that_stays_as_it_is_has_no_effect_but_its_updates_count() -> None:
    image = b'{"id":1,"name":"a","price":null}'
    found = folded(((1, "a", None), 5, -1), ((1, "a", None), 5, 1), last_rows={"1": (image, 1)})
    assert [(each[1], each[2]) for each in shown(found)] == [(None, 2)]
    assert found.index.num_rows == 0


def test_two_rows_of_a_key_at_one_time_and_a_null_in_the_key_are_conflicts() -> None:
    with pytest.raises(KeyConflict, match="two rows with diff 1"):
        folded(((1, "a", None), 4, 1), ((1, "b", None), 4, 1))
    with pytest.raises(KeyConflict, match="must be 1 or -1"):
        folded(((1, "a", None), 4, 2))
    with pytest.raises(KeyConflict, match="is null") as caught:
        folded(((1, "a", None), 4, 1), key=("price",))
    assert caught.value.figures()["time"] == "4"


def test_without_a_key_only_a_count_of_zero_removes() -> None:
    found = folded(((1, "a", None), 1, -1), ((1, "a", None), 2, 3), ((1, "a", None), 3, -2), key=())
    operations = [each["operation"] for each in found.effects.to_pylist()]
    assert operations == [Operation.UPSERT, Operation.UPSERT, Operation.REMOVE]


def test_tables_end_with_whole_versions() -> None:
    effects = folded(*(((key, "a", None), 1 + key // 2, 1) for key in range(6))).effects
    found = [(len(table), upto) for table, upto in records(effects, "product", 4)]
    assert found == [(6, 2), (3, 3)]
