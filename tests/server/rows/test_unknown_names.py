"""Names in criteria that a log does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.criteria import Criteria
from tailrace_server.rows.unknown_names import unknown_names
from tailrace_server.wal.catalog import open_catalog
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import SchemaMapping

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def root(log_root: Path) -> Path:
    """Return the root of a log with products, of which a later writer calls the type ``item``, and orders."""
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([Mutation("product", "1", after=b'{"id":1,"price":2}')])
        writer.append([Mutation("order", "1", after=b'{"id":1,"total":2}')])
        writer.commit(publish=True)
    mapping = log_root / "shop.toml"
    mapping.write_text('[entity_types.item]\nrenamed_from = "product"\n')
    with LogWriter.open(log_root, "shop", mapping=SchemaMapping.load(mapping)) as writer:
        writer.append([Mutation("item", "1", after=b'{"id":1,"price":3}')])
        writer.commit(publish=True)
    return log_root


@pytest.mark.parametrize(
    ("criteria", "unknown"),
    [
        ([], ()),
        ([Criteria()], ()),
        ([Criteria(entity_type=("item", "product", "order"))], ()),
        ([Criteria(entity_type=("Item", "order", "odrer"))], ("Item", "odrer")),
        ([Criteria(container_name=("price", "total"))], ()),
        ([Criteria(container_name=("prise", "total"))], ("prise",)),
        ([Criteria(entity_type=("order",), container_name=("price",))], ("price",)),
        ([Criteria(entity_type=("odrer",), container_name=("total",))], ("odrer",)),
        ([Criteria(entity_type=("x",)), Criteria(entity_type=("x", "y"))], ("x", "y")),
    ],
)
def test_names_that_nothing_in_the_log_has_are_told(
    root: Path, criteria: list[Criteria], unknown: tuple[str, ...]
) -> None:
    assert unknown_names(open_catalog(root, "shop").view, criteria) == unknown


def test_not_more_names_are_told_than_anybody_reads(root: Path) -> None:
    names = tuple(f"n{number}" for number in range(1_000))
    view = open_catalog(root, "shop").view
    assert unknown_names(view, [Criteria(entity_type=names)]) == tuple(sorted(names)[:100])
