"""An ingest of streams whose times are partially ordered: one order of versions, restarts, bad input."""

from __future__ import annotations

import json
import random
from io import BytesIO
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.cdcv2 import (
    CountExceeded,
    CountsDisagree,
    DiffsDisagree,
    Progress,
    Update,
    Writer,
    product,
)
from tailrace.errors import InvalidRequest
from tailrace_server.cdcv2 import (
    AvroForm,
    SchemaDiffers,
    read_container,
    write_container,
    write_line,
)
from tailrace_server.cdcv2.schema import documented_schema
from tailrace_server.pipeline.cdcv2.driver import FRONTIER
from tailrace_server.pipeline.cdcv2.files import StreamSchema
from tailrace_server.pipeline.cdcv2.folding import Folding, KeyConflict
from tailrace_server.pipeline.cdcv2.ingest import Cdcv2Outcome, ingest_cdcv2
from tailrace_server.pipeline.cdcv2.settings import Cdcv2Settings
from tailrace_server.pipeline.run.progress import ProgressReporter
from tailrace_server.pipeline.run.stop_signals import Stopping
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.verify import verify
from tests.process.ingest.reading import data, leads
from tests.server.pipeline.cdcv2.streams import DATA, put
from tests.support.mangle import mangle

if TYPE_CHECKING:
    from pathlib import Path

TEXT = json.dumps(documented_schema(DATA, ("epoch", "offset")))
SCHEMA = StreamSchema(TEXT)
A, B = (1, "a", None), (1, "b", 2)
DONE = Progress(((0, 0),), (), (((0, 1), 1), ((1, 0), 2)))


class Stream:
    """A folder and a catalog."""

    def __init__(self, folder: Path, log_root: Path) -> None:
        folder.mkdir()
        self.input, self.log = folder, log_root
        self.files = 0
        self.key: tuple[str, ...] = ("id",)
        self.schema = SCHEMA

    @property
    def catalog(self) -> Path:
        return self.log / "shop"

    def put(self, raw: bytes, ending: str) -> None:
        self.files += 1
        put(self.input / f"{self.files:04}.{ending}", raw)

    def add(self, *messages: Any) -> None:
        self.put(b"".join(write_line(SCHEMA.form, message) for message in messages), "json")

    def add_container(self, *messages: Any) -> None:
        out = BytesIO()
        write_container(SCHEMA.form, out, messages)
        self.put(out.getvalue(), "avro")

    def ingest(self, **changes: Any) -> Cdcv2Outcome:
        settings = Cdcv2Settings(
            input=self.input,
            log=self.log,
            catalog="shop",
            folding=Folding(self.schema, "product", self.key),
            **changes,
        )
        return ingest_cdcv2(settings, ProgressReporter(quiet=True), stopping=Stopping())

    def frontier(self) -> Any:
        positions = CommitLog.open(self.catalog).state.source_positions
        return json.loads(str(positions[FRONTIER]))

    def times(self) -> list[tuple[int, ...]]:
        return [tuple(lead["time"]) for lead in leads(self.catalog)]


def _name(image: bytes | None) -> str | None:
    name: str | None = None if image is None else json.loads(image)["name"]
    return name


@pytest.fixture
def stream(tmp_path: Path, log_root: Path) -> Stream:
    return Stream(tmp_path / "input", log_root)


def test_a_product_time_is_a_record_of_longs_on_demand_only() -> None:
    form = AvroForm.of(TEXT, product_times=True)
    assert (form.arity, AvroForm.of_data(DATA).arity) == (2, None)
    with pytest.raises(SchemaDiffers, match=r"\[0\]\.items\.fields\[1\]\.type: expected long"):
        AvroForm.of(TEXT)
    messages: list[Any] = [[Update(A, (3, 4), -1)], DONE, Progress(((0, 2), (1, 0)), ((5, 5),))]
    for message in messages:
        assert form.decode(form.encode(message)) == message
        assert form.of_json(json.loads(write_line(form, message))) == message
    assert form.row_of_text(form.text_of_row(B)) == B
    out = BytesIO()
    write_container(form, out, messages[1:])
    out.seek(0)
    assert list(read_container(form, out)) == messages[1:]


@pytest.mark.parametrize(
    "time",
    [
        {"type": "array", "items": "long"},
        {"type": "record", "name": "com.materialize.cdc.when", "fields": [
            {"name": "a", "type": "long"}]},
        {"type": "record", "name": "com.materialize.cdc.time", "fields": []},
        {"type": "record", "name": "com.materialize.cdc.time", "fields": [
            {"name": "a", "type": "int"}]},
    ],
    ids=["array", "another name", "no coordinates", "int"],
)  # fmt: skip
def test_any_other_time_is_refused_with_its_place(time: Any) -> None:
    schema = documented_schema(DATA)
    schema[0]["items"]["fields"][1]["type"] = time
    with pytest.raises(SchemaDiffers) as caught:
        StreamSchema(json.dumps(schema))
    assert caught.value.place == "[0].items.fields[1].type"


def test_one_documented_place_left_as_it_was_is_refused() -> None:
    schema = documented_schema(DATA, ("a", "b"))
    schema[1]["fields"][1]["type"]["items"] = "long"
    with pytest.raises(SchemaDiffers) as caught:
        StreamSchema(json.dumps(schema))
    assert caught.value.place.startswith("[1].fields[1].type")


@pytest.mark.parametrize("seed", range(4))
def test_contract_40_partially_ordered_times_become_versions_in_one_order_however_mangled(
    tmp_path: Path, log_root: Path, seed: int
) -> None:
    """In the order of sums, each once, also when every file is an ingest of its own."""
    rng = random.Random(seed)
    count = rng.choice([1, 2, 5])
    times = sorted({(rng.randrange(5), rng.randrange(5)) for _ in range(14)})
    row: dict[tuple[int, ...], tuple[int, str, None]] = {
        time: (number % 3, f"row {number}", None) for number, time in enumerate(times)
    }
    writer = Writer(product(2), batch_size=rng.randint(1, 4))
    writer.write(Update(row[time], time, 1) for time in times)
    told = [*writer.advance(((0, 3), (2, 1))), *writer.advance(((1, 4), (4, 2))), *writer.close()]
    messages = mangle(told, rng)
    stream = Stream(tmp_path / "input", log_root)
    size = -(-len(messages) // count)
    reached: list[tuple[int, ...]] = []
    for at in range(0, len(messages), size):
        (stream.add, stream.add_container)[rng.randrange(2)](*messages[at : at + size])
        outcome = stream.ingest(batch_bytes=rng.choice([1, 1 << 20]), small_batch_rows=0)
        now = stream.times()
        assert now[: len(reached)] == reached
        reached = now
    assert (outcome.closed, outcome.waiting, stream.frontier()) == (True, [], [])
    assert reached == sorted(times, key=lambda time: (sum(time), time))
    last: dict[int, str] = {}
    expected = []
    for version, time in enumerate(reached, 1):
        key, name, _ = row[time]
        expected.append((version, str(key), last.get(key), name))
        last[key] = name
    assert [
        (each.version, each.primary_key, _name(each.before), _name(each.after))
        for each in data(stream.catalog)
    ] == expected
    assert verify(stream.catalog).sound


def test_only_what_is_finished_and_next_becomes_a_version(stream: Stream) -> None:
    stream.add([Update(A, (0, 1), 1)], [Update(A, (3, 0), -1), Update(B, (3, 0), 1)])
    counts = (((0, 1), 1), ((3, 0), 2))
    stream.add(Progress(((0, 0),), ((0, 2), (4, 0)), counts))
    outcome = stream.ingest()
    # (3, 0) is finished, but (0, 2) comes before it in the order of versions.
    assert stream.times() == [(0, 1)]
    assert stream.frontier() == [[0, 2], [4, 0]]
    assert [str(reason) for reason in outcome.waiting] == [
        "time (0, 2): 0 received, count not announced"
    ]
    stream.add(Progress(((0, 2),), ((0, 9), (4, 2))))
    assert stream.ingest().waiting == []
    assert stream.times() == [(0, 1), (3, 0)]
    first, second = (lead["transaction_id"] for lead in leads(stream.catalog))
    assert (first, second) == ("(0, 1)", "(3, 0)")
    assert stream.ingest().counters.versions == 0


def test_what_is_missing_is_named_by_its_time(stream: Stream) -> None:
    stream.add([Update(A, (0, 1), 1)], DONE)
    assert [str(reason) for reason in stream.ingest().waiting] == ["time (1, 0): 0 of 2 received"]


def test_contradictions_name_the_time_both_sides_and_the_row(stream: Stream) -> None:
    stream.add([Update(A, (0, 1), 1)])
    stream.ingest()
    stream.add([Update(A, (0, 1), 2)])
    with pytest.raises(DiffsDisagree, match=r'"name":"a".* at time \(0, 1\)') as caught:
        stream.ingest()
    assert caught.value.figures()["first_message"].startswith("0001.json byte 0")
    assert stream.ingest(first_stands=True).counters.quarantined == 0
    stream.add(DONE, Progress(((0, 0),), (), (((0, 1), 1), ((1, 0), 3))))
    with pytest.raises(
        CountsDisagree,
        match=r"time \(1, 0\) has 2 updates according to message 0003.json byte 0, and 3",
    ):
        stream.ingest()


def test_more_updates_than_announced_stop(stream: Stream) -> None:
    stream.add(DONE, [Update(A, (0, 1), 1), Update(B, (0, 1), 1)])
    with pytest.raises(CountExceeded, match=r"time \(0, 1\) has 1 updates.*name"):
        stream.ingest()


def test_a_conflict_of_a_key_names_the_product_time(stream: Stream) -> None:
    stream.add(DONE, [Update(A, (0, 1), 1)], [Update(A, (1, 0), 1), Update(B, (1, 0), 1)])
    with pytest.raises(KeyConflict, match=r"time \(1, 0\), key 1: two rows"):
        stream.ingest()


def test_a_message_that_cannot_be_used_is_set_aside(stream: Stream) -> None:
    bad = [
        [Update(A, (0, 1), 0)],
        [Update(A, (0, -1), 1)],
        Progress(((0, 0),), (), (((0, 1), -1),)),
        Progress(((2, 2),), ((1, 1),)),
        Progress(((2, 2),), (), (((1, 5), 1),)),
    ]
    stream.add(*bad)
    stream.add_container(*bad)
    stream.put(b"Obj?", "avro")
    outcome = stream.ingest()
    assert outcome.counters.quarantined == 11
    assert stream.frontier() == [[0, 0]]


def test_a_start_and_another_kind_of_time_are_refused(stream: Stream) -> None:
    with pytest.raises(InvalidRequest, match="--start-time 3: times of this stream have 2"):
        stream.ingest(start=3)
    stream.add([Update(A, (0, 1), 1)])
    stream.ingest()
    stream.schema = StreamSchema(json.dumps(documented_schema(DATA)))
    with pytest.raises(InvalidRequest, match="another schema"):
        stream.ingest()
