"""Whole images of large batches: those with nothing to fill are written in tasks, the others in the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tailrace.criteria import Operation
from tailrace.errors import InvalidRequest
from tailrace_server.wal.schema.mapping import SchemaMapping
from tests.process.ingest.reading import data, leads
from tests.server.pipeline.shapes import end, envelope, line, postgres
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from tests.process.ingest.conftest import Source

pytestmark = pytest.mark.slow

HOLE = "__debezium_unavailable_value"
ROWS = 40


def message(lsn: int, op: str, **images: Any) -> bytes:
    return line(envelope(op, postgres(lsn, lsn), **images)) + b"\n" + line(end(str(lsn), 1))


def test_large_batches_fill_images_from_what_tasks_and_driver_have_written(source: Source) -> None:
    rows = [{"id": n, "a": n, "t": "long" * n} for n in range(ROWS)]
    source.add(*(message(n, "c", after=row) for n, row in enumerate(rows, 1)))
    source.ingest(small_batch_rows=0, whole_images=True)
    assert [*source.catalog.glob("segments/*/*-task*")], "new rows lack nothing"
    written = len([*source.catalog.glob("segments/*/*-task*")])

    updates = [
        message(100 + n, "u", after=row | {"a": -1, "t": HOLE}) for n, row in enumerate(rows)
    ]
    removals = [message(200 + n, "d", before={"id": n, "a": None}) for n in range(0, ROWS, 2)]
    source.add(*updates, *removals)
    with pytest.raises(
        InvalidRequest, match=r"images are filled in one process.*--batch-bytes \d+B"
    ):
        source.ingest(small_batch_rows=0, whole_images=True, batch_bytes=64)
    assert len(leads(source.catalog)) == ROWS
    source.ingest(small_batch_rows=0, whole_images=True)
    assert len([*source.catalog.glob("segments/*/*-task*")]) == written

    changed = [row | {"a": -1} for row in rows]
    images = [
        (r.before and orjson.loads(r.before), r.after and orjson.loads(r.after))
        for r in data(source.catalog)
    ]
    assert images[ROWS : 2 * ROWS] == [*zip(rows, changed, strict=True)]
    assert images[2 * ROWS :] == [(row, None) for row in changed[::2]]
    assert not any("incomplete_images" in body for body in leads(source.catalog))


def test_rows_expire_at_the_end_of_a_run_and_while_one_follows(source: Source) -> None:
    """New rows are written in tasks; changes of rows that may have expired are not."""
    declared = 'ttl = "at"\n[entity_types.product.columns.at]\ntype = "TIMESTAMP"\n'
    declared += 'encoding = "debezium.Timestamp"'
    mapping = SchemaMapping.parse(f"[entity_types.product]\n{declared}")
    rows = [{"id": n, "at": 1 if n % 2 else None} for n in range(4)]
    source.add(*(message(n, "c", after=row) for n, row in enumerate(rows, 1)))
    source.ingest(small_batch_rows=0, mapping=mapping)
    assert [*source.catalog.glob("segments/*/*-task*")]
    assert expired(source) == ["1", "3"]
    with source.following(small_batch_rows=0, mapping=mapping) as driver:
        source.add(message(11, "d", before=rows[1]), message(12, "u", after=rows[3] | {"at": 2}))
        wait_until(lambda: driver.counters.expired == 1)
    assert expired(source) == ["1", "3", "3"]
    assert data(source.catalog)[-2].changed is None


def expired(source: Source) -> list[str]:
    """Return the keys of the rows that have expired, those of a version sorted."""
    found = [r for r in data(source.catalog) if r.operation == Operation.EXPIRE]
    return [key for _, key in sorted((r.version, r.primary_key or "") for r in found)]
