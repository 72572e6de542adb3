"""Schema changes by a program that has no Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import pytest

from tailrace.criteria import Area, ContainerType
from tailrace.errors import InvalidRequest
from tailrace.schema import Origin
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import SchemaMapping
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.verify import verify
from tests.server.wal.logs import AFTER, AREA, INDEX, VERSION, rows_of

if TYPE_CHECKING:
    from pathlib import Path

MAPPING = SchemaMapping.parse(
    """
    [entity_types.product]
    key = ["id"]
    renamed_from = "item"
    columns.price = { type = "DECIMAL(6,2)", role = "PRICE", renamed_from = "cost" }
    """
)


def row(key: int, entity_type: str = "product", **columns: object) -> Mutation:
    return Mutation(entity_type, str(key), after=orjson.dumps({"id": key, **columns}))


def test_a_change_stands_before_the_first_mutation_that_needs_it(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([row(1), row(1, "order", total=1), row(2, n=1)])
        writer.append([row(3, n=2)])
        writer.append([])
        writer.append([row(2, "order", total=None), row(4, n="text")])
    rows = rows_of(log_root / "shop")
    assert [(row[VERSION], row[INDEX], row[AREA]) for row in rows if row[INDEX]] == [
        *((1, index, Area.SCHEMA) for index in (1, 2)),
        *((1, index, Area.DATA) for index in (3, 4, 5)),
        (2, 1, Area.DATA),
        (4, 1, Area.SCHEMA),
        (4, 2, Area.DATA),
        (4, 3, Area.DATA),
    ]
    lead = orjson.loads(rows[0][AFTER])
    assert lead["counts"] == {"product": 3, "order": 2}
    assert (lead["mutation_count"], lead["source_count"], lead["schema_changes"]) == (5, 3, 2)
    assert verify(log_root / "shop").sound


def test_a_writer_goes_on_from_the_schema_of_the_one_before(log_root: Path) -> None:
    for _ in range(2):
        with LogWriter.open(log_root, "shop") as writer:
            writer.append([row(1, n=1)])
    assert [row[AREA] for row in rows_of(log_root / "shop")].count(Area.SCHEMA) == 1
    assert CommitLog.open(log_root / "shop").state.schemas == [(1, 1)]


def test_a_mapping_declares_types_roles_and_renames(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([row(1, "item", cost=1, n=1)])
    with LogWriter.open(log_root, "shop", mapping=MAPPING) as writer:
        writer.append([row(2, price=2.25, n=1)])
    view = CommitLog.open(log_root / "shop").view
    before, after = (
        view.schema_of(1).entity_types["item"],
        view.schema_of(2).entity_types["product"],
    )
    assert [(c.id, c.name) for c in before] == [(1, "id"), (2, "cost"), (3, "n")]
    assert [(c.id, c.name, c.key) for c in after] == [(1, "id", 1), (2, "price", 0), (3, "n", 0)]
    assert (after[1].sql_type, after[1].role, after[1].origin) == (
        "DECIMAL(6,2)",
        ContainerType.PRICE,
        Origin.DECLARED,
    )


def test_a_value_that_its_declared_type_cannot_hold_is_refused_and_nothing_is_buffered(
    log_root: Path,
) -> None:
    with LogWriter.open(log_root, "shop", mapping=MAPPING) as writer:
        with pytest.raises(
            InvalidRequest, match=r"row 1 \(product '2'\): column price: 1\.005 has more digits"
        ):
            writer.append([row(1, price=1), row(2, price=1.005)])
        assert writer.commit() is None
        writer.append([row(1, price=1)])
    assert len(rows_of(log_root / "shop")) == 3


def test_a_declaration_of_another_type_holds_from_the_next_version_on(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([row(1, price="dear")])
    mapping = SchemaMapping.parse('[entity_types.product.columns.price]\ntype = "DECIMAL(6,2)"')
    with LogWriter.open(log_root, "shop", mapping=mapping) as writer:
        for _ in range(2):  # and a refused row leaves the writer as it was
            with pytest.raises(InvalidRequest, match=r"row 1 \(product '3'\): column price"):
                writer.append([row(2, "order"), row(3, price="cheap")])
        writer.append([row(3, price=1)])
    view = CommitLog.open(log_root / "shop").view
    types = [view.schema_of(v).entity_types["product"][1].sql_type for v in (1, 2)]
    assert types == ["VARCHAR", "DECIMAL(6,2)"]
    assert [row[AREA] for row in rows_of(log_root / "shop")].count(Area.SCHEMA) == 2
