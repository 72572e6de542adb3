"""What all drivers do alike. Kills at its named places: tests/process/ingest/test_kills.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace_server.pipeline.catalog.driver import CatalogDriver
from tailrace_server.wal.catalog import create_catalog
from tailrace_server.wal.catalog_writer import CatalogWriter

if TYPE_CHECKING:
    from pathlib import Path


def test_a_driver_knows_batch_and_schema_of_the_log_and_notes_what_it_publishes(
    log_root: Path,
) -> None:
    create_catalog(log_root, "shop")
    with CatalogWriter.open(log_root, "shop", writer="w") as writer:
        driver = CatalogDriver(writer)
        assert (driver.last_batch, driver.schema.entity_types) == (-1, {})
        receipt = driver.commit_entry(
            batch_id=4, segments=[], schemas=[], source_positions={"f": 1}
        )
        assert not receipt.already_committed
        assert driver.commit_entry(batch_id=4, segments=[], schemas=[]).already_committed
        driver.publish_now()
        assert (driver.counters.committed, driver.counters.published) == (0, 0)
    with CatalogWriter.open(log_root, "shop", writer="w") as writer:
        assert CatalogDriver(writer).last_batch == 4
        assert writer.state.source_positions == {"f": 1}


def test_a_flush_has_a_quarantine_file_of_its_own(log_root: Path) -> None:
    create_catalog(log_root, "shop")
    with CatalogWriter.open(log_root, "shop", writer="w") as writer:
        driver = CatalogDriver(writer)
        folder = writer.path / "quarantine"
        assert [driver.quarantine_path(7, k) for k in (0, 2)] == [
            folder / f"w-{7:020}.jsonl",
            folder / f"w-{7:020}-2.jsonl",
        ]


def test_files_that_only_a_killed_or_late_process_leaves_are_removed(log_root: Path) -> None:
    create_catalog(log_root, "shop")
    with CatalogWriter.open(log_root, "shop", writer="w") as writer:
        (writer.path / "quarantine").mkdir(exist_ok=True)
        strays = [writer.path / name for name in ("quarantine/w-0-task-d0-1.part", ".probe-1")]
        kept = writer.path / "quarantine" / "w-0-task0.jsonl"
        for file in (*strays, kept):
            file.touch()
        CatalogDriver(writer).delete_strays()
        assert [file.exists() for file in (*strays, kept)] == [False, False, True]
