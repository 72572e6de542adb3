"""Bases: made in bounded memory and named once; state over any of them is what the log alone gives."""

from __future__ import annotations

import signal
from dataclasses import replace
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace.errors import LogError
from tailrace_server.wal.base import base_files, bases, making
from tailrace_server.wal.base.making import delete_unnamed_rows, make_base
from tailrace_server.wal.base.reading import table_state
from tailrace_server.wal.catalog import open_catalog
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import SchemaMapping
from tailrace_server.wal.segment.reader import BatchReader
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.retention import trim
from tests.server.wal.base.tables import (
    TINY,
    as_table,
    histories,
    naive,
    rename,
    row_files,
    state,
    versions_of_bases,
    write_history,
)
from tests.server.wal.logs import armed, finish, python, remove, rows_of, upsert

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have bases of few rows in several batches and files."""
    monkeypatch.setattr(base_files, "_BATCH_ROWS", 2)
    monkeypatch.setattr(base_files, "_FILE_BYTES", 1_500)


@settings(
    max_examples=15,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(history=histories(), tiny=st.booleans(), data=st.data())
@pytest.mark.usefixtures("small_files")
def test_a_base_at_any_version_and_the_log_behind_it_give_what_plain_python_folds(
    tmp_path_factory: pytest.TempPathFactory,
    history: list[list[Mutation]],
    tiny: bool,
    data: st.DataObject,
) -> None:
    root = tmp_path_factory.mktemp("log")
    write_history(root, history)
    records, log = rows_of(root / "shop"), open_catalog(root, "shop")
    at = data.draw(st.integers(1, log.view.published), label="base")
    first = data.draw(st.integers(0, at), label="base before")
    if first:
        make_base(log.path, 5, first)
    make_base(log.path, 6, at)
    with BatchReader(log.path) as reader:
        for version in range(at, log.view.published + 1):
            for entity_type in ("order", "item"):
                table = table_state(log.view, reader, entity_type, version)
                assert table._after == at
                bounded = replace(table, _bounds=TINY) if tiny else table
                wanted = naive(records, version, entity_type)
                assert as_table(bounded.parts()) == wanted
                assert as_table([bounded.rows_of([*wanted, "never was"])]) == wanted
                places = [part.place(row) for part in bounded.parts() for row in range(len(part))]
                for number, place in enumerate(places):
                    rest = (
                        part.place(row) for part in bounded.parts(place) for row in range(len(part))
                    )
                    assert [*rest] == places[number + 1 :]


def test_a_base_is_named_with_what_it_holds_and_replaces_the_one_before(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert(str(key)) for key in range(6)])
        writer.append([upsert("1", 7), remove("2")])
    catalog = log_root / "shop"
    made = make_base(catalog, 5, 1)
    assert made is not None
    assert made[:5] == (1, 1, 0, 6, 1)
    assert made.bytes == row_files(log_root)[0].stat().st_size
    assert make_base(catalog, 6, 1) is None
    before = row_files(log_root)
    assert make_base(catalog, 7) is not None
    assert versions_of_bases(log_root) == [2]
    assert state(log_root, version=1).keys() == set("012345")
    assert state(log_root, version=2).keys() == set("01345")
    # The file that is named no longer stays for readers that hold it.
    assert delete_unnamed_rows(catalog, 7 + 600_000_000 - 1) == []
    assert delete_unnamed_rows(catalog, 7 + 600_000_000) == [f"bases/rows/{before[0].name}"]
    assert row_files(log_root) != before
    assert state(log_root, version=2).keys() == set("01345")


def test_a_table_without_new_records_keeps_its_files(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert("1"), upsert("2", entity_type="user")])
        writer.commit(publish=True)
        make_base(log_root / "shop", 5)
        writer.append([upsert("3")])
    made = make_base(log_root / "shop", 6)
    assert made is not None
    assert (made.tables, made.kept_tables, made.files) == (2, 1, 2)
    assert state(log_root, "user").keys() == {"2"}
    assert delete_unnamed_rows(log_root / "shop", 10**15) != []
    assert state(log_root, "user").keys() == {"2"}


@pytest.mark.usefixtures("small_files")
def test_an_entity_type_renamed_after_the_base_is_read_over_it(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert(str(key)) for key in range(9)])
    make_base(log_root / "shop", 5)
    rename(log_root, "order", "sale", [upsert("2", 5, "sale"), upsert("10", 5, "sale")])
    wanted = naive(log_root / "shop", 2, "order", "sale")
    assert state(log_root, "sale") == wanted
    make_base(log_root / "shop", 6)
    assert state(log_root, "sale") == wanted
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert("3", 8, "sale")])
    assert state(log_root, "sale") == naive(log_root / "shop", 3, "order", "sale")


def test_rows_stay_as_they_were_sent_when_columns_are_renamed_dropped_and_added(
    log_root: Path,
) -> None:
    catalog = log_root / "shop"
    images = [b'{"id":"1","cost":1.50,"old":1}', b'{"id":"2","price":2.0,"new":"x"}']
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([Mutation("order", "1", after=images[0])])
    make_base(catalog, 5)
    columns = "[entity_types.order.columns"
    mapping = SchemaMapping.parse(
        f'{columns}.price]\nrenamed_from = "cost"\n{columns}.old]\ndropped = true'
    )
    with LogWriter.open(log_root, "shop", mapping=mapping) as writer:
        writer.append([Mutation("order", "2", after=images[1])])
    for _ in range(2):
        found = state(log_root)
        assert [found[key].image for key in ("1", "2")] == images
        make_base(catalog, 6)
    # Each is decoded by the schema of its own version, which its row tells.
    schema_of = CommitLog.open(catalog).view.schema_of
    named = [
        {column.name for column in schema_of(found[key].at[0]).entity_types["order"]}
        for key in ("1", "2")
    ]
    assert named == [{"id", "cost", "old"}, {"id", "price", "old", "new"}]


PLACES = (
    "base.before_rename",
    "base.after_rename",
    "base.before_link",
    "base.linked",
    "base.after_link",
)


def check_after_a_failure_at(root: Path, place: str) -> None:
    """Check that there is one base or none, that another can be made, and that nothing is left of the first."""
    named = place in ("base.linked", "base.after_link")
    assert versions_of_bases(root) == ([1] if named else [])
    assert state(root).keys() == set("012345678")
    with LogWriter.open(root, "shop") as writer:
        writer.append([remove("0")])
    assert make_base(root / "shop", 6) is not None
    delete_unnamed_rows(root / "shop", 10**15)
    assert len(row_files(root)) == 1
    assert state(root).keys() == set("12345678")


@pytest.mark.parametrize("action", ["enospc", "error"])
@pytest.mark.parametrize("place", PLACES)
def test_a_build_that_fails_anywhere_leaves_one_base_or_none(
    log_root: Path, place: str, action: str
) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert(str(key)) for key in range(9)])
    with armed(f"{place}={action}"), pytest.raises((LogError, OSError)):
        make_base(log_root / "shop", 5)
    check_after_a_failure_at(log_root, place)


@pytest.mark.slow
def test_a_build_that_is_killed_anywhere_leaves_one_base_or_none(tmp_path: Path) -> None:
    code = """
        import sys
        from pathlib import Path
        from tailrace_server.wal.base.making import make_base
        make_base(Path(sys.argv[1]), 5)
    """
    processes = []
    for place in PLACES:
        with LogWriter.open(tmp_path / place, "shop") as writer:
            writer.append([upsert(str(key)) for key in range(9)])
        catalog = tmp_path / place / "shop"
        processes.append(python(dedent(code), catalog, failing=f"{place}=kill"))
    for place, process in zip(PLACES, processes, strict=True):
        assert finish(process)[0] == -signal.SIGKILL
        check_after_a_failure_at(tmp_path / place, place)


def test_of_two_builders_one_names_its_base_and_the_other_finds_it(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert(str(key)) for key in range(9)])
    written = bases.write_bases

    def overtaken(*arguments: Any) -> bool:
        monkeypatch.undo()
        assert make_base(log_root / "shop", 6) is not None
        return written(*arguments)

    monkeypatch.setattr(making, "write_bases", overtaken)
    assert make_base(log_root / "shop", 5) is None
    assert len(row_files(log_root)) == 1
    assert versions_of_bases(log_root) == [1]
    assert state(log_root).keys() == set("012345678")


def test_two_builders_of_different_versions_both_succeed(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert(str(key)) for key in range(9)])
        writer.append([remove("0")])
    written = bases.write_bases

    def overtaken(*arguments: Any) -> bool:
        monkeypatch.undo()
        assert make_base(log_root / "shop", 6, 1) is not None
        return written(*arguments)

    monkeypatch.setattr(making, "write_bases", overtaken)
    assert make_base(log_root / "shop", 5, 2) is not None
    assert versions_of_bases(log_root) == [2]
    delete_unnamed_rows(log_root / "shop", 10**15)
    assert len(row_files(log_root)) == 1
    assert state(log_root).keys() == set("12345678")


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize("trimmed", [False, True])
def test_a_reader_whose_base_is_replaced_and_deleted_meanwhile_goes_on(
    log_root: Path, trimmed: bool
) -> None:
    catalog = log_root / "shop"
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert(str(key)) for key in range(30)])
        writer.append([upsert("5", 2), remove("6")])
        writer.append([upsert("7", 2)])
    make_base(catalog, 5, 1)
    if trimmed:
        trim(catalog, 2, 6)
    wanted = naive(catalog, 2, "order") if not trimmed else state(log_root, version=2)
    log = open_catalog(log_root, "shop")
    with BatchReader(catalog) as reader:
        table = table_state(log.view, reader, "order", 2)
        parts = table.parts()
        first = next(parts)
        make_base(catalog, 7, anew=not trimmed)
        delete_unnamed_rows(catalog, 10**15)
        reader.close()
        assert as_table([first, *parts]) == wanted
        assert as_table([table.rows_of(["5", "6"])]) == {"5": wanted["5"]}


def test_a_deletion_reads_no_list_of_bases_below_one_that_is_superseded(log_root: Path) -> None:
    catalog = log_root / "shop"
    for number in range(6):
        with LogWriter.open(log_root, "shop") as writer:
            writer.append([upsert(str(number))])
        make_base(catalog, 5)
    lists = sorted((catalog / "bases").glob("*.json"))
    delete_unnamed_rows(catalog, 10**15)
    assert [b'"superseded":true' in each.read_bytes() for each in lists] == [True] * 4 + [False] * 2
    lists[0].write_bytes(b"damaged")
    delete_unnamed_rows(catalog, 10**15)
    assert state(log_root).keys() == set("012345")
