"""In which versions the images of removed rows are known to be whole, noted with the commits that show it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tailrace_server.wal.catalog import open_catalog, open_writer
from tailrace_server.wal.state.checkpoint import write_checkpoint
from tailrace_server.wal.state.whole_removals import WholeRemovals

if TYPE_CHECKING:
    from pathlib import Path


def test_a_note_has_the_versions_between_what_may_lack_values() -> None:
    known = WholeRemovals()
    told = []
    for first, lacking in ((1, True), (3, False), (5, False), (8, True), (9, True), (12, False)):
        notes = known.notes_after({"a": lacking}, first)
        known = known.after({"file:1": 7, **notes})
        told.append(notes.get("removed:a"))
    assert told == [None, "3-", None, "3-7", None, "3-7,12-"]
    assert known.of("a", np.array([2, 3, 7, 8, 11, 12, 99])).tolist() == [
        *(False, True, True, False, False, True, True)
    ]
    assert not known.of("b", np.array([3])).any()
    for first in range(
        20, 400, 2
    ):  # the oldest are forgotten, and then they are not known to be whole
        for lacking in (True, False):
            known = known.after(known.notes_after({"a": lacking}, first + (not lacking)))
    assert known.of("a", np.array([3, 399])).tolist() == [False, True]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_who_opens_a_log_knows_the_newest_note(log_root: Path, checkpoint: bool) -> None:
    with open_writer(log_root, "shop", writer="w") as writer:
        writer.commit(batch_id=0, source_positions={"removed:a": "1-", "removed:b": "2-"})
        writer.commit(batch_id=1, source_positions={"removed:a": "1-3"})
        if checkpoint:
            write_checkpoint(writer.log, writer.state, writer.state.last_timestamp)
    known = open_catalog(log_root, "shop").view.whole_removals
    assert [known.of(name, np.array([4])).item() for name in "ab"] == [False, True]
