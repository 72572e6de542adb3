"""What names a batch's bytes. How places are filled in: ../state/test_batch_table.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.compaction import compact
from tests.server.wal.logs import write, write_files

if TYPE_CHECKING:
    from collections.abc import Hashable
    from pathlib import Path

    import pytest


def keys(catalog: Path) -> list[Hashable]:
    view = CommitLog.open(catalog).view
    return [view.batch(place).key for place in range(len(view))]


def test_every_reader_has_the_same_key_for_a_batch_and_no_other_batch_has_it(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(log_root, "shop", 2)
    with monkeypatch.context() as patch:
        write_files(patch)
        write(log_root, "shop", 2)
    found = keys(log_root / "shop")
    assert found == keys(log_root / "shop")
    assert len({*found}) == 4


def test_compacted_records_get_new_keys(log_root: Path) -> None:
    """A cache that has the old batches by their keys must not take them for the new ones."""
    write(log_root, "shop", 3)
    before = keys(log_root / "shop")
    compact(log_root / "shop", 5)
    assert {*before}.isdisjoint(keys(log_root / "shop"))
