"""A stream that begins in a catalog with rows of another source knows what the log last said of its keys."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.cdcv2 import Progress, Update
from tailrace.clock import SystemClock
from tailrace.criteria import Operation
from tailrace.errors import InvalidRequest
from tailrace_server.cdcv2 import write_line
from tailrace_server.cdcv2.schema import documented_schema
from tailrace_server.pipeline.cdcv2.files import FilePart, StreamSchema, read_part
from tailrace_server.pipeline.cdcv2.folding import Folding, KeyConflict, finished_rows
from tailrace_server.pipeline.cdcv2.ingest import WRITER
from tailrace_server.pipeline.cdcv2.pieces import Kind
from tailrace_server.pipeline.cdcv2.seeding import seed_index
from tailrace_server.pipeline.cdcv2.state import KeyIndex
from tailrace_server.pipeline.cdcv2.steps import FoldKeys
from tailrace_server.pipeline.cdcv2.updates import joined, share_out
from tailrace_server.pipeline.spark.pieces import decoded, encoded
from tailrace_server.wal.catalog import open_writer
from tailrace_server.wal.gate import publish_behind, put_up_gate, take_away_gate
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import SchemaMapping
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.verify import verify
from tests.process.ingest.reading import data
from tests.server.pipeline.cdcv2 import test_product_times as products
from tests.server.pipeline.cdcv2.streams import SCHEMA
from tests.server.pipeline.cdcv2.test_ingest import Stream, finished, told, update
from tests.server.pipeline.feeds import Feed
from tests.server.pipeline.shapes import envelope, line, postgres, with_listing
from tests.support.column_kinds import (
    FINE_MONEY,
    INT,
    MICROS,
    MILLIS,
    MONEY,
    TEXT,
    Moment,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support import column_kinds

ONE = b'{"id": 1, "name": "\\u00e4", "price": 7}'
"""Not as the stream itself would write it: `HELD`."""
HELD = {"id": 1, "name": "ä", "price": 7}
MS = 1_700_000_000_123_000_000
"""A moment of whole milliseconds, in nanoseconds."""
SEEN = replace(INT, field={})
"""A number that nothing announces."""
RENAMES = """
[entity_types.product]
renamed_from = "article"
columns.name.renamed_from = "title"
"""


@pytest.fixture
def stream(tmp_path: Path, log_root: Path) -> Stream:
    folder = tmp_path / "input"
    folder.mkdir()
    return Stream(folder, log_root)


def put(
    key: object, image: bytes | None, before: bytes | None = None, of: str = "product"
) -> Mutation:
    operation = Operation.REMOVE if image is None else Operation.UPSERT
    return Mutation(of, None if key is None else str(key), operation, before, image)


def image(key: int, name: str) -> bytes:
    return json.dumps({"id": key, "name": name, "price": None}).encode()


def other_source(log: Path, *transactions: list[Mutation], **changes: Any) -> None:
    with LogWriter.open(log, "shop", writer="other", **changes) as writer:
        for transaction in transactions:
            writer.append(transaction)


def befores(stream: Stream, since: int) -> dict[str, Any]:
    return {key: before for version, _, key, _, before, _ in told(stream) if version >= since}


def test_a_lone_row_has_what_the_log_said_of_its_key_before_the_stream_began(
    stream: Stream,
) -> None:
    other_source(
        stream.log,
        [put(1, image(1, "old")), put(2, image(2, "b")), put(3, image(3, "c"))],
        [put(1, ONE, image(1, "old")), put(2, None, image(2, "b"))],
        [put(3, image(3, "else"), of="shelf")],
    )
    rows = [(1, "new", 7), (2, "new", None), (3, "new", None), (4, "new", None)]
    stream.add(*(update(row, 1, 1) for row in rows[:2]), finished(0, 2, t1=2))
    stream.ingest(take_over=True)
    assert befores(stream, 4) == {"1": HELD, "2": None}
    [first] = [record for record in told(stream) if record[0] == 4 and record[2] == "1"]
    assert first[3] == {"name": "new"}
    stream.add(*(update(row, 2, 1) for row in rows[2:]), finished(2, 3, t2=2))
    stream.ingest()
    stream.add(update((1, "newer", 7), 3, 1), finished(3, 4, t3=1))
    stream.ingest()
    third = {"id": 3, "name": "c", "price": None}
    assert befores(stream, 5) == {"3": third, "4": None, "1": {**HELD, "name": "new"}}
    assert verify(stream.catalog).sound


def test_the_row_that_the_log_holds_is_no_change_however_it_was_written(stream: Stream) -> None:
    other_source(stream.log, [put(1, ONE)])
    stream.add(update((1, "ä", 7), 1, 1), finished(0, 2, t1=1))
    stream.ingest(take_over=True)
    assert befores(stream, 2) == {}


def test_a_truncate_leaves_nothing_and_what_comes_behind_it_is_known(stream: Stream) -> None:
    other_source(
        stream.log,
        [put(1, ONE), put(2, image(2, "b"))],
        [put(None, None), put(3, image(3, "c"))],
    )
    rows = [(1, "new", 7), (2, "new", None), (3, "new", None)]
    stream.add(*(update(row, 1, 1) for row in rows), finished(0, 2, t1=3))
    stream.ingest(take_over=True)
    third = {"id": 3, "name": "c", "price": None}
    assert befores(stream, 3) == {"1": None, "2": None, "3": third}


def test_an_image_that_is_no_row_of_the_stream_stays_as_it_is() -> None:
    for kept in (
        b'{"id":1,"name":"a","price":7,"note":"more"}',
        b'{"id":1.5,"name":"a","price":7}',
        b'{"id":36893488147419103232,"name":"a","price":7}',
        b'{"id":1,"name":null,"price":7}',
        b'{"id":1,"name":2,"price":7}',
        b'{"id":1}',
        b"[1]",
    ):
        assert SCHEMA.normalised(kept) == kept
    assert SCHEMA.normalised(b'{"name":"a", "id":1}') == b'{"id":1,"name":"a","price":null}'


def test_records_under_former_names_of_type_and_column_are_known(stream: Stream) -> None:
    other_source(stream.log, [put(1, b'{"id":1,"title":"a","price":7}', of="article")])
    mapping = SchemaMapping.parse(RENAMES)
    other_source(stream.log, [put(2, image(2, "b"))], mapping=mapping)
    stream.add(update((1, "new", 7), 1, 1), finished(0, 2, t1=1))
    stream.ingest(take_over=True)
    assert befores(stream, 3) == {"1": {"id": 1, "name": "a", "price": 7}}


@pytest.mark.parametrize(
    ("kinds", "avro", "was", "held", "new"),
    [
        (
            (MILLIS, MICROS),
            {"type": "long", "logicalType": "timestamp-micros"},
            (Moment(MS), Moment(MS + 1_000)),
            (MS // 1_000, MS // 1_000 + 1),
            7,
        ),
        (
            (MICROS, MILLIS),
            {"type": "long", "logicalType": "timestamp-micros"},
            (Moment(MS + 1_000), Moment(MS)),
            (MS // 1_000 + 1, MS // 1_000),
            7,
        ),
        (
            (MONEY, FINE_MONEY),
            {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 4},
            (Decimal("5.00"), Decimal("0.7812")),
            ("AMNQ", "HoQ="),
            b"\x07",
        ),
        ((INT, TEXT), "string", (Decimal(5), "seven"), ("5", "seven"), "new"),
        (
            (SEEN, SEEN),
            {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 4},
            (Decimal(5), Decimal(0)),
            ("AMNQ", "AA=="),
            b"\x07",
        ),
    ],
    ids=["finer moments", "coarser moments", "finer decimals", "numbers to texts", "seen numbers"],
)
def test_rows_of_both_sides_of_a_change_are_known_as_the_stream_writes_them(
    stream: Stream,
    kinds: tuple[column_kinds.Kind, column_kinds.Kind],
    avro: Any,
    was: tuple[Any, Any],
    held: tuple[Any, Any],
    new: Any,
) -> None:
    """So the first change of each has its row before, and the row that stays is no change."""
    feed = Feed(stream.log)
    for key, (kind, meaning) in enumerate(zip(kinds, was, strict=True), 1):
        images = {"after": {"id": key, "c": kind.written(meaning)}}
        record = envelope("c", postgres(key), **images)
        feed.batch(with_listing({"c": kind.field}, record) if kind.field else line(record))
    fields = [{"name": "id", "type": "long"}, {"name": "c", "type": avro}]
    data_schema = {"type": "record", "name": "data", "fields": fields}
    stream.schema = StreamSchema(json.dumps(documented_schema(data_schema)))
    messages: list[Any] = [update((key, new), 1, 1) for key in (1, 2)]
    lines = (write_line(stream.schema.form, each) for each in (*messages, finished(0, 2, t1=2)))
    stream.raw(b"".join(lines))
    stream.ingest(take_over=True)
    assert befores(stream, 3) == {str(key): {"id": key, "c": held[key - 1]} for key in (1, 2)}


def test_a_first_batch_that_failed_leaves_nothing_and_the_next_reads_the_log_anew(
    stream: Stream,
) -> None:
    other_source(stream.log, [put(1, image(1, "old"))])
    name = stream.raw(b"")
    (stream.input / name).unlink()
    stream.add(update((1, "a", 1), 1, 1), update((1, "b", 1), 1, 1), finished(0, 2, t1=2))
    with pytest.raises(KeyConflict):
        stream.ingest(take_over=True)
    assert CommitLog.open(stream.catalog).state.pending == ()
    (stream.input / "0002.json").unlink()
    other_source(stream.log, [put(1, ONE)], take_over=True)
    stream.add(update((1, "new", 1), 1, 1), finished(0, 2, t1=1))
    stream.ingest(take_over=True)
    assert befores(stream, 3) == {"1": HELD}


def test_what_was_committed_and_never_published_is_known_too(stream: Stream) -> None:
    writer = LogWriter.open(stream.log, "shop", writer="other")
    writer.append([put(1, ONE)])
    writer.commit()
    writer.close()
    stream.add(update((1, "new", 1), 1, 1), finished(0, 2, t1=1))
    stream.ingest(take_over=True)
    assert befores(stream, 2) == {"1": HELD}


def test_a_stream_begins_once_a_gate_has_published_what_it_is_to_know(stream: Stream) -> None:
    writer = LogWriter.open(stream.log, "shop", writer="other")
    log = CommitLog.open(stream.catalog)
    put_up_gate(log, "delta", "/lake", [], SystemClock())
    writer.append([put(1, ONE)])
    writer.commit(publish=True)
    writer.close()
    stream.add(update((1, "new", 1), 1, 1), finished(0, 2, t1=1))
    with pytest.raises(InvalidRequest, match="versions 1 to 1 wait for the gate delta at /lake"):
        stream.ingest(take_over=True)
    view, entry = log.durable_view()
    publish_behind(log, (entry, view.published), {}, SystemClock())
    stream.ingest(take_over=True)
    take_away_gate(log, SystemClock())
    assert befores(stream, 2) == {"1": HELD}


def test_without_key_columns_rows_are_counted_from_the_beginning_of_the_stream(
    stream: Stream,
) -> None:
    stream.key = ()
    other_source(stream.log, [put(1, ONE)])
    stream.add(update((1, "ä", 7), 1, 1), finished(0, 2, t1=1))
    stream.ingest(take_over=True)
    assert befores(stream, 2) == {'[1,"ä",7]': None}


def test_a_stream_of_product_times_knows_the_keys_of_the_log(
    tmp_path: Path, log_root: Path
) -> None:
    other_source(log_root, [put(1, ONE), put(2, image(2, "b"))], [put(2, None, image(2, "b"))])
    stream = products.Stream(tmp_path / "input", log_root)
    rows = [Update((1, "new", 7), (0, 1), 1), Update((2, "new", 7), (1, 0), 1)]
    stream.add(rows, Progress(((0, 0),), (), (((0, 1), 1), ((1, 0), 1))))
    assert stream.ingest(take_over=True).closed
    found = {record.primary_key: record.before for record in data(stream.catalog)[-2:]}
    assert found == {"1": json.dumps(HELD, ensure_ascii=False).replace(" ", "").encode(), "2": None}


@pytest.mark.parametrize("shares", [1, 2, 8])
def test_each_share_of_a_large_batch_finds_its_keys_in_the_files_of_the_beginning(
    stream: Stream, shares: int
) -> None:
    """The step that a task of Spark runs, without Spark."""
    other_source(stream.log, [put(key, image(key, f"n{key}")) for key in range(40)])
    folding = Folding(SCHEMA, "product", ("id",))
    stream.add([Update((key, "new", None), 1, 1) for key in range(41)])
    file = stream.input / "0001.json"
    size = file.stat().st_size
    [came] = read_part(FilePart(str(file), 1, 0, size, size), SCHEMA)
    rows = finished_rows(joined(came.updates), folding)
    with open_writer(stream.log, "shop", writer=WRITER, take_over=True) as writer:
        files = tuple(seed_index(writer, folding, 0, file_rows=10))
        assert len(files) == 4
        assert sum(each.file.rows for each in files) == 40
        path = writer.segment_path(0, "pending-cdcv2")
    step = FoldKeys(path, KeyIndex(writer.path), files, files, 0, True, shares, ())
    found: dict[str, str | None] = {}
    index = 0
    for share, mine in share_out(rows, rows.column("hash").to_numpy(), shares):
        pieces: dict[int, list[bytes]] = {Kind.FINISHED_UPDATES: [encoded(mine)]}
        results = [(kind, piece) for _, kind, piece in step.rows(share, pieces)]
        index += sum(
            pickle.loads(piece).state.file.rows
            for kind, piece in results
            if kind == Kind.STATE_FILE
        )
        for effects in (decoded(piece) for kind, piece in results if kind == Kind.EFFECTS_OF_RANGE):
            keys, befores = (effects.column(name).to_pylist() for name in ("key", "before"))
            found |= {
                key: before and json.loads(before)["name"]
                for key, before in zip(keys, befores, strict=True)
            }
    assert found == {str(key): f"n{key}" for key in range(40)} | {"40": None}
    assert index == 41


def test_only_a_count_that_comes_to_zero_is_a_removal_also_from_below(stream: Stream) -> None:
    stream.key = ()
    changes = [(1, -1), (2, -1), (3, 2), (4, 1), (5, -2), (6, 2), (7, -1)]
    stream.add(*(update((1, "a", None), time, diff) for time, diff in changes))
    stream.add(finished(0, 8, **{f"t{time}": 1 for time, _ in changes}))
    stream.ingest()
    row = {"id": 1, "name": "a", "price": None}
    assert [(op, *images) for _, op, _, *images in told(stream)] == [
        ("UPSERT", {"diff": -1}, None, row),
        ("UPSERT", {"diff": -1}, row, row),
        ("REMOVE", {"diff": 2}, row, None),
        ("UPSERT", {"diff": 1}, None, row),
        ("UPSERT", {"diff": -2}, row, row),
        ("UPSERT", {"diff": 2}, row, row),
        ("REMOVE", {"diff": -1}, row, None),
    ]
