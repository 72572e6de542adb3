"""What one publisher matches, where `test_router`'s plain filter cannot go: logs that no writer makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.criteria import ContainerType, Criteria
from tailrace.schema import Column, Schema
from tailrace_server.capture.matching.predicate import Predicate
from tailrace_server.capture.matching.record_classes import group_by_class
from tailrace_server.capture.reading.catalog_reader import BatchImages
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.segment.reader import BatchReader
from tailrace_server.wal.state.commit_log import CommitLog
from tests.server.wal.logs import update, upsert

if TYPE_CHECKING:
    from pathlib import Path


def test_a_column_that_the_schema_does_not_have_is_no_match_and_no_error(log_root: Path) -> None:
    """Else one record ends every subscription to columns, and ends it again when it resumes."""
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert("1"), update("1", 1, 2)])
    view = CommitLog.open(log_root / "shop").view
    without = Schema(1, {"order": (Column("id", id=1),)})
    attributes = Predicate((Criteria(container_type=(ContainerType.ATTRIBUTE,)),))
    both = Predicate((*attributes.criteria, Criteria(entity_type=("order",))))
    with BatchReader(log_root / "shop") as reader:
        ref = view.batch(0)
        for schema, columns in ((without, ["id"]), (Schema(2), [])):
            images = BatchImages(
                lambda: reader.body(ref, ("after",))["after"],
                lambda version, s=schema: s,  # type: ignore[misc]
            )
            grouped = group_by_class(reader.head(ref))
            assert [*(attributes.select(grouped, images).names or ())] == columns
            found = both.select(grouped, images)
            assert {2, 3} <= set(found.rows.tolist())  # the insert and the update themselves
