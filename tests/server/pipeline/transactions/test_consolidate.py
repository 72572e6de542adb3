"""Net effects of a transaction, against a table that is simply changed."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tailrace.criteria import Operation
from tailrace_server.pipeline.input.change import DELETE, INSERT, TRUNCATE, UPDATE, Change
from tailrace_server.pipeline.transactions.consolidate import TRUNCATED, consolidate

Rows = dict[tuple[str, str], bytes]


def image(key: str, value: int) -> bytes:
    return b'{"id":"%b","n":%d,"same":0.10}' % (key.encode(), value)


def change(
    operation: int,
    key: str | None = "a",
    before: bytes | None = None,
    after: bytes | None = None,
    old_key: str | None = None,
    entity_type: str = "t",
) -> Change:
    return Change(
        kind=1,
        place=b"",
        entity_type=entity_type,
        operation=operation,
        primary_key=key,
        old_key=old_key,
        before=before,
        after=after,
    )


@st.composite
def transactions(draw: st.DrawFn) -> tuple[Rows, list[Change], Rows]:
    """Draw a table, changes that fit it with all their images, and the table after them."""
    keys = st.sampled_from("abcd")
    types = st.sampled_from(["t", "u"])
    values = st.integers(0, 2)
    start: Rows = {(t, k): image(k, draw(values)) for t in ("t", "u") for k in draw(st.sets(keys))}
    rows = dict(start)
    changes: list[Change] = []
    for _ in range(draw(st.integers(0, 12))):
        entity_type, key = draw(types), draw(keys)
        held = rows.get((entity_type, key))
        kind = draw(st.sampled_from(["set", "set", "remove", "move", "truncate"]))
        if kind == "truncate" and draw(st.integers(0, 3)) == 0:
            changes.append(change(TRUNCATE, None, entity_type=entity_type))
            rows = {at: row for at, row in rows.items() if at[0] != entity_type}
        elif kind == "move" and held is not None:
            target = draw(keys)
            if (entity_type, target) in rows:
                continue
            after = image(target, draw(values))
            changes.append(change(UPDATE, target, held, after, key, entity_type))
            del rows[entity_type, key]
            rows[entity_type, target] = after
        elif kind == "remove" and held is not None:
            changes.append(change(DELETE, key, held, None, entity_type=entity_type))
            del rows[entity_type, key]
        elif kind == "set":
            after = image(key, draw(values))
            operation = INSERT if held is None else UPDATE
            changes.append(change(operation, key, held, after, entity_type=entity_type))
            rows[entity_type, key] = after
    return start, changes, rows


@given(transactions())
def test_net_effects_lead_from_the_table_before_to_the_table_after(
    case: tuple[Rows, list[Change], Rows],
) -> None:
    start, changes, finish = case
    effects = consolidate(changes)
    rows = dict(start)
    for effect in effects:
        at = (effect.entity_type, effect.primary_key)
        if effect.primary_key is None:
            assert effect.change == TRUNCATED
            rows = {k: row for k, row in rows.items() if k[0] != effect.entity_type}
        elif effect.operation is Operation.REMOVE:
            assert rows.pop(at) == effect.before  # type: ignore[arg-type]
        else:
            assert effect.after is not None
            assert rows.get(at) == effect.before  # type: ignore[arg-type]
            assert effect.before != effect.after
            rows[at] = effect.after  # type: ignore[index]
    assert rows == finish
    touched = [(e.entity_type, e.primary_key) for e in effects]
    assert len(touched) == len(set(touched))


@given(transactions())
def test_a_record_takes_the_place_of_the_last_change_of_its_row(
    case: tuple[Rows, list[Change], Rows],
) -> None:
    _, changes, _ = case
    last: dict[tuple[Any, Any], tuple[int, int]] = {}
    for place, c in enumerate(changes):
        if c.old_key is not None:
            last[c.entity_type, c.old_key] = (place, 0)
        last[c.entity_type, c.primary_key] = (place, 1)
    places = [last[e.entity_type, e.primary_key] for e in consolidate(changes)]
    assert places == sorted(places)


def test_the_change_of_an_update_is_the_difference() -> None:
    [effect] = consolidate(
        [
            change(
                UPDATE,
                before=b'{"id":1,"x":0.10,"gone":1}',
                after=b'{"id":1,"x": 1e2,"new":"\xc3\xbc"}',
            )
        ]
    )
    assert effect.changed == ["x", "new", "gone"]
    assert effect.change == '{"x":1e2,"new":"ü","gone":null}'.encode()


def test_several_updates_are_one_with_the_outer_images() -> None:
    steps = [image("a", n) for n in range(4)]
    [effect] = consolidate(change(UPDATE, "a", b, a) for b, a in pairwise(steps))
    assert (effect.before, effect.after, effect.changed) == (steps[0], steps[3], ["n"])


def test_insert_and_delete_leave_nothing() -> None:
    assert (
        consolidate([change(INSERT, after=image("a", 1)), change(DELETE, before=image("a", 1))])
        == []
    )


def test_an_update_whose_before_the_source_does_not_send_is_no_insert() -> None:
    """What went is not known; that something did is."""
    after = b'{"id":"a","n":1,"doc":"__debezium_unavailable_value"}'
    [effect] = consolidate([change(UPDATE, after=after)])
    assert (effect.operation, effect.before, effect.after) == (Operation.UPSERT, None, after)
    assert effect.changed == ["id", "n"]
    [effect] = consolidate([change(INSERT, after=after), change(UPDATE, after=after)])
    assert (effect.before, effect.changed) == (None, None)


def test_a_large_value_that_the_update_did_not_touch_is_no_change() -> None:
    assert (
        consolidate(
            [
                change(
                    UPDATE,
                    before=b'{"id":1,"doc":"long"}',
                    after=b'{"id":1,"doc":"__debezium_unavailable_value"}',
                )
            ]
        )
        == []
    )


def doc(n: int, value: str = "__debezium_unavailable_value") -> bytes:
    return b'{"id":"a", "n":%d,"doc":"%s"}' % (n, value.encode())


def test_a_large_value_survives_a_later_update_that_did_not_touch_it() -> None:
    """A row is written, and changed again in the same transaction; only the first change has the value."""
    [effect] = consolidate([change(INSERT, after=doc(1, "real")), change(UPDATE, after=doc(2))])
    assert (effect.before, effect.after) == (None, b'{"id":"a","n":2,"doc":"real"}')
    [effect] = consolidate([change(UPDATE, after=doc(1, "real")), change(UPDATE, after=doc(2))])
    assert effect.changed == ["id", "n", "doc"]
    assert effect.after == b'{"id":"a","n":2,"doc":"real"}'
    [effect] = consolidate(
        [change(UPDATE, before=doc(1, "old"), after=doc(2, "new")), change(UPDATE, after=doc(1))]
    )
    assert (effect.before, effect.changed) == (doc(1, "old"), ["doc"])
    assert effect.change == b'{"doc":"new"}'


def test_a_large_value_moves_with_its_row_to_another_key() -> None:
    moved = b'{"id":"b","n":1,"doc":"__debezium_unavailable_value"}'
    for steps in (
        [change(UPDATE, "b", doc(1, "real"), moved, "a")],
        [change(UPDATE, "a", after=doc(1, "real")), change(UPDATE, "b", None, moved, "a")],
    ):
        removed, inserted = consolidate(steps)
        assert (removed.primary_key, inserted.primary_key) == ("a", "b")
        assert inserted.after == b'{"id":"b","n":1,"doc":"real"}'


def test_a_large_value_that_no_change_has_stays_unsaid() -> None:
    [effect] = consolidate([change(UPDATE, after=doc(1)), change(UPDATE, after=doc(2))])
    assert effect.after == doc(2)


def test_a_key_that_moves_away_and_back_is_no_change() -> None:
    row, moved = b'{"id":"a"}', b'{"id":"b"}'
    steps = [change(UPDATE, "b", row, moved, "a"), change(UPDATE, "a", moved, row, "b")]
    assert consolidate(steps) == []
    removed, inserted = consolidate(steps[:1])
    assert (removed.operation, removed.primary_key, removed.before) == (Operation.REMOVE, "a", row)
    assert (inserted.primary_key, inserted.before, inserted.after) == ("b", None, moved)


def test_a_truncate_ends_what_went_before_and_keeps_what_follows() -> None:
    effects = consolidate(
        [
            change(DELETE, "x", before=image("x", 1)),
            change(INSERT, "b", after=image("b", 1)),
            change(INSERT, "o", after=image("o", 1), entity_type="other"),
            change(TRUNCATE, None),
            change(INSERT, "b", after=image("b", 2)),
        ]
    )
    assert [(e.entity_type, e.primary_key) for e in effects] == [
        ("other", "o"),
        ("t", None),
        ("t", "b"),
    ]
    assert json.loads(effects[1].change or b"") == {"truncate": True}
