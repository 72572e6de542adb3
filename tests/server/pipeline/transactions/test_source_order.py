"""The last image of a row is that of its last line, wherever files, batches and runs are cut.

The law is tried on a real log, with the driver that an ingest runs. What is drawn is the history of a
topic with one partition or several: transactions and lines alone, snapshots in the middle, servers that
take over with counters of their own, rows without positions, numbers in transactions that are wrong.
"""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.criteria import Area, Operation
from tailrace_server.pipeline.input.change import CHANGE, FileSplit
from tailrace_server.pipeline.sources.debezium.source import Debezium
from tailrace_server.pipeline.transactions.driver import Driver
from tailrace_server.pipeline.transactions.settings import IngestSettings, Rules
from tailrace_server.pipeline.transactions.source_order import in_source_order
from tailrace_server.pipeline.transactions.tally import Tally, tally
from tailrace_server.wal.catalog import open_writer
from tests.process.ingest.reading import records
from tests.server.pipeline.shapes import decode, decoder, envelope, line, postgres

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tailrace_server.pipeline.input.change import Change

State = dict[str, Any]
"""Primary key → value of the row; rows that are gone are missing."""


def mysql(file: str, pos: int, **more: Any) -> Any:
    """Return a MySQL source block."""
    return {
        "connector": "mysql",
        "name": "shop",
        "table": "product",
        "file": file,
        "pos": pos,
        **more,
    }


def changed(op: str, source: Any, key: int, value: Any, order: int | None = None) -> bytes:
    """Return the line of a change of a row to a value."""
    told = {"id": str(source.get("txId")), "total_order": order}
    after = None if op == "d" else {"id": key, "v": value}
    before = {"id": key} if op == "d" else None
    return line(
        envelope(
            op, source, before=before, after=after, transaction=told if order is not None else None
        )
    )


def apply(lines: Sequence[bytes]) -> State:
    """Return what rows are after lines, read one after the other."""
    state: State = {}
    for text in lines:
        message = json.loads(text)
        image = message["after"] or message["before"]
        if message["op"] == "d":
            state.pop(str(image["id"]), None)
        else:
            state[str(image["id"])] = image["v"]
    return state


class Ingest:
    """A driver on a real log, begun anew for each run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = itertools.count(1)
        self.batches = itertools.count()

    def run(self, batches: Sequence[Sequence[tuple[str, Sequence[bytes]]]]) -> None:
        """Ingest batches of (name, lines) of files, to the end."""
        settings = IngestSettings(
            input=self.root,
            log=self.root,
            catalog="shop",
            source=Debezium(),
            rules=Rules(idle_s=3600.0),
            snapshot_rows=3,
        )
        with open_writer(self.root, "shop", writer="test") as writer:
            driver = Driver(writer, settings)
            for files in batches:
                driver.batch(next(self.batches), self._decoded(files))
            driver.flush(ended=True)

    def _decoded(self, files: Sequence[tuple[str, Sequence[bytes]]]) -> list[Change]:
        reader = decoder()
        changes: list[Change] = []
        for name, lines in files:
            number = next(self.files)
            changes += reader.feed(FileSplit(name.format(number), 0, number), lines)
        return [*changes, *reader.finish()]

    def set_aside(self) -> set[tuple[Any, ...]]:
        """Return the names of messages that may be older than what the log has of their rows."""
        found = set()
        for file in (self.root / "shop" / "quarantine").glob("*"):
            for text in file.read_text().splitlines():
                set_aside = json.loads(text)
                assert set_aside["reason"].startswith("it may be older than what the log has")
                raw = json.loads(set_aside["raw"])
                found.add(name_of({"after": None, "before": None, **raw.get("value", raw)}))
        return found

    def state(self) -> State:
        """Return what rows are by the log."""
        state: State = {}
        for record in records(self.root / "shop"):
            if record.area != Area.DATA:
                continue
            assert record.primary_key is not None
            if record.operation == Operation.REMOVE:
                state.pop(record.primary_key, None)
            else:
                assert record.after is not None
                state[record.primary_key] = json.loads(record.after)["v"]
        return state


def key_of(message: Any) -> int:
    """Return the key of the row that a message changes."""
    return int((message["after"] or message["before"])["id"])


def name_of(message: Any) -> tuple[Any, ...]:
    """Return what tells a drawn message from all others."""
    image = message["after"] or {}
    return message["op"], key_of(message), message["source"].get("lsn"), image.get("v")


class Topic(NamedTuple):
    """A drawn history, cut."""

    partitions: list[list[bytes]]
    runs: list[list[list[tuple[str, list[bytes]]]]]
    """Runs of batches of files, each a name and its lines."""


@st.composite
def histories(draw: st.DrawFn) -> list[list[bytes]]:
    """Draw the lines of each partition of a topic; rows are parted by their keys."""
    count = draw(st.integers(1, 3))
    partitions: list[list[bytes]] = [[] for _ in range(count)]
    lsn, time, value, tx = draw(st.integers(100, 1000)), 1_700_000_000_000, 0, 500
    orders = draw(st.sampled_from(["none", "right", "wrong"]))
    there: set[int] = set()

    def write(source: Any, order: int | None = None, *, read: bool = False) -> None:
        """Write a change that a database could make: it inserts no row that is there."""
        nonlocal value
        value += 1
        key = draw(st.integers(1, 4))
        op = "r" if read else draw(st.sampled_from("ud")) if key in there else "c"
        (there.discard if op == "d" else there.add)(key)
        partitions[key % count].append(changed(op, source, key, value, order))

    for _ in range(draw(st.integers(1, 12))):
        time += draw(st.integers(1, 500))
        match draw(
            st.sampled_from(["transaction", "transaction", "alone", "snapshot", "takeover"])
        ):
            case "transaction":
                tx += 1
                placed = draw(st.integers(0, 9)) > 0
                for number in range(draw(st.integers(1, 3))):
                    lsn += draw(st.integers(1, 20))
                    source = postgres(lsn if placed else None, tx, ts_ms=time)
                    wrong = draw(st.integers(1, 3)) if orders == "wrong" else number + 1
                    write(source, None if orders == "none" else wrong)
            case "alone":
                lsn += draw(st.integers(1, 20))
                write(postgres(lsn, None, ts_ms=time))
            case "snapshot":
                place = draw(st.sampled_from([None, lsn]))
                for _ in range(draw(st.integers(1, 5))):
                    write(postgres(place, None, ts_ms=time, snapshot="incremental"), read=True)
            case "takeover":
                lsn = draw(st.integers(1, 1000))
    return partitions


@st.composite
def topics(draw: st.DrawFn) -> Topic:
    """Draw a history, and where files, batches and runs end in each of its partitions."""
    partitions = draw(histories())
    runs: list[list[list[tuple[str, list[bytes]]]]] = [
        [[] for _ in range(draw(st.integers(1, 3)))] for _ in range(draw(st.integers(1, 2)))
    ]
    batches = [batch for run in runs for batch in run]
    for number, lines in enumerate(partitions):
        # Where names tell no partition, all files are of one.
        name = f"product+{number}+{{:05}}.json" if len(partitions) > 1 else "product-{:05}.json"
        cuts = sorted(draw(st.lists(st.integers(0, len(lines)), max_size=4)))
        parts = [lines[a:b] for a, b in itertools.pairwise([0, *cuts, len(lines)])]
        places = sorted(
            draw(
                st.lists(st.integers(0, len(batches) - 1), min_size=len(parts), max_size=len(parts))
            )
        )
        for place, part in zip(places, parts, strict=True):
            batches[place].append((name, part))
    return Topic(partitions, runs)


@settings(max_examples=40)
@given(topics())
def test_the_last_image_of_a_row_is_that_of_its_last_line_wherever_it_is_cut(
    tmp_path_factory: pytest.TempPathFactory, topic: Topic
) -> None:
    ingest = Ingest(tmp_path_factory.mktemp("log"))
    for batches in topic.runs:
        ingest.run(batches)
    # The log has one time for all rows of a snapshot's version, that of the last one. A change that was made
    # between the readings of two rows may be older than its row, so it is set aside, and nothing else is.
    aside = ingest.set_aside()
    wanted: State = {}
    for lines in topic.partitions:
        wanted |= apply([each for each in lines if name_of(json.loads(each)) not in aside])
        messages = [json.loads(each) for each in lines]
        for number, message in enumerate(messages):
            if name_of(message) in aside:
                before = [each for each in messages[:number] if key_of(each) == key_of(message)]
                assert before[-1]["op"] == "r"
    assert ingest.state() == wanted


def test_a_change_between_two_readings_of_a_snapshot_is_set_aside_with_the_reason(
    tmp_path: Path,
) -> None:
    """Both rows come into one version of the snapshot, and the log has one time for it."""
    ingest = Ingest(tmp_path)
    incremental = {"snapshot": "incremental"}
    late = changed("u", postgres(2, 501, ts_ms=4), 1, 2)
    first = [changed("r", postgres(None, None, ts_ms=1, **incremental), 1, 1), late]
    second = [
        changed("c", postgres(3, None, ts_ms=5), 2, 3),
        changed("r", postgres(None, None, ts_ms=6, **incremental), 2, 4),
    ]
    ingest.run([[("product+0+{:05}.json", second[:1])]])
    ingest.run([[("product+0+{:05}.json", second[1:]), ("product+1+{:05}.json", first)]])
    assert ingest.state() == {"1": 1, "2": 4}
    assert ingest.set_aside() == {name_of(json.loads(late))}


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(
            [
                changed("u", postgres(70, 7), 1, "b"),
                changed("r", postgres(None, None, snapshot="incremental"), 1, "c"),
            ],
            id="a row of an incremental snapshot has no position",
        ),
        pytest.param(
            [
                changed("u", mysql("mysql-bin.000120", 9500, gtid="a:7"), 1, "b"),
                changed("u", mysql("mysql-bin.000002", 300, gtid="b:1"), 1, "c"),
            ],
            id="another server counts its binlogs for itself",
        ),
        pytest.param(
            [
                changed("u", postgres(lsn, 7), 1, value, order)
                for lsn, value, order in ((101, "a", 1), (102, "b", 2), (103, "c", 1))
            ],
            id="a number in the transaction repeats",
        ),
        pytest.param(
            [
                changed("u", postgres(900, 7), 1, "b"),
                changed("u", postgres(20, 8, ts_ms=1_700_000_001_000), 1, "c"),
            ],
            id="a replica that was promoted begins at a lower position",
        ),
    ],
)
@pytest.mark.parametrize("cut", ["one file", "two files", "two batches", "two runs"])
def test_the_last_line_wins(tmp_path: Path, lines: list[bytes], cut: str) -> None:
    ingest = Ingest(tmp_path)
    first, last = ("p-{:03}", lines[:-1]), ("p-{:03}", lines[-1:])
    match cut:
        case "one file":
            ingest.run([[("p", lines)]])
        case "two files":
            ingest.run([[first, last]])
        case "two batches":
            ingest.run([[first], [last]])
        case "two runs":
            ingest.run([[first]])
            ingest.run([[last]])
    assert ingest.state() == apply(lines)


def keys(*files: list[Change]) -> list[str]:
    """Return the transactions of files in source order."""
    changes = [change for file in files for change in file]
    assert all(change.kind == CHANGE for change in changes)
    ordered: list[Tally] = in_source_order(tally(changes, 0.0).values())
    return [each.key for each in ordered]


def rows(*of: tuple[int | None, int], table: str = "product", file: str) -> list[Change]:
    """Decode a file of rows, each (lsn, transaction)."""
    lines = [envelope("c", postgres(lsn, tx, table), after={"id": 1}) for lsn, tx in of]
    return decode(*lines, file=file)


def test_positions_decide_between_files_of_different_tables() -> None:
    one = rows((10, 1), (30, 3), file="a")
    other = rows((20, 2), (40, 4), table="customer", file="b")
    assert keys(one, other) == ["1", "2", "3", "4"]


def test_a_low_position_does_not_move_a_transaction_past_what_stands_before_it() -> None:
    one = rows((10, 1), (30, 3), (5, 4), file="a")
    other = rows((20, 2), (6, 4), (7, 5), table="customer", file="b")
    assert keys(one, other) == ["1", "2", "3", "4", "5"]


def test_a_transaction_without_a_position_stands_where_its_predecessor_does() -> None:
    one = rows((10, 1), (None, 2), (30, 5), file="a")
    other = rows((5, 0), (20, 3), (25, 4), table="customer", file="b")
    assert keys(one, other) == ["0", "1", "2", "3", "4", "5"]


def test_files_of_partitions_interleave_and_files_of_one_partition_do_not() -> None:
    assert keys(
        rows((10, 1), (30, 3), file="t+0+0001.json"), rows((20, 2), (40, 4), file="t+1+0001.json")
    ) == ["1", "2", "3", "4"]
    assert keys(rows((10, 1), (30, 3), file="t-1"), rows((20, 2), (40, 4), file="t-2")) == [
        "1",
        "3",
        "2",
        "4",
    ]


def test_a_file_that_is_earlier_by_position_and_by_time_may_arrive_later() -> None:
    assert keys(rows((30, 3), (40, 4), file="1"), rows((10, 1), (20, 2), file="2")) == [
        "1",
        "2",
        "3",
        "4",
    ]


def test_streams_that_contradict_each_other_are_decided_by_position() -> None:
    """Two transactions cannot be told apart by lines: one file says so, the other the opposite."""
    one = rows((10, 1), (20, 2), file="a")
    other = rows((21, 2), (11, 1), (30, 3), table="customer", file="b")
    assert keys(one, other) == ["1", "2", "3"]


def written(table: str, file: str, pos: int, server: int, second: int) -> bytes:
    """Return the line of a change of MySQL that is a transaction alone."""
    place = mysql(file, pos, table=table, server_id=server, ts_ms=1000 * second)
    return line(envelope("c", place, after={"id": second}))


@st.composite
def failovers(draw: st.DrawFn) -> list[tuple[str, bytes]]:
    """Draw a history of two servers, as table and line of each transaction, in the order of their times.

    A server may reset its log, and both may be written to at once.
    """
    bases = draw(st.sampled_from([("db-bin", "db-bin"), ("db1-bin", "db2-bin")]))
    places = [(draw(st.integers(1, 9)), 4) for _ in bases]
    server, history = 0, []
    for second in range(1, draw(st.integers(2, 14)) + 1):
        server = draw(st.sampled_from([server, server, 0, 1]))
        number, pos = places[server]
        match draw(st.sampled_from(["same file", "same file", "next file", "reset"])):
            case "next file":
                number, pos = number + 1, 4
            case "reset" if number > 1:
                number, pos = draw(st.integers(1, number - 1)), 4
            case _:
                pos += draw(st.integers(1, 99))
        places[server] = number, pos
        table = draw(st.sampled_from("abc"))
        file = f"{bases[server]}.{number:06}"
        # Without GTIDs file and position name a transaction, so no two transactions have the same.
        history.append((table, written(table, file, 100 * pos + second, server + 1, second)))
    return history


@given(failovers(), st.data())
def test_transactions_of_two_servers_keep_the_order_of_their_times(
    history: list[tuple[str, bytes]], data: st.DataObject
) -> None:
    """Each table has files of its own, cut anywhere; they arrive in any order among the tables."""
    waiting: dict[str, list[list[bytes]]] = {}
    for table in "abc":
        lines = [text for of, text in history if of == table]
        cut = data.draw(st.integers(0, len(lines)))
        waiting[table] = [lines[cut:], lines[:cut]]
    changes: list[Change] = []
    for number, table in enumerate(data.draw(st.permutations("aabbcc"))):
        split = FileSplit(f"{number:03}", 0, number)
        changes += decoder().feed(split, waiting[table].pop())
    ordered = in_source_order(tally(changes, 0.0).values())
    seconds = [(each.timestamp or 0) // 1_000_000 for each in ordered]
    assert seconds == list(range(1, len(history) + 1))


def test_a_log_that_was_reset_loses_no_row_within_a_batch(log_root: Path) -> None:
    ingest = Ingest(log_root)
    former, later = written("a", "db-bin.000007", 900, 1, 1), written("b", "db-bin.000001", 4, 1, 2)
    ingest.run([[("b", [later]), ("a", [former])]])
    found = [(r.version, r.entity_type) for r in records(log_root / "shop") if r.area == Area.DATA]
    assert found == [(1, "a"), (2, "b")]
    assert not list((log_root / "shop" / "quarantine").glob("*"))


def test_a_snapshot_precedes_the_changes_of_its_server_by_position() -> None:
    """Its rows name no server, and the times of reading are later than those of changes meanwhile."""
    read = mysql("db-bin.000007", 900, table="a", snapshot="true", ts_ms=9000)
    lines = [line(envelope("r", read, after={"id": 1}))]
    changes = decode(*lines, file="2") + decode(written("b", "db-bin.000007", 950, 1, 5), file="1")
    ordered = in_source_order(tally(changes, 0.0).values())
    assert [each.timestamp for each in ordered] == [9_000_000, 5_000_000]
