"""An ingest of change streams in one process, without Spark: versions, keys, restarts, bad input."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tailrace.cdcv2 import CdcError, CountExceeded, CountsDisagree, DiffsDisagree, Progress, Update
from tailrace.criteria import Area, Operation
from tailrace.errors import InvalidRequest, UnknownWriter
from tailrace_server.cdcv2 import write_line
from tailrace_server.cdcv2.schema import documented_schema
from tailrace_server.pipeline.catalog.quarantine import LineRefused
from tailrace_server.pipeline.cdcv2.driver import FRONTIER
from tailrace_server.pipeline.cdcv2.files import StreamSchema
from tailrace_server.pipeline.cdcv2.folding import Folding, KeyConflict
from tailrace_server.pipeline.cdcv2.ingest import Cdcv2Outcome, ingest_cdcv2
from tailrace_server.pipeline.cdcv2.settings import Cdcv2Settings
from tailrace_server.pipeline.cdcv2.state import read_control
from tailrace_server.pipeline.run.progress import ProgressReporter
from tailrace_server.pipeline.run.stop_signals import Stopping
from tailrace_server.wal.catalog import open_writer
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.verify import verify
from tests.process.ingest.reading import data, leads, records
from tests.server.pipeline.cdcv2.streams import (
    SCHEMA,
    make_history,
    mangle,
    put,
    read_purely,
    statements,
    to_container,
    write_files,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.cdcv2 import Statement

PAGE_SCHEMA = StreamSchema(
    json.dumps(
        documented_schema(
            {
                "type": "record",
                "name": "data",
                "fields": [
                    {"name": "id", "type": "long"},
                    {"name": "price", "type": ["null", "int"]},
                ],
            }
        )
    )
)
PAGE = b"""{"array":[{"data":{"id":5,"price":{"int":10}},"time":5,"diff":1}]}
{"array":[{"data":{"id":5,"price":{"int":12}},"time":4,"diff":1}]}
{"array":[{"data":{"id":5,"price":{"int":12}},"time":5,"diff":-1}]}
{"array":[{"data":{"id":5,"price":{"int":10}},"time":6,"diff":-1}]}

{"com.materialize.cdc.progress":{"lower":[0],"upper":[3],"counts":[]}}
{"com.materialize.cdc.progress":{"lower":[3],"upper":[10],"counts":[{"time":4,"count":1},\
{"time":5,"count":2}, {"time": 6, "count": 1}]}}
"""
"""The changefeed of the Materialize CDC format page, without its stray brace."""

A, B = (1, "a", None), (1, "b", 2)


class Stream:
    """A folder and a catalog."""

    def __init__(self, folder: Path, log_root: Path) -> None:
        self.input = folder
        self.log = log_root
        self.files = 0
        self.key: tuple[str, ...] = ("id",)
        self.schema = SCHEMA

    @property
    def catalog(self) -> Path:
        return self.log / "shop"

    def add(self, *messages: Statement[int]) -> None:
        self.raw(b"".join(write_line(SCHEMA.form, message) for message in messages))

    def raw(self, content: bytes, ending: str = "json") -> str:
        self.files += 1
        name = f"{self.files:04}.{ending}"
        put(self.input / name, content)
        return name

    def ingest(self, **changes: Any) -> Cdcv2Outcome:
        settings = Cdcv2Settings(
            input=self.input,
            log=self.log,
            catalog="shop",
            folding=Folding(self.schema, "product", self.key),
            **changes,
        )
        return ingest_cdcv2(settings, ProgressReporter(quiet=True), stopping=Stopping())

    def positions(self) -> dict[str, int | str]:
        return CommitLog.open(self.catalog).state.source_positions

    def quarantine(self) -> list[dict[str, Any]]:
        folder = self.catalog / "quarantine"
        files = sorted(folder.iterdir()) if folder.is_dir() else []
        return [orjson.loads(line) for file in files for line in file.read_bytes().splitlines()]


@pytest.fixture
def stream(tmp_path: Path, log_root: Path) -> Stream:
    folder = tmp_path / "input"
    folder.mkdir()
    return Stream(folder, log_root)


def update(row: object, time: int, diff: int) -> list[Update[int]]:
    return [Update(row, time, diff)]


def finished(lower: int, upper: int, **counts: int) -> Progress[int]:
    listed = tuple((int(name[1:]), count) for name, count in counts.items())
    return Progress((lower,), (upper,), listed)


def told(stream: Stream) -> list[tuple[Any, ...]]:
    return [
        (
            record.version,
            Operation(record.operation).name,
            record.primary_key,
            *(None if image is None else orjson.loads(image) for image in record[7:]),
        )
        for record in data(stream.catalog)
    ]


def test_the_example_of_the_format_page_becomes_three_versions(stream: Stream) -> None:
    stream.schema = PAGE_SCHEMA
    stream.raw(PAGE)
    outcome = stream.ingest()
    assert (outcome.waiting, outcome.closed) == ([], False)
    ten, twelve = {"id": 5, "price": 10}, {"id": 5, "price": 12}
    assert told(stream) == [
        (1, "UPSERT", "5", None, None, twelve),
        (2, "UPSERT", "5", {"price": 10}, twelve, ten),
        (3, "REMOVE", "5", None, ten, None),
    ]
    assert [lead["time"] for lead in leads(stream.catalog)] == [4, 5, 6]
    assert [lead["source_count"] for lead in leads(stream.catalog)] == [1, 2, 1]
    assert stream.positions()[FRONTIER] == "[10]"
    schema = [record for record in records(stream.catalog) if record.area == Area.SCHEMA]
    columns = orjson.loads(schema[0].after or b"")["columns"]
    assert [(c["name"], c["sql_type"], c["nullable"], c["key"]) for c in columns] == [
        ("id", "BIGINT", False, 1),
        ("price", "INTEGER", True, 0),
    ]


def test_contract_40_a_mangled_stream_gives_one_log_however_its_files_are_cut(
    tmp_path: Path, log_root: Path
) -> None:
    history = make_history(5, 80, 20, 8)
    messages = mangle(statements(history, 9, 81), 5, window=40)
    pure, _ = read_purely(messages)
    found = []
    for files, batch_bytes in ((1, 1 << 30), (7, 1 << 30), (7, 1)):
        name = f"{files}-{batch_bytes}"
        log = log_root / name
        log.mkdir()
        cut = Stream(tmp_path / name, log)
        write_files(cut.input, messages, files)
        assert cut.ingest(batch_bytes=batch_bytes).waiting == []
        found.append(records(cut.catalog))
        assert len(leads(cut.catalog)) == len(pure)
        assert verify(cut.catalog).sound
    assert found[0] == found[1] == found[2]
    table: dict[str, Any] = {}
    for version in told(cut):
        _, operation, key, _, before, after = version
        assert table.get(key) == before
        table[key] = after if operation == "UPSERT" else None
    last = {row[0]: row for row, time, diff in sorted(history, key=lambda c: (c.time, c.diff))}
    alive = {str(k) for k in last if sum(c.diff for c in history if c.row[0] == k)}
    assert {key for key, row in table.items() if row is not None} == alive


def test_an_upsert_without_the_old_row_has_what_was_last_said_also_after_a_restart(
    stream: Stream,
) -> None:
    stream.add(update(A, 1, 1), finished(0, 2, t1=1))
    stream.ingest()
    stream.add(update(B, 2, 1), finished(2, 3, t2=1))
    stream.ingest()
    stream.add(update(B, 3, -1), finished(3, 4, t3=1))
    stream.ingest()
    stream.add(update(A, 4, 1), finished(4, 5, t4=1))
    stream.ingest()
    assert [
        (op, before and before["name"], after and after["name"])
        for _, op, _, _, before, after in told(stream)
    ] == [
        ("UPSERT", None, "a"),
        ("UPSERT", "a", "b"),
        ("REMOVE", "b", None),
        ("UPSERT", None, "a"),
    ]


def test_without_a_key_the_row_is_the_key_and_is_counted(stream: Stream) -> None:
    stream.key = ()
    stream.add(
        update(A, 1, 2), update(A, 2, -1), update(A, 3, -1), finished(0, 4, t1=1, t2=1, t3=1)
    )
    stream.ingest()
    row = {"id": 1, "name": "a", "price": None}
    assert told(stream) == [
        (1, "UPSERT", '[1,"a",null]', {"diff": 2}, None, row),
        (2, "UPSERT", '[1,"a",null]', {"diff": -1}, row, row),
        (3, "REMOVE", '[1,"a",null]', {"diff": -1}, row, None),
    ]
    stream.add(update(A, 5, 1), finished(4, 6, t5=1))
    stream.ingest()
    assert told(stream)[-1] == (4, "UPSERT", '[1,"a",null]', {"diff": 1}, None, row)


@pytest.mark.parametrize(
    "rows", [[(A, 1), (B, 1)], [(A, 2)], [(A, -2)], [(A, -1), (B, -1)]], ids=str
)
def test_what_no_row_can_hold_is_a_conflict_of_its_key(
    stream: Stream, rows: list[tuple[object, int]]
) -> None:
    stream.add(update((7, "g", None), 1, 1), finished(0, 2, t1=1))
    stream.ingest()
    stream.add(*(update(row, 2, diff) for row, diff in rows), finished(2, 3, t2=len(rows)))
    with pytest.raises(KeyConflict, match="time 2, key 1: ") as caught:
        stream.ingest()
    assert caught.value.figures()["time"] == "2"
    assert len(leads(stream.catalog)) == 1


def test_empty_times_make_no_version_but_the_frontier_is_kept(stream: Stream) -> None:
    stream.add(finished(0, 7))
    stream.ingest()
    assert leads(stream.catalog) == []
    assert stream.positions()[FRONTIER] == "[7]"
    stream.add(Progress((7,), (), ()))
    assert stream.ingest().closed
    assert stream.positions()[FRONTIER] == "[]"


def test_following_ends_when_a_statement_closes_the_stream(stream: Stream) -> None:
    stream.add(update(A, 1, 1), Progress((0,), (), ((1, 1),)))
    outcome = stream.ingest(follow=True)
    assert (outcome.closed, outcome.signal, stream.positions()[FRONTIER]) == (True, None, "[]")


def test_an_incomplete_stream_commits_what_is_finished_and_says_what_it_waits_for(
    stream: Stream,
) -> None:
    stream.add(update(A, 1, 1), finished(0, 2, t1=1), finished(5, 9, t6=2), update(B, 6, 1))
    outcome = stream.ingest()
    assert list(map(str, outcome.waiting)) == [
        "no progress statement covers time 2 up to 5",
        "time 6: 1 of 2 received",
    ]
    assert [lead["time"] for lead in leads(stream.catalog)] == [1]
    stream.add(finished(2, 5), update((2, "c", None), 6, 1))
    assert stream.ingest().waiting == []
    assert [lead["time"] for lead in leads(stream.catalog)] == [1, 6]


def test_times_below_the_start_are_dropped_and_counted(stream: Stream) -> None:
    stream.add(update(A, 1, 1), update(B, 5, 1), finished(0, 9, t1=1, t5=1))
    assert stream.ingest(start=3).waiting == []
    assert [lead["time"] for lead in leads(stream.catalog)] == [5]
    with pytest.raises(InvalidRequest, match="--start-time 4"):
        stream.ingest(start=4)


def test_numbers_of_files_are_given_again_once_nothing_points_to_them(stream: Stream) -> None:
    """A place has 23 bits for them, and an ingest that follows may take a file a second for years."""
    for time in range(4):
        stream.add(update((time, "a", None), time, 1))
        stream.add(finished(time, time + 1, **{f"t{time}": 1}))
        stream.ingest()
    stream.add(update(A, 9, 1))
    stream.ingest()
    stream.add(update(B, 9, 1))
    stream.ingest()
    control = read_control(stream.catalog, CommitLog.open(stream.catalog).state.pending)
    assert control is not None
    assert control.names == {1: "0009.json", 2: "0010.json"}
    stream.add(update(A, 9, -1))
    with pytest.raises(DiffsDisagree, match=r"0009\.json byte 0.*0011\.json byte 0"):
        stream.ingest()


def test_a_contradiction_stops_and_names_both_sides_and_nothing_is_kept(stream: Stream) -> None:
    stream.add(update(A, 3, 1))
    stream.ingest()
    name = stream.raw(write_line(SCHEMA.form, update(A, 3, -1)))
    with pytest.raises(DiffsDisagree) as caught:
        stream.ingest()
    assert caught.value.figures() == {
        "time": "3",
        "first": "1",
        "second": "-1",
        "first_message": "0001.json byte 0",
        "second_message": f"{name} byte 0",
    }
    assert f"file:{name}" not in stream.positions()
    assert stream.ingest(first_stands=True).waiting != []
    stream.add(finished(0, 4, t3=1))
    stream.ingest()
    assert [lead["time"] for lead in leads(stream.catalog)] == [3]


def test_counts_that_contradict_each_other_or_what_came_stop(stream: Stream) -> None:
    stream.add(finished(2, 9, t4=2))
    stream.ingest()
    stream.add(finished(3, 6, t4=1))
    with pytest.raises(CountsDisagree) as caught:
        stream.ingest()
    assert (caught.value.first, caught.value.second) == (2, 1)
    (stream.input / "0002.json").unlink()
    stream.add(finished(3, 6))
    with pytest.raises(CountsDisagree) as caught:
        stream.ingest()
    assert (caught.value.first, caught.value.second) == (2, 0)
    (stream.input / "0003.json").unlink()
    stream.add(*(update((n, "x", None), 4, 1) for n in range(3)))
    with pytest.raises(CountExceeded) as exceeded:
        stream.ingest()
    assert exceeded.value.first_message == "0001.json byte 0"
    assert (exceeded.value.first, exceeded.value.second) == (2, 3)


GOOD = write_line(SCHEMA.form, update(A, 1, 1))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'{"array":1}', "1 is no list"),
        (b'{"other":[]}', "neither"),
        (GOOD.replace(b'"diff": 1', b'"diff": 0').replace(b'"diff":1', b'"diff":0'), "zero"),
        (GOOD.replace(b'"time":1', b'"time":-1'), "below zero"),
        (GOOD.replace(b'"time":1', b'"time":9223372036854775808'), "9223372036854775808"),
        (GOOD.replace(b'"id":1', b'"id":"1"'), "id"),
        (GOOD.replace(b'"id":1', b'"id":36893488147419103232'), "36893488147419103232"),
        (GOOD.replace(b'"name":"a"', b'"nom":"a"'), "name"),
        (write_line(SCHEMA.form, Progress((5,), (3,), ())), "upper 3 is not at or after lower 5"),
        (write_line(SCHEMA.form, Progress((1,), (3,), ((2, -1),))), "count -1 of time 2"),
        (write_line(SCHEMA.form, Progress((1,), (3,), ((3, 1),))), "lies outside 1 to 3"),
        (write_line(SCHEMA.form, Progress((1,), (3,), ((2, 1), (2, 2)))), "time 2 has two counts"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_message_that_cannot_be_used_is_set_aside_and_the_others_are_taken(
    stream: Stream, line: bytes, reason: str
) -> None:
    line = line.rstrip(b"\n")
    stream.raw(GOOD + line + b"\n" + write_line(SCHEMA.form, finished(0, 2, t1=1)))
    with pytest.raises(LineRefused):
        stream.ingest(strict=True)
    outcome = stream.ingest()
    assert outcome.counters.quarantined == 1
    assert [lead["time"] for lead in leads(stream.catalog)] == [1]
    [found] = stream.quarantine()
    assert reason in found["reason"]
    assert (found["file"], found["line"]) == ("0001.json", len(GOOD))
    assert "raw" in found or "raw_base64" in found


def test_bytes_that_are_no_container_are_set_aside(stream: Stream) -> None:
    stream.raw(b"PAR1 and so on", "avro")
    assert stream.ingest().counters.quarantined == 1
    assert "Obj" in stream.quarantine()[0]["reason"]


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_a_truncated_container_gives_what_is_whole(stream: Stream, codec: str) -> None:
    whole = to_container([update(A, 1, 1), finished(0, 2, t1=1)], codec)
    more = to_container([update((n, "x" * 100, n), 2, 1) for n in range(2000)], codec)
    stream.raw(whole, "avro")
    stream.raw(more[: len(more) * 2 // 3], "avro")
    outcome = stream.ingest()
    assert [lead["time"] for lead in leads(stream.catalog)] == [1]
    assert outcome.counters.quarantined == 1
    [found] = stream.quarantine()
    assert "the file ends" in found["reason"]
    assert str(outcome.waiting[0]).startswith("time 2: ")


def test_a_damaged_block_is_set_aside_and_the_blocks_behind_it_are_read(stream: Stream) -> None:
    messages: list[Statement[int]] = [update((n, "x" * 100, n), 1, 1) for n in range(2000)]
    content = bytearray(to_container(messages))
    content[-20] ^= 0xFF  # in the sync marker of the last block
    content[len(content) // 2] ^= 0xFF
    stream.raw(bytes(content), "avro")
    outcome = stream.ingest()
    assert 1 <= outcome.counters.quarantined <= 2
    assert stream.quarantine()


def test_another_schema_in_the_folder_stops(stream: Stream) -> None:
    stream.schema = PAGE_SCHEMA
    stream.raw(to_container([update(A, 1, 1)]), "avro")
    with pytest.raises(InvalidRequest, match=r"0001\.avro has another schema: .*name"):
        stream.ingest()


def test_a_schema_without_progress_is_refused_with_the_place(tmp_path: Path) -> None:
    file = tmp_path / "schema.avsc"
    file.write_text(json.dumps(json.loads(SCHEMA.text)[:1]))
    with pytest.raises(InvalidRequest, match="progress"):
        StreamSchema.load(file)
    with pytest.raises(CdcError, match="JSON"):
        StreamSchema("{")


def test_the_schema_of_rows_alone_stands_for_that_of_their_messages(tmp_path: Path) -> None:
    file = tmp_path / "schema.avsc"
    file.write_text(json.dumps(json.loads(SCHEMA.text)[0]["items"]["fields"][0]["type"]))
    assert StreamSchema.load(file).form.schema == SCHEMA.form.schema
    file.write_text('{"type":"record","name":"row","fields":[{"name":"id","type":"lang"}]}')
    with pytest.raises(InvalidRequest, match="lang"):
        StreamSchema.load(file)


def test_a_catalog_takes_one_stream_only(stream: Stream) -> None:
    stream.add(update(A, 1, 1), finished(0, 2, t1=1))
    stream.ingest()
    stream.key = ("name",)
    with pytest.raises(InvalidRequest, match="--key name: catalog shop was created with id"):
        stream.ingest()
    stream.key = ("id",)
    stream.schema = PAGE_SCHEMA
    with pytest.raises(InvalidRequest, match="catalog shop has another schema"):
        stream.ingest()


def test_contract_36_a_catalog_of_another_writer_is_refused(stream: Stream) -> None:
    open_writer(stream.log, "shop", writer="somebody").close()
    stream.add(update(A, 1, 1), finished(0, 2, t1=1))
    with pytest.raises(UnknownWriter, match="--take-over"):
        stream.ingest()
    assert stream.ingest(take_over=True).counters.versions == 1


def test_a_second_run_takes_nothing_again_and_hidden_files_are_passed_over(stream: Stream) -> None:
    stream.add(update(A, 1, 1), finished(0, 2, t1=1))
    (stream.input / ".half.json").write_bytes(b"{")
    (stream.input / "README.txt").write_bytes(b"{")
    assert stream.ingest().counters.lines == 2
    assert stream.ingest().counters.lines == 0
    # The same again under another name: what it says is finished, and dropped unread.
    stream.add(update(A, 1, 1), finished(0, 2, t1=1))
    outcome = stream.ingest()
    assert (outcome.counters.lines, outcome.counters.versions) == (2, 0)


def test_the_state_does_not_grow_with_what_has_passed(stream: Stream) -> None:
    """Contract 40: memory, and so the files of the state, are bounded by the mismatch."""
    sizes = []
    for time in range(1, 41):
        stream.add(
            update(A, time, 1 if time % 2 else -1), finished(time, time + 1, **{f"t{time}": 1})
        )
        if time == 1:
            stream.add(finished(0, 1))
        stream.ingest()
        pending = CommitLog.open(stream.catalog).state.pending
        sizes.append((len(pending), sum(file.rows for file in pending)))
    assert max(sizes[5:]) <= max(sizes[:5])
    assert len(leads(stream.catalog)) == 40


def test_the_index_is_merged_and_still_knows_every_key(stream: Stream) -> None:
    for time in range(1, 31):
        rows = [update((key, f"n{time}", None), time, 1) for key in range(time, time + 3)]
        start = 0 if time == 1 else time
        stream.add(*rows, finished(start, time + 1, **{f"t{time}": 3}))
        stream.ingest()
    pending = CommitLog.open(stream.catalog).state.pending
    assert sum("index" in file.path for file in pending) <= 6
    seen: dict[str | None, Any] = {}
    for _, _, key, _, before, after in told(stream):
        assert seen.get(key) == before
        seen[key] = after
