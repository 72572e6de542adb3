"""Opening a writer by name. What it appends: state/test_commit_log.py; mappings: test_transaction_writer.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.errors import UnknownWriter
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.state.commit_log import CommitLog
from tests.server.wal.logs import SteppingClock, rows_of, transactions_in, upsert

if TYPE_CHECKING:
    from pathlib import Path


class OwnWriter(LogWriter):
    """As a program may make one."""


def test_a_root_may_be_text_and_a_subclass_opens_its_own_kind(log_root: Path) -> None:
    with OwnWriter.open(str(log_root), "shop", clock=SteppingClock(7_000)) as writer:
        assert type(writer) is OwnWriter
        writer.append([upsert("1")])
    state = CommitLog.open(log_root / "shop").state
    assert [*state.writers] == ["log-writer"]
    assert state.commits.columns[1, :1].tolist() == [7_001], "the opening has the time of the clock"


def test_another_name_has_to_say_that_it_takes_over(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert("1")])
    with pytest.raises(UnknownWriter, match="log-writer"):
        LogWriter.open(log_root, "shop", writer="other")
    with LogWriter.open(log_root, "shop", writer="other", take_over=True) as writer:
        writer.append([upsert("2")])
    assert transactions_in(rows_of(log_root / "shop")) == ["1", "2"]
