"""What one publisher matches, where `test_router`'s plain filter cannot go: logs that no writer makes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from tailrace.criteria import ContainerType, Criteria
from tailrace.schema import Column, Schema
from tailrace_server.live.router import Router
from tailrace_server.rows.batch_images import NO_IMAGES
from tailrace_server.rows.predicate import Predicate
from tailrace_server.rows.record_classes import group_by_class
from tailrace_server.wal.record.keys import key_hashes, type_seed
from tailrace_server.wal.record.text_columns import Texts
from tailrace_server.wal.segment.reader import BatchReader
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.state.whole_removals import WholeRemovals
from tests.server.rows.heads import head_of
from tests.server.wal.logs import update, upsert
from tests.support.images import images_of
from tests.support.older_writer import OlderWriter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from tailrace_server.rows.record_classes import GroupedHead

TYPES = ("order", "product")


def batch_of(keys: list[str | None]) -> GroupedHead:
    """Return a batch that has each key twice, once of each entity type."""
    codes = np.arange(2 * len(keys)) // len(keys)
    array = pa.array(keys * 2, pa.string())
    head = head_of([(2, 1, int(code)) for code in codes], TYPES)
    seeds = np.array([type_seed(name) for name in TYPES], np.uint64)[codes]
    hashed = key_hashes(seeds, array)
    return group_by_class(replace(head, keys=Texts.of(array), key_hashes=hashed))


@pytest.mark.parametrize("rows", [10, 1_000])
@pytest.mark.parametrize("wanted", [1, 30, 20_000])
@pytest.mark.parametrize("types", [("product",), ()])
def test_keys_are_found_however_many_there_are_and_however_many_rows(
    rows: int, wanted: int, types: tuple[str, ...]
) -> None:
    """Few rows are compared, many are looked up by hash; keys of every type are hashed for each."""
    keys = tuple(str(number * 3) for number in range(wanted))
    grouped = batch_of([None, *(str(number) for number in range(rows))])
    predicate, router = Predicate((Criteria(entity_type=types, primary_key=keys),)), Router()
    router.add(1, predicate)
    expected = [
        row
        for row, key in enumerate(grouped.head.primary_keys.to_pylist())
        if (key is None or key in keys) and (row > rows or not types)
    ]
    for _ in range(2):  # the second time with the hashes of the first
        assert predicate.select(grouped, NO_IMAGES).rows.tolist() == expected
        [(_, selection)] = router.route(grouped, NO_IMAGES)
        assert not isinstance(selection, Exception)
        assert selection.rows.tolist() == expected
    router.remove(1)
    assert list(router.route(grouped, NO_IMAGES)) == []


def test_the_hashes_of_many_entity_types_are_not_all_kept() -> None:
    """Else keys that name no type cost their number times that of all types that a log has."""
    keys = tuple(str(number) for number in range(300_000))
    (alternative,) = Predicate((Criteria(primary_key=keys),)).alternatives
    kept = [alternative.hashes(name) is alternative.hashes(name) for name in "abcdef"]
    assert kept == [True, True, True, False, False, False]
    found = alternative.filter_keys(
        batch_of(["1", *["x"] * 100]).head, np.arange(101, dtype=np.int32)
    )
    assert found.tolist() == [0]


class _OneSchema:
    """A log that has had one schema."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def schema_of(self, version: int) -> Schema:
        return self._schema

    def schemas_of(self, versions: NDArray[np.int64]) -> tuple[list[Schema], NDArray[np.int64]]:
        return [self._schema], np.zeros(len(versions), np.int64)

    def schemas(self) -> Iterator[Schema]:
        return iter((self._schema,))

    whole_removals = WholeRemovals()


def test_a_column_that_the_schema_does_not_have_is_no_match_and_no_error(log_root: Path) -> None:
    """Else one record ends every subscription to columns, and ends it again when it resumes."""
    with OlderWriter.open(log_root, "shop") as writer:
        writer.append([upsert("1"), update("1", 1, 2)])
    view = CommitLog.open(log_root / "shop").view
    without = Schema(1, {"order": (Column("id", id=1),)})
    attributes = Predicate((Criteria(container_type=(ContainerType.ATTRIBUTE,)),))
    both = Predicate((*attributes.criteria, Criteria(entity_type=("order",))))
    with BatchReader(log_root / "shop") as reader:
        ref = view.batch(0)
        for schema, columns in ((without, ["id"]), (Schema(2), [])):
            images = images_of(reader, ref, _OneSchema(schema))
            grouped = group_by_class(reader.head(ref))
            assert [*(attributes.select(grouped, images).names or ())] == columns
            found = both.select(grouped, images)
            assert {2, 3} <= set(found.rows.tolist())  # the insert and the update themselves
