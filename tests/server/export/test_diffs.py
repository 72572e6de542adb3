"""Differences of versions, read from a real log; whole streams are tested in `test_cdcv2.py`."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tailrace.criteria import Operation
from tailrace.errors import ImagesMissing
from tailrace_server.export.diffs import Differences, ImageCheck
from tailrace_server.export.errors import ImageUnfit
from tailrace_server.export.row_form import RowForm
from tailrace_server.wal.catalog import open_catalog
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.segment.reader import BatchReader
from tailrace_server.wal.state.entity_records import EntityRecords
from tests.server.export.logs import MAPPING, Collection, Shop, image, item
from tests.support.older_writer import OlderWriter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TRUNCATE = Mutation("item", None, Operation.REMOVE)


@contextmanager
def records_of(root: Path, *transactions: list[Mutation]) -> Iterator[EntityRecords]:
    if transactions:
        with OlderWriter.open(root, "shop", mapping=MAPPING) as writer:
            for transaction in transactions:
                writer.append(transaction)
    log = open_catalog(root, "shop")
    with BatchReader(log.path) as reader:
        yield EntityRecords(log, reader, "item")


def differences(records: EntityRecords) -> Differences:
    first = next(iter(records.versions(1, 10)))
    return Differences(records, RowForm(first.columns), set())


def test_differences_add_up_to_the_collection_of_each_version(log_root: Path) -> None:
    shop = Shop(log_root)
    shop.write(40)
    with records_of(log_root) as records:
        found = differences(records)
        rows: Collection = {}
        by_version = dict(found.between(1, 41))
        for version in range(1, 41):
            for row, diff in by_version.get(version, {}).items():
                assert diff != 0
                rows[row] = rows.get(row, 0) + diff
                if not rows[row]:
                    del rows[row]
            assert rows == shop.history[version] == found.collection(version)


def test_a_truncate_takes_away_each_row_as_often_as_it_is_there(log_root: Path) -> None:
    twice = Mutation("item", "[1]", after=image(1, 1), change=b'{"diff":2}')
    with records_of(
        log_root, [twice, item(2, None, 5)], [TRUNCATE, item(3, None, 7)], [TRUNCATE]
    ) as records:
        found = differences(records)
        assert dict(found.between(1, 4)) == {
            1: {(1, 1): 2, (2, 5): 1},
            2: {(1, 1): -2, (2, 5): -1, (3, 7): 1},
            3: {(3, 7): -1},
        }
        assert found.collection(3) == {}


def test_a_row_that_expires_is_taken_away(log_root: Path) -> None:
    expiry = replace(item(1, 5, None), operation=Operation.EXPIRE)
    with records_of(log_root, [item(1, None, 5)], [expiry]) as records:
        assert dict(differences(records).between(2, 3)) == {2: {(1, 5): -1}}


def test_a_version_whose_changes_cancel_is_left_out(log_root: Path) -> None:
    with records_of(
        log_root, [item(1, None, 1)], [item(1, 1, 2), item(1, 2, 1)], [item(1, 1, None)]
    ) as records:
        assert dict(differences(records).between(1, 4)) == {1: {(1, 1): 1}, 3: {(1, 1): -1}}


def test_an_image_that_does_not_fit_is_named_by_version_and_key(log_root: Path) -> None:
    with records_of(log_root, [item(1, None, 1)]) as records:
        columns = next(iter(records.versions(1, 2))).columns
        found = Differences(records, RowForm(columns[:1]), set())
        with pytest.raises(ImageUnfit, match="version 1, key '1': column 'price'"):
            list(found.between(1, 2))


@pytest.mark.parametrize(
    ("transactions", "missing"),
    [
        ([[item(1, None, 1)], [item(1, 1, None)], [item(1, None, 2)]], None),
        ([[item(1, None, 1)], [item(1, None, 2)]], "version 2"),
        ([[item(1, None, 1)], [TRUNCATE], [item(1, None, 2)]], None),
        ([[Mutation("item", "1", after=image(1, 1), changed=("price",))]], "version 1"),
        ([[item(1, None, 1)], [Mutation("item", "1", Operation.REMOVE)]], "version 2"),
        ([[item(1, None, 1)], [Mutation("item", "2", before=image(2, 1))]], "version 2"),
    ],
)
def test_an_image_is_missing_if_the_record_cannot_be_an_insert(
    log_root: Path, transactions: list[list[Mutation]], missing: str | None
) -> None:
    with records_of(log_root, *transactions) as records:
        check, found = ImageCheck(records), None
        for version in records.versions(1, len(transactions) + 1):
            try:
                check.see(version)
            except ImagesMissing as error:
                found = str(error)
    assert found is None if missing is None else found is not None and missing in found
