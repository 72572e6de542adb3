"""Which entity types get updates without the row before, noted with the commits that show it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace_server.wal.catalog import open_catalog, open_writer
from tailrace_server.wal.state.checkpoint import write_checkpoint
from tailrace_server.wal.state.commit_notes import notes_after, unknown_changes_after

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("known", "updates", "notes", "after"),
    [
        ((), {}, {}, ()),
        ((), {"a": False}, {}, ()),
        (("b",), {"a": True}, {"before:a": "missing"}, ("a", "b")),
        (("a",), {"a": True}, {}, ("a",)),
        (("a", "b"), {"a": False}, {"before:a": "sent"}, ("b",)),
    ],
)
def test_only_what_has_changed_is_noted(
    known: tuple[str, ...], updates: dict[str, bool], notes: dict[str, str], after: tuple[str, ...]
) -> None:
    assert notes_after(updates, known) == notes
    assert unknown_changes_after(known, {"file:1": 7, **notes}) == after


@pytest.mark.parametrize("checkpoint", [False, True])
def test_who_opens_a_log_knows_the_newest_notes(log_root: Path, checkpoint: bool) -> None:
    with open_writer(log_root, "shop", writer="w") as writer:
        writer.commit(batch_id=0, source_positions={"before:a": "missing", "before:b": "missing"})
        writer.commit(batch_id=1, source_positions={"before:a": "sent"})
        if checkpoint:
            write_checkpoint(writer.log, writer.state, writer.state.last_timestamp)
    assert open_catalog(log_root, "shop").view.unknown_changes == ("b",)
