"""What a person who waits is told, mostly on a stderr that is no terminal."""

from __future__ import annotations

import re
import time
from collections import Counter

import pytest

from tailrace_server.pipeline.input.change import FileSplit, quarantined
from tailrace_server.pipeline.run import progress
from tailrace_server.pipeline.run.progress import (
    EntityCounts,
    IngestCounters,
    LackingSnapshot,
    ProgressReporter,
    SeenShape,
)
from tailrace_server.pipeline.run.set_aside import SetAside


def test_the_summary_counts_what_was_done(capsys: pytest.CaptureFixture[str]) -> None:
    counters = IngestCounters(lines=5, rows=3, versions=2, committed=9, published=8)
    ProgressReporter().summary(counters, "q")
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("· 2 versions of 3 rows from 5 lines in ")
    assert line.endswith("committed 9, published 8")


def test_old_rows_are_told_by_their_day_and_new_ones_by_their_lag(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_INTERVAL_S", 0.0)
    now_us = time.time_ns() // 1_000
    for newest_us in (now_us - 3_000_000, 1_700_000_000_000_000):
        ProgressReporter().progress(IngestCounters(lines=1, newest_us=newest_us))
    lag, day = capsys.readouterr().err.splitlines()
    assert lag.endswith(" s behind the source")
    assert day.endswith(", at rows of 2023-11-14")


def test_what_was_not_taken_has_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = Counter({"heartbeat": 2, "schema change": 1})
    counters = IngestCounters(
        ignored=4, ignored_by_kind=kinds, skipped=2, late=1, pending=2, quarantined=3
    )
    ProgressReporter().summary(counters, "shop/quarantine")
    assert capsys.readouterr().err.splitlines()[1:] == [
        "· 2 heartbeats ignored",
        "· 1 schema change ignored",
        "· 1 line blank, null or tombstones",
        "· 2 lines skipped: already consumed by an earlier run",
        "· 1 version of rows arrived after the end of their transaction",
        "· 2 open transactions left for the next run",
        "· 3 lines could not be used: shop/quarantine",
    ]


def test_rows_that_snapshots_lack_are_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    counters, reporter = IngestCounters(), ProgressReporter()
    counters.note_lacking("orders", LackingSnapshot(7, ["1", "2"]))
    counters.note_lacking("items", LackingSnapshot(1, ["3"], is_absent=True))
    counters.note_lacking("carts", LackingSnapshot(removed=2))
    counters.note_lacking("jobs", LackingSnapshot(fault="some of its rows were set aside"))
    counters.note_lacking("users", LackingSnapshot())
    reporter.lacking(counters)
    reporter.lacking(counters)
    orders, items, carts, jobs = capsys.readouterr().err.splitlines()
    assert orders.startswith(
        "error: 7 rows of orders are missing from its last snapshot (1, 2, …): "
    )
    assert orders.endswith("--missing-from-snapshot remove")
    assert items.startswith(
        "error: the last snapshot ended without the last row of items, which has 1 row"
    )
    assert carts == "· 2 rows of carts removed: they are missing from the last snapshot"
    assert jobs.startswith(
        "error: the last snapshot of jobs does not show removed rows, because some of its rows"
    )


def test_each_shape_that_came_in_place_of_messages_has_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shapes = {"CSV: no": SeenShape("a.csv", 1, 20), "UTF-16: no": SeenShape("b/c.json", 3, 1200)}
    counters = IngestCounters(lines=1220, messages=1221, quarantined=1221, shapes=shapes)
    ProgressReporter().summary(counters, "q")
    assert capsys.readouterr().err.splitlines()[1:] == [
        "· 1,221 messages could not be used: q",
        "· 1,200 of them, first b/c.json:3: UTF-16: no",
        "· 20 of them, first a.csv:1: CSV: no",
    ]


def test_messages_of_a_change_stream_have_their_own_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ProgressReporter().messages(IngestCounters(lines=1, rows=2, quarantined=1), "q")
    total, unusable = capsys.readouterr().err.splitlines()
    assert "2 updates from 1 message" in total
    assert unusable == "· 1 message could not be used: q"


def test_a_quiet_reporter_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = ProgressReporter(quiet=True)
    reporter.wait("starting Spark …")
    reporter.note("a line")
    reporter.progress(IngestCounters(lines=1))
    reporter.summary(IngestCounters(), "q")
    assert capsys.readouterr().err == ""


def test_the_lag_is_that_of_the_newest_row_and_never_below_zero() -> None:
    assert IngestCounters().lag_s(5) is None
    assert IngestCounters(newest_us=2_000_000).lag_s(5_000_000) == 3.0
    assert IngestCounters(newest_us=9_000_000).lag_s(5_000_000) == 0.0


def test_a_table_that_is_shut_out_has_a_line_as_often_as_more_of_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    counters = IngestCounters(quarantined=3)
    product = counters.by_entity_type["product"] = EntityCounts()
    counters.by_entity_type["order"] = EntityCounts(taken=7)
    product.add(taken=4, set_aside=1, reason="one")
    assert not counters.shut_out()
    assert not counters.shut_out(lately=True)
    product.add(taken=0, set_aside=2, reason="two")
    product.add(taken=0, set_aside=1, reason="three")
    assert not counters.shut_out(), "some of its rows were taken"
    assert counters.shut_out(lately=True) == {"product": product}
    reporter = ProgressReporter()
    reporter.shut_out(counters, "q")
    reporter.shut_out(counters, "q")
    assert capsys.readouterr().err.splitlines() == [
        "error: the last 3 rows of product were all set aside: two; q has them"
    ]
    reporter.summary(counters, "q")
    assert capsys.readouterr().err.splitlines()[1:] == [
        "· product: 4 rows taken, 4 set aside",
        "· 3 lines could not be used: q",
    ]
    product.add(taken=1, set_aside=0, reason="")
    assert not counters.shut_out(lately=True)
    other = counters.by_entity_type["other"] = EntityCounts()
    other.add(taken=0, set_aside=1, reason="four")
    assert counters.shut_out() == {"other": other}


@pytest.mark.parametrize(
    ("counters", "left", "shown"),
    [
        (IngestCounters(), None, "reading the first files …"),
        (
            IngestCounters(lines=1, rows=1, pending=1),
            3.4,
            "1 open, complete in 3 s unless a row arrives",
        ),
    ],
)
def test_at_a_terminal_what_is_waited_for_is_said(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    counters: IngestCounters,
    left: float | None,
    shown: str,
) -> None:
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm"), ("COLUMNS", "200")):
        monkeypatch.setenv(name, value)
    reporter = ProgressReporter()
    assert reporter.is_watched
    reporter.progress(counters, "reading the first files …", left)
    reporter.finish()
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
    assert shown in plain


def test_a_statement_that_changed_rows_has_an_error_line_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    counters, reporter = IngestCounters(), ProgressReporter()
    line = quarantined(FileSplit("f"), 1, b"", "DROP TABLE: why")._replace(table="shop.orders")
    aside = SetAside.of([line], lambda _: False).with_effects(lambda *_: True)
    for wanted in (1, 2):
        counters.count_set_aside(aside)
        reporter.effects(counters)
        reporter.effects(counters)
        assert capsys.readouterr().err.count("error: DROP TABLE: why") == 1
        assert counters.effects["shop.orders"].count == wanted
    reporter.summary(counters, "quarantine")
    assert "error:" not in capsys.readouterr().err
