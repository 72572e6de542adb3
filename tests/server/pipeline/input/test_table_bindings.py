"""No row of one table is ever taken for a row of another, wherever files, batches and runs are cut.

The law is tried on a real log, with lines as Spark hands them over. What is drawn is the history of some tables
of the same name and keys, in schemas and databases of two connectors, and the options that name entity types.
tests/process/ingest/test_ingest.py has Spark's tasks do the same.
"""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.criteria import Operation
from tailrace_server.pipeline.catalog.quarantine import LineRefused
from tailrace_server.pipeline.sources.debezium.source import Debezium
from tailrace_server.pipeline.transactions.driver import Driver
from tailrace_server.pipeline.transactions.lines import LINES_SCHEMA, decode_lines
from tailrace_server.pipeline.transactions.settings import IngestSettings, Rules
from tailrace_server.wal.catalog import open_writer
from tailrace_server.wal.schema.mapping import SchemaMapping
from tailrace_server.wal.state.commit_log import CommitLog
from tests.process.ingest.reading import data, leads
from tests.server.pipeline.feeds import Feed
from tests.server.pipeline.shapes import BY_ID, end, envelope, line

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Table(NamedTuple):
    """A table as its rows name it."""

    database: str | None
    schema: str | None
    table: str
    connector: str = "shop"

    def block(self, **more: Any) -> Any:
        """Return a source block of a row of it."""
        return {
            "connector": "postgresql",
            "name": self.connector,
            "db": self.database,
            "schema": self.schema,
            "table": self.table,
            **more,
        }


PUBLIC = Table("shop", "public", "orders")
ARCHIVE = Table("shop", "archive", "orders")
NAMES = {
    PUBLIC: "shop.public.orders",
    ARCHIVE: "shop.archive.orders",
    Table("live", "public", "orders"): "live.public.orders",
    Table("public", None, "orders"): "public.orders",
    Table(None, None, "orders"): "..orders",
    Table("shop", "a", "b.orders"): 'shop.a."b.orders"',
    Table("shop", "a.b", "orders"): 'shop."a.b".orders',
    Table("shop", "public", "orders", "other"): "shop.public.orders",
}
MAPS: list[dict[str, str]] = [
    {},
    {"archive.orders": "old"},
    {"shop.archive.orders": "orders", "live.public.orders": "live"},
    {"orders": "o"},
    {'a."b.orders"': "public.orders"},
]


class Row(NamedTuple):
    """A change of a row to a value; None removes it."""

    table: Table
    key: int
    value: int | None
    op: str
    tx: int | None = None

    def line(self, lsn: int) -> bytes:
        """Return the line of it."""
        image = {"id": self.key, "v": self.value}
        block = self.table.block(txId=self.tx, lsn=lsn, ts_ms=1_700_000_000_000 + lsn)
        gone = self.op == "d"
        return line(
            envelope(self.op, block, before=image if gone else None, after=None if gone else image)
        )


class Ingest:
    """A driver on a real log, begun anew for each run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = itertools.count(1)
        self.batches = itertools.count()

    def run(
        self,
        *batches: Sequence[Sequence[bytes]],
        strict: bool = False,
        mapping: SchemaMapping | None = None,
        **options: Any,
    ) -> Any:
        """Ingest batches of files of lines, to the end; return what was counted."""
        told = IngestSettings(
            input=self.root,
            log=self.root,
            catalog="shop",
            source=Debezium(**({"keys": BY_ID} | options)),
            rules=Rules(idle_s=3600.0),
            snapshot_rows=3,
            strict=strict,
            mapping=mapping,
        )
        with open_writer(self.root, "shop", writer="test") as writer:
            driver = Driver(writer, told)
            for files in batches:
                table = pa.Table.from_pylist([*self._rows(files)], LINES_SCHEMA)
                decoded = decode_lines(table, told, driver.bindings, driver.consumed)
                driver.batch(next(self.batches), decoded.changes, decoded.skipped)
            driver.flush(ended=True)
        return driver.counters

    def _rows(self, files: Sequence[Sequence[bytes]]) -> Any:
        for lines in files:
            number = next(self.files)
            # Names in another order than times: lines arrive by time.
            file = f"file:{self.root}/{100 - number}.json"
            for text in lines:
                yield {"value": text, "file": file, "block": 0, "modified_us": number}

    def state(self) -> dict[tuple[str, str], int]:
        """Return (entity type, key) → value of the rows by the log."""
        state: dict[tuple[str, str], int] = {}
        for record in data(self.root / "shop"):
            assert record.entity_type is not None
            assert record.primary_key is not None
            key = record.entity_type, record.primary_key
            if record.operation == Operation.REMOVE:
                state.pop(key, None)
            else:
                assert record.after is not None
                state[key] = json.loads(record.after)["v"]
        return state

    def quarantined(self) -> list[tuple[bytes, str]]:
        """Return lines set aside, each with the reason."""
        files = sorted((self.root / "shop" / "quarantine").glob("*.jsonl"))
        found = [json.loads(text) for file in files for text in file.read_text().splitlines()]
        return [(each["raw"].encode(), each["reason"]) for each in found]


class History(NamedTuple):
    """A drawn history, cut."""

    rows: list[Row]
    runs: list[list[list[list[bytes]]]]
    """Runs of batches of files of lines."""
    options: dict[str, Any]


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Draw changes that databases could make, and where files, batches and runs end."""
    tables = draw(st.lists(st.sampled_from([*NAMES]), min_size=2, max_size=4, unique=True))
    there: set[tuple[Table, int]] = set()
    rows: list[Row] = []
    value = 0
    for number in range(draw(st.integers(1, 10))):
        kind = draw(st.sampled_from(["transaction", "transaction", "alone", "snapshot"]))
        for _ in range(draw(st.integers(1, 4)) if kind != "alone" else 1):
            value += 1
            table, key = draw(st.sampled_from(tables)), draw(st.integers(1, 2))
            present = (table, key) in there
            read = kind == "snapshot"
            op = "r" if read else draw(st.sampled_from("ud")) if present else "c"
            (there.discard if op == "d" else there.add)((table, key))
            tx = number if kind == "transaction" else None
            rows.append(Row(table, key, None if op == "d" else value, op, tx))
    lines = [row.line(100 + place) for place, row in enumerate(rows)]
    runs: list[list[list[list[bytes]]]] = [[[[]]]]
    for text in lines:
        match draw(st.sampled_from(["", "", "", "file", "batch", "run"])):
            case "file":
                runs[-1][-1].append([])
            case "batch":
                runs[-1].append([[]])
            case "run":
                runs.append([[[]]])
        runs[-1][-1][-1].append(text)
    form = draw(st.sampled_from(["table", "schema.table", "database.schema.table"]))
    return History(rows, runs, {"entity_type_from": form, "table_map": draw(st.sampled_from(MAPS))})


def entity_type_of(table: Table, options: dict[str, Any]) -> tuple[str, bool]:
    """Return the entity type that options give a table, and whether they name the table."""
    name = NAMES[table]
    fitting = [to for part, to in options["table_map"].items() if f".{name}".endswith(f".{part}")]
    if fitting:
        return fitting[0], True
    levels = [each for each in table[:3] if each]
    return ".".join(levels[-options["entity_type_from"].count(".") - 1 :]), False


Named = tuple[str, ...]
"""What the reason of a row that is set aside names: the row's table or connector, the other, and the cure."""


def judged(history: History) -> tuple[dict[tuple[str, str], int], list[list[Named]]]:
    """Return the state by a plain reading, and for each row set aside the reasons that are true."""
    state: dict[tuple[str, str], int] = {}
    owners: dict[str, Table] = {}
    aside: list[list[Named]] = []
    given = {to: part for part, to in history.options["table_map"].items()}
    taken = [row for row in history.rows if _may_be_taken(row, history, given)]
    connector = taken[0].table.connector if taken else None
    for row in history.rows:
        name = NAMES[row.table]
        entity_type, _ = entity_type_of(row.table, history.options)
        reasons: list[Named] = []
        if connector is not None and row.table.connector != connector:
            kinds = (f"postgresql:{each}" for each in (row.table.connector, connector))
            reasons.append((*kinds, "--connector"))
        if row not in taken:
            reasons.append((name, given[entity_type], "--table-map"))
        if not reasons and (owner := owners.setdefault(entity_type, row.table)) != row.table:
            reasons.append((name, NAMES[owner], "--table-map"))
        if reasons:
            aside.append(reasons)
        elif row.value is None:
            state.pop((entity_type, str(row.key)), None)
        else:
            state[entity_type, str(row.key)] = row.value
    return state, aside


def _may_be_taken(row: Row, history: History, given: dict[str, str]) -> bool:
    entity_type, named = entity_type_of(row.table, history.options)
    return named or entity_type not in given


@settings(max_examples=40)
@given(histories())
def test_the_last_image_of_each_row_of_each_table_is_right_or_its_rows_are_set_aside(
    tmp_path_factory: pytest.TempPathFactory, history: History
) -> None:
    ingest = Ingest(tmp_path_factory.mktemp("log"))
    for run in history.runs:
        ingest.run(*run, **history.options)
    state, aside = judged(history)
    assert ingest.state() == state
    found = [reason for _, reason in ingest.quarantined()]
    assert len(found) == len(aside), (found, aside)
    for reason, true in zip(found, aside, strict=True):
        assert any(all(part in reason for part in named) for named in true), (reason, true)


def test_a_removal_in_one_table_and_an_insert_in_another_of_its_name_do_not_cancel(
    tmp_path: Path,
) -> None:
    rows = [
        Row(PUBLIC, 7, 1, "c", 1),
        Row(PUBLIC, 7, None, "d", 2),
        Row(ARCHIVE, 7, 1, "c", 2),
    ]
    lines = [row.line(place) for place, row in enumerate(rows)]
    ingest = Ingest(tmp_path / "one")
    ingest.run([lines])
    assert ingest.state() == {}
    [(raw, reason)] = ingest.quarantined()
    assert raw == lines[2]
    assert reason == (
        "a row of shop.archive.orders, and entity type 'orders' has the rows of shop.public.orders; name it "
        "apart: --table-map shop.archive.orders=NAME or --entity-type-from schema.table; "
        "if it took the place of the other: --table-map shop.archive.orders=orders"
    )
    for options, names in (
        ({"entity_type_from": "schema.table"}, "archive.orders"),
        ({"entity_type_from": "database.schema.table"}, "shop.archive.orders"),
        ({"table_map": {"archive.orders": "old"}}, "old"),
    ):
        ingest = Ingest(tmp_path / names)
        assert ingest.run([lines], **options).quarantined == 0
        assert ingest.state() == {(names, "7"): 1}


def test_the_table_that_came_first_keeps_its_entity_type_in_later_runs(tmp_path: Path) -> None:
    ingest = Ingest(tmp_path)
    ingest.run([[Row(ARCHIVE, 1, 1, "c").line(1)]])
    ingest.run([[Row(PUBLIC, 1, 2, "c").line(2)], [Row(ARCHIVE, 1, 3, "u").line(3)]])
    assert ingest.state() == {("orders", "1"): 3}
    assert len(ingest.quarantined()) == 1
    positions = CommitLog.open(tmp_path / "shop").state.source_positions
    assert positions["table:orders"] == "shop.archive.orders"
    assert positions["connector"] == "postgresql:shop"


def test_a_strict_ingest_stops_at_a_row_of_another_table(tmp_path: Path) -> None:
    ingest = Ingest(tmp_path)
    lines = [Row(table, 1, 1, "c").line(1) for table in (PUBLIC, ARCHIVE)]
    with pytest.raises(LineRefused, match=r"99\.json line 2: a row of shop\.archive\.orders"):
        ingest.run([lines], strict=True)


def test_a_row_set_aside_counts_towards_the_end_of_its_transaction(tmp_path: Path) -> None:
    ingest = Ingest(tmp_path)
    rows = [Row(table, 1, 1, "c", 7).line(1) for table in (PUBLIC, ARCHIVE)]
    ingest.run([[*rows, line(end("7", 2))]])
    [lead] = leads(tmp_path / "shop")
    assert (lead["source_count"], lead["expected_count"], lead["quarantined"]) == (1, 2, 1)


def test_a_table_goes_on_with_an_entity_type_where_the_map_names_it_and_not_the_former(
    tmp_path: Path,
) -> None:
    ingest = Ingest(tmp_path)
    live = Table("live", "public", "orders")
    ingest.run([[Row(PUBLIC, 1, 1, "c").line(1)]])
    ingest.run([[Row(live, 1, 2, "u").line(2)]], table_map={"public.orders": "orders"})
    assert ingest.state() == {("orders", "1"): 1}
    ingest.run(
        [[Row(live, 1, 3, "u").line(3), Row(PUBLIC, 1, 4, "u").line(4)]],
        table_map={"live.public.orders": "orders"},
    )
    assert ingest.state() == {("orders", "1"): 3}
    ingest.run([[Row(live, 1, 5, "u").line(5), Row(PUBLIC, 1, 6, "u").line(6)]])
    assert ingest.state() == {("orders", "1"): 5}
    bare = Table(None, None, "orders")
    ingest.run([[Row(bare, 1, 7, "u").line(7)]], table_map={"orders": "orders"})
    assert ingest.state() == {("orders", "1"): 5}
    ingest.run([[Row(bare, 1, 8, "u").line(8)]], table_map={"..orders": "orders"})
    assert ingest.state() == {("orders", "1"): 8}
    assert len(ingest.quarantined()) == 4


def test_transactions_of_two_connectors_never_become_one(tmp_path: Path) -> None:
    """A row of another connector does not count towards the end of a transaction of the same id either."""
    ingest = Ingest(tmp_path)
    other = Table("crm", "public", "client", "other")
    ingest.run(
        [[Row(PUBLIC, 1, 1, "c", 7).line(1), Row(other, 1, 2, "c", 7).line(2)]],
        [[line(end("7", 2))], [Row(PUBLIC, 2, 3, "c", 7).line(3)]],
    )
    assert ingest.state() == {("orders", "1"): 1, ("orders", "2"): 3}
    [lead] = leads(tmp_path / "shop")
    assert (lead["source_count"], "quarantined" in lead) == (2, False)
    [(_, reason)] = ingest.quarantined()
    assert reason == (
        "a row of connector postgresql:other, and this catalog has the rows of connector postgresql:shop; give "
        "each connector a catalog of its own; if it has replaced the other: --connector postgresql:other"
    )


def test_a_connector_takes_the_place_of_another_where_it_is_named(tmp_path: Path) -> None:
    """What is open of the other is closed first, as both may use the same ids."""
    ingest = Ingest(tmp_path)
    renamed = PUBLIC._replace(connector="other")
    begun = line(end("7", None, "BEGIN"))
    ingest.run([[begun, Row(PUBLIC, 1, 1, "c", 7).line(1)]])
    lines = [Row(renamed, 1, 2, "u", 8).line(2), Row(PUBLIC, 1, 3, "u", 9).line(3)]
    ingest.run([lines], connector="postgresql:other")
    assert ingest.state() == {("orders", "1"): 2}
    [(_, reason)] = ingest.quarantined()
    assert "postgresql:shop, and --connector says postgresql:other" in reason
    ingest.run([[Row(renamed, 1, 4, "u", 10).line(4)]])
    assert ingest.state() == {("orders", "1"): 4}


def keyed(lsn: int, op: str, key: Any, before: Any, after: Any) -> bytes:
    """Return a line with a message key."""
    value = envelope(
        op, PUBLIC.block(lsn=lsn, ts_ms=1_700_000_000_000 + lsn), before=before, after=after
    )
    return line({"key": key, "value": value})


RENAMED = SchemaMapping.parse('[entity_types.orders.columns.c]\nrenamed_from = "id"')
FIRST = [keyed(n, "c", {"id": n}, None, {"id": n, "c": n + 10, "v": n}) for n in (1, 2)]
"""Two rows whose key is `id`; then the primary key becomes `c`, one row is updated and the other removed."""
REKEYED = [
    keyed(3, "u", {"c": 11}, None, {"id": 1, "c": 11, "v": 3}),
    keyed(4, "d", {"c": 12}, {"id": 2, "c": 12, "v": 2}, None),
]
CUTS = {"batch": [[[0, 1]]], "files": [[[0], [1]]], "batches": [[[0]], [[1]]], "runs": None}


def ingest_cut(ingest: Ingest, cut: str, parts: Sequence[Sequence[bytes]], **options: Any) -> None:
    """Ingest two parts as one file, as two files of a batch, as two batches, or in two runs."""
    shape = CUTS[cut]
    if shape is None:
        for part in parts:
            ingest.run([part], keys={}, **options)
        return
    batches = [[[each for at in file for each in parts[at]] for file in batch] for batch in shape]
    ingest.run(*batches, keys={}, **options)


@pytest.mark.parametrize("cut", CUTS)
def test_rows_keyed_by_other_columns_than_the_log_has_are_set_aside(
    tmp_path: Path, cut: str
) -> None:
    ingest = Ingest(tmp_path)
    ingest_cut(ingest, cut, (FIRST, REKEYED))
    assert ingest.state() == {("orders", "1"): 1, ("orders", "2"): 2}
    found = ingest.quarantined()
    assert [raw for raw, _ in found] == REKEYED
    for _, reason in found:
        assert "the key of 'orders' is c, and the log has its rows by id" in reason
        assert "--key orders=id" in reason
    assert CommitLog.open(tmp_path / "shop").state.source_positions["key:orders"] == '["id"]'


@pytest.mark.parametrize("cut", CUTS)
def test_the_option_for_the_former_key_keeps_the_rows_of_a_table_with_another_key(
    tmp_path: Path, cut: str
) -> None:
    ingest = Ingest(tmp_path)
    ingest_cut(ingest, cut, (FIRST, REKEYED))
    ingest.run([REKEYED], keys={"orders": ("id",)})
    assert ingest.state() == {("orders", "1"): 3}


@pytest.mark.parametrize("cut", CUTS)
def test_a_key_in_another_member_order_is_the_same_row(tmp_path: Path, cut: str) -> None:
    ingest = Ingest(tmp_path)
    image = {"a": 2, "b": 1, "v": 1}
    first = [keyed(1, "c", {"b": 1, "a": 2}, None, image)]
    second = [
        keyed(2, "u", {"a": 2, "b": 1}, image, image | {"v": 2}),
        keyed(3, "u", {"a": 2, "b": 1}, image, image | {"a": 3, "v": 3}),  # moves
    ]
    ingest_cut(ingest, cut, (first, second))
    assert ingest.state() == {("orders", "[1,3]"): 3}
    assert ingest.quarantined() == []


@pytest.mark.parametrize("cut", CUTS)
def test_a_renamed_key_column_keeps_its_rows_and_old_lines_may_come_late(
    tmp_path: Path, cut: str
) -> None:
    ingest = Ingest(tmp_path)
    first = [keyed(1, "c", {"id": 1}, None, {"id": 1, "v": 1})]
    second = [keyed(2, "u", {"c": 1}, None, {"c": 1, "v": 2})]
    ingest.run([first], keys={})
    late = [keyed(3, "u", {"id": 1}, None, {"id": 1, "v": 3})]
    ingest_cut(ingest, cut, (second, late), mapping=RENAMED)
    assert ingest.state() == {("orders", "1"): 3}
    assert ingest.quarantined() == []


@pytest.mark.parametrize("keys", [({"id": 1}, 1), (1, {"id": 1}), (1, "1")])
def test_a_key_that_names_no_columns_is_not_compared(tmp_path: Path, keys: tuple[Any, Any]) -> None:
    ingest = Ingest(tmp_path)
    for number, key in enumerate(keys, 1):
        text = keyed(number, "c" if number == 1 else "u", key, None, {"id": 1, "v": number})
        ingest.run([[text]], keys={})
    assert ingest.state() == {("orders", "1"): 2}
    assert ingest.quarantined() == []


@pytest.mark.parametrize("key", [{"id": 1, "c": 11}, {"c": 11}, {"ID": 1}])
def test_a_key_of_more_or_other_columns_is_another_key(tmp_path: Path, key: Any) -> None:
    ingest = Ingest(tmp_path)
    ingest.run([FIRST], keys={})
    ingest.run([[keyed(3, "u", key, None, {"id": 1, "ID": 1, "c": 11, "v": 3})]], keys={})
    assert ingest.state() == {("orders", "1"): 1, ("orders", "2"): 2}
    assert len(ingest.quarantined()) == 1


def test_a_table_that_begins_with_a_truncate_is_bound_to_the_key_of_its_next_row(
    log_root: Path,
) -> None:
    """A truncate names no key, so the table is bound before its key is."""
    feed = Feed(log_root)
    truncate = line(envelope("t", PUBLIC.block(lsn=1)))
    feed.batch(truncate, line(envelope("c", PUBLIC.block(lsn=2), after={"id": 7})))
    assert feed.driver.bindings.keys == {"orders": '["id"]'}
    feed.close()
