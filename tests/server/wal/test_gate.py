from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from tailrace.clock import SystemClock
from tailrace.errors import InvalidRequest, LogUnreadable
from tailrace_server.wal.files import documents
from tailrace_server.wal.files.documents import GATED
from tailrace_server.wal.gate import publish_behind, put_up_gate, take_away_gate
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.state.checkpoint import write_checkpoint
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.state.last_objects import read_header
from tailrace_server.wal.upkeep import inspect
from tailrace_server.wal.upkeep.verify import verify
from tests.server.wal.logs import rows_of, transactions_in, upsert

if TYPE_CHECKING:
    from pathlib import Path

CLOCK = SystemClock()


def put_up(path: Path) -> CommitLog:
    log = CommitLog.open(path)
    put_up_gate(log, "delta", "/lake", [], CLOCK)
    return log


def put(writer: LogWriter, *keys: str) -> None:
    """Write a transaction of each key, as a writer that would publish with the commit."""
    for key in keys:
        writer.append([upsert(key)])
        writer.commit(publish=True)


def published(path: Path) -> int:
    return CommitLog.open(path).view.published


def test_where_a_gate_stands_it_alone_publishes(log_root: Path) -> None:
    """The writer meets it with its next commit, which has lost the number to it, and goes on behind it."""
    path = log_root / "shop"
    with LogWriter.open(log_root, "shop") as writer:
        put(writer, "1")
        log = put_up(path)
        put(writer, "2", "3")
        assert writer.publish() is None
        assert published(path) == 1
        view, entry = log.durable_view()
        assert (view.published, log.view.published) == (3, 1)
        assert transactions_in(rows_of(path, view)) == ["1", "2", "3"]
        put(writer, "4")
        made = publish_behind(log, (entry, view.published), {"order": 7}, CLOCK)
        assert made is not None
        assert (made.version, made.state_versions) == (3, {"order": 7})
        assert publish_behind(log, (entry, view.published), {}, CLOCK) is None
        assert published(path) == 3
    assert published(path) == 3  # the end of the writer publishes nothing either
    LogWriter.open(log_root, "shop").close()
    assert published(path) == 3
    assert verify(path).faults == []


def test_a_gate_is_kept_by_checkpoints(log_root: Path) -> None:
    path = log_root / "shop"
    with LogWriter.open(log_root, "shop") as writer:
        put(writer, "1")
        put_up(path)
        log = CommitLog.open(path)
        log.read_newest_checkpoint()
        assert write_checkpoint(log, log.state, CLOCK.now())
        header = read_header(CommitLog.open(path).store, 1)
        assert header is not None
        assert header.format_version == GATED
        assert CommitLog.open(path).gate == "delta at /lake"
        put(writer, "2")
        assert published(path) == 1


def test_taking_the_gate_away_publishes_what_waited(log_root: Path) -> None:
    path = log_root / "shop"
    with LogWriter.open(log_root, "shop") as writer:
        put(writer, "1")
        put_up(path)
        put(writer, "2")
        gate = take_away_gate(CommitLog.open(path), CLOCK)
        assert gate is not None
        assert (gate.place, gate.since) == ("/lake", 1)
        assert published(path) == 2
        put(writer, "3")
        assert published(path) == 3
        assert take_away_gate(CommitLog.open(path), CLOCK) is None
    kinds = [entry.kind for entry in inspect.entries(path)]
    assert kinds == ["open", "commit", "gate", "commit", "gate", "commit"]


def test_a_log_has_one_gate(log_root: Path) -> None:
    path = log_root / "shop"
    with LogWriter.open(log_root, "shop") as writer:
        put(writer, "1")
        log = put_up(path)
        entries = log.state.last_entry
        put_up_gate(log, "delta", "/lake", [], CLOCK)  # it is the same one
        assert log.state.last_entry == entries
        for place, types in (("/other", []), ("/lake", ["order"])):
            with pytest.raises(InvalidRequest, match=r"already has a gate, delta at /lake for all"):
                put_up_gate(log, "delta", place, types, CLOCK)


def test_two_that_put_up_a_gate_at_once_find_one(log_root: Path) -> None:
    """The second has read the log before the first has added to it."""
    path = log_root / "shop"
    LogWriter.open(log_root, "shop").close()
    first, second = CommitLog.open(path), CommitLog.open(path)
    put_up_gate(first, "delta", "/lake", [], CLOCK)
    put_up_gate(second, "delta", "/lake", [], CLOCK)
    assert first.state.last_entry == second.state.last_entry == 2


def test_a_tailrace_that_knows_no_gates_reads_no_further(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would publish past the gate."""
    path = log_root / "shop"
    with LogWriter.open(log_root, "shop") as writer:
        put(writer, "1")
        put_up(path)
    old = documents.OpenEntry | documents.CommitEntry
    decoders = {**documents._DECODERS, documents.Entry: msgspec.json.Decoder(old)}
    monkeypatch.setattr(documents, "_DECODERS", decoders)
    monkeypatch.setattr(documents, "GATED", 1)
    with pytest.raises(LogUnreadable, match="format version 2"):
        CommitLog.open(path)
