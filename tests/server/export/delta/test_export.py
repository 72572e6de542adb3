from __future__ import annotations

import random
import shutil
import threading
from typing import TYPE_CHECKING

import orjson
import pytest
from deltalake import DeltaTable

from tailrace.clock import SystemClock
from tailrace.criteria import Operation
from tailrace.errors import InvalidRequest
from tailrace_server.export.delta import export as export_module
from tailrace_server.export.delta.export import DeltaExport, folder_of
from tailrace_server.export.errors import (
    LakeColumnUnfit,
    LakeTableChanged,
    LakeUnwritable,
    LakeValueUnfit,
)
from tailrace_server.typed.misfits import OnMisfit
from tailrace_server.wal.gate import take_away_gate
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import SchemaMapping
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.retention import trim
from tests.server.export.delta.lakes import (
    TRUNCATE,
    export,
    gone,
    hows,
    item,
    lake_rows,
    open_shop,
    put,
    settings,
    state_rows,
)
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def test_a_table_is_the_state_at_each_version_and_says_which(log_root: Path, lake: Path) -> None:
    """Whatever changes between two runs: nothing, rows that come, change and go, and keys that return."""
    chosen = random.Random(5)
    with open_shop(log_root) as writer:
        for _ in range(6):
            for _ in range(chosen.randint(0, 3)):
                ids = chosen.sample(range(8), 3)
                put(
                    writer,
                    *(
                        item(id, chosen.randrange(99)) if chosen.random() < 0.6 else gone(id)
                        for id in ids
                    ),
                )
            done = export(log_root, lake)
            if done.version:
                assert lake_rows(lake / "item") == state_rows(log_root)
        newest = writer.state.last_version
    table = DeltaTable(str(lake / "item"))
    [app] = {each for each in (f"tailrace/{writer.uuid}/1",) if table.transaction_version(each)}
    assert table.transaction_version(app) == newest


def test_a_log_that_ends_before_its_tables_is_told(
    log_root: Path, lake: Path, tmp_path: Path
) -> None:
    """It was restored from an older copy. The rest of the tables' versions would be waited for."""
    with open_shop(log_root) as writer:
        put(writer, item(1, 1))
        shutil.copytree(log_root / "shop", tmp_path / "older")
        put(writer, item(1, 2))
        export(log_root, lake)
    shutil.rmtree(log_root / "shop")
    (tmp_path / "older").rename(log_root / "shop")
    with pytest.raises(LakeTableChanged, match="has version 2, but the log ends at 1"):
        export(log_root, lake)
    with LogWriter.open(log_root, "shop", take_over=True) as writer:
        put(writer, item(1, 3))
        put(writer, item(1, 4))
    with pytest.raises(LakeTableChanged, match=r"restored from an older copy and written again"):
        export(log_root, lake)


def test_a_row_that_is_removed_and_was_never_there_changes_nothing(
    log_root: Path, lake: Path
) -> None:
    """Delta makes no commit of it; what comes then is merged all the same."""
    with open_shop(log_root) as writer:
        put(writer, item(1, 1))
        with DeltaExport.begin(settings(log_root, lake)) as exporting:
            exporting.advance()
            put(writer, gone(7))
            done = exporting.advance()
            assert (done.version, done.steps) == (2, ())
            put(writer, item(2, 2))
            assert hows(exporting.advance()) == {"item": "merged"}
    assert lake_rows(lake / "item") == state_rows(log_root)


def test_what_is_far_behind_comes_in_steps(
    log_root: Path, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merge of the whole log at once would take memory that grows with it."""
    monkeypatch.setattr(export_module, "_STEP_RECORDS", 6)
    with open_shop(log_root) as writer:
        put(writer, item(0, 0))
        export(log_root, lake)
        for number in range(1, 10):
            put(writer, item(number % 4, number))
    told: list[int] = []
    with DeltaExport.begin(settings(log_root, lake)) as exporting:
        exporting.advance(lambda progress: told.append(progress.version))
    assert told == [4, 7, 10]
    assert lake_rows(lake / "item") == state_rows(log_root)


def test_entity_types_that_come_later_get_tables_unless_some_are_named(
    log_root: Path, lake: Path, tmp_path: Path
) -> None:
    with open_shop(log_root) as writer:
        put(writer, item(1, 1))
        with (
            DeltaExport.begin(settings(log_root, lake)) as everything,
            DeltaExport.begin(settings(log_root, tmp_path / "one", entity_types=("item",))) as one,
        ):
            assert hows(everything.advance()) == {"item": "written"}
            put(writer, Mutation("a/b", "x", after=b'{"q":true}'), item(2, 2))
            assert hows(everything.advance()) == {"item": "merged", "a/b": "written"}
            assert hows(one.advance()) == {"item": "written"}
    assert [row["q"] for row in lake_rows(lake / "a~2Fb")] == [True]
    assert [each.name for each in (tmp_path / "one").iterdir()] == ["item"]


def test_columns_that_are_added_are_null_in_the_rows_before(log_root: Path, lake: Path) -> None:
    with open_shop(log_root) as writer:
        put(writer, item(1, 1), item(2, 2))
        export(log_root, lake)
        put(writer, item(2, 3, note="new", size=7))
        assert hows(export(log_root, lake)) == {"item": "merged"}
    assert lake_rows(lake / "item") == state_rows(log_root)


@pytest.mark.parametrize(
    ("mapping", "why"),
    [
        ('[entity_types.item.columns.cost]\nrenamed_from = "price"', "'price' is now named 'cost'"),
        ('[entity_types.item.columns.price]\ntype = "BIGINT"', "'price' has another type"),
    ],
)
def test_columns_that_become_others_have_the_table_rewritten(
    log_root: Path, lake: Path, mapping: str, why: str
) -> None:
    """It is one commit, behind which all rows are read by the columns of the newest version."""
    with open_shop(log_root) as writer:
        put(writer, item(1, 1), item(2, 2))
    export(log_root, lake)
    changed = SchemaMapping.parse(mapping)
    with LogWriter.open(log_root, "shop", mapping=changed) as writer:
        name = "cost" if "cost" in mapping else "price"
        after = orjson.dumps({"id": 3, name: 3})
        put(writer, Mutation("item", "3", after=after))
    done = export(log_root, lake)
    assert [(step.how, step.rows) for step in done.steps] == [("rewritten", 3)]
    assert why in done.steps[0].why
    assert [row[name] for row in lake_rows(lake / "item")] == [1, 2, 3]


def test_a_truncated_table_has_what_came_behind(log_root: Path, lake: Path) -> None:
    with open_shop(log_root) as writer:
        put(writer, item(1, 1), item(2, 2))
        export(log_root, lake)
        put(writer, TRUNCATE)
        put(writer, item(2, 5))
        assert hows(export(log_root, lake)) == {"item": "rewritten"}
        assert lake_rows(lake / "item") == state_rows(log_root)
        put(writer, TRUNCATE)
        export(log_root, lake)
    assert lake_rows(lake / "item") == []


def test_rows_without_a_key_have_a_count(log_root: Path, lake: Path) -> None:
    def row(text: str, diff: int, left: int) -> Mutation:
        operation = Operation.UPSERT if left else Operation.REMOVE
        image = orjson.dumps({"text": text})
        return Mutation(
            "line",
            text,
            operation,
            after=image if left else None,
            change=b'{"diff": %d}' % diff,
        )

    with LogWriter.open(log_root, "shop") as writer:
        put(writer, row("a", 2, 2), row("b", 1, 1))
        export(log_root, lake)
        put(writer, row("a", 3, 5), row("b", -1, 0))
        put(writer, row("c", 1, 1), row("a", -4, 1))
        export(log_root, lake)
    found = {row["text"]: row["_tailrace_count"] for row in lake_rows(lake / "line")}
    assert found == {"a": 1, "c": 1}
    assert lake_rows(lake / "line") == state_rows(log_root, "line")
    # A sum beyond 64 bits is refused, as state does; it does not come round to a negative number.
    with LogWriter.open(log_root, "shop") as writer:
        put(writer, row("c", 2**63 - 1, 2**63))
        with pytest.raises(LakeUnwritable, match="9223372036854775808 is out of range"):
            export(log_root, lake)


def test_a_table_that_a_trim_has_overtaken_is_rewritten(log_root: Path, lake: Path) -> None:
    with open_shop(log_root) as writer:
        put(writer, item(1, 1), item(2, 2))
        export(log_root, lake)
        put(writer, gone(1))
        put(writer, item(3, 3))
        put(writer, item(4, 4))
    trim(log_root / "shop", 4, 1)
    done = export(log_root, lake)
    assert [(step.how, step.why) for step in done.steps] == [
        ("rewritten", "the log was trimmed beyond the version of the table")
    ]
    assert lake_rows(lake / "item") == state_rows(log_root)


def test_a_value_that_does_not_fit_is_refused_by_name_or_null(log_root: Path, lake: Path) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        put(writer, Mutation("item", "1", after=b'{"id":1,"price":5}'))
        put(writer, Mutation("item", "2", after=b'{"id":2,"price":50000}'))
    declared = SchemaMapping.parse('[entity_types.item.columns.price]\ntype = "SMALLINT"')
    with LogWriter.open(log_root, "shop", mapping=declared) as writer:
        put(writer, Mutation("item", "3", after=b'{"id":3,"price":6}'))
    with pytest.raises(LakeValueUnfit, match=r"version 2, key '2': column 'price'.* 50000 is no"):
        export(log_root, lake)
    done = export(log_root, lake, on_misfit=OnMisfit.NULL)
    assert [row["price"] for row in lake_rows(lake / "item")] == [5, None, 6]
    assert ["50000" in each for step in done.steps for each in step.nulls] == [True]


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (b'{"_tailrace_key":1}', "begins with _tailrace_"),
        (b'{"a":1,"A":2}', "differ only in case"),
        (b'{"a`b":1}', "is not valid in Delta's SQL"),
    ],
)
def test_columns_that_a_delta_table_cannot_have_are_refused(
    log_root: Path, lake: Path, image: bytes, reason: str
) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        put(writer, Mutation("item", "1", after=image))
    with pytest.raises(LakeColumnUnfit, match=reason):
        export(log_root, lake)


def test_names_of_columns_may_be_any_others(log_root: Path, lake: Path) -> None:
    image = {"a.b": 1, 'q"x': 2, "my col": 3, "ünï": 4, "x,y;{}": 5, "SELECT": 6, "": 0}
    del image[""]
    with LogWriter.open(log_root, "shop") as writer:
        put(writer, Mutation("item", "1", after=orjson.dumps(image)))
        export(log_root, lake)
        put(writer, Mutation("item", "1", after=orjson.dumps(image | {"my col": 9})))
        export(log_root, lake)
    assert lake_rows(lake / "item") == state_rows(log_root)


def test_what_cannot_be_exported_is_said_at_once(log_root: Path, lake: Path) -> None:
    with open_shop(log_root) as writer:
        put(writer, item(1, 1))
    with pytest.raises(InvalidRequest, match="no such entity type; did you mean item"):
        export(log_root, lake, entity_types=("items",))
    with pytest.raises(InvalidRequest, match="choose a path without"):
        export(log_root, lake / "a%20b")
    with pytest.raises(InvalidRequest, match="cannot have a gate"):
        export(log_root, lake, catalog="system", gate=True)
    assert not lake.exists()


def test_folders_are_names_that_every_reader_takes() -> None:
    names = ["item", "a/b", "my table", "_x", ".x", "a~b", "ü"]
    assert [folder_of(name) for name in names] == [
        *("item", "a~2Fb", "my table", "~5Fx", "~2Ex", "a~7Eb", "~C3~BC")
    ]


def test_contract_07_whoever_is_told_of_a_version_finds_it_in_the_tables(
    log_root: Path, lake: Path
) -> None:
    """Under constant writes; each view is what a subscriber is told of, and its rows are in the table then."""
    ended = threading.Event()

    def write() -> None:
        chosen = random.Random(3)
        with open_shop(log_root) as writer:
            while not ended.wait(0.005):  # its pace
                id = chosen.randrange(6)
                put(writer, item(id, chosen.randrange(99)) if chosen.random() < 0.8 else gone(id))

    with open_shop(log_root) as writer:
        put(writer, item(0, 0))
    writing = threading.Thread(target=write)
    with DeltaExport.begin(settings(log_root, lake, gate=True, tidy_every=5)) as exporting:
        following = threading.Thread(target=exporting.follow)
        writing.start()
        following.start()
        try:
            reader = CommitLog.open(log_root / "shop", reads_only=True)
            seen = 0
            app = f"tailrace/{reader.uuid}/1"
            wait_until(lambda: _has_gate(reader))
            gate = reader.state.gate
            assert gate is not None
            since = gate.since
            while seen < 8:
                assert following.is_alive()
                if reader.refresh() is None or reader.view.published <= since:
                    continue
                told = reader.view.published
                table = DeltaTable(str(lake / "item"))
                shown = table.transaction_version(app)
                assert shown is not None
                assert shown >= told
                publication = reader.state.publication
                assert publication is not None
                if publication.version == told:
                    version = publication.state_versions["item"]
                    assert lake_rows(lake / "item", version) == state_rows(log_root, version=told)
                seen += 1
        finally:
            ended.set()
            writing.join()
            exporting.stop()
            following.join()
    # The gate stays: what was written meanwhile is published by the next run, or with the gate's end.
    with DeltaExport.begin(settings(log_root, lake, gate=True)) as exporting:
        exporting.advance()
    log = CommitLog.open(log_root / "shop")
    assert log.view.published == log.state.last_version
    assert lake_rows(lake / "item") == state_rows(log_root)


def _has_gate(log: CommitLog) -> bool:
    log.advance()
    return bool(log.gate)


def test_a_gate_that_stands_is_kept_by_its_own_export_alone(log_root: Path, lake: Path) -> None:
    with open_shop(log_root) as writer:
        put(writer, item(1, 1))
        with DeltaExport.begin(settings(log_root, lake, gate=True)) as exporting:
            following = threading.Thread(target=exporting.follow)
            following.start()
            log = CommitLog.open(log_root / "shop")
            try:
                wait_until(lambda: _has_gate(log))
            finally:
                exporting.stop()
                following.join()
        put(writer, item(2, 2))
        with pytest.raises(InvalidRequest, match="add --gate, or first remove the gate"):
            export(log_root, lake)
        with pytest.raises(InvalidRequest, match="already has a gate"):
            export(log_root, lake / "other", gate=True)
        assert CommitLog.open(log_root / "shop").view.published == 1
        with DeltaExport.begin(settings(log_root, lake, gate=True)) as exporting:
            assert exporting.advance().published
            put(writer, item(3, 3))
            take_away_gate(CommitLog.open(log_root / "shop"), SystemClock())
            with pytest.raises(InvalidRequest, match="was removed"):
                exporting.advance()
    assert CommitLog.open(log_root / "shop").view.published == 3
    assert hows(export(log_root, lake)) == {"item": "merged"}
