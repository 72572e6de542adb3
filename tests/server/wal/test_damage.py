"""Contract 33: whatever byte is wrong or missing, a reader gets whole commits or a typed error.

Never a wrong record, never a dead process: all of it runs in this one.
"""

from __future__ import annotations

import json
import random
import shutil
from typing import TYPE_CHECKING

import pytest

from tailrace.criteria import Area, Operation
from tailrace.errors import LogCorrupted, LogError, LogUnreadable, TailraceError
from tailrace.schema import Column, Schema
from tailrace_server.wal.catalog import open_writer
from tailrace_server.wal.files.documents import Entry, load
from tailrace_server.wal.files.local_files import LocalFiles
from tailrace_server.wal.files.sealed import seal, unseal
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.schema.records import rows_batch
from tailrace_server.wal.segment.reader import BatchReader
from tailrace_server.wal.segment.writer import SegmentWriter
from tailrace_server.wal.state.checkpoint import write_checkpoint
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.inspect import summarize
from tailrace_server.wal.upkeep.retention import orphans
from tailrace_server.wal.upkeep.verify import verify
from tests.server.wal.logs import Row, batch_rows, rows_of, update, upsert, write, write_files
from tests.support.older_writer import OlderWriter

if TYPE_CHECKING:
    from pathlib import Path

SEED = 20_260


@pytest.fixture(params=["carried", "files"])
def catalog(
    log_root: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A small log: three commits of two transactions each, and schemas.

    Its records are carried by entries that publish themselves, or lie in files of their own and are released by
    one publication.
    """
    if request.param == "files":
        write_files(monkeypatch)
    with OlderWriter.open(log_root, "shop") as writer:
        for number in range(3):
            writer.append([upsert(str(number)), update(str(number), 1, 2)])
            writer.append([upsert("x", entity_type=f"type-{number}")])
            writer.commit(publish=request.param == "carried")
        writer.publish()
    return log_root / "shop"


def read_what_can_be_read(catalog: Path) -> tuple[list[list[Row] | None], TailraceError | None]:
    """Return the records of each batch, None for one that is refused, and the error of opening, if any."""
    try:
        view = CommitLog.open(catalog).view
    except TailraceError as error:
        return [], error
    batches: list[list[Row] | None] = []
    with BatchReader(catalog) as reader:
        for place in range(len(view)):
            try:
                batches.append(batch_rows(reader, view, place))
            except LogError as error:
                batches.append(None)
                check_names_damage(error, catalog, view.batch(place).segment.path)
    return batches, None


def check_names_damage(error: LogError, catalog: Path, path: str) -> None:
    """A read says which segment is damaged and where, unless its file has vanished altogether."""
    if isinstance(error, LogCorrupted):
        assert error.path == path
        assert 0 <= error.offset <= (catalog / path).stat().st_size


def check_damage(catalog: Path, file: Path, damaged: bytes, good: list[list[Row]]) -> bool:
    """Damage one file and hold what is read against the truth; return whether the damage was noticed."""
    whole = file.read_bytes()
    file.write_bytes(damaged)
    try:
        batches, error = read_what_can_be_read(catalog)
    finally:
        file.write_bytes(whole)
    if error is not None:
        assert isinstance(error, LogCorrupted | LogUnreadable), error
        name = file.relative_to(catalog).as_posix()
        if isinstance(error, LogCorrupted):
            assert error.path == name or "chain" in error.reason, error
        return True
    assert len(batches) <= len(good)
    for found, expected in zip(batches, good, strict=False):
        assert found is None or found == expected
    return batches != good


def files_of(catalog: Path) -> list[Path]:
    return sorted(path for path in catalog.rglob("*") if path.is_file())


def truth(catalog: Path) -> list[list[Row]]:
    batches, error = read_what_can_be_read(catalog)
    assert error is None
    return [batch for batch in batches if batch is not None]


@pytest.mark.slow
def test_contract_33_every_truncation_gives_whole_commits_or_names_the_damage(
    catalog: Path,
) -> None:
    good = truth(catalog)
    assert len(good) == 3
    for file in files_of(catalog):
        whole = file.read_bytes()
        small = file.suffix == ".json"
        lengths = range(len(whole)) if small else range(0, len(whole), 7)
        for length in lengths:
            noticed = check_damage(catalog, file, whole[:length], good)
            assert noticed or not small, (file, length)
    assert truth(catalog) == good


@pytest.mark.slow
def test_contract_33_flipped_bits_give_whole_commits_or_name_the_damage(catalog: Path) -> None:
    good = truth(catalog)
    chosen = random.Random(SEED)
    for file in files_of(catalog):
        whole = file.read_bytes()
        for place in range(chosen.randrange(3), len(whole), 3):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << chosen.randrange(8)
            noticed = check_damage(catalog, file, bytes(damaged), good)
            # Only Arrow's own magic, end mark and footer are read by nobody.
            assert noticed or file.suffix == ".arrow", (file, place)
    assert truth(catalog) == good


@pytest.mark.slow
def test_contract_33_flipped_bits_of_a_segment_are_found_wherever_anything_is_read(
    catalog: Path,
) -> None:
    """Schema, dictionaries and batches are under checksums without a hole."""
    good = truth(catalog)
    view = CommitLog.open(catalog).view
    ref = view.batch(0)
    ranges = [(offset, length) for offset, length, _ in ref.segment.prefix]
    ranges.append((ref.offset, ref.length))
    file = catalog / ref.segment.path
    whole = file.read_bytes()
    for offset, length in ranges:
        for place in range(offset, offset + length, 2):
            damaged = bytearray(whole)
            damaged[place] ^= 0x10
            assert check_damage(catalog, file, bytes(damaged), good), place


def test_contract_33_torn_and_unreferenced_files_are_invisible(catalog: Path) -> None:
    good = rows_of(catalog)
    segment = catalog / CommitLog.open(catalog).view.batch(1).segment.path
    epoch = catalog / "segments" / "1"
    shutil.copy(segment, epoch / "log-writer-9-1.arrow")
    (epoch / "log-writer-10-1.arrow.tmp").write_bytes(segment.read_bytes()[:100])
    (catalog / "tmp" / "12-ab-0").write_bytes(b'{"kind":"commit"')
    assert rows_of(catalog) == good
    assert verify(catalog).sound


@pytest.mark.parametrize("number", [1, 3, None])
def test_contract_33_a_published_entry_that_vanished_is_named(
    catalog: Path, number: int | None
) -> None:
    """Else a log that lost its end, or all of its entries, would pass for a shorter one."""
    entries = sorted((catalog / "log").iterdir())
    for each in entries if number is None else (entries[number - 1],):
        each.unlink()
    missing = f"log/{entries[(number or 1) - 1].name}"
    after = r"publication 1 goes up to|log/\d+.json exists|segments/1 exists"
    with pytest.raises(LogCorrupted, match=f"the entry is missing, but ({after})"):
        CommitLog.open(catalog)
    assert any(missing in str(fault) for fault in verify(catalog).faults)
    with pytest.raises(LogCorrupted):
        LogWriter.open(catalog.parent, "shop")


def test_contract_33_a_publication_that_vanished_is_named(log_root: Path) -> None:
    """Else readers would wait behind it for ever, and nothing would say why."""
    with LogWriter.open(log_root, "shop") as writer:
        for number in range(5):
            writer.append([upsert(str(number))])
            writer.commit()
            writer.publish()
    catalog = log_root / "shop"
    gone = "published/00000000000000000002.json"
    (catalog / gone).unlink()
    with pytest.raises(LogCorrupted, match="the publication is missing") as error:
        CommitLog.open(catalog)
    assert error.value.path == gone
    assert gone in {fault.path for fault in verify(catalog).faults}


def test_files_that_are_not_ours_are_passed_over(catalog: Path) -> None:
    for name in ("foo.json", ".DS_Store", "~backup.json", "1.json"):
        for folder in ("checkpoints", "published", "log", "segments"):
            (catalog / folder / name).write_text("not ours")
    with LogWriter.open(catalog.parent, "shop") as writer:
        writer.append([upsert("one more")])
        writer.commit(publish=True)
        writer.trim(before=2)
    assert not verify(catalog).faults
    assert summarize(catalog).published == 7
    assert not orphans(CommitLog.open(catalog))


def test_contract_33_an_entry_that_does_not_continue_the_chain_is_not_applied(
    log_root: Path, catalog: Path
) -> None:
    """A whole, well-formed entry with a right checksum, but of another history."""
    shutil.copytree(log_root, log_root.parent / "copy")
    write(log_root.parent / "copy", "shop", 1)
    write(log_root, "shop", 1)
    strange = sorted((log_root.parent / "copy" / "shop" / "log").iterdir())[-1]
    last = sorted((catalog / "log").iterdir())[-1]
    assert strange.name == last.name
    last.write_bytes(strange.read_bytes())
    with pytest.raises(LogCorrupted, match="previous_crc32c") as corrupted:
        CommitLog.open(catalog)
    assert corrupted.value.path == f"log/{last.name}"


def test_contract_33_a_damaged_batch_does_not_keep_others_from_being_read(catalog: Path) -> None:
    view = CommitLog.open(catalog).view
    good = rows_of(catalog)
    ref = view.batch(1)
    file = catalog / ref.segment.path
    data = bytearray(file.read_bytes())
    data[ref.offset + ref.head_length + ref.body_lengths[0]] ^= 1  # the first byte of `before`
    file.write_bytes(data)
    with BatchReader(catalog) as reader:
        assert reader.head(ref).versions.tolist() == [3, 3, 3, 4, 4, 4]
        assert len(reader.body(ref, ["change", "after"])) == 2
        with pytest.raises(LogCorrupted, match="before") as corrupted:
            reader.body(ref, ["before"])
        offset = ref.offset + ref.head_length + ref.body_lengths[0]
        assert (corrupted.value.path, corrupted.value.offset) == (ref.segment.path, offset)
        assert batch_rows(reader, view, 0) + batch_rows(reader, view, 2) == [
            row for row in good if row[1] not in (3, 4)
        ]


def test_an_object_is_created_once_and_read_back_whole(catalog: Path) -> None:
    data, crc = seal(b'{"a":1}')
    assert LocalFiles(catalog).create("schemas/9.json", data, failpoint="schema")
    assert not LocalFiles(catalog).create("schemas/9.json", b"other", failpoint="schema")
    assert unseal("x", (catalog / "schemas" / "9.json").read_bytes()) == (b'{"a":1}\n', crc)
    assert list((catalog / "tmp").iterdir()) == []


def test_a_right_checksum_over_wrong_json_is_corrupted_too() -> None:
    for text in (b"{", b"[]", b'{"kind":"commit"}', b'{"kind":"commit","format_version":"1"}'):
        with pytest.raises(LogCorrupted, match="checksum is right"):
            load("log/1.json", seal(text)[0], Entry)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (("batches", "rows"), None),
        (("batches", "rows"), []),
        (("batches", "rows"), [1]),
        (("batches", "rows"), ["many"] * 3),
        (("batches", "head_crc32c"), [1 << 64] * 3),
        (("commits", "timestamp"), [0]),
        (("segments", "batches"), [7, 1, 1]),
        (("segments", "path"), ["log/1.json"]),
        (("segments", "prefix"), ["none"] * 3),
        (("segments", "counts"), [3, 3, 3]),
    ],
)
def test_contract_33_a_checkpoint_whose_tables_do_not_fit_together_is_refused_by_name(
    catalog: Path, field: tuple[str, str], value: list[object] | None
) -> None:
    log = CommitLog.open(catalog)
    assert write_checkpoint(log, log.state, log.state.last_timestamp)
    (file,) = (catalog / "checkpoints").iterdir()
    text, _ = unseal("x", file.read_bytes())
    header, body = text.splitlines()
    tables = json.loads(body)
    if value is None:
        del tables[field[0]][field[1]]
    else:
        tables[field[0]][field[1]] = value
    file.write_bytes(seal(header, json.dumps(tables).encode())[0])
    with pytest.raises(LogCorrupted, match=r"contradict each other|checksum is right") as corrupted:
        CommitLog.open(catalog)
    assert corrupted.value.path == f"checkpoints/{file.name}"


def test_contract_33_a_schema_file_that_holds_another_schema_is_named(catalog: Path) -> None:
    """Its checksum is right, and readers would look up columns in the wrong table."""
    names = sorted(path.name for path in (catalog / "schemas").iterdir())
    assert names == ["1.json", "2.json", "3.json", "4.json"]
    shutil.copy(catalog / "schemas" / "2.json", catalog / "schemas" / "4.json")
    with pytest.raises(LogCorrupted, match="it is schema 2") as corrupted:
        CommitLog.open(catalog)
    assert corrupted.value.path == "schemas/4.json"
    assert [fault.path for fault in verify(catalog).faults] == ["schemas/4.json"]


def test_contract_33_a_schema_of_roles_that_there_are_not_is_named(catalog: Path) -> None:
    file = catalog / "schemas" / "4.json"
    text, _ = unseal("x", file.read_bytes())
    file.write_bytes(seal(bytes(text).strip().replace(b"ATTRIBUTE", b"VIRTUE"))[0])
    with pytest.raises(LogCorrupted, match="'VIRTUE' is not a role"):
        CommitLog.open(catalog)
    assert [fault.path for fault in verify(catalog).faults] == ["schemas/4.json"]


def test_verify_finds_records_that_no_reader_can_take(log_root: Path) -> None:
    """What a writer has put there is under a right checksum; readers stumble over it."""
    lead = b'{"mutation_count":1,"counts":{"t":1}}'
    bodies: list[tuple[list[str | None] | None, bytes | None, bytes | None, bytes | None]] = [
        (["a"], b'{"a":1}', b'{"a":0}', b'{"a":1}'),
        (["a"], b'{"a":1},"b":2', None, None),
        (["a"], None, b'gar"bage', None),
        (None, None, None, b'{"a":"\xff"}'),
        (["a", "zz"], None, None, None),
        (["a", None], None, None, None),
        ([], None, None, b"{}"),
    ]
    with open_writer(log_root, "shop", writer="w") as writer:
        for batch, (changed, *images) in enumerate(bodies):
            path = writer.segment_path(batch, "1")
            with SegmentWriter(path) as segment:
                rows = [
                    (0, 0, Area.INFRASTRUCTURE, Operation.TRANSACTION, *[None] * 5, lead),
                    (0, 1, Area.DATA, Operation.UPSERT, "t", "1", changed, *images),
                ]
                segment.write(rows_batch(rows))
                schema = Schema(1, {"t": (Column("a", id=1),)})
                writer.commit(
                    batch_id=batch,
                    segments=[segment.close()],
                    schema_changes=[] if batch else [(0, schema)],
                    publish=True,
                )
    faults = [(fault.path, fault.reason) for fault in verify(log_root / "shop").faults]
    assert [path for path, _ in faults] == [f"segments/1/w-{n}-1.arrow" for n in range(1, 6)]
    for (_, reason), wanted in zip(
        faults,
        [
            "change of (2, 1) is not a UTF-8 JSON object: ",
            "before of (3, 1) is not a UTF-8 JSON object: ",
            "after of (4, 1) is not a UTF-8 JSON object: ",
            "changed of (5, 1) has 'zz', which is not in schema 1",
            "changed of (6, 1) has None, which is not in schema 1",
        ],
        strict=True,
    ):
        assert reason.startswith(wanted)
