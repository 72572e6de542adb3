"""Typed rows as versions of a log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pytest

from tailrace.criteria import Operation
from tailrace_server.wal.upkeep.verify import verify
from tests.process.ingest.reading import data, leads, published
from tests.server.pipeline.dataframe.typed_writing import state, write

if TYPE_CHECKING:
    from pathlib import Path


def rows(*values: tuple[Any, ...], names: str = "id name", **kinds: pa.DataType) -> pa.Table:
    columns = [*zip(*values, strict=True)] if values else [() for _ in names.split()]
    default = {"id": pa.int64(), "name": pa.string(), "_commit_version": pa.int64()}
    fields = [(name, (default | kinds).get(name, pa.string())) for name in names.split()]
    return pa.table(
        [pa.array(column, kind) for column, (_, kind) in zip(columns, fields, strict=True)],
        pa.schema(fields),
    )


def test_a_write_without_versions_is_one_version(log_root: Path) -> None:
    write(log_root, [rows((1, "a"), (2, "b")), rows((3, None))])
    assert published(log_root / "shop") == 1
    assert state(log_root) == {
        "1": b'{"id":1,"name":"a"}',
        "2": b'{"id":2,"name":"b"}',
        "3": b'{"id":3,"name":null}',
    }
    (lead,) = leads(log_root / "shop")
    assert (lead["counts"], lead["source_count"], lead["schema_changes"]) == ({"t": 4}, 3, 1)
    assert verify(log_root / "shop").sound


FEED = "id name _change_type _commit_version"


def test_a_change_feed_is_written_as_it_is(log_root: Path) -> None:
    write(
        log_root,
        [
            rows((1, "b", "update_postimage", 5), (2, "x", "insert", 4), names=FEED),
            rows(
                (1, "a", "insert", 4),
                (1, "a", "update_preimage", 5),
                (2, "x", "delete", 9),
                names=FEED,
            ),
        ],
    )
    assert published(log_root / "shop") == 3
    found = [
        (each.version, each.operation, each.primary_key, each.before, each.after, each.changed)
        for each in sorted(
            data(log_root / "shop"), key=lambda each: (each.version, each.primary_key)
        )
    ]
    a, b, x = b'{"id":1,"name":"a"}', b'{"id":1,"name":"b"}', b'{"id":2,"name":"x"}'
    assert found == [
        (1, Operation.UPSERT, "1", None, a, None),
        (1, Operation.UPSERT, "2", None, x, None),
        (2, Operation.UPSERT, "1", a, b, ["name"]),
        (3, Operation.REMOVE, "2", x, None, None),
    ]
