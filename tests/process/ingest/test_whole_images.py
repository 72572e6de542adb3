"""Whole images of large batches: those with nothing to fill are written in tasks, the others in the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tailrace.errors import InvalidRequest
from tests.process.ingest.reading import data, leads
from tests.server.pipeline.shapes import end, envelope, line, postgres

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
