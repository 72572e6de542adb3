"""``tailrace log``: what a person sees of a log, and how damage is named."""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING

import orjson
import pytest

from tailrace.clock import SystemClock
from tailrace.errors import LogCorrupted
from tailrace_server.cli.application import run
from tailrace_server.wal.files.sealed import seal, without_records
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.segment import writer as segment_writer
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.verify import verify
from tests.server.wal.logs import remove, rows_of, update, upsert, write, write_files

if TYPE_CHECKING:
    from pathlib import Path


def tailrace_log(*arguments: object) -> tuple[int, str, str]:
    """Run the command; return its exit status and what it wrote."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run(["log", *map(str, arguments)])
        out.flush()
    return status, out.buffer.getvalue().decode(), err.getvalue()


def test_inspect_shows_committed_and_published_apart(log_root: Path) -> None:
    writer = LogWriter.open(log_root, "shop")
    for number in range(3):
        writer.append([upsert(str(number)), upsert("u", entity_type="user")])
        writer.commit()
        if number == 1:
            writer.publish()
    status, out, _ = tailrace_log("inspect", log_root / "shop", "--segments")
    assert status == 0
    assert "1 committed, not published" in out
    assert out.count("unpublished") == 1
    status, out, _ = tailrace_log("inspect", log_root / "shop", "--json", "--entries", 2)
    found = orjson.loads(out)
    assert (found["summary"]["committed"], found["summary"]["published"]) == (3, 2)
    assert found["summary"]["counts"] == {"order": 4, "user": 4}
    assert [entry["published"] for entry in found["entries"]] == [True, False]
    assert [entry["publishes"] for entry in found["entries"]] == [False, False]
    writer.append([upsert("3")])
    writer.commit(publish=True)
    status, out, _ = tailrace_log("inspect", log_root / "shop", "--json", "--entries", 2)
    found = orjson.loads(out)
    assert (found["summary"]["committed"], found["summary"]["published"]) == (4, 4)
    assert found["summary"]["publications"] == 1
    assert [entry["published"] for entry in found["entries"]] == [True, True]
    assert [entry["publishes"] for entry in found["entries"]] == [False, True]
    assert tailrace_log("verify", log_root / "shop")[0] == 0
    writer.close()


def test_inspect_shows_the_schema_and_its_history(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([Mutation("order", "1", after=b'{"id":1}')])
        writer.append([Mutation("order", "2", after=b'{"id":1.5,"text":"a"}')])
    status, out, _ = tailrace_log("inspect", log_root / "shop", "--schema")
    assert status == 0
    for words in ("entity type added", "column added: text", "column changed: id, sql_type BIGINT"):
        assert words in out
    found = orjson.loads(tailrace_log("inspect", log_root / "shop", "--schema", "--json")[1])
    assert [column["sql_type"] for column in found["schema"]["order"]] == ["DECIMAL", "VARCHAR"]
    assert [(each["first_version"], each["schema_id"]) for each in found["schema_history"]] == [
        (1, 1),
        (2, 2),
    ]


def test_inspect_shows_one_record_in_full(log_root: Path) -> None:
    write(log_root, "shop", 3)
    status, out, _ = tailrace_log("inspect", log_root / "shop", "--record", "2:2", "--json")
    assert status == 0
    record = orjson.loads(out)
    assert (record["version"], record["index"], record["row"]) == (2, 2, 7)
    assert record["changed"] == ["value"]
    assert record["after"] == '{"id":"2+","value":2}'
    status, out, _ = tailrace_log("inspect", log_root / "shop", "--record", "2:2")
    assert '{"id":"2+","value":2}' in out
    assert tailrace_log("inspect", log_root / "shop", "--record", "9:1")[0] == 2
    assert tailrace_log("inspect", log_root / "shop", "--record", "x")[0] == 2
    tailrace_log("trim", log_root / "shop", "--before", 3)
    status, _, err = tailrace_log("inspect", log_root / "shop", "--record", "2:2")
    assert status == 1
    assert "no longer in the log" in err


def test_compact_and_trim_say_what_they_did(log_root: Path) -> None:
    write(log_root, "shop", 3)
    assert "3 segments became 1: 13 records" in tailrace_log("compact", log_root / "shop")[2]
    assert "nothing to compact" in tailrace_log("compact", log_root / "shop")[2]
    assert (
        "oldest retained position: 3:0" in tailrace_log("trim", log_root / "shop", "--before", 3)[2]
    )


def test_trim_says_how_many_files_wait_and_deletes_them_when_it_is_run_again(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no writer is at work, nobody else does."""
    write_files(monkeypatch)
    write(log_root, "shop", 3)
    command = "trim", log_root / "shop", "--before", 3
    _, _, err = tailrace_log(*command)
    assert "files deleted now: 0\n" in err
    assert "2 files retained for active readers until 10 min have passed" in err
    assert "to be deleted  2 files" in tailrace_log("inspect", log_root / "shop")[1]
    now = SystemClock.now
    monkeypatch.setattr(SystemClock, "now", lambda clock: now(clock) + 600_000_000)
    _, _, err = tailrace_log(*command)
    assert "oldest retained position: 3:0; files deleted now: 2\n" in err
    assert "active readers" not in err
    assert "to be deleted" not in tailrace_log("inspect", log_root / "shop")[1]


def test_a_root_in_place_of_a_catalog_gets_the_names_below_it(log_root: Path) -> None:
    write(log_root, "shop", 1)
    for command in (["inspect"], ["verify"], ["compact"], ["trim", "--before", "1"]):
        status, _, err = tailrace_log(*command, log_root)
        assert status == 2
        assert f"{log_root / 'shop'}" in err
    assert "no folder" in tailrace_log("inspect", log_root / "other")[2]


def test_verify_names_damage_by_segment_and_byte_offset(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(monkeypatch)
    write(log_root, "shop", 4)
    catalog = log_root / "shop"
    status, out, _ = tailrace_log("verify", catalog)
    assert status == 0
    assert "sound" in out
    refs = [CommitLog.open(catalog).view.batch(place) for place in range(4)]
    for ref, place in ((refs[0], 40), (refs[2], refs[2].head_length + 3)):
        data = bytearray((catalog / ref.segment.path).read_bytes())
        data[ref.offset + place] ^= 1
        (catalog / ref.segment.path).write_bytes(data)
    (catalog / refs[3].segment.path).unlink()
    status, out, _ = tailrace_log("verify", catalog, "--json")
    assert status == 1
    faults = {(fault["path"], fault["offset"]) for fault in orjson.loads(out)["faults"]}
    assert faults == {
        (refs[0].segment.path, refs[0].offset),
        (refs[2].segment.path, refs[2].offset + refs[2].head_length),
        (refs[3].segment.path, refs[3].offset),
    }
    out = tailrace_log("verify", catalog)[1]
    assert f"damaged {refs[0].segment.path} at byte {refs[0].offset}" in out
    assert "3 faults" in out


def test_verify_holds_records_against_their_lead(log_root: Path) -> None:
    """All checksums are right; what the records say of each other is not."""
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert("1")], expected_count=3)
        writer.append([upsert("2")], counts_differ=True)
    assert verify(log_root / "shop").sound
    with LogWriter.open(log_root, "wrong") as writer:
        writer.append([upsert("1")])
        buffer = writer._buffer  # a lead that a broken writer would make
        buffer.columns[-1][0] = b'{"mutation_count":3,"counts":{"order":3}}'
    faults = verify(log_root / "wrong").faults
    assert [fault.reason for fault in faults] == [
        "version 1 has the records {'order': 2}, but its lead counts {'order': 3}, 3 in total"
    ]


def test_contract_33_bodies_that_lie_elsewhere_than_they_are_read_are_named(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All checksums are right; the bitmap is that of more rows, as a writer without care would write it."""
    monkeypatch.setattr(segment_writer, "_exact", lambda body: body)
    monkeypatch.setattr(segment_writer, "misplaced_body", lambda *where: None)
    monkeypatch.setattr(segment_writer, "BATCH_BYTES_MAX", 20_000)
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert("1")])
        writer.commit()  # the record of the schema is not among the rows
        writer.append([upsert("a"), *(update(str(key), 1, 2) for key in range(300)), remove("b")])
    reason = "the parts of the batch's change do not have the places that the format requires"
    assert {fault.reason for fault in verify(log_root / "shop").faults} == {reason}
    with pytest.raises(LogCorrupted, match=reason):
        rows_of(log_root / "shop")


@pytest.mark.parametrize("folder", ["log", "published", "checkpoints"])
def test_verify_names_a_damaged_object(log_root: Path, folder: str) -> None:
    write(log_root, "shop", 4)
    tailrace_log("compact", log_root / "shop")
    tailrace_log("trim", log_root / "shop", "--before", 2)
    path = sorted((log_root / "shop" / folder).iterdir())[0]
    path.write_bytes(path.read_bytes().replace(b'"format_version":1', b'"format_version":3', 1))
    result = verify(log_root / "shop")
    assert [(fault.path, fault.offset) for fault in result.faults] == [(f"{folder}/{path.name}", 0)]


def test_verify_names_a_broken_chain(log_root: Path) -> None:
    write(log_root, "shop", 4)
    path = sorted((log_root / "shop" / "log").iterdir())[2]
    text = without_records(path.read_bytes()).splitlines()[0]
    path.write_bytes(seal(text.replace(b'"writer":"log-writer"', b'"writer":"another"'))[0])
    faults = verify(log_root / "shop").faults
    assert [fault.path for fault in faults] == [f"log/{4:020d}.json"]
    assert "previous_crc32c" in faults[0].reason


def test_rebase_makes_a_base_that_inspect_shows_and_a_trim_keeps_state_by(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        for key in ("1", "2", "3"):
            writer.append([upsert(key), upsert(key, entity_type="user")])
    catalog = log_root / "shop"
    status, _, err = tailrace_log("rebase", catalog)
    assert status == 0
    assert "base of version 3: 6 rows of 2 entity types in 2 files" in err
    assert "no base was made" in tailrace_log("rebase", catalog)[2]
    assert tailrace_log("rebase", catalog, "--anew")[0] == 0
    assert "base  of version 3: 6 rows" in tailrace_log("inspect", catalog)[1]
    assert "read 1 base with 6 rows" in tailrace_log("verify", catalog, "--whole-bases")[1]
    assert tailrace_log("trim", catalog, "--before", 3)[0] == 0
    out = tailrace_log("inspect", catalog)[1]
    assert "base  of version 2: 4 rows" in out
    assert "readable from version 2 on" in out
    status, _, err = tailrace_log("rebase", catalog, "--anew")
    assert status == 2
    assert "--anew: the log begins at 3:0" in err
    assert tailrace_log("trim", catalog, "--before", 4, "--without-state")[0] == 0
    assert "state  readable from version 3 on" in tailrace_log("inspect", catalog)[1]
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert("4")])
    assert tailrace_log("trim", catalog, "--before", 5, "--without-state")[0] == 0
    assert (
        "not readable: the log was trimmed and has no base" in tailrace_log("inspect", catalog)[1]
    )
