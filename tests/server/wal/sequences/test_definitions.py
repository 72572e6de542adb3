"""Definitions of a catalog: numbered objects that any process creates, and nobody overwrites unseen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.errors import InvalidRequest
from tailrace_server.wal.files.sequence_documents import ViewDocument
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.sequences import definitions
from tailrace_server.wal.sequences.definitions import (
    Definitions,
    change_definitions,
    newest_definitions,
)
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.copying import copy_log
from tailrace_server.wal.upkeep.inspect import summarize
from tailrace_server.wal.upkeep.verify import verify
from tests.server.wal.logs import upsert

if TYPE_CHECKING:
    from pathlib import Path


def view(name: str) -> ViewDocument:
    return ViewDocument(name, "product", 1, [], "", 5)


def add(log: CommitLog, name: str) -> Definitions:
    return change_definitions(log.store, log.uuid, lambda known: known.with_view(view(name)), 5)[1]


def test_who_loses_a_number_decides_again_by_what_the_other_defined(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert("1")])
        writer.commit()
        log = CommitLog.open(log_root / "shop")
        asked = []

        def decide(known: Definitions) -> Definitions:
            asked.append([*known.views])
            if len(asked) == 1:
                add(log, "theirs")
            return known.with_view(view("mine"))

        _, after = change_definitions(log.store, log.uuid, decide, 5)
        assert asked == [[], ["theirs"]]
        assert (after.number, [*after.views]) == (2, ["theirs", "mine"])
        # The writer was never asked, and is not fenced.
        writer.append([upsert("2")])
        writer.commit()
    assert newest_definitions(log.store, log.uuid) == after
    assert add(log, "mine").number == 2  # it is so already


def test_copies_have_them_and_damage_is_found(log_root: Path, tmp_path: Path) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert("1")])
        writer.commit()
    log = CommitLog.open(log_root / "shop")
    add(log, "first")
    add(log, "second")
    copied = copy_log(log.path, tmp_path / "copy").path
    assert {*newest_definitions(CommitLog.open(copied).store, log.uuid).views} == {
        "first",
        "second",
    }
    assert summarize(copied).views == ("first", "second")
    (copied / "definitions" / f"{1:020d}.json").unlink()
    faults = [(each.path, each.reason) for each in verify(copied).faults]
    assert [path for path, _ in faults] == [f"definitions/{1:020d}.json"]
    assert "define it again" in faults[0][1]


def test_there_are_so_many_and_no_more(log_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definitions, "_COUNT_MAX", 1)
    LogWriter.open(log_root, "shop").close()
    log = CommitLog.open(log_root / "shop")
    add(log, "first")
    with pytest.raises(InvalidRequest, match="at most 1 views and change tables"):
        add(log, "second")
