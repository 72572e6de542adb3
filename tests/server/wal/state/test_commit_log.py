"""What a reader sees of what a writer did: versions, visibility, positions, times, schemas."""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.criteria import Area, Operation
from tailrace.errors import CatalogUnknown, InvalidRequest, LogCorrupted, LogError, LogUnreadable
from tailrace.position import END, Position
from tailrace_server.wal.catalog import create_catalog, drop_catalog, open_writer, read_catalog
from tailrace_server.wal.catalog_writer import CatalogWriter
from tailrace_server.wal.files.sealed import seal, without_records
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.state import checkpoint
from tailrace_server.wal.state.batch_table import (
    BATCH_FIELDS,
    FIRST_ROW,
    LAST_INDEX,
    LAST_VERSION,
    ROWS,
    find_position,
    find_row,
)
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.compaction import compact
from tailrace_server.wal.upkeep.copying import copy_log
from tailrace_server.wal.upkeep.verify import verify
from tests.server.wal.logs import (
    AFTER,
    INDEX,
    VERSION,
    SteppingClock,
    armed,
    finish,
    python,
    rows_of,
    transactions_in,
    update,
    upsert,
    write,
    write_files,
)


def test_transactions_become_dense_versions_with_a_lead_each(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert("1"), upsert("2")], transaction_id="t1", source_timestamp=7)
        writer.append([], transaction_id="t2")
        writer.append([update("1", 1, 2)], transaction_id="t3", late=True, of=1)
        receipt = writer.commit()
        assert receipt is not None
        assert (receipt.first_version, receipt.last_version) == (1, 3)
    rows = rows_of(log_root / "shop")
    assert [row[:3] for row in rows] == [
        (0, 1, 0),
        (1, 1, 1),
        (2, 1, 2),
        (3, 1, 3),
        (4, 2, 0),
        (5, 3, 0),
        (6, 3, 1),
    ]
    assert rows[0][AFTER] == (
        b'{"transaction_id":"t1","mutation_count":3,"counts":{"order":3},"source_count":2,'
        b'"source_timestamp":7,"schema_changes":1}'
    )
    assert rows[5][AFTER].endswith(b'"late":true,"of":1}')


def test_an_update_says_what_changed_and_images_are_kept_byte_for_byte(log_root: Path) -> None:
    before = b'{"id":12345678901234567890, "price":0.10,"name":"\\u00e9", "old":1}'
    after = b'{"price":1e2,"id":12345678901234567890,"name":"\\u00e9","new":[1, 2]}'
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([Mutation("order", "1", before=before, after=after)])
    *_, changed, change, read_before, read_after, _ = rows_of(log_root / "shop")[2]
    assert (read_before, read_after) == (before, after)
    assert changed == ["price", "new", "old"]
    assert change == b'{"price":1e2,"new":[1, 2],"old":null}'
    schema = CommitLog.open(log_root / "shop").view.schema_of(1)
    assert schema.ordinals("order") == {"price": 1, "id": 2, "name": 3, "new": 4, "old": 5}


def test_an_image_that_is_no_object_is_refused_and_nothing_is_buffered(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        with pytest.raises(InvalidRequest, match="JSON object"):
            writer.append([upsert("1"), Mutation("order", "2", after=b"[1]")])
        assert writer.commit() is None


@pytest.mark.parametrize(
    ("mutation", "message"),
    [
        (Mutation("order", "\ud800", after=b"{}"), "primary_key .* UTF-8"),
        (Mutation("order\ud800", "1", after=b"{}"), "entity_type .* UTF-8"),
        (Mutation("order", "1", after=b"{}", changed=("\ud800",)), "changed .* UTF-8"),
        (
            Mutation("order", "1", after=b"{}", changed="id"),  # type: ignore[arg-type]
            "changed must be a tuple of names, .* 'id'",
        ),
        (
            Mutation("order", "1", after=b"{}", changed=("id", "id")),
            "changed must name each column once",
        ),
        (Mutation("order", 5, after=b"{}"), "primary_key must be a text, not 5"),  # type: ignore[arg-type]
        (Mutation("order", "1", "REMOVE", b"{}"), "must be Operation.UPSERT, .* not 'REMOVE'"),  # type: ignore[arg-type]
        (Mutation("order", "1", Operation.TRANSACTION), "not <Operation.TRANSACTION"),
        (Mutation("order", "1", area=Area.INFRASTRUCTURE), "area must be Area.DATA"),
        (Mutation("", "1", after=b"{}"), "entity_type is empty"),
        (
            Mutation("order", None, after=b"{}"),
            r"column primary_key of row 1 \(order\) is null, .* UPSERT",
        ),
        (
            Mutation("order", None, Operation.EXPIRE),
            r"column primary_key of row 1 .* is null, .* EXPIRE",
        ),
        (
            Mutation("order", "1", Operation.REMOVE, after=b"{}"),
            r"column after of row 1 \(order '1'\) is given, .* REMOVE",
        ),
        (Mutation("order", "1", after='{"id":1}'), "an image must be bytes, .* not str"),  # type: ignore[arg-type]
        (Mutation("order", "1", after=b'{"id":"\xff"}'), "UTF-8 JSON object"),
        (Mutation("order", "1", after=b"{}", change=b"[]"), "UTF-8 JSON object"),
        (
            Mutation("order", "1", after=b'{"id":' + b"[" * 5_000 + b"]" * 5_000 + b"}"),
            "JSON object",
        ),
    ],
)
def test_what_cannot_be_written_is_refused_when_it_is_appended(
    log_root: Path, mutation: Mutation, message: str
) -> None:
    """It takes no transaction with it that came before or comes after."""
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert("1")], transaction_id="1")
        with pytest.raises(InvalidRequest, match=message):
            writer.append([upsert("2"), mutation])
        writer.append([upsert("3")], transaction_id="3")
    assert transactions_in(rows_of(log_root / "shop")) == ["1", "3"]


def test_a_closed_writer_writes_nothing_and_says_so(log_root: Path) -> None:
    writer = LogWriter.open(str(log_root), "shop")
    writer.append([upsert("1")])
    writer.close()
    writer.close()
    for attempt in (lambda: writer.append([upsert("2")]), writer.commit):
        with pytest.raises(InvalidRequest, match="this writer is closed; open another"):
            attempt()
    assert CommitLog.open(log_root / "shop").view.committed == 0


def test_the_log_of_catalogs_is_no_catalog_to_write_to(log_root: Path) -> None:
    for take_over in (False, True):
        with pytest.raises(LogUnreadable, match="'system' is reserved for the log of catalogs"):
            LogWriter.open(log_root, "system", take_over=take_over)
    LogWriter.open(log_root, "shop").close()


@pytest.mark.parametrize(
    "lead",
    [
        {"transaction_id": "\ud800"},
        {"transaction_id": 5},
        {"source_timestamp": 1 << 70},
        {"source_timestamp": "x"},
        {"source_timestamp": 1.5},
        {"source_timestamp": True},
        {"mutation_count": 9},
        {"counts": {}},
    ],
)
def test_a_lead_that_cannot_be_written_is_refused_and_nothing_is_buffered(
    log_root: Path, lead: dict[str, Any]
) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        with pytest.raises(InvalidRequest, match=r"lead|transaction_id|source_timestamp"):
            writer.append([upsert("2")], **lead)
        writer.append([upsert("3")])
    assert transactions_in(rows_of(log_root / "shop")) == ["3"]


def test_contract_06_nothing_is_seen_before_its_publication_and_then_all_at_once(
    log_root: Path,
) -> None:
    writer = LogWriter.open(log_root, "shop")
    log = CommitLog.open(log_root / "shop")
    for number in range(3):
        writer.append([upsert(str(number))])
        writer.commit()
        assert log.refresh() is None
        assert log.committed == number + 1
        assert rows_of(log_root / "shop", log.view) == []
    fresh = CommitLog.open(log_root / "shop").view
    assert (fresh.committed, fresh.published, len(fresh), fresh.end_row) == (3, 0, 0, 0)
    assert fresh.find(Position(1)) == 0
    assert fresh.version_at(0) == 1
    publication = writer.publish()
    assert publication is not None
    assert publication.version == 3
    assert writer.publish() is None
    view = log.refresh()
    assert view is not None
    assert view.published == 3
    assert transactions_in(rows_of(log_root / "shop", view)) == ["0", "1", "2"]
    assert rows_of(log_root / "shop", fresh) == []
    writer.close()


def test_contract_06_a_commit_that_publishes_itself_releases_all_before_it_at_once(
    log_root: Path,
) -> None:
    writer = LogWriter.open(log_root, "shop")
    log = CommitLog.open(log_root / "shop")
    for number in range(2):
        writer.append([upsert(str(number))])
        writer.commit()
    assert log.refresh() is None
    writer.append([upsert("2")])
    writer.append([upsert("3")])
    receipt = writer.commit(publish=True)
    assert receipt is not None
    assert receipt.last_version == 4
    view = log.refresh()
    assert view is not None
    assert view.published == writer.state.published == 4
    assert transactions_in(rows_of(log_root / "shop", view)) == ["0", "1", "2", "3"]
    assert list((log_root / "shop" / "published").iterdir()) == []
    assert writer.publish() is None
    assert writer.commit(publish=True) is None
    writer.close()


def test_the_two_forms_of_publishing_take_turns(log_root: Path) -> None:
    writer = LogWriter.open(log_root, "shop")
    log = CommitLog.open(log_root / "shop")
    published = 0
    for number in range(1, 25):
        writer.append([upsert(str(number))])
        match number % 4:
            case 0:
                writer.commit()
            case 1:
                writer.commit(publish=True)
                published = number
            case 2:
                writer.commit()
                assert writer.publish() is not None
                published = number
            case 3:
                writer.commit()
                receipt = writer.commit(publish=True)  # nothing to commit, something to publish
                assert receipt is None
                published = number
        log.refresh()
        assert log.view.published == CommitLog.open(log_root / "shop").view.published == published
        if number % 6 == 0:
            log.read_newest_checkpoint()
            assert checkpoint.write_checkpoint(log, log.state, number)
    assert writer.state.last_publication == 12
    writer.close()
    assert verify(log_root / "shop").sound


def test_a_repeat_that_publishes_releases_what_the_first_attempt_did_not(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert("1")])
        writer.commit()
        with CatalogWriter.attach(
            log_root, "shop", epoch=writer.epoch, writer="log-writer"
        ) as again:
            assert CommitLog.open(log_root / "shop").view.published == 0
            assert again.commit(batch_id=0, publish=True).already_committed
            assert CommitLog.open(log_root / "shop").view.published == 1
            assert again.commit(batch_id=0, publish=True).already_committed
            assert again.state.last_publication == 1


def test_a_commit_without_versions_may_publish_what_came_before(log_root: Path) -> None:
    with open_writer(log_root, "shop", writer="w") as writer:
        log = LogWriter(CatalogWriter.attach(log_root, "shop", epoch=1, writer="w"))
        log.append([upsert("1")])
        log.commit()
        log.close()
        assert writer.refresh().published == 0
        assert writer.commit(batch_id=1, publish=True).last_version is None
    assert CommitLog.open(log_root / "shop").view.published == 1


def test_what_an_entry_publishes_is_shown_once_its_name_is_durable(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer may be killed between the two: nobody may be told of what a power cut would take back."""
    writer = LogWriter.open(log_root, "shop")
    log = CommitLog.open(log_root / "shop")
    synced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    names = str((log_root / "shop" / "log").resolve())
    writer.append([upsert("1")])
    with armed("entry.linked=error"), pytest.raises(LogError):
        writer.commit(publish=True)
    monkeypatch.setattr(os, "fsync", noted)
    view = log.refresh()
    assert view is not None
    assert (view.published, synced) == (1, [names])
    assert log.refresh() is None
    assert CommitLog.open(log_root / "shop").view.published == 1
    assert synced == [names, names]
    synced.clear()
    writer.commit()  # repeats the one that failed
    assert synced[-1] == names
    writer.append([upsert("2")])
    writer.commit()
    writer.publish()
    synced.clear()
    assert log.refresh() is not None
    assert synced == []  # a publication is written after what it names is durable
    writer.append([upsert("3")])
    writer.commit(publish=True)
    synced.clear()
    assert log.refresh() is not None
    assert synced == []  # its writer says that the entry's name is durable
    writer.close()


def test_a_reader_goes_without_where_folders_cannot_be_synced(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert("1")])
    for entry in (log_root / "shop" / "log").iterdir():
        os.utime(entry)  # as if its writer had been killed before it found its name durable
    for number, shown in ((errno.EROFS, True), (errno.EINVAL, True), (errno.EIO, False)):

        def failing(descriptor: int, number: int = number) -> None:
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", failing)
            if shown:
                assert CommitLog.open(log_root / "shop").view.published == 1
            else:
                with pytest.raises(LogError, match="durable"):
                    CommitLog.open(log_root / "shop")


def test_a_dead_writers_commit_is_published_at_the_next_open(log_root: Path) -> None:
    dead = LogWriter.open(log_root, "shop")
    dead.append([upsert("1")])
    dead.commit()
    dead.close()
    LogWriter.open(log_root, "shop").close()
    assert transactions_in(rows_of(log_root / "shop")) == ["1"]


def test_a_pipeline_may_publish_what_was_left_itself(log_root: Path) -> None:
    dead = LogWriter.open(log_root, "shop")
    dead.append([upsert("1")])
    dead.commit()
    dead.close()
    with open_writer(log_root, "shop", writer="log-writer", publish_left=False) as writer:
        assert CommitLog.open(log_root / "shop").view.published == 0
        publication = writer.publish()
        assert publication is not None
        assert publication.version == 1


def test_commit_timestamps_rise_strictly_also_when_the_clock_steps_back(log_root: Path) -> None:
    clock = SteppingClock(1_000)
    with LogWriter.open(log_root, "shop", clock=clock) as writer:
        for number, now in enumerate([2_000, 2_000, 500, 9_000]):
            clock.time = now
            writer.append([upsert(str(number))])
            writer.append([upsert(str(number))])
            writer.commit()
    view = CommitLog.open(log_root / "shop").view
    assert view.timestamps_of(np.arange(1, 9)).tolist() == [
        *[2_000, 2_000, 2_001, 2_001, 2_002, 2_002, 9_000, 9_000]
    ]
    assert view.newest_timestamp == view.timestamp_of(8) == 9_000
    assert [view.version_at(time) for time in (0, 2_000, 2_001, 2_002, 2_003, 9_000, 9_001)] == [
        *[1, 1, 3, 5, 7, 7, 9]
    ]


def test_a_schema_holds_from_the_version_that_first_needed_it(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([])
        writer.append([Mutation("order", "1", after=b'{"a":1}')])
        writer.commit()
        writer.append([Mutation("order", "1", after=b'{"b":1,"a":1}')])
        writer.append([Mutation("order", "1", Operation.REMOVE, before=b'{"a":1}')])
    with LogWriter.open(log_root, "shop") as writer:
        writer.append(
            [Mutation("order", "1", after=b'{"b":1}'), Mutation("user", "1", after=b'{"c":1}')]
        )
    view = CommitLog.open(log_root / "shop").view
    names = [list(view.schema_of(version).ordinals("order")) for version in range(6)]
    assert names == [[], [], ["a"], ["a", "b"], ["a", "b"], ["a", "b"]]
    assert [view.schema_of(version).id for version in range(6)] == [0, 0, 1, 2, 2, 3]
    assert list(view.schema_of(5).entity_types) == ["order", "user"]


def test_running_numbers_and_positions_lead_to_their_batch(log_root: Path) -> None:
    write(log_root, "shop", 20, per_commit=3)
    view = CommitLog.open(log_root / "shop").view
    rows = rows_of(log_root / "shop", view)
    for row in rows:
        place = view.find(Position(row[VERSION], row[INDEX]))
        batch = view.batch(place)
        assert batch.first <= (row[VERSION], row[INDEX]) <= batch.last
        assert view.find_row(row[0]) == place
    assert view.find(Position(0)) == view.find_row(-1) == 0
    assert view.find(Position(20, END)) == view.find_row(view.end_row) == len(view)
    with pytest.raises(IndexError):
        view.batch(len(view))


@given(
    sizes=st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=6),
    version=st.integers(0, 8),
    index=st.integers(0, 18),
)
def test_find_is_the_first_batch_that_ends_at_or_after_a_position(
    sizes: list[list[int]], version: int, index: int
) -> None:
    """Each inner list is a transaction, spread over batches of so many records."""
    lasts, rows = [], []
    for number, batches in enumerate(sizes, 1):
        ends = np.cumsum(batches) - 1
        lasts += [(number, int(end)) for end in ends]
        rows += batches
    columns = np.zeros((len(BATCH_FIELDS) + 1, len(lasts)), np.int64)
    columns[[LAST_VERSION, LAST_INDEX]] = np.array(lasts).T
    columns[ROWS] = rows
    columns[FIRST_ROW] = np.cumsum(rows) - rows
    wanted = Position(version, index)
    expected = next((place for place, last in enumerate(lasts) if last >= wanted), len(lasts))
    assert find_position(columns, len(lasts), wanted) == expected
    owners = [place for place, count in enumerate(rows) for _ in range(count)]
    assert [find_row(columns, len(lasts), row) for row in range(len(owners))] == owners


def test_contract_35_opening_reads_a_checkpoint_and_a_bounded_share_of_the_entries(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "CHECKPOINT_ENTRIES_MIN", 8)
    with LogWriter.open(log_root, "shop") as writer:
        for number in range(60):
            writer.append([upsert(str(number))])
            writer.commit()
            writer.publish()
    log = CommitLog.open(log_root / "shop")
    assert log.state.checkpoint >= 2
    assert log.state.last_entry - log.state.checkpoint_entry <= 120 // checkpoint.CHECKPOINT_SHARE
    assert transactions_in(rows_of(log_root / "shop", log.view)) == [*map(str, range(60))]
    compact(log_root / "shop", 5)  # so that no entry carries records any more
    log.refresh()
    for file in (log_root / "shop" / "log").iterdir():
        if int(file.stem) < log.state.checkpoint_entry:
            file.unlink()
    assert rows_of(log_root / "shop") == rows_of(log_root / "shop", log.view)


def test_a_catalog_that_is_dropped_while_it_is_fed_is_not_made_anew(log_root: Path) -> None:
    """Its writer is told; what Spark makes of its checkpoint meanwhile does not stand in a new one's way."""
    gone = pytest.raises(LogError, match="its catalog no longer exists; it was probably dropped")
    with gone, LogWriter.open(log_root, "shop") as writer:
        drop_catalog(log_root, "shop")
        writer.append([upsert(str(key)) for key in range(10_000)])
    assert not (log_root / "shop").exists()
    (log_root / "shop" / "ingest" / "debezium").mkdir(parents=True)
    uuid = create_catalog(log_root, "shop")
    assert read_catalog(log_root / "shop").uuid == uuid
    assert not [*(log_root / "shop" / "ingest").iterdir()]


def test_a_folder_that_is_no_catalog_is_named_with_advice(log_root: Path) -> None:
    with pytest.raises(LogUnreadable, match="no folder"):
        CommitLog.open(log_root / "shop")
    with pytest.raises(LogUnreadable, match=r"not a catalog: it has no catalog\.json"):
        CommitLog.open(log_root)
    (log_root / "mine").mkdir()
    (log_root / "mine" / "notes").touch()
    with pytest.raises(LogUnreadable, match="is not a catalog; move it away"):
        create_catalog(log_root, "mine")
    create_catalog(log_root, "shop")
    with pytest.raises(CatalogUnknown) as unknown:
        CatalogWriter.open(log_root, "other", writer="w")
    assert unknown.value.known == ("shop",)
    for name in ("", "a/b", ".hidden", "..", "system", "x" * 200):
        with pytest.raises((InvalidRequest, LogUnreadable)):
            create_catalog(log_root, name)


def test_a_newer_format_is_named_and_not_guessed_at(log_root: Path) -> None:
    write(log_root, "shop", 1)
    entry = log_root / "shop" / "log" / f"{2:020d}.json"
    text = without_records(entry.read_bytes()).splitlines()[0]
    entry.write_bytes(seal(text.replace(b'"format_version":1', b'"format_version":3'))[0])
    with pytest.raises(
        LogUnreadable, match="format version 3, but this tailrace reads only up to 2"
    ):
        CommitLog.open(log_root / "shop")
    entry.write_bytes(seal(b'{"kind":"merge","format_version":3,"number":2}')[0])
    with pytest.raises(LogUnreadable, match="upgrade"):
        CommitLog.open(log_root / "shop")


FORBIDDEN = """
import os, sys
from pathlib import Path
from tailrace.errors import LogUnreadable
from tailrace_server.wal.catalog import list_catalogs
from tailrace_server.wal.upkeep.compaction import compact
from tailrace_server.wal.upkeep.copying import copy_log
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.log_writer import LogWriter
root = Path(sys.argv[1])
if os.geteuid() == 0:
    os.setuid(65534)
def attempt(action):
    try:
        action()
    except LogUnreadable as error:
        print("refused", "give user" in str(error))
    else:
        print("done")
for mode in sys.argv[2:]:
    print(mode)
    print("now", flush=True)
    sys.stdin.readline()
    attempt(lambda: list_catalogs(root))
    attempt(lambda: CommitLog.open(root / "shop"))
    attempt(lambda: LogWriter.open(root, "shop"))
"""


@pytest.mark.slow
def test_a_folder_without_permission_is_named_with_advice() -> None:
    """As another user than root, whom nothing is forbidden to."""
    with TemporaryDirectory(dir="/tmp") as folder:
        root = Path(folder) / "log"
        write(root, "shop", 1)
        Path(folder).chmod(0o755)
        process = python(FORBIDDEN, root, "read-only", "nothing")
        assert process.stdout is not None
        assert process.stdin is not None
        answers = {}
        for mode in (0o555, 0o000):
            name = process.stdout.readline().strip()
            process.stdout.readline()
            for each in (root, *(root / "shop").rglob("*"), root / "shop"):
                if each.is_dir():
                    each.chmod(mode | 0o555 if each != root else mode)
            process.stdin.write("\n")
            process.stdin.flush()
            answers[name] = [process.stdout.readline().strip() for _ in range(3)]
        status, _, err = finish(process)
        assert status == 0, err
        for each in (root, *root.rglob("*")):
            if each.is_dir():
                each.chmod(0o755)
    assert answers == {
        "read-only": ["done", "done", "refused True"],
        "nothing": ["refused True", "refused True", "refused True"],
    }


@pytest.mark.parametrize("written_on", [False, True])
def test_an_older_copy_in_the_place_of_a_log_is_noticed(
    log_root: Path, tmp_path: Path, written_on: bool
) -> None:
    """Even if it is the same catalog, and as long as the log that was read."""
    write(log_root, "shop", 1)
    shutil.copytree(log_root / "shop", tmp_path / "restored" / "shop")
    write(log_root, "shop", 1)
    log = CommitLog.open(log_root / "shop", reads_only=True)
    number = log.state.last_entry
    assert log.refresh() is None
    if written_on:
        write(tmp_path / "restored", "shop", 1)
        assert CommitLog.open(tmp_path / "restored" / "shop").state.last_entry >= number
    shutil.rmtree(log_root / "shop" / "log")
    shutil.copytree(tmp_path / "restored" / "shop" / "log", log_root / "shop" / "log")
    with pytest.raises(LogCorrupted, match="restored from a copy") as raised:
        log.refresh()
    assert raised.value.path.endswith(f"{number}.json")


def test_a_copy_with_the_same_last_entry_and_another_layout_is_noticed(
    log_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was made before a compaction, and its records lie in other files."""
    write_files(monkeypatch)
    write(log_root, "shop", 4)
    copy_log(log_root / "shop", tmp_path)
    assert compact(log_root / "shop", time.time_ns() // 1_000) is not None
    log = CommitLog.open(log_root / "shop", reads_only=True)
    assert log.refresh() is None
    (log_root / "shop").rename(tmp_path / "gone")
    copy_log(tmp_path / "shop", log_root)
    with pytest.raises(LogCorrupted, match="restored from a copy"):
        log.refresh()


def test_a_checkpoint_of_another_history_is_not_adopted(
    log_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is replaced in the midst of a look: behind the check, before the checkpoint is read."""
    write_files(monkeypatch)
    write(log_root, "shop", 2)
    copy_log(log_root / "shop", tmp_path)
    write(log_root, "shop", 2)
    write(tmp_path, "shop", 3)
    assert compact(tmp_path / "shop", time.time_ns() // 1_000) is not None
    log = CommitLog.open(log_root / "shop", reads_only=True)
    assert log.refresh() is None
    follow = log.follow_checkpoints

    def replaced() -> None:
        (log_root / "shop").rename(tmp_path / "gone")
        (tmp_path / "shop").rename(log_root / "shop")
        follow()

    monkeypatch.setattr(log, "follow_checkpoints", replaced)
    with pytest.raises(LogCorrupted, match="restored from a copy"):
        log.refresh()
