"""Logs of PostgreSQL's messages under every replica identity, against the rows of the source."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.criteria import Operation
from tests.process.ingest.reading import Record, data
from tests.server.pipeline.feeds import Feed
from tests.server.pipeline.shapes import INT, TEXT, end, envelope, line, postgres, with_listing

HOLE = "__debezium_unavailable_value"
Row = dict[str, Any]
FILLERS: Row = {"id": 0, "code": "", "name": None, "n": 0, "state": "new", "text": None}
"""What Debezium writes for a column that PostgreSQL did not send: null, the default or the type's zero."""
FIELDS: Row = {
    "code": {"type": "string"},
    "name": TEXT,
    "n": INT,
    "state": {"type": "string", "default": "new"},
    "text": TEXT,
}
IDENTITIES = {"full": (*FILLERS,), "default": ("id",), "index": ("id", "code"), "nothing": ()}


class Table(NamedTuple):
    """A table with its messages; PostgreSQL refuses updates and removals without an identity."""

    identity: str
    start: dict[int, Row]
    transactions: list[list[tuple[str, Row | None, Row | None]]]
    states: list[dict[int, Row]]


def message(identity: str, op: str, before: Row | None, after: Row | None) -> list[Any]:
    """Return the messages of one change, as Debezium sends them."""
    sent = IDENTITIES[identity]
    old = None if before is None else FILLERS | {name: before[name] for name in sent}
    if op != "u":
        return [(op, old, after)]
    assert before is not None
    assert after is not None
    if identity != "full" and before["text"] is not None and before["text"] == after["text"]:
        after = after | {"text": HOLE}
    if before["id"] != after["id"]:
        return [("d", old, None), ("c", None, after)]
    if identity != "full" and all(before[name] == after[name] for name in sent):
        old = None
    return [("u", old, after)]


@st.composite
def tables(draw: st.DrawFn) -> Table:
    identity = draw(st.sampled_from([*IDENTITIES]))
    values = st.fixed_dictionaries(
        {
            "code": st.sampled_from(("a", "b", "c")),
            "name": st.sampled_from((None, "cup")),
            "n": st.sampled_from((0, 5)),
            "state": st.sampled_from(("new", "paid")),
            "text": st.sampled_from((None, "long", "longer")),
        }
    )
    rows: dict[int, Row] = {
        key: {"id": key, **draw(values)} for key in draw(st.sets(st.integers(1, 3), min_size=1))
    }
    start = dict(rows)
    transactions, states = [], []
    for _ in range(draw(st.integers(1, 4))):
        messages: list[Any] = []
        for _ in range(draw(st.integers(1, 6))):
            key, to = draw(st.integers(1, 3)), draw(st.integers(1, 4))
            if key not in rows:
                rows[key] = {"id": key, **draw(values)}
                messages += message(identity, "c", None, rows[key])
            elif identity == "nothing":
                continue
            elif draw(st.booleans()) and to not in rows:
                before = rows.pop(key)
                rows[to] = before | {"id": to}
                messages += message(identity, "u", before, rows[to])
            elif draw(st.integers(0, 3)) == 0:
                messages += message(identity, "d", rows.pop(key), None)
            else:
                before = rows[key]
                changed = draw(values)
                names = draw(st.sets(st.sampled_from([*changed])))
                rows[key] = before | {name: changed[name] for name in names}
                messages += message(identity, "u", before, rows[key])
        if messages:
            transactions.append(messages)
            states.append(dict(rows))
    return Table(identity, start, transactions, states)


def fed(table: Table, *, listed: bool, **options: Any) -> list[Record]:
    lsn = 0
    texts = []
    start: list[tuple[str, Row | None, Row | None]] = [
        ("c", None, row) for row in table.start.values()
    ]
    for number, messages in enumerate([start, *table.transactions], 1):
        for op, before, after in messages:
            lsn += 1
            sent = envelope(op, postgres(lsn, number), before=before, after=after)
            texts.append(with_listing(FIELDS, sent) if listed else line(sent))
        texts.append(line(end(str(number), len(messages))))
    with TemporaryDirectory() as folder:
        feed = Feed(Path(folder), **options)
        feed.batch(*texts)
        feed.close()
        return data(feed.catalog)


def check(table: Table, found: list[Record], *, exact: bool) -> None:
    """Check the records of each version against the rows before and after it."""
    states = [{}, table.start, *table.states]
    folded: dict[int, Row] = {}
    for version in range(1, len(states)):
        was, now = states[version - 1], states[version]
        mine = {int(r.primary_key or 0): r for r in found if r.version == version}
        for key in {*was, *now} - {*mine}:
            assert was.get(key) == now.get(key)
        for key, record in mine.items():
            row, after = was.get(key), now.get(key)
            before = None if record.before is None else orjson.loads(record.before)
            unknown = {*FILLERS} if before is None else {k for k, v in before.items() if v == HOLE}
            assert not (exact and row is not None and unknown)
            if before is not None:
                assert row is not None
                assert {**row, **dict.fromkeys(unknown, HOLE)} == before
            if record.operation == Operation.REMOVE:
                assert after is None
                assert row is not None
                folded.pop(key, None)
                continue
            assert after is not None
            assert record.after is not None
            image = orjson.loads(record.after)
            holes = {name for name, value in image.items() if value == HOLE}
            assert holes <= (set() if exact else {"text"})
            assert {**after, **dict.fromkeys(holes, HOLE)} == image
            if row is not None:
                differing = {name for name in after if after[name] != row[name]}
                assert record.changed is not None
                assert differing <= {*record.changed} <= differing | unknown | holes
            else:
                assert record.changed is None
            held = folded.get(key, {})
            folded[key] = {k: held.get(k, v) if k in holes else v for k, v in image.items()}
        for key, row in folded.items():
            assert {
                **now[key],
                **{k: HOLE for k, v in row.items() if v == HOLE},
            } == row or not exact
        assert folded.keys() == now.keys()


@settings(max_examples=20)
@given(tables(), st.booleans())
def test_contract_34_rows_before_are_right_or_not_known_under_every_replica_identity(
    table: Table, listed: bool
) -> None:
    """The state is the source's; what a message leaves open of the row before is marked, or filled."""
    check(table, fed(table, listed=listed), exact=False)
    check(table, fed(table, listed=listed, whole_images=True), exact=True)


def after_start(start: Row, *messages: tuple[str, Row | None, Row | None]) -> list[Record]:
    table = Table("default", {start["id"]: start}, [[*messages]], [])
    return [record for record in fed(table, listed=False) if record.version == 2]


@pytest.mark.parametrize("n", [0, 7])
def test_a_row_that_is_made_again_is_not_taken_for_what_was_sent_of_it_before(n: int) -> None:
    key_only = {"id": 1, "name": None, "n": 0}
    row = {"id": 1, "name": None, "n": n}
    start = {"id": 1, "name": "cup", "n": 5}
    (record,) = after_start(start, ("d", key_only, None), ("c", None, row))
    assert orjson.loads(record.before or b"") == {"id": 1, "name": HOLE, "n": HOLE}
    assert (record.changed, orjson.loads(record.after or b"")) == (["name", "n"], row)


def test_a_swap_of_index_columns_keeps_what_was_written_beside_them() -> None:
    (record,) = after_start(
        {"id": 2, "code": "a2", "note": "n"},
        ("u", {"id": 2, "code": "a2", "note": None}, {"id": 2, "code": "b2", "note": "n"}),
        ("u", {"id": 2, "code": "b2", "note": None}, {"id": 2, "code": "a2", "note": None}),
    )
    assert orjson.loads(record.after or b"") == {"id": 2, "code": "a2", "note": None}
    assert "note" in (record.changed or ())
