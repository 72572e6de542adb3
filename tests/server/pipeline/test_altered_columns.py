"""Columns that the source alters, from its lines to what readers make of their values."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import msgspec
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace_server.api.graphql.catalog_schema import columns_by_name
from tailrace_server.api.graphql.schema import build
from tailrace_server.pipeline.sources.debezium.source import Debezium
from tailrace_server.wal.state.commit_log import CommitLog
from tests.process.ingest.reading import data
from tests.server.pipeline.feeds import Feed
from tests.server.pipeline.shapes import end, envelope, line, postgres, with_listing
from tests.support.column_kinds import (
    KINDS,
    Kind,
    Meaning,
    Moment,
    kind_of,
    meaning_of,
    meaning_shown,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.process.ingest.reading import Record

UNAVAILABLE = "__debezium_unavailable_value"


@dataclass(frozen=True)
class Change:
    """A row of a generated history."""

    op: str
    key: int
    kind: Kind
    before: Meaning | None
    after: Meaning | None

    def line(self, lsn: int, tx: int) -> bytes:
        images = {
            name: None if meaning is None else {"id": self.key, "c": self.kind.written(meaning)}
            for name, meaning in (("before", self.before), ("after", self.after))
        }
        return with_listing({"c": self.kind.field}, envelope(self.op, postgres(lsn, tx), **images))


def meanings(kind: Kind) -> st.SearchStrategy[Meaning]:
    """Return meanings that a kind holds, those that others hold as well among them."""
    found: st.SearchStrategy[Any]
    if kind.unit:
        found = st.sampled_from((0, 1_000_000_000, 1_700_000_000_123_456_789)) | st.integers(
            -(10**18), 10**18
        )
        return found.map(lambda count: Moment(count // kind.unit * kind.unit))
    if kind.whole_max:
        some = st.sampled_from([Decimal(text) for text in ("0", "1", "-12.5", "1.2345", "70000")])
        found = some | st.decimals(-99_999, 99_999, places=kind.scale)
        return found.map(lambda each: each.quantize(Decimal(1).scaleb(-kind.scale)))
    if kind.name == "truth":
        return st.booleans()
    return st.sampled_from(("", "5", "05", "-1.50", "red", "é\u2028")) | st.text(
        st.characters(codec="utf-8"), max_size=5
    )


@st.composite
def transactions(draw: Callable[[st.SearchStrategy[Any]], Any]) -> list[list[Change]]:
    """Return transactions of rows under changing kinds; a few span a change, each key once in each."""
    found = []
    for _ in range(draw(st.integers(1, 6))):
        spans = draw(st.integers(0, 2)) == 0
        first = draw(st.sampled_from(KINDS))
        kinds = [first]
        if spans:
            same = [each for each in KINDS if each.family == first.family]
            kinds += draw(st.lists(st.sampled_from(same), min_size=1, max_size=2))
        rows = []
        for key, kind in enumerate(kinds):
            op = draw(st.sampled_from("cud"))
            before = None if op == "c" else draw(meanings(kind))
            after = None if op == "d" else draw(meanings(kind))
            rows.append(Change(op, key, kind, before, after))
        found.append(rows)
    return found


def value_in(image: bytes | None) -> Any:
    return None if image is None else orjson.loads(image)["c"]


@pytest.mark.slow
@given(history=transactions(), cuts=st.lists(st.integers(1, 3), max_size=3))
@settings(max_examples=50, deadline=None)
def test_every_value_is_read_back_by_the_schema_of_its_version(
    history: list[list[Change]], cuts: list[int]
) -> None:
    """As what the source meant, raw and typed; what is set aside has no exact form in its version."""
    with TemporaryDirectory() as folder:
        feed = Feed(Path(folder), source=Debezium(whole_before=("*",)))
        lsn = count(1)
        pieces = [
            [
                *(row.line(next(lsn), number) for row in rows),
                line(end(str(number), len(rows))),
            ]
            for number, rows in enumerate(history, 1)
        ]
        while pieces:
            size = cuts.pop() if cuts else len(pieces)
            feed.batch(*(text for piece in pieces[:size] for text in piece))
            pieces = pieces[size:]
        view = CommitLog.open(feed.catalog).view
        assert view.published == len(history)
        newest = view.schema_of(view.published)
        names, reading = build(newest, [*view.schemas()][:-1]).rows["ProductChange"].fields["c"]
        found: dict[tuple[int, str], Record] = {
            (record.version, record.primary_key or ""): record for record in data(feed.catalog)
        }
        aside = len(feed.quarantine())
    for version, rows in enumerate(history, 1):
        schema = view.schema_of(version)
        column = columns_by_name(schema, "product")["c"]
        kind = kind_of(column.sql_type, column.encoding)
        assert kind == rows[-1].kind or kind.encoding == rows[-1].kind.encoding == "json"
        for row in rows:
            record = found.pop((version, str(row.key)), None)
            if row.after is not None and not fits(row, row.after, kind):
                assert record is None, "it would be read wrongly"
                aside -= 1
                continue
            if record is None:
                assert row.op == "u"
                assert row.before == row.after, "no change is no record"
                continue
            for meaning, value in (
                (row.before, value_in(record.before)),
                (row.after, value_in(record.after)),
            ):
                if meaning is None:
                    assert value is None
                elif not fits(row, meaning, kind):
                    assert value == UNAVAILABLE
                else:
                    assert meaning_of(value, kind) == meaning
                    raw = orjson.dumps(value)
                    shown = msgspec.json.decode(bytes(_text(reading.of(column), raw)))
                    if reading.name.startswith("Json"):
                        assert shown == value
                    else:
                        assert meaning_shown(shown, kind) == meaning
    assert not found
    assert not aside
    assert names == ("c",)


def _text(read: Callable[[bytes], bytes], raw: bytes) -> bytes:
    return read(raw)


def fits(row: Change, meaning: Meaning, kind: Kind) -> bool:
    """Whether a version's kind holds exactly what a row of another kind of its family means."""
    return row.kind == kind or kind.holds(meaning)
