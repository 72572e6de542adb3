"""Criteria with columns of entity types whose updates come without the row before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.criteria import ContainerType, Criteria
from tailrace_server.rows.unknown_names import unknown_changes
from tailrace_server.wal.catalog import open_catalog
from tailrace_server.wal.catalog_writer import CatalogWriter
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace_server.wal.state.view import LogView


@pytest.fixture
def view(log_root: Path) -> LogView:
    """Return a log of products and orders, whose updates come without ``before``, and of customers."""
    with LogWriter.open(log_root, "shop") as writer:
        for name, image in (("product", b'{"price":2}'), ("order", b'{"total":2,"note":""}')):
            writer.append([Mutation(name, "1", after=image)])
        writer.append([Mutation("customer", "1", after=b'{"price":2}')])
    notes = {"before:product": "missing", "before:order": "missing", "before:customer": "sent"}
    with CatalogWriter.open(log_root, "shop", writer="w", take_over=True) as writer:
        writer.commit(batch_id=0, source_positions=notes)
    return open_catalog(log_root, "shop").view


@pytest.mark.parametrize(
    ("criteria", "expected"),
    [
        ([], ()),
        ([Criteria(entity_type=("order", "product"))], ()),
        ([Criteria(container_name=("price",))], ("product",)),
        ([Criteria(container_name=("price", "note"))], ("order", "product")),
        ([Criteria(entity_type=("customer",), container_name=("price",))], ()),
        ([Criteria(entity_type=("order",), container_name=("price",))], ()),
        ([Criteria(container_type=(ContainerType.ATTRIBUTE,))], ("order", "product")),
        (
            [
                Criteria(entity_type=("product",)),
                Criteria(entity_type=("order",), container_name=("total",)),
            ],
            ("order",),
        ),
    ],
)
def test_they_are_told_where_a_column_of_theirs_is_asked_for(
    view: LogView, criteria: list[Criteria], expected: tuple[str, ...]
) -> None:
    assert unknown_changes(view, criteria) == expected
