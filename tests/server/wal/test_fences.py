"""Two fences: whatever writers are alive, one holds the catalog, and a lost checkpoint doubles nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tailrace.clock import SystemClock
from tailrace.errors import InvalidRequest, LogError, UnknownWriter, WriterFenced
from tailrace_server.wal.catalog import open_writer
from tailrace_server.wal.catalog_writer import CatalogWriter
from tailrace_server.wal.entry_writer import create_publication
from tailrace_server.wal.files.documents import GateEntry, PendingSegment, sealed
from tailrace_server.wal.files.sealed import crc32c
from tailrace_server.wal.gate import put_up_gate, take_away_gate
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.columns import lead_text
from tailrace_server.wal.segment.writer import SegmentReceipt, SegmentWriter
from tailrace_server.wal.state.checkpoint import write_checkpoint
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.retention import delete_unnamed
from tailrace_server.wal.upkeep.verify import verify
from tests.server.wal.logs import finish, python, rows_of, transactions_in, upsert, write

if TYPE_CHECKING:
    import subprocess

PAUSED_WRITER = """
import sys
from pathlib import Path
from tailrace.errors import WriterFenced
from tests.support import failpoints
from tailrace_server.wal.log_writer import LogWriter
from tests.server.wal.logs import upsert
writer = LogWriter.open(Path(sys.argv[1]), "shop")
failpoints.arm(sys.argv[2])
try:
    writer.append([upsert("paused")])
    if sys.argv[3] == "one":
        writer.commit(publish=True)
        writer.append([upsert("fenced")])
        writer.commit(publish=True)
    writer.commit()
    writer.publish()
except WriterFenced as error:
    print(error)
else:
    print("done")
writer.close()
"""


def segment(writer: CatalogWriter, batch_id: int, name: str = "a") -> SegmentReceipt:
    """Write a segment of one transaction with its lead alone."""
    row = {
        "version": 0,
        "index": 0,
        "area": 3,
        "operation": 3,
        "entity_type": None,
        "primary_key": None,
        "after": lead_text(transaction_id=f"{batch_id}{name}", counts={}),
    }
    schema = pa.schema(
        {
            "version": pa.int64(),
            "index": pa.int32(),
            "area": pa.uint8(),
            "operation": pa.uint8(),
            "entity_type": pa.utf8(),
            "primary_key": pa.utf8(),
            "after": pa.binary(),
        }
    )
    with SegmentWriter(writer.segment_path(batch_id, name)) as file:
        file.write(pa.Table.from_pylist([row], schema=schema))
        return file.close()


def until_paused(process: subprocess.Popen[str], path: Path) -> None:
    """Wait until a process has reached its pause."""
    while not Path(f"{path}.paused").exists():
        assert process.poll() is None, finish(process)


def test_contract_36_of_two_live_writers_the_newer_holds_and_the_older_is_told_who(
    log_root: Path,
) -> None:
    older = LogWriter.open(log_root, "shop")
    older.append([upsert("1")])
    older.commit()
    newer = LogWriter.open(log_root, "shop")
    older.append([upsert("lost")])
    with pytest.raises(WriterFenced) as fenced:
        older.commit()
    assert (fenced.value.epoch, fenced.value.holder_epoch) == (1, 2)
    assert "log-writer on" in fenced.value.holder
    with pytest.raises(WriterFenced):
        older.publish()
    newer.append([upsert("2")])
    newer.commit()
    newer.publish()
    assert transactions_in(rows_of(log_root / "shop")) == ["1", "2"]
    assert verify(log_root / "shop").sound
    older.close()
    newer.close()


def test_contract_36_a_writer_whose_segments_a_newer_one_had_deleted_is_told_that_it_is_fenced(
    log_root: Path,
) -> None:
    older = open_writer(log_root, "shop", writer="w")
    uncommitted = segment(older, 0)
    newer = open_writer(log_root, "shop", writer="w")
    assert delete_unnamed(log_root / "shop", 0) == [uncommitted.path]
    with pytest.raises(WriterFenced, match=r"epoch is 1, .* 2"):
        older.commit(batch_id=0, segments=[uncommitted])
    lost = segment(newer, 0)
    (log_root / "shop" / lost.path).unlink()
    with pytest.raises(LogError, match=f"segment {lost.path} is missing, so nothing was committed"):
        newer.commit(batch_id=0, segments=[lost])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("failpoint", "steps", "survives"),
    [
        ("commit.checked", "two", False),
        ("entry.before_link", "two", False),
        ("entry.before_link", "one", False),
        ("entry.linked", "two", True),
        ("entry.linked", "one", True),
        ("entry.after_link", "two", True),
        ("entry.after_link", "one", True),
        ("publication.before_link", "two", True),
    ],
)
def test_contract_36_a_paused_writer_that_wakes_is_fenced(
    log_root: Path, tmp_path: Path, failpoint: str, steps: str, survives: bool
) -> None:
    """It sleeps inside its commit; whether the commit counts is decided by whether its entry stood before."""
    go_on = tmp_path / "go-on"
    process = python(PAUSED_WRITER, log_root, f"{failpoint}=pause:{go_on}", steps)
    until_paused(process, go_on)
    with LogWriter.open(log_root, "shop") as newer:
        newer.append([upsert("newer")])
    go_on.touch()
    status, out, err = finish(process)
    assert status == 0, err
    assert "epoch is 1, but epoch 2 is held by log-writer" in out
    kept = ["paused", "newer"] if survives else ["newer"]
    assert transactions_in(rows_of(log_root / "shop")) == kept
    assert verify(log_root / "shop").sound


def moved_on(log_root: Path) -> None:
    """Write on under the same name, sum up, and delete the objects of the log that a checkpoint covers."""
    with LogWriter.open(log_root, "shop") as newer:
        for number in range(12):
            newer.append([upsert(f"newer {number}")])
            newer.commit(publish=number % 3 == 0)
            newer.publish()
            if number % 4 == 3:
                newer.compact()
    delete_unnamed(log_root / "shop", 1 << 60)


@pytest.mark.slow
@pytest.mark.parametrize("failpoint", ["commit.checked", "entry.before_link", "entry.linked"])
def test_contract_36_a_paused_writer_never_uses_a_number_again_that_was_deleted(
    log_root: Path, tmp_path: Path, failpoint: str
) -> None:
    go_on = tmp_path / "go-on"
    process = python(PAUSED_WRITER, log_root, f"{failpoint}=pause:{go_on}", "two")
    until_paused(process, go_on)
    moved_on(log_root)
    catalog = log_root / "shop"
    left = {path.relative_to(catalog) for path in catalog.rglob("0*.json")}
    assert not {Path(f"log/{number:020}.json") for number in (1, 2, 3)} & left
    go_on.touch()
    status, out, err = finish(process)
    assert status == 0, err
    assert "epoch is 1, but epoch 2 is held by log-writer" in out
    kept = ["paused"] if failpoint == "entry.linked" else []
    assert transactions_in(rows_of(catalog)) == kept + [f"newer {number}" for number in range(12)]
    assert {path.relative_to(catalog) for path in catalog.rglob("0*.json")} == left
    assert verify(catalog).sound


def test_every_kind_of_object_is_withdrawn_where_its_number_was_deleted(log_root: Path) -> None:
    """Processes without an epoch of their own keep a gate, or do upkeep; readers are beside them."""
    catalog, clock = log_root / "shop", SystemClock()
    with LogWriter.open(log_root, "shop") as writer:
        for number in range(3):
            writer.append([upsert(str(number))])
            writer.commit()
            if number < 2:
                writer.publish()
            writer.compact()
    stale, gating, following, rival = (CommitLog.open(catalog) for _ in range(4))
    stale.read_newest_checkpoint()
    moved_on(log_root)
    left = {path.relative_to(catalog) for path in catalog.rglob("0*.json")}
    assert create_publication(stale, now=1) is None
    assert not write_checkpoint(stale, stale.state, 1)
    assert stale.follow_entries() is None
    assert {path.relative_to(catalog) for path in catalog.rglob("0*.json")} == left
    # A writer that was killed before it could withdraw its entry deceives no reader.
    number = rival.state.last_entry + 1
    entry = GateEntry(2, number, rival.uuid, rival.state.last_entry_crc, 1, 1 << 60, None)
    stray = f"log/{number:020}.json"
    assert rival.store.create(stray, sealed(entry)[0])
    assert following.follow_entries() is None
    assert following.refresh() is not None
    assert rows_of(catalog, following.view) == rows_of(catalog)
    assert delete_unnamed(catalog, 1 << 60) == [stray]
    # A gate has no epoch: it is put up behind the newest entry instead.
    put_up_gate(gating, "delta", "/tables", [], clock)
    assert take_away_gate(CommitLog.open(catalog), clock) is not None
    assert verify(catalog).sound


def test_contract_36_a_lost_checkpoint_is_refused_and_a_take_over_goes_on_behind_it(
    log_root: Path,
) -> None:
    with open_writer(log_root, "shop", writer="query-1") as writer:
        pending = writer.path / "segments" / "1" / "pending-0"
        pending.write_bytes(b"rows")
        left = PendingSegment("segments/1/pending-0", 1, 4, crc32c(b"rows"))
        writer.commit(
            batch_id=0,
            segments=[segment(writer, 0)],
            pending=[left],
            source_positions={"topic-0": 41, "file": "a:17"},
        )
        writer.commit(batch_id=1, segments=[segment(writer, 1)], source_positions={"topic-0": 57})
    with pytest.raises(UnknownWriter, match="--take-over") as unknown:
        open_writer(log_root, "shop", writer="query-2")
    assert unknown.value.known == ("query-1",)
    with open_writer(log_root, "shop", writer="query-2", take_over=True) as writer:
        assert writer.state.source_positions == {"topic-0": 57, "file": "a:17"}
        assert writer.state.pending == (left,)
        assert writer.commit(batch_id=0, segments=[segment(writer, 0)]).first_version == 3
    with open_writer(log_root, "shop", writer="query-1") as writer:
        assert writer.state.writers["query-1"].batch_id == 1
        assert writer.epoch == 3


def test_a_batch_is_committed_once_whoever_repeats_it(log_root: Path) -> None:
    with open_writer(log_root, "shop", writer="w") as writer:
        first = writer.commit(batch_id=3, segments=[segment(writer, 3)])
        flush = writer.commit(batch_id=3, k=1, segments=[segment(writer, 3, "flush")])
        again = writer.commit(batch_id=3, segments=[segment(writer, 3, "again")])
        assert again == first.__class__(first.entry, 1, 1, first.timestamp, already_committed=True)
        assert flush.first_version == 2
    with open_writer(log_root, "shop", writer="w") as writer:
        assert writer.commit(batch_id=3).already_committed
        assert writer.commit(batch_id=3, k=1).already_committed
        with pytest.raises(InvalidRequest, match="must rise"):
            writer.commit(batch_id=2)
        assert writer.commit(batch_id=4).first_version is None
        assert writer.state.last_version == 2


def test_the_same_epoch_may_be_written_from_another_process(log_root: Path) -> None:
    driver = open_writer(log_root, "shop", writer="w")
    committer = CatalogWriter.attach(log_root, "shop", epoch=driver.epoch, writer="w")
    assert committer.commit(batch_id=0, segments=[segment(committer, 0)]).first_version == 1
    assert driver.commit(batch_id=0).already_committed
    publication = driver.publish()
    assert publication is not None
    assert publication.version == 1
    open_writer(log_root, "shop", writer="w").close()
    with pytest.raises(WriterFenced):
        CatalogWriter.attach(log_root, "shop", epoch=driver.epoch, writer="w")
    with pytest.raises(WriterFenced):
        committer.commit(batch_id=1)


def test_segments_of_a_commit_are_numbered_in_the_order_given(log_root: Path) -> None:
    with open_writer(log_root, "shop", writer="w") as writer:
        parts = [segment(writer, 0, name) for name in "cab"]
        receipt = writer.commit(batch_id=0, segments=parts)
        assert (receipt.first_version, receipt.last_version) == (1, 3)
        writer.publish()
    view = CommitLog.open(log_root / "shop").view
    assert [view.batch(place).segment.path for place in range(3)] == [part.path for part in parts]
    assert [view.batch(place).first.version for place in range(3)] == [1, 2, 3]
    assert verify(log_root / "shop").sound


def test_a_segment_that_vanished_or_has_another_size_is_not_committed(log_root: Path) -> None:
    with open_writer(log_root, "shop", writer="w") as writer:
        part = segment(writer, 0)
        path = writer.path / part.path
        whole = path.read_bytes()
        path.write_bytes(whole[:-1])
        with pytest.raises(LogError, match=f"has {len(whole) - 1} bytes instead of {len(whole)}"):
            writer.commit(batch_id=0, segments=[part])
        path.unlink()
        with pytest.raises(LogError, match="is missing"):
            writer.commit(batch_id=0, segments=[part])
        path.write_bytes(whole)
        assert writer.commit(batch_id=0, segments=[part]).first_version == 1


def test_the_chain_goes_on_over_writers(log_root: Path) -> None:
    for _ in range(3):
        write(log_root, "shop", 2)
    result = verify(log_root / "shop")
    assert result.sound
    assert (result.entries, result.transactions) == (9, 6)
