"""Columns that the source alters, from Debezium's lines to the exported stream, and back through the reader."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tailrace_server.export.cdcv2 import Cdcv2Export
from tailrace_server.export.errors import ImageUnfit
from tailrace_server.pipeline.sources.debezium.source import Debezium
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import SchemaMapping
from tests.server.export.logs import collections, export, item, schema, settings, statements
from tests.server.pipeline.feeds import Feed
from tests.server.pipeline.shapes import end, envelope, postgres, with_listing
from tests.server.pipeline.shapes import line as line_of
from tests.support.column_kinds import (
    FINE_MONEY,
    INT,
    KINDS,
    LONG,
    MICROS,
    MILLIS,
    MONEY,
    NANOS,
    TEXT,
    TRUTH,
    Kind,
    Meaning,
    Moment,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


def line(lsn: int, op: str, key: int, kind: Kind, *images: Meaning | None) -> bytes:
    """Return a change of a row from one meaning to another, as a source of a kind writes it."""
    texts = {
        name: None if meaning is None else {"id": key, "c": kind.written(meaning)}
        for name, meaning in zip(("before", "after"), images, strict=True)
    }
    return with_listing({"c": kind.field}, envelope(op, postgres(lsn), **texts))


def told(folder: Path) -> tuple[str, list[tuple[int, Meaning | str, int]]]:
    """Return the Avro type of the column, and the updates: version, value, difference."""
    fields = schema(folder)[0]["items"]["fields"][0]["type"]["fields"]
    [kind] = (field["type"] for field in fields if field["name"] == "c")
    if isinstance(kind, list):
        [_, kind] = kind
    logical = kind["logicalType"] if isinstance(kind, dict) else kind
    found = []
    for message in statements(folder):
        if isinstance(message, list):
            for data, version, diff in message:
                value = data[1]
                if logical == "decimal":
                    number = int.from_bytes(value, "big", signed=True)
                    value = Decimal(number).scaleb(-kind["scale"])
                elif str(logical).startswith("timestamp-"):
                    value = Moment(value * (1_000 if logical == "timestamp-micros" else 1_000_000))
                found.append((version, value, diff))
    return str(logical), sorted(found, key=lambda each: (each[0], each[2]))


def of_product(root: Path, output: Path, **more: Any) -> int:
    return export(root, output, entity_type="product", **more)


MS = 1_700_000_000_123_000_000
PAIRS: dict[str, tuple[Kind, Kind, tuple[Any, ...], tuple[Any, ...], str]] = {
    # kinds before and after the change; two rows before; what became of the first, its update, a new row;
    # the column in Avro
    "finer moments": (MILLIS, MICROS, (MS, 0), (MS, MS + 1_000, 0), "timestamp-micros"),
    "coarser moments": (MICROS, MILLIS, (MS, MS + 1_000), (MS, 0, MS), "timestamp-micros"),
    "finer decimals": (MONEY, FINE_MONEY, ("5.00", "0.02"), ("5.00", "0.7812", "1"), "decimal"),
    "coarser decimals": (FINE_MONEY, MONEY, ("5", "0.7812"), ("5", "0.02", "99999999"), "decimal"),
    "whole numbers to decimals": (LONG, MONEY, ("5", str(2**62)), ("5", "0.02", "1"), "decimal"),
    "decimals to whole numbers": (FINE_MONEY, INT, ("5", "0.7812"), ("5", "6", "7"), "decimal"),
    "numbers to texts": (INT, TEXT, ("5", "7"), ("5", "seven", ""), "string"),
    "texts to numbers": (TEXT, INT, ("5", "seven"), ("5", "6", "7"), "string"),
}


def meant(kind: Kind, value: Any) -> Meaning:
    return Moment(value) if kind.unit else value if kind is TEXT else Decimal(value)


@pytest.mark.parametrize(("old", "new", "was", "now", "avro"), PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize("since", [None, 3], ids=["from the beginning", "from a snapshot"])
def test_a_stream_holds_both_sides_of_a_change(
    log_root: Path,
    tmp_path: Path,
    old: Kind,
    new: Kind,
    was: tuple[Any, ...],
    now: tuple[Any, ...],
    avro: str,
    since: int | None,
) -> None:
    """Also of values that the newest type does not hold; what the update took away cancels what was there."""
    feed = Feed(log_root)
    first, second = (meant(old, each) for each in was)
    feed.batch(line(1, "c", 1, old, None, first), line(2, "c", 2, old, None, second))
    same, updated, third = (meant(new, each) for each in now)
    feed.batch(line(3, "u", 1, new, same, updated), line(4, "c", 3, new, None, third))
    assert feed.quarantine() == []
    assert of_product(log_root, tmp_path / "out", since=since) == 5
    column, updates = told(tmp_path / "out")
    assert column == avro
    shown = [str(each) if avro == "string" else each for each in (first, second, updated, third)]
    found = {
        (version, str(value) if avro == "string" else value): n for version, value, n in updates
    }
    if since is None:
        gone = shown[0]
        assert found == {
            (1, gone): 1, (2, shown[1]): 1, (3, gone): -1, (3, shown[2]): 1, (4, shown[3]): 1,
        }  # fmt: skip
    else:
        assert found == {(3, shown[1]): 1, (3, shown[2]): 1, (4, shown[3]): 1}


@pytest.mark.parametrize(
    ("old", "new", "first", "shown"),
    [
        (TRUTH, INT, True, "true"),
        (MICROS, INT, Moment(MS + 1_000), "2023-11-14T22:13:20.123001"),
        (MICROS, TEXT, Moment(9_223_372_036_825_200_000_000), "294247-01-10T04:00:25.200000"),
        (MILLIS, NANOS, Moment(253_402_300_799_000_000_000), "9999-12-31T23:59:59"),
        (TRUTH, TEXT, False, "false"),
    ],
)
def test_what_no_type_holds_is_a_text(
    log_root: Path, tmp_path: Path, old: Kind, new: Kind, first: Meaning, shown: str
) -> None:
    feed = Feed(log_root)
    feed.batch(line(1, "c", 1, old, None, first))
    second: Meaning = Moment(1) if new.unit else "1" if new is TEXT else Decimal(1)
    feed.batch(line(2, "c", 2, new, None, second))
    of_product(log_root, tmp_path / "out")
    later = "1970-01-01T00:00:00.000000001" if new.unit else "1"
    assert told(tmp_path / "out") == ("string", [(1, shown, 1), (2, later, 1)])


def test_what_was_seen_in_values_is_held_beside_what_is_announced_later(
    log_root: Path, tmp_path: Path
) -> None:
    feed = Feed(log_root)
    feed.batch(line_of(envelope("c", postgres(1), after={"id": 1, "c": 5})))
    feed.batch(line_of(envelope("c", postgres(2), after={"id": 2, "c": 2.5})))
    feed.batch(line(3, "c", 3, TEXT, None, "x"))
    of_product(log_root, tmp_path / "out")
    assert told(tmp_path / "out") == ("string", [(1, "5", 1), (2, "2.5", 1), (3, "x", 1)])


def test_a_stream_goes_on_over_a_change_as_long_as_its_columns_hold_the_values(
    log_root: Path, tmp_path: Path
) -> None:
    """Then the error says what to do, and that takes all of the history."""
    feed = Feed(log_root, source=Debezium(whole_before=("*",)))
    feed.batch(line(1, "c", 1, MILLIS, None, Moment(MS)))
    out = tmp_path / "out"
    with Cdcv2Export.begin(settings(log_root, out, entity_type="product")) as exporting:
        exporting.advance()
        feed.batch(line(2, "u", 1, MICROS, Moment(MS), Moment(0)))
        assert exporting.advance().frontier == 3
        feed.batch(line(3, "u", 1, MICROS, Moment(0), Moment(MS + 1_000)))
        with pytest.raises(ImageUnfit) as caught:
            exporting.advance()
    assert str(caught.value) == (
        "version 3, key '1': column 'c': 1700000000123001 of TIMESTAMP in encoding "
        "debezium.MicroTimestamp is no TIMESTAMP in encoding debezium.Timestamp; continue in a new folder, "
        "with --since 3, whose stream uses types that hold the whole history"
    )
    assert told(out)[1] == [(1, MS, 1), (2, MS, -1), (2, 0, 1)]
    assert of_product(log_root, tmp_path / "new", since=3) == 4
    assert told(tmp_path / "new") == ("timestamp-micros", [(3, MS + 1_000, 1)])
    assert collections(statements(out))[1] == 3


NOTHING = replace(INT, field={})
"""The column is not there."""
REWRITTEN: dict[str, tuple[Kind, Kind, Meaning | None, Meaning | None, Meaning | None]] = {
    # kinds before and after; the row before, as the change made it, and its update
    "a rounded number": (FINE_MONEY, MONEY, Decimal("0.7812"), Decimal("0.78"), Decimal(1)),
    "a number out of a text": (TEXT, INT, "05", Decimal(5), Decimal(6)),
    "a dropped column": (INT, NOTHING, Decimal(3), None, None),
    "a column with a default": (NOTHING, INT, None, Decimal(7), Decimal(8)),
}


@pytest.mark.parametrize(("old", "new", "was", "made", "now"), REWRITTEN.values(), ids=REWRITTEN)
def test_what_a_change_makes_of_rows_leaves_none_behind(
    log_root: Path,
    tmp_path: Path,
    old: Kind,
    new: Kind,
    was: Meaning | None,
    made: Meaning | None,
    now: Meaning | None,
) -> None:
    """No record says it: what goes is the row that the stream gave, also after a restart and a snapshot."""
    feed = Feed(log_root)
    feed.batch(*(written(key, "c", key, old, None, [was]) for key in (1, 2, 3)))
    changed = (
        written(4, "c", 4, new, None, [now]),
        written(5, "u", 1, new, [made], [now]),
        written(6, "d", 2, new, [made], None),
        written(7, "u", 1, new, [now], [made]),
    )
    if old is FINE_MONEY:  # its columns hold both, so one exporter goes on over the change
        with Cdcv2Export.begin(
            settings(log_root, tmp_path / "out", entity_type="product")
        ) as exporting:
            exporting.advance()
            feed.batch(*changed)
            exporting.advance()
    else:
        feed.batch(*changed)
        of_product(log_root, tmp_path / "out")
    feed.batch(written(8, "d", 3, new, [made], None), written(9, "d", 1, new, [made], None))
    assert of_product(log_root, tmp_path / "out") == 10
    found, _ = collections(statements(tmp_path / "out"))
    assert all(count == 1 for rows in found.values() for count in rows.values())
    assert {row[0] for row in found[max(version for version in found if version < 8)]} == {1, 3, 4}
    assert {row[0] for row in found[9]} == {4}
    of_product(log_root, tmp_path / "since", since=5)
    since, _ = collections(statements(tmp_path / "since"))
    assert since[5] == found[max(version for version in found if version <= 5)]
    assert since[9] == found[9]


def written(lsn: int, op: str, key: int, kind: Kind, *images: list[Meaning | None] | None) -> bytes:
    """Return a change of a row; an image is None for no row."""
    texts: dict[str, dict[str, Any] | None] = {}
    for name, image in zip(("before", "after"), images, strict=True):
        value = {} if image is None or image[0] is None else {"c": kind.written(image[0])}
        texts[name] = None if image is None else {"id": key, **value}
    fields = {"c": kind.field} if kind.field else {}
    return with_listing(fields, envelope(op, postgres(lsn), **texts))


NUMBERS = [each for each in KINDS if each.family == "number"]
MOMENTS = [each for each in KINDS if each.family == "moment"]


@st.composite
def histories(draw: Any) -> list[tuple[Kind, Meaning]]:
    """Return the rows of a column under changing kinds."""
    kinds: Sequence[Kind] = draw(st.sampled_from([NUMBERS, MOMENTS, KINDS]))
    rows = []
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=4)):
        if kind.unit:
            value: Any = Moment(draw(st.integers(-(10**18), 10**18)) // kind.unit * kind.unit)
        elif kind.whole_max:
            bound = min(kind.whole_max, 10**18) - 1
            value = draw(st.integers(-bound, bound) | st.just(5))
            part = draw(st.integers(0, 10**kind.scale - 1))
            value = Decimal(value) + Decimal(part).scaleb(-kind.scale)
        else:
            value = draw(st.booleans() if kind is TRUTH else st.text("5.é", max_size=3))
        rows.append((kind, value))
    return rows


@pytest.mark.slow
@given(histories())
@hypothesis_settings(max_examples=50, deadline=None)
def test_whatever_a_column_was_each_value_is_what_the_source_meant(
    rows: list[tuple[Kind, Meaning]],
) -> None:
    with TemporaryDirectory() as folder:
        root = Path(folder)
        feed = Feed(root)
        for lsn, (kind, meaning) in enumerate(rows, 1):
            feed.batch(line(lsn, "c", lsn, kind, None, meaning))
        of_product(root, root / "out")
        _, updates = told(root / "out")
    assert Counter(version for version, _, _ in updates) == Counter(range(1, len(rows) + 1))
    for version, value, diff in updates:
        kind, meaning = rows[version - 1]
        assert diff == 1
        assert read(value, kind) == meaning


def read(value: Any, kind: Kind) -> Meaning:
    """Return what a value of the stream says, whatever type its column has."""
    if not isinstance(value, str):
        return Decimal(value) if kind.whole_max else value
    if kind.unit:
        if value.lstrip("-").isdigit():
            return Moment(int(value))
        moment, _, fraction = value.partition(".")
        found = datetime.fromisoformat(moment).replace(tzinfo=UTC) - datetime(
            1970, 1, 1, tzinfo=UTC
        )
        return Moment(found // timedelta(seconds=1) * 10**9 + int(fraction.ljust(9, "0")))
    if kind.whole_max:
        return Decimal(value)
    return value == "true" if kind is TRUTH else value


def test_a_row_before_that_has_no_form_behind_the_change_is_known_all_the_same(
    log_root: Path, tmp_path: Path
) -> None:
    """A transaction that spans the change: ``before`` could not be restated, and counts as not sent."""
    feed = Feed(log_root)
    feed.batch(line(1, "c", 1, TEXT, None, "seven"))
    gone = envelope("d", postgres(2, 7), before={"id": 1, "c": "seven"}, after=None)
    came = envelope("c", postgres(3, 7), after={"id": 2, "c": 7})
    feed.batch(
        with_listing({"c": TEXT.field}, gone),
        with_listing({"c": INT.field}, came),
        line_of(end("7", 2)),
    )
    of_product(log_root, tmp_path / "out")
    assert told(tmp_path / "out")[1] == [(1, "seven", 1), (2, "seven", -1), (2, "7", 1)]


def test_a_late_record_is_no_last_row(log_root: Path, tmp_path: Path) -> None:
    """It belongs before what the log has of its key already; that goes first behind the change."""
    types = [
        SchemaMapping.parse(
            f'[entity_types.item]\nkey = ["id"]\n[entity_types.item.columns.price]\ntype = "{each}"'
        )
        for each in ("INTEGER", "VARCHAR")
    ]
    with LogWriter.open(log_root, "shop", mapping=types[0]) as writer:
        writer.append([item(1, None, 1)])
        writer.append([item(1, 2, 1)])
        writer.append([item(1, 1, 2)], late=True, of=1)
    altered = Mutation("item", "1", before=b'{"id":1,"price":"1.0"}', after=b'{"id":1,"price":"3"}')
    with LogWriter.open(log_root, "shop", mapping=types[1]) as writer:
        writer.append([altered])
    export(log_root, tmp_path / "out")
    found, _ = collections(statements(tmp_path / "out"))
    assert found[3] == {(1, "1"): 1}
    assert found[4] == {(1, "3"): 1}
