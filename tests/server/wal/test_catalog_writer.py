"""Names, schemas and receipts of commits.

Fences and repeats: test_fences.py. Publication: state/test_commit_log.py. Full disks: test_disk_full.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.errors import CatalogUnknown, InvalidRequest
from tailrace.schema import Column, Schema
from tailrace_server.wal.catalog import open_writer
from tailrace_server.wal.catalog_writer import CatalogWriter, check_writer_name
from tailrace_server.wal.state.commit_log import CommitLog
from tests.server.wal.logs import write

if TYPE_CHECKING:
    from pathlib import Path


def schema(*columns: str) -> Schema:
    return Schema(
        entity_types={"order": tuple(Column(name, id=id) for id, name in enumerate(columns, 1))}
    )


@pytest.mark.parametrize("name", ["w", "_", "7", "a.b-c_d", "x" * 128])
def test_names_of_writers(name: str) -> None:
    check_writer_name(name)


@pytest.mark.parametrize("name", ["", ".w", "-w", "a b", "a/b", "w\n", "größe", "٣", "x" * 129])
def test_names_that_no_writer_can_have_leave_no_catalog_behind(log_root: Path, name: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a valid name of a writer"):
        open_writer(log_root, "shop", writer=name)
    assert [*log_root.iterdir()] == []


def test_a_catalog_that_does_not_exist_is_not_made_and_the_others_are_named(log_root: Path) -> None:
    write(log_root, "shop", 1)
    with pytest.raises(CatalogUnknown, match="'ship'; known catalogs: shop"):
        CatalogWriter.open(log_root, "ship", writer="w")
    assert not (log_root / "ship").exists()


def test_an_id_that_a_lost_commit_took_is_used_for_the_same_schema_alone(log_root: Path) -> None:
    with open_writer(log_root, "shop", writer="w") as writer:
        lost = writer._create_schemas(writer.state, [(0, schema("id"))])
        assert lost == writer._create_schemas(writer.state, [(0, schema("id"))]) == [(1, 1)]
        writer.commit(
            batch_id=0, schema_changes=[(-1, schema("id", "total")), (-1, schema("id", "price"))]
        )
        assert [id for _, id in writer.state.schemas] == [2, 3]
    log = CommitLog.open(log_root / "shop")
    assert [column.name for column in log.view.schema_of(1).entity_types["order"]] == [
        "id",
        "price",
    ]


def test_a_commit_without_versions_moves_positions_and_releases_nothing(log_root: Path) -> None:
    with open_writer(log_root, "shop", writer="w") as writer:
        writer.commit(batch_id=0, source_positions={"a": 1, "b": "x"})
        receipt = writer.commit(batch_id=1, source_positions={"a": 2})
        assert (receipt.first_version, receipt.last_version) == (None, None)
        assert writer.publish() is None
    state = CommitLog.open(log_root / "shop").state
    assert state.source_positions == {"a": 2, "b": "x"}
    assert (state.last_version, state.last_commit_entry, state.last_entry) == (0, 0, 3)
