"""What an ingest makes of files: versions, in source order, exact, once."""

from __future__ import annotations

import gzip
import os
from typing import TYPE_CHECKING

import orjson
import pytest

from tailrace.criteria import Area
from tailrace.errors import InvalidRequest, UnknownWriter
from tailrace_server.pipeline.catalog.quarantine import LineRefused
from tailrace_server.pipeline.run.progress import ProgressReporter
from tailrace_server.pipeline.sources.debezium.source import Debezium
from tailrace_server.pipeline.spark.checkpoint import InputGone
from tailrace_server.pipeline.spark.session import SparkFailed
from tailrace_server.pipeline.transactions.ingest import checkpoint_folder, run_ingest
from tailrace_server.pipeline.transactions.settings import Rules
from tailrace_server.sample_shop.topics import make_feed, write_feed
from tailrace_server.wal.catalog import create_catalog, open_writer
from tailrace_server.wal.schema.mapping import SchemaMapping
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.verify import verify
from tests.process.ingest.reading import data, leads, published, records
from tests.process.ingest.truth import check_against_truth
from tests.server.pipeline.shapes import (
    BY_ID,
    INT,
    LONG,
    TEXT,
    end,
    envelope,
    line,
    listed,
    postgres,
)
from tests.server.pipeline.sources.pairs import Pairs
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.process.ingest.conftest import Source

pytestmark = pytest.mark.slow


def row(number: int, tx: int | None = None, table: str = "product", op: str = "c") -> bytes:
    return line(envelope(op, postgres(number, tx, table), after={"id": number}))


def finish(tx: int, count: int) -> bytes:
    return line(end(str(tx), count))


SHOP = Debezium(keys=BY_ID, whole_before=("*",))
"""The shop's tables have REPLICA IDENTITY FULL."""


def test_the_shop_arrives_byte_for_byte_and_a_second_run_takes_nothing(source: Source) -> None:
    feed = make_feed(7, 400)
    for _ in write_feed(feed, source.input, parts=3):
        pass
    outcome = source.ingest(source=SHOP)
    check_against_truth(source.catalog, feed)
    assert outcome.counters.versions == len(feed.transactions)
    assert outcome.counters.quarantined == 0
    assert outcome.changed_files == []
    longer = min(source.input.glob("*.json"))
    with longer.open("a") as file:
        file.write("null\n")
    again = source.ingest(source=SHOP)
    assert (again.counters.lines, again.counters.versions) == (0, 0)
    assert again.changed_files == [str(longer)]
    assert published(source.catalog) == len(feed.transactions)


@pytest.mark.parametrize("rows", [0, 1_000_000], ids=["tasks", "driver"])
def test_a_second_snapshot_names_the_rows_that_it_lacks_and_removes_them(
    source: Source, rows: int
) -> None:
    def snapshot(lsn: int, *keys: int) -> None:
        marks = ["first", *["true"] * (len(keys) - 2), "last"]
        for key, mark in zip(keys, marks, strict=True):
            lines.append(line(envelope("r", postgres(lsn, snapshot=mark), after={"id": key})))

    lines: list[bytes] = []
    snapshot(100, *range(50))
    source.add(*lines)
    source.ingest(small_batch_rows=rows, snapshot_rows=7)
    lines.clear()
    snapshot(200, *range(2, 50))
    source.add(*lines[:20])
    source.add(*lines[20:])
    outcome = source.ingest(small_batch_rows=rows, snapshot_rows=7)
    assert (outcome.counters.lacking["product"].count, outcome.counters.committed) == (2, 15)
    again = source.ingest(removes_missing=True)
    assert (again.counters.lacking["product"].removed, again.counters.committed) == (2, 16)
    removed = [r.primary_key for r in data(source.catalog) if r.version == 16]
    assert sorted(key or "" for key in removed) == ["0", "1"]


def test_parts_ingested_one_by_one_give_the_same_log_as_all_at_once(
    make_source: Callable[[str], Source],
) -> None:
    """Transactions are cut by the parts; what is open waits as pending files between batches."""
    feed = make_feed(11, 300)
    whole, followed = make_source("whole"), make_source("followed")
    for _ in write_feed(feed, whole.input, parts=6):
        pass
    whole.ingest(source=SHOP)
    rules = Rules(idle_s=3600.0)
    with followed.following(rules=rules, source=SHOP) as driver:
        for part in write_feed(feed, followed.input, parts=6):
            names = {f"file:{file.name}" for file in part}
            wait_until(lambda names=names: names <= driver.writer.state.source_positions.keys())  # type: ignore[misc]
    check_against_truth(followed.catalog, feed)
    check_against_truth(whole.catalog, feed)


@pytest.mark.parametrize("parts", [1, 4])
def test_large_batches_give_the_same_log_as_small_ones(
    make_source: Callable[[str], Source], parts: int
) -> None:
    feed = make_feed(3, 250)
    small, large = make_source("small"), make_source("large")
    bad = [b"{", b"\xff", row(1, 99_999)[:-9]]
    for source in (small, large):
        for number, _ in enumerate(write_feed(feed, source.input, parts=parts)):
            source.add(*bad, row(number + 1), name=f"zz-{number}.json")
            if parts > 1:
                rows = 0 if source is large else 1_000_000
                source.ingest(small_batch_rows=rows, snapshot_rows=64)
    if parts == 1:
        small.ingest(small_batch_rows=1_000_000, snapshot_rows=64)
        large.ingest(small_batch_rows=0, snapshot_rows=64)
    assert records(large.catalog) == records(small.catalog)
    one, other = (CommitLog.open(s.catalog).view for s in (small, large))
    assert one.unknown_changes == other.unknown_changes
    assert one.schema_of(one.published) == other.schema_of(other.published)
    assert [one.schema_of(v) for v in range(one.published)] == [
        other.schema_of(v) for v in range(other.published)
    ]
    assert any(record.area == Area.SCHEMA for record in records(large.catalog))
    assert quarantine(large) == quarantine(small)
    assert len(quarantine(small)) >= parts * len(bad)
    assert not [*large.catalog.glob("quarantine/*.part")]


def quarantine(source: Source) -> list[bytes]:
    """Return the quarantined lines, sorted: each task of a large batch writes a file."""
    files = (source.catalog / "quarantine").glob("*.jsonl")
    return sorted(line for file in files for line in file.read_bytes().splitlines())


def test_schema_changes_are_the_same_whoever_writes_them(
    make_source: Callable[[str], Source],
) -> None:
    """Values, altered, renamed and declared columns, and a transaction that spans a change."""
    mapping = SchemaMapping.parse(
        """
        [entity_types.product]
        columns.price = { type = "INTEGER", role = "PRICE", renamed_from = "cost" }
        """
    )
    lines = [listed(n, {"a": INT}, a=n, cost=n) for n in range(1, 40)]
    lines += [listed(n, {"a": LONG, "b": TEXT}, a=n, b=str(n), price=n) for n in range(40, 80)]
    lines += [listed(n, {"a": TEXT}, a=str(n), price=n) for n in range(80, 90)]
    lines += [listed(n, {"a": LONG}, a=n, price=n) for n in range(90, 120)]
    lines += [row(n, table=f"t{n % 3}") for n in range(200, 260)]
    lines += [listed(300, {"a": LONG}, tx=9, a=1), listed(301, {"a": TEXT}, tx=9, a="x")]
    lines += [listed(302, {"a": TEXT}, tx=9, a="5"), listed(303, {"a": LONG}, tx=9, a=6)]
    logs = []
    for rows in (0, 1_000_000):
        source = make_source(f"of-{rows}")
        source.add(*lines)
        outcome = source.ingest(small_batch_rows=rows, mapping=mapping)
        assert outcome.counters.quarantined == 1
        counts = outcome.counters.by_entity_type["product"]
        assert (counts.taken, counts.set_aside) == (122, 1)
        view = CommitLog.open(source.catalog).view
        schemas = [view.schema_of(version) for version in range(1, view.published + 1)]
        logs.append((records(source.catalog), schemas, quarantine(source)))
        assert verify(source.catalog).sound
    assert logs[0] == logs[1]
    assert [r.version for r in logs[0][0] if r.area == Area.SCHEMA and r.version < 200] == [
        *(1, 40, 80, 90, 120, 121, 122),
    ]


def test_what_many_batches_left_pending_is_written_in_tasks(
    make_source: Callable[[str], Source],
) -> None:
    """Without END everything waits for the end of the input, which may be more than the driver holds."""
    logs = []
    for rows in (0, 1_000_000):
        source = make_source(f"of-{rows}")
        for file in range(3):
            source.add(*(row(100 * file + n, n % 17, op="c" if n % 5 else "r") for n in range(60)))
        source.ingest(small_batch_rows=rows, batch_bytes=1, snapshot_rows=10)
        logs.append(records(source.catalog))
    assert logs[0] == logs[1]
    assert sum(record.area == Area.DATA for record in logs[0]) == 180


def test_a_transaction_may_span_large_batches(make_source: Callable[[str], Source]) -> None:
    logs = []
    for rows in (0, 1_000_000):
        source = make_source(f"of-{rows}")
        source.add(row(1, 7), row(2, 8), row(3, 9), finish(9, 1))
        with source.following(rules=Rules(idle_s=3600.0), small_batch_rows=rows) as driver:
            wait_until(lambda d=driver: d.counters.lines == 4)  # type: ignore[misc]
            assert driver.counters.pending == 3
            source.add(row(4, 8), finish(8, 2))
            wait_until(lambda d=driver: d.counters.lines == 6)  # type: ignore[misc]
            assert driver.counters.versions == 0
        with source.following(rules=Rules(idle_s=3600.0), small_batch_rows=rows) as driver:
            assert driver.counters.pending == 3
            source.add(finish(7, 1))
            wait_until(lambda d=driver: d.counters.lines == 1)  # type: ignore[misc]
            assert (driver.counters.pending, driver.counters.late) == (0, 0)
            source.add(row(5, 9))
            wait_until(lambda d=driver: d.counters.lines == 2)  # type: ignore[misc]
            assert driver.counters.late == 1
        logs.append(records(source.catalog))
    assert logs[0] == logs[1]
    assert [r.primary_key for r in logs[0] if r.area == Area.DATA] == ["1", "2", "4", "3", "5"]


@pytest.mark.parametrize("rows", [0, 1_000_000])
def test_rows_of_another_table_or_connector_are_set_aside_wherever_they_are_decoded(
    source: Source, rows: int
) -> None:
    """Two tables are new in one batch: the one whose row arrived first has the entity type."""

    def of(number: int, **block: str) -> bytes:
        return line(envelope("c", postgres(number, 7, **block), after={"id": number}))

    source.add(of(1, schema="archive"), of(2), name="b.json")
    os.utime(source.input / "b.json", (1, 1))
    source.add(of(3), of(4, name="other"), finish(7, 3), name="a.json")
    outcome = source.ingest(small_batch_rows=rows)
    assert [record.after for record in data(source.catalog)] == [b'{"id":1}']
    assert outcome.counters.quarantined == 3
    source.add(of(5), of(6, schema="archive"), of(7, name="other", schema="archive"))
    outcome = source.ingest(small_batch_rows=rows)
    assert [record.after for record in data(source.catalog)] == [b'{"id":1}', b'{"id":6}']
    assert outcome.counters.quarantined == 2


@pytest.mark.parametrize("rows", [0, 1_000_000])
def test_rows_keyed_by_other_columns_are_set_aside_wherever_they_are_decoded(
    source: Source, rows: int
) -> None:
    """Two keys are new in one batch: the table keeps that whose row arrived first, in its order of columns."""

    def of(number: int, *names: str) -> bytes:
        image = {"a": 1, "b": 2, "n": number}
        key = {name: image[name] for name in names}
        return line({"key": key, "value": envelope("c", postgres(number), after=image)})

    source.add(of(1, "b", "a"), name="b.json")
    os.utime(source.input / "b.json", (1, 1))
    source.add(of(2, "a", "b"), of(3, "a"), name="a.json")
    for number in (4, 7):
        outcome = source.ingest(small_batch_rows=rows)
        assert outcome.counters.quarantined == 1
        source.add(of(number, "a", "b"), of(number + 1, "n"))
    assert [record.primary_key for record in data(source.catalog)] == ["[2,1]"] * 3


@pytest.mark.parametrize("rows", [0, 1_000_000])
def test_the_largest_place_in_a_transaction_is_one_like_others(source: Source, rows: int) -> None:
    """Each row comes over a topic of its own, so their order is what the source says."""
    for number, order, table in ((1, 2**63 - 1, "product"), (2, 1, "customer")):
        told = {"id": "7", "total_order": order, "data_collection_order": 1}
        message = envelope("c", postgres(number, 7, table), after={"id": number}, transaction=told)
        source.add(line(message), name=f"{table}.json")
    source.add(finish(7, 2), name="transaction.json")
    source.ingest(small_batch_rows=rows)
    assert [record.primary_key for record in data(source.catalog)] == ["2", "1"]


def test_idle_time_completes_what_no_end_will(source: Source) -> None:
    with source.following(rules=Rules(idle_s=0.3)) as driver:
        source.add(row(1, 7), row(2, 8))
        wait_until(lambda: driver.counters.published == 2)
        source.add(row(3, 7))
        wait_until(lambda: driver.counters.published == 3)
    first, _, late = leads(source.catalog)
    assert first["transaction_id"] == "7"
    assert (late["transaction_id"], late["late"], late["of"]) == ("7", True, 1)
    last = CommitLog.open(source.catalog).state.writers.popitem()[1]
    assert (last.batch_id, last.k) == (1, 0)


@pytest.mark.parametrize("follow", [False, True])
def test_rows_that_lie_there_are_not_torn_apart_however_long_the_batches_between_them_take(
    source: Source, follow: bool
) -> None:
    """A file a batch, each longer than the idle time."""
    for lines in ([row(1, 7)], [row(3, 8)], [row(4, 9)], [row(2, 7), finish(7, 2)]):
        os.utime(source.add(*lines), (source.files, source.files))
    rules = Rules(idle_s=0.001)
    if follow:
        with source.following(rules=rules, batch_bytes=1) as driver:
            wait_until(lambda: driver.counters.published == 3)
    else:
        source.ingest(rules=rules, batch_bytes=1)
    told = [(body["transaction_id"], body["source_count"]) for body in leads(source.catalog)]
    assert told == [("7", 2), ("8", 1), ("9", 1)]


def test_rows_that_came_before_a_restart_are_not_torn_from_those_that_wait(source: Source) -> None:
    """The idle time of what was pending begins when the folder has been read."""
    with source.following(rules=Rules(idle_s=3600.0)) as driver:
        source.add(row(1, 7))
        wait_until(lambda: driver.counters.pending == 1)
    source.add(row(2, 7), finish(7, 2))
    with source.following(rules=Rules(idle_s=0.001)) as driver:
        wait_until(lambda: driver.counters.lines == 2 and driver.counters.published > 0)
    assert [body["source_count"] for body in leads(source.catalog)] == [2]


def test_late_rows_are_known_as_late_after_a_restart(source: Source) -> None:
    source.add(row(1, 7), finish(7, 1), row(2, 8))
    source.ingest()
    source.add(row(3, 7))
    outcome = source.ingest()
    assert outcome.counters.late == 1
    assert leads(source.catalog)[-1]["of"] == 1


def test_ordered_input_needs_neither_end_nor_idle_time(source: Source) -> None:
    with source.following(rules=Rules(idle_s=3600.0, ordered_input=True)) as driver:
        source.add(row(9, 7), row(1, 8), row(2, 9))
        wait_until(lambda: driver.counters.published == 2)
    assert [body["transaction_id"] for body in leads(source.catalog)] == ["7", "8"]


def test_what_waits_is_released_by_a_later_run(source: Source) -> None:
    with source.following(rules=Rules(idle_s=3600.0)) as driver:
        source.add(row(1, 7))
        wait_until(lambda: driver.counters.pending == 1)
    assert published(source.catalog) == 0
    source.ingest()
    assert [body["transaction_id"] for body in leads(source.catalog)] == ["7"]


def test_a_publish_window_releases_several_commits_at_once(source: Source) -> None:
    with source.following(publish_window_s=3600.0) as driver:
        for number in range(1, 4):
            source.add(row(number, number), finish(number, 1))
            wait_until(lambda n=number: driver.counters.committed == n)  # type: ignore[misc]
        assert published(source.catalog) == 0
    assert published(source.catalog) == 3


def test_lines_that_cannot_be_used_are_kept_with_file_line_and_reason(source: Source) -> None:
    source.add(row(1, 7), b"", b'{"op":"c"', b"null", b'{"\xff"}', row(2, 7), name="größe 1.json")
    outcome = source.ingest()
    counters = outcome.counters
    assert (counters.lines, counters.rows, counters.ignored) == (6, 2, 2)
    [file] = (source.catalog / "quarantine").iterdir()
    first, second = map(orjson.loads, file.read_text().splitlines())
    assert (first["file"], first["line"], first["raw"]) == ("größe 1.json", 3, '{"op":"c"')
    assert (second["line"], second["raw_base64"]) == (5, "eyL/In0=")
    assert second["reason"] == "not UTF-8 at byte 2"


def test_every_layout_of_lines_is_read_alike_by_driver_and_tasks_and_taken_over_by_lines(
    make_source: Callable[[str], Source],
) -> None:
    flat = {"id": 4, "__op": "u", "__table": "product", "__lsn": 4, "__txId": 4}
    flat |= {"__connector": "postgresql", "__name": "shop", "__db": "shop", "__schema": "public"}
    event: dict[str, object] = {"specversion": "1.0", "id": "5", "source": "/x"}
    event |= {"iodebeziumop": "u", "iodebeziumtable": "product", "iodebeziumlsn": "5"}
    event |= {"iodebeziumconnector": "postgresql", "iodebeziumname": "shop"}
    event |= {"iodebeziumdb": "shop", "iodebeziumschema": "public"}
    event |= {"iodebeziumtxId": "5", "data": {"before": None, "after": {"id": 5}}}
    layouts = [
        *(b"[", row(1) + b",", row(2) + row(3), b"]", b"[%b, {}, null]" % line(flat), line(event)),
        b'{"id":6}\t' + row(6),
    ]
    foreign = [b"id,name,price", b"1,cup,2.5", b"\x00\x00\x00\x00\x01\x02\x03"]
    found = []
    for rows in (0, 1_000_000):
        source = make_source(f"of-{rows}")
        source.add(*layouts, *foreign)
        counters = source.ingest(small_batch_rows=rows).counters
        assert (counters.lines, counters.messages, counters.rows) == (10, 11, 6)
        assert (counters.ignored, counters.quarantined) == (1, 4)
        found.append((records(source.catalog), counters.shapes))
        checkpoint_folder(source.settings).rename(source.catalog / "ingest/lost")
        outcome = source.ingest(take_over=True, small_batch_rows=rows)
        assert (outcome.counters.skipped, outcome.counters.rows) == (10, 0)
    assert found[0] == found[1]
    keys = [record.primary_key for record in found[0][0] if record.area == Area.DATA]
    assert sorted(keys, key=str) == [*"123456"]
    seen = {shape.partition(":")[0]: (s.count, s.line) for shape, s in found[0][1].items()}
    assert seen["CSV"] == (2, 8)
    assert len(seen) == 3


def test_strict_stops_before_anything_of_the_batch_is_kept(source: Source) -> None:
    source.add(row(1, 7), b"{")
    with pytest.raises(LineRefused, match=r"00001\.json line 2: .*--strict"):
        source.ingest(strict=True)
    assert published(source.catalog) == 0
    source.ingest()
    assert published(source.catalog) == 1


def test_line_numbers_count_the_whole_file_also_where_spark_splits_it(
    make_source: Callable[[str], Source],
) -> None:
    for rows in (0, 1_000_000):
        source = make_source(f"of-{rows}")
        conf = source.spark.conf
        conf.set("spark.sql.files.maxPartitionBytes", "20000")
        try:
            source.add(*(row(n, n) for n in range(1, 400)), b"{", row(400, 400))
            source.ingest(small_batch_rows=rows)
        finally:
            conf.unset("spark.sql.files.maxPartitionBytes")
        [file] = (source.catalog / "quarantine").iterdir()
        assert orjson.loads(file.read_text())["line"] == 400
        state = CommitLog.open(source.catalog).state
        assert state.source_positions["file:00001.json"] == 401
        assert published(source.catalog) == 400


def test_contract_36_a_lost_checkpoint_doubles_nothing(source: Source) -> None:
    source.add(row(1, 7), finish(7, 1), row(2, 8))
    with source.following(rules=Rules(idle_s=3600.0)) as driver:
        wait_until(lambda: driver.counters.committed == 1)
    checkpoint = checkpoint_folder(source.settings)
    checkpoint.rename(source.catalog / "ingest/lost")
    with pytest.raises(UnknownWriter, match=r"checkpoint .* lost.*--take-over"):
        source.ingest()
    assert published(source.catalog) == 1
    source.add(row(3, 9))
    outcome = source.ingest(take_over=True)
    assert outcome.counters.skipped == 3
    assert [body["transaction_id"] for body in leads(source.catalog)] == ["7", "8", "9"]
    again = source.ingest()
    assert again.counters.lines == 0


@pytest.mark.parametrize("rows", [0, 1_000_000])
def test_contract_36_a_checkpoint_that_lost_its_batches_doubles_nothing(
    source: Source, rows: int
) -> None:
    """The query id survived in the checkpoint, the batches did not: batch ids would repeat."""
    source.add(row(1, 7))
    source.ingest()
    metadata = checkpoint_folder(source.settings) / "metadata"
    kept = metadata.read_text()
    checkpoint_folder(source.settings).rename(source.catalog / "ingest/lost")
    metadata.parent.mkdir()
    metadata.write_text(kept)
    with pytest.raises(UnknownWriter, match="--take-over"):
        source.ingest()
    source.add(row(2, 8))
    outcome = source.ingest(take_over=True, small_batch_rows=rows)
    assert (outcome.counters.skipped, outcome.counters.versions) == (1, 1)
    assert published(source.catalog) == 2


@pytest.mark.parametrize("rows", [0, 1_000_000])
def test_a_folder_is_read_by_its_name_and_no_pattern_and_a_file_however_old(
    source: Source, rows: int
) -> None:
    folder, other = (source.input.with_name(name) for name in ("in[1]{*}?", "in1{*}?"))
    for each in (folder, other):
        each.mkdir()
        (each / "a.json").write_bytes(row(1, 7))
        os.utime(each / "a.json", (-1_000, -1_000))
    outcome = source.ingest(input=folder, small_batch_rows=rows)
    assert (outcome.counters.lines, outcome.counters.versions) == (1, 1)


def test_a_file_may_have_any_name_that_is_utf_8(
    source: Source, capsys: pytest.CaptureFixture[str]
) -> None:
    names = (
        "2026-11-28T10:00:00",
        ":a",
        "a:b:c",
        "d:/e:f",
        "a%3Ab",
        "a\nb",
        "'\"a b",
        "ä",
        "{a}[1]*?\\",
    )
    for number, name in enumerate(names, 1):
        path = source.input / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(row(number, number) + b"\nno row\n")
    with open(os.path.join(os.fsencode(source.input), b"\xff.json"), "xb"):
        pass
    counters = run_ingest(source.settings, ProgressReporter(), source.spark).counters
    assert (counters.versions, counters.quarantined) == (len(names), len(names))
    set_aside = (source.catalog / "quarantine").glob("*.jsonl")
    lines = [orjson.loads(each) for file in set_aside for each in file.read_bytes().splitlines()]
    assert {os.path.basename(each["file"]) for each in lines} == {
        os.path.basename(f"{name}.json") for name in names
    }
    assert "1 input file cannot be read because the name is not UTF-8" in capsys.readouterr().err


def test_a_file_that_cannot_be_read_is_named_with_the_reason(source: Source) -> None:
    packed = gzip.compress(b"".join(row(n, n) + b"\n" for n in range(1, 1_001)))
    (source.input / "x.json.gz").write_bytes(packed[:-50])
    with pytest.raises(
        SparkFailed, match=r"x\.json\.gz.*Unexpected end of input stream.*restore that file"
    ):
        source.ingest()
    (source.input / "x.json.gz").write_bytes(packed)
    assert source.ingest().counters.lines == 1_000


@pytest.mark.parametrize("name", ["x.json.gz", "x.json"])
def test_a_file_that_is_taken_away_before_it_was_read_is_asked_for(
    source: Source, name: str
) -> None:
    """Spark has planned it, passes over what is not there, and would never look for it again."""
    lines = b"".join(row(n, n) + b"\n" for n in range(1, 11))
    good = gzip.compress(lines) if name.endswith(".gz") else lines
    file = source.input / name
    file.write_bytes(good[:-20] if name.endswith(".gz") else lines + b"{")
    with pytest.raises((SparkFailed, LineRefused)):
        source.ingest(strict=True)
    file.unlink()
    for _ in range(2):
        with pytest.raises(InputGone, match=f"{name} has to be read next.* restore it"):
            source.ingest(strict=True)
    file.write_bytes(good)
    assert source.ingest(strict=True).counters.lines == 10
    file.write_bytes(good)
    assert source.ingest(strict=True).counters.lines == 0


def test_a_file_that_is_given_up_is_replaced_by_an_empty_one(source: Source) -> None:
    (source.input / "x.json.gz").write_bytes(gzip.compress(row(1, 1) * 100)[:-9])
    with pytest.raises(SparkFailed, match="create an empty file in its place"):
        source.ingest()
    (source.input / "x.json.gz").write_bytes(b"")
    source.add(row(2, 8))
    assert source.ingest().counters.lines == 1


def test_contract_36_a_catalog_of_another_source_is_refused_as_such(source: Source) -> None:
    create_catalog(source.catalog.parent, source.catalog.name)
    open_writer(source.catalog.parent, source.catalog.name, writer="cdcv2").close()
    source.add(row(1, 7))
    with pytest.raises(UnknownWriter, match="another source writes to this catalog; --take-over"):
        source.ingest()


def test_an_input_that_is_not_there_is_refused_before_a_catalog_is_made(source: Source) -> None:
    with pytest.raises(InvalidRequest, match="there is no such folder"):
        source.ingest(input=source.input / "absent")
    assert not source.catalog.exists()


def test_the_key_options_reach_the_lines(source: Source) -> None:

    message = envelope("c", postgres(1, 7), after={"sku": "x-1", "n": 1})
    source.add(line(message))
    options = Debezium(keys={"product": ("sku", "n")}, entity_type_from="schema.table")
    source.ingest(source=options)
    record = data(source.catalog)[0]
    assert (record.entity_type, record.primary_key) == ("public.product", '["x-1",1]')


def test_rows_without_a_key_are_counted_whatever_the_size_of_a_batch(source: Source) -> None:
    """Tasks sort the rows, and the driver counts them version by version."""
    a = {"a": 1}
    keyless = {"source": Debezium(keyless=frozenset(("product",))), "small_batch_rows": 0}
    source.add(*(line(envelope("c", postgres(lsn), after=a)) for lsn in (1, 2)))
    source.ingest(**keyless)
    source.add(*(line(envelope("d", postgres(lsn), before=a)) for lsn in (3, 4)))
    source.ingest(**keyless)
    assert [(r.change, r.after is None) for r in data(source.catalog)] == [
        (b'{"diff":1}', False),
        (b'{"diff":1}', False),
        (b'{"diff":-1}', False),
        (b'{"diff":-1}', True),
    ]


@pytest.mark.parametrize("rows", [0, 1_000])
def test_a_source_of_a_few_lines_is_read_in_driver_and_tasks(source: Source, rows: int) -> None:
    source.add(b"1 a=x", b"2 b=y", b"", b"nonsense", b"1 c=z")
    summary = source.ingest(source=Pairs(entity_type="price"), small_batch_rows=rows)
    assert [(r.version, r.entity_type, r.primary_key) for r in data(source.catalog)] == [
        (1, "price", "a"),
        (1, "price", "c"),
        (2, "price", "b"),
    ]
    counters = summary.counters
    assert (counters.lines, counters.ignored, counters.quarantined) == (5, 1, 1)
    assert (source.catalog / "ingest" / "pairs" / "metadata").exists()
