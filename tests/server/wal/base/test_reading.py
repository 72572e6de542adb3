"""State as of a version: what plain Python makes of the records, whatever is in the log."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.criteria import Operation
from tailrace.errors import InvalidRequest, PositionCompacted
from tailrace_server.wal.base import winners
from tailrace_server.wal.base.making import make_base
from tailrace_server.wal.base.reading import TableState, table_state
from tailrace_server.wal.base.state_rows import StatePlace, joined_rows
from tailrace_server.wal.base.winners import FoldBounds, ordered
from tailrace_server.wal.catalog import create_catalog, open_catalog
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.segment.reader import BatchReader
from tailrace_server.wal.upkeep.compaction import compact
from tailrace_server.wal.upkeep.retention import trim
from tests.server.wal.base.tables import (
    TINY,
    Kept,
    as_table,
    histories,
    naive,
    rename,
    state,
    write_history,
)
from tests.server.wal.logs import remove, rows_of, update, upsert, write
from tests.support.older_writer import OlderWriter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def tables_of(root: Path) -> Iterator[TableState]:
    log = open_catalog(root, "shop")
    with BatchReader(log.path) as reader:
        for version in range(log.view.published + 1):
            for entity_type in ("order", "item"):
                yield table_state(log.view, reader, entity_type, version)


@settings(max_examples=15)
@given(history=histories(), tiny=st.booleans())
def test_state_at_every_version_is_what_plain_python_folds(
    tmp_path_factory: pytest.TempPathFactory, history: list[list[Mutation]], tiny: bool
) -> None:
    root = tmp_path_factory.mktemp("log")
    write_history(root, history)
    records = rows_of(root / "shop")
    for table in tables_of(root):
        bounded = replace(table, _bounds=TINY) if tiny else table
        wanted = naive(records, table.version, table.entity_type)
        assert as_table(bounded.parts()) == wanted
        if bounded.in_log:
            rows = joined_rows([rows for _, rows in bounded.log_parts()])
            in_order = rows.taken(ordered(rows.key_hashes, rows.primary_keys)[0])
            assert as_table([in_order]) == wanted
        asked = [*wanted, "never was"]
        assert as_table([bounded.rows_of(asked)]) == wanted
        assert as_table([bounded.rows_of(asked[-2:])]).keys() == {*asked[-2:]} & wanted.keys()


def test_a_reader_goes_on_behind_any_row(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert(str(key)) for key in range(20)])
    log = open_catalog(log_root, "shop")
    with BatchReader(log.path) as reader:
        table = replace(table_state(log.view, reader, "order", 1), _bounds=TINY)
        parts = [*table.parts()]
        assert max(map(len, parts)) == 2
        places = [part.place(row) for part in parts for row in range(len(part))]
        for number, place in enumerate(places):
            rest = [part.place(row) for part in table.parts(place) for row in range(len(part))]
            assert rest == places[number + 1 :]
        between = StatePlace(places[3].key_hash, places[3].primary_key + "x")
        assert next(table.parts(between)).place(0) == places[4]


def test_keys_of_one_hash_are_told_apart(log_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No pair of keys is known that has one hash, so all keys get one of four."""
    monkeypatch.setattr(
        "tailrace_server.wal.segment.carried.key_hash", lambda seed, key: len(key) % 4 + 1
    )
    monkeypatch.setattr(
        "tailrace_server.wal.base.reading.key_hash", lambda seed, key: len(key) % 4 + 1
    )
    monkeypatch.setattr(
        "tailrace_server.wal.base.reading.key_hashes",
        lambda seeds, keys: np.array([len(key) % 4 + 1 for key in keys.to_pylist()], np.uint64),
    )
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert(str(key)) for key in range(30)])
        writer.commit()
        writer.append([update(str(key), 1, 2) for key in range(5, 25)])
        writer.commit()
        writer.append([remove(str(key)) for key in range(10, 20)])
    log = open_catalog(log_root, "shop")
    with BatchReader(log.path) as reader:
        for version in (1, 2, 3):
            table = table_state(log.view, reader, "order", version)
            wanted = naive(log.path, version, "order")
            assert as_table(table.parts()) == wanted
            tiny = replace(table, _bounds=TINY)
            assert as_table(tiny.parts()) == wanted
            assert as_table([tiny.rows_of(["7", "12"])]) == {
                key: wanted[key] for key in ("7", "12") if key in wanted
            }
            places = [part.place(row) for part in tiny.parts() for row in range(len(part))]
            assert next(tiny.parts(places[6])).place(0) == places[7]


def test_a_renamed_entity_type_is_one_table_under_both_names(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert("1"), upsert("2"), upsert("3")])
    rename(log_root, "order", "sale", [upsert("2", 5, "sale"), upsert("4", 5, "sale")])
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([Mutation("sale", "1", Operation.REMOVE)])
    wanted = naive(log_root / "shop", 3, "order", "sale")
    assert wanted.keys() == {"2", "3", "4"}
    assert state(log_root, "sale") == wanted
    assert state(log_root, "order", 1) == state(log_root, "sale", 1)
    assert state(log_root, "order", 1).keys() == {"1", "2", "3"}
    with pytest.raises(InvalidRequest, match="no entity type 'order'; known: sale"):
        state(log_root, "order", 2)
    # The order of the rows, too, is that of before: a reader that stands in the middle may go on.
    log = open_catalog(log_root, "shop")
    with BatchReader(log.path) as reader:
        before, after = (
            [rows.place(row) for rows in each.parts() for row in range(len(rows))]
            for each in (
                table_state(log.view, reader, "order", 1),
                table_state(log.view, reader, "sale", 2),
            )
        )
        assert [place for place in after if place.primary_key != "4"] == before
        found = table_state(log.view, reader, "sale", 3).rows_of(["1", "2", "3"])
        assert found.primary_keys.to_pylist() == [p.primary_key for p in before if p[1] != "1"]


def test_a_row_without_image_and_one_that_was_sent_in_part_stay_as_they_were_sent(
    log_root: Path,
) -> None:
    part = b'{"id":"1","value":"__debezium_unavailable_value"}'
    with OlderWriter.open(log_root, "shop") as writer:
        writer.append([upsert("1"), upsert("2")])
        writer.append([Mutation("order", "1", after=part)])
        writer.append([Mutation("order", "2", change=b'{"value":3}', changed=("value",))])
    assert state(log_root) == {"1": Kept((2, 1), 1, part), "2": Kept((3, 1), 1, None)}


def test_a_late_transaction_counts_where_it_stands_in_the_log(log_root: Path) -> None:
    """As with a reader that applies every capture: else state and then the changes would not be all changes."""
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert("1", 1)])
        writer.append([upsert("1", 2)])
        writer.append([upsert("1", 0)], late=True, of=1)
    assert state(log_root)["1"].at == (3, 1)


def test_a_truncate_in_the_middle_of_a_transaction_takes_only_what_is_before_it(
    log_root: Path,
) -> None:
    with OlderWriter.open(log_root, "shop") as writer:
        writer.append([upsert("1"), upsert("5", entity_type="user")])
        writer.append([upsert("2"), Mutation("order", None, Operation.REMOVE), upsert("3")])
    assert state(log_root).keys() == {"3"}
    assert state(log_root, "user").keys() == {"5"}


def test_a_key_of_a_mebibyte_and_an_image_of_several_come_alone(log_root: Path) -> None:
    long = "k" * (1 << 20)
    large = b'{"value":"%s"}' % (b"x" * (5 << 20))
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert("1"), upsert(long), replace(upsert("2"), after=large)])
    log = open_catalog(log_root, "shop")
    with BatchReader(log.path) as reader:
        table = table_state(log.view, reader, "order", 1)
        assert as_table(table.parts()) == naive(log.path, 1, "order")
        assert [len(part) for part in table.parts()] != [3]
        assert as_table([table.rows_of([long])]).keys() == {long}


def test_an_empty_table_has_no_parts(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert("1")])
        writer.append([remove("1")])
    assert state(log_root, version=0) == state(log_root, version=2) == {}


def test_what_cannot_be_read_is_refused_and_says_what_can(log_root: Path) -> None:
    create_catalog(log_root, "shop")
    with pytest.raises(InvalidRequest, match="no entity type 'order'; none is known yet"):
        state(log_root)
    write(log_root, "shop", 3)
    with pytest.raises(InvalidRequest, match="no entity type 'user'; known: order"):
        state(log_root, "user")
    for version in (-1, 4):
        with pytest.raises(InvalidRequest, match=f"version {version} .*newest published is 3"):
            state(log_root, version=version)
    trim(log_root / "shop", 2, 10, keeps_state=False)
    with pytest.raises(PositionCompacted, match="trimmed and has no base"):
        state(log_root)
    assert make_base(log_root / "shop", 11) is None


def test_state_is_the_same_after_a_compaction(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        for number in range(6):
            writer.append([upsert(str(number % 4), number), upsert("9", number, "user")])
            writer.commit()
    before = [state(log_root, version=version) for version in range(7)]
    assert compact(log_root / "shop", 5) is not None
    assert [state(log_root, version=version) for version in range(7)] == before


def test_a_fold_keeps_no_more_than_its_bounds(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three quarters of the records are changes of few keys, and yet no pass ever keeps many rows."""
    with LogWriter.open(log_root, "shop") as writer:
        for number in range(50):
            writer.append([upsert(str(key), number) for key in (*range(4), 100 + number)])
            writer.commit()
    most = 0
    joined = winners.Winners.joined

    def watched(parts: list[winners.Winners]) -> winners.Winners:
        nonlocal most
        found = joined(parts)
        most = max(most, len(found))
        return found

    monkeypatch.setattr(winners.Winners, "joined", watched)
    log = open_catalog(log_root, "shop")
    with BatchReader(log.path) as reader:
        table = table_state(log.view, reader, "order", 50)
        bounds = replace(FoldBounds(), rows=8)
        assert as_table(replace(table, _bounds=bounds).parts()) == naive(log.path, 50, "order")
    assert 8 < most <= 2 * 8 + 5  # what is kept, as much again, and the batch that went beyond


def test_rows_are_columns_that_can_be_cut(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert(str(key)) for key in range(5)])
    log = open_catalog(log_root, "shop")
    with BatchReader(log.path) as reader:
        (rows,) = table_state(log.view, reader, "order", 1).parts()
    assert rows.key_hashes.dtype == np.uint64
    assert [rows.count_up_to(rows.place(row)) for row in range(5)] == [1, 2, 3, 4, 5]
    assert rows.count_up_to(StatePlace(0, "")) == 0
    assert rows.slice(1, 3).place(-1) == rows.place(2)
    assert [len(part) for part in rows.slice(1, 5).parts(3, 1 << 20)] == [3, 1]


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("ab")), max_size=30), st.booleans())
def test_rows_are_sorted_by_hash_and_key_and_rows_of_one_key_stay_in_order(
    rows: list[tuple[int, str]], has_many_others: bool
) -> None:
    """Both with few rows of equal hashes and with many."""
    rows += [(number, "c") for number in range(10, 500 if has_many_others else 10)]
    hashes = np.array([hash for hash, _ in rows], np.uint64)
    order, followed = ordered(hashes, pa.array([key for _, key in rows], pa.string()))
    assert order.tolist() == sorted(range(len(rows)), key=rows.__getitem__)
    assert followed.tolist() == [rows[a] == rows[b] for a, b in pairwise(order.tolist())]
