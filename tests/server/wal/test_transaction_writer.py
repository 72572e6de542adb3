"""Schema changes by a program that has no Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pytest

from tailrace.criteria import Area, ContainerType, Operation
from tailrace.errors import InvalidRequest
from tailrace.schema import Origin
from tailrace_server.machine_code.loader import loops_made
from tailrace_server.wal import columnar, transaction_buffer, transaction_writer
from tailrace_server.wal.catalog import list_catalogs
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import SchemaMapping
from tailrace_server.wal.segment.carried import ROWS_MAX
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.verify import verify
from tests.server.wal.logs import AFTER, AREA, INDEX, VERSION, SteppingClock, rows_of, upsert

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace_server.wal.record.input_rows import InputRows

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


def removal(key: str, before: bytes | None) -> Mutation:
    return Mutation("order", key, Operation.REMOVE, before=before)


WHOLE = b'{"id":"1","value":null}'


@pytest.mark.parametrize("by_columns", [False, True])
def test_a_log_says_in_which_versions_a_writer_vouches_for_its_removals(
    log_root: Path, monkeypatch: pytest.MonkeyPatch, by_columns: bool
) -> None:
    assert loops_made() if by_columns else True
    monkeypatch.setattr(transaction_writer, "COLUMNAR_FROM", 1 if by_columns else 1 << 62)

    def notes() -> dict[str, int | str]:
        positions = CommitLog.open(log_root / "shop").state.source_positions
        return {name: text for name, text in positions.items() if name.startswith("removed:")}

    def write(*transactions: list[Mutation], whole: bool) -> None:
        with LogWriter.open(log_root, "shop", whole_removals=whole) as writer:
            for each in transactions:
                writer.append(each)

    write([upsert("1"), Mutation("line", None, Operation.REMOVE)], whole=True)
    assert notes() == {}
    write([removal("1", WHOLE)], [upsert("2")], whole=True)
    assert notes() == {"removed:order": "2-"}
    # A writer that does not vouch ends it, and so does an image that is missing or has a placeholder.
    write([removal("2", WHOLE)], whole=False)
    assert notes() == {"removed:order": "2-3"}
    write([removal("1", WHOLE)], whole=True)
    write([removal("1", WHOLE)], [removal("2", None)], whole=True)
    assert notes() == {"removed:order": "2-3,5-5"}
    part = b'{"id":"1","value":"__debezium_unavailable_value"}'
    write([removal("1", WHOLE), removal("2", part)], whole=True)
    assert notes() == {"removed:order": "2-3,5-5"}


def test_a_refused_transaction_says_nothing_of_removals(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop", whole_removals=True) as writer:
        batch = pa.RecordBatch.from_pylist(
            [
                {"transaction_id": "1", "entity_type": "order", "primary_key": "1",
                 "operation": "remove", "before": WHOLE, "after": None},
                {"transaction_id": "2", "entity_type": "order", "primary_key": "2",
                 "operation": "upsert", "before": None, "after": b"{"},
            ]
        )  # fmt: skip
        with pytest.raises(InvalidRequest, match="column after of row 1"):
            writer.append_batch(batch)
        writer.append([upsert("3")])
    assert not [*CommitLog.open(log_root / "shop").state.source_positions]


def test_images_of_many_bytes_are_cut_into_batches(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow counts the bytes of a column in 32 bits; a commit of more than 2 GiB has several batches."""
    transactions = [
        [upsert(f"{number}-{key}", key) for key in range(number * 3)] for number in range(1, 9)
    ]
    for name, bound in (("whole", 1 << 30), ("cut", 60)):
        monkeypatch.setattr(transaction_buffer, "_BATCH_BYTES", bound)
        with LogWriter.open(log_root, name, clock=SteppingClock()) as writer:
            for each in transactions:
                writer.append(each)
            batches = [*writer._buffer.all_batches()]
            assert len(batches) == 1 or name == "cut"
            sizes = [batch.column("after").nbytes for batch in batches if batch.num_rows > 1]
            assert name == "whole" or max(sizes) < 200
    assert rows_of(log_root / "cut") == rows_of(log_root / "whole")


def test_a_mapping_that_is_refused_makes_no_catalog(log_root: Path) -> None:
    mapping = SchemaMapping.parse('entity_types.order.ttl = "until"')
    with pytest.raises(InvalidRequest, match="lets rows expire"):
        LogWriter.open(log_root, "shop", mapping=mapping)
    assert not list_catalogs(log_root)


def test_a_transaction_too_large_for_an_entry_is_appended_by_columns_from_the_first_one(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loops_made()
    by_columns = []
    append = columnar.ColumnarRecords.append

    def noted(records: columnar.ColumnarRecords, rows: InputRows, *rest: Any) -> Any:
        by_columns.append(len(rows))
        return append(records, rows, *rest)

    monkeypatch.setattr(columnar.ColumnarRecords, "append", noted)
    with LogWriter.open(log_root, "shop") as writer:
        for count in (1, ROWS_MAX - 1, ROWS_MAX):
            writer.append([upsert(str(key)) for key in range(count)])
            writer.commit()
    log = CommitLog.open(log_root / "shop")
    assert by_columns == [ROWS_MAX]
    assert [each.path.startswith("log/") for each in log.state.batches.segments] == [
        True,
        True,
        False,
    ]
