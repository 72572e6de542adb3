"""Conditions on rows: what enters, stays and leaves adds up to the rows that meet them."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.criteria import Area, Criteria, Operation, Transition, canonical
from tailrace.schema import Column, Origin, Schema
from tailrace_server.filters.parsing import parse
from tailrace_server.live.router import Router
from tailrace_server.rows.predicate import Predicate
from tailrace_server.rows.record_classes import group_by_class
from tailrace_server.rows.row_condition import ConditionText, RowCondition, filtered
from tailrace_server.rows.run import UNJUDGED
from tailrace_server.rows.transitions import TRANSITION_BITS, UNSURE, VEILED
from tailrace_server.wal.catalog import create_catalog, open_writer
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.record.unavailable import PLACEHOLDER
from tailrace_server.wal.segment.reader import BatchReader
from tailrace_server.wal.state.commit_log import CommitLog
from tests.support.images import images_of
from tests.support.older_writer import OlderWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace_server.rows.run import BatchSelection
    from tailrace_server.wal.state.view import LogView

Row = dict[str, Any]

COLUMNS = (
    Column("id", sql_type="VARCHAR", key=1, origin=Origin.DECLARED, id=1),
    Column("name", sql_type="VARCHAR", origin=Origin.DECLARED, id=2),
    Column("price", sql_type="BIGINT", origin=Origin.DECLARED, id=3),
    Column("draft", sql_type="BOOLEAN", origin=Origin.DECLARED, id=4),
)


def _price(row: Row, judge: Callable[[int], bool]) -> bool:
    return row.get("price") is not None and judge(row["price"])


CONDITIONS: dict[str, Callable[[Row], bool]] = {
    "price > 4": lambda row: _price(row, lambda price: price > 4),
    "NOT price > 4": lambda row: _price(row, lambda price: price <= 4),
    "price = 3": lambda row: row.get("price") == 3,
    "price BETWEEN 2 AND 5": lambda row: _price(row, lambda price: 2 <= price <= 5),
    "name IN ('a', 'b')": lambda row: row.get("name") in ("a", "b"),
    "name = 'a' AND price < 8": lambda row: (
        row.get("name") == "a" and _price(row, lambda price: price < 8)
    ),
    "name LIKE 'a%' OR price = 3": lambda row: (
        (row.get("name") or "").startswith("a") or row.get("price") == 3
    ),
    "price IS NULL": lambda row: row.get("price") is None,
    "NOT (name IS NULL)": lambda row: row.get("name") is not None,
    "draft IS NOT TRUE": lambda row: row.get("draft") is not True,
    "price IS DISTINCT FROM 3": lambda row: row.get("price") != 3,
    "id = '2'": lambda row: row["id"] == "2",
}

rows = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from([None, "a", "b", "ab", "c"]),
        "price": st.none() | st.integers(0, 9),
        "draft": st.sampled_from([None, True, False]),
    },
)
WHOLE, KEY, NOTHING = "the row", "its key, and nulls", "nothing"
Step = tuple[str, Row | None, str]
"""Key, * for a truncate; the row after (None: removed); and what the source sends of the row before."""
steps = st.lists(
    st.tuples(st.sampled_from("112233*"), st.none() | rows, st.sampled_from([WHOLE, KEY, NOTHING])),
    min_size=1,
    max_size=25,
)


def changes(steps: Sequence[Step]) -> list[tuple[Mutation, Row | None]]:
    """Return mutations that follow from each other, each with the row that it finds.

    An update comes with the whole row before or with none, as from PostgreSQL.
    """
    state: dict[str, Row] = {}
    found: list[tuple[Mutation, Row | None]] = []
    for key, row, sent in steps:
        if key == "*":
            state.clear()
            found.append((Mutation("product", None, Operation.REMOVE), None))
            continue
        before = state.get(key)
        after = None if row is None else {"id": key, **row}
        if before == after:
            continue
        if after is None:
            state.pop(key)
        else:
            state[key] = after
        images = [None if each is None else json.dumps(each).encode() for each in (before, after)]
        operation = Operation.REMOVE if after is None else Operation.UPSERT
        changed = None
        if before is not None and sent != WHOLE:
            images[0] = None
            changed = tuple(after) if after is not None else None
            if after is None and sent == KEY:
                nulls = dict.fromkeys(("name", "price", "draft"))
                images[0] = json.dumps({"id": key, **nulls}).encode()
        found.append(
            (Mutation("product", key, operation, images[0], images[1], changed=changed), before)
        )
    return found


def condition(text: str, view: LogView, *, granted: bool = False) -> RowCondition:
    columns = view.schema_of(view.published).columns("product")
    return RowCondition([ConditionText(parse(text), (), granted)], columns, view.published)


def write(
    root: Path, mutations: Sequence[Mutation], per_transaction: int = 2, *, noted: bool = False
) -> LogView:
    create_catalog(root, "shop")
    with open_writer(root, "shop", writer="log-writer") as writer:
        writer.commit(
            batch_id=0,
            schema_changes=[(-1, Schema(1, {"product": COLUMNS}))],
            source_positions={"removed:product": "1-"} if noted else {},
        )
    with OlderWriter.open(root, "shop") as log:
        for place in range(0, len(mutations), per_transaction):
            log.append(list(mutations[place : place + per_transaction]))
        log.commit(publish=True)
    return CommitLog.open(root / "shop").view


def told(selection: BatchSelection) -> tuple[object, ...]:
    codes = selection.transitions
    return (
        selection.rows.tolist(),
        None if selection.ordinals is None else selection.ordinals.tolist(),
        selection.names,
        None if codes is None else codes.tolist(),
    )


KEYS = ("1", "2", "3")
Asked = list[tuple[str, tuple[str, ...]]]
"""Alternatives: a condition, and the keys that it is for."""
asked = st.lists(
    st.tuples(st.sampled_from([*CONDITIONS]), st.sampled_from([KEYS, ("1", "2")])),
    min_size=1,
    max_size=3,
)


def criteria_of(
    alternatives: Asked, view: LogView, *, granted: bool = False
) -> tuple[Criteria, ...]:
    return canonical(
        filtered(
            Criteria(
                area=Area.DATA,
                entity_type=("product",),
                primary_key=() if keys == KEYS else keys,
            ),
            condition(text, view, granted=granted),
        )
        for text, keys in alternatives
    )


def test_conditions_without_a_match_are_steps_of_the_routing_too(tmp_path: Path) -> None:
    """Behind each of them the event loop can have its turn; what the index rules out takes no time."""
    view = write(tmp_path, [Mutation("product", "1", after=b'{"id":"1","name":"a","price":3}')])
    router = Router()
    for number, text in enumerate(["name LIKE '%x'", "name LIKE '%y'", "price = 9"]):
        asked = Criteria(entity_type=("product",), where=text)
        router.add(number, Predicate((filtered(asked, condition(text, view)),)))
    with BatchReader(tmp_path / "shop") as reader:
        ref = view.batch(len(view) - 1)
        grouped = group_by_class(reader.head(ref))
        steps = dict(router.route(grouped, images_of(reader, ref, view)))
    assert {id: bool(found) for id, found in steps.items()} == {0: False, 1: False}


@settings(max_examples=40, deadline=None)
@given(steps, st.lists(asked, min_size=1, max_size=3), st.booleans())
def test_contract_49_what_enters_and_leaves_adds_up_to_the_rows_that_meet_the_condition(
    steps: list[Step], wanted: list[Asked], noted: bool
) -> None:
    if noted:  # the log says that the images of removed rows are whole, and so they are
        steps = [(key, row, WHOLE if sent == KEY else sent) for key, row, sent in steps]
    mutations = changes(steps)
    with TemporaryDirectory() as folder:
        view = write(Path(folder), [each for each, _ in mutations], noted=noted)
        predicates = [Predicate(criteria_of(each, view)) for each in wanted]
        predicates.append(Predicate((Criteria(entity_type=("product",)), *predicates[0].criteria)))
        router = Router()
        for number, predicate in enumerate(predicates):
            router.add(number, predicate)
        of_grant = Predicate(criteria_of(wanted[0], view, granted=True))
        table: dict[str, Row] = {}
        views: list[dict[str, Row]] = [{} for _ in wanted]
        ahead = iter(mutations)
        with BatchReader(Path(folder) / "shop") as reader:
            for place in range(len(view)):
                ref = view.batch(place)
                grouped = group_by_class(reader.head(ref))
                images = images_of(reader, ref, view)
                selected = [predicate.select(grouped, images) for predicate in predicates]
                # 1. The router finds the same.
                routed = {id: each for id, each in router.route(grouped, images) if each}
                assert {number: told(each) for number, each in routed.items()} == {  # type: ignore[arg-type]
                    number: told(each) for number, each in enumerate(selected) if len(each)
                }
                # 2. What is taken as it is, is not judged.
                assert selected[-1].transitions is None
                # 3. Who is granted the rows is told the same, but for what nobody knows whether he may be told.
                _check_granted(of_grant.select(grouped, images), selected[0])
                # 4. Each record moves its row as the rows before and after say, and the views follow the table.
                codes = [_codes(each) for each in selected[:-1]]
                for row in np.flatnonzero(grouped.head.areas == Area.DATA).tolist():
                    mutation, before = next(ahead)
                    if mutation.primary_key is None:
                        for each in (table, *views):
                            each.clear()
                        assert all(found.pop(row) == 0 for found in codes)
                        continue
                    after = None if mutation.after is None else json.loads(mutation.after)
                    key = str(mutation.primary_key)
                    _put(table, key, after)
                    for number, alternatives in enumerate(wanted):
                        code = codes[number].pop(row, 0)
                        _check(code, mutation, before, after, alternatives, noted=noted)
                        if code:
                            _put(views[number], key, None if _leaves(code) else after)
                        assert views[number] == {
                            key: row for key, row in table.items() if is_in(row, alternatives)
                        }
                assert not any(codes)


def is_in(row: Row | None, alternatives: Asked) -> bool:
    return row is not None and any(
        row["id"] in keys and CONDITIONS[text](row) for text, keys in alternatives
    )


def _leaves(code: int) -> bool:
    return code & TRANSITION_BITS == Transition.LEAVE


def _put(rows: dict[str, Row], key: str, row: Row | None) -> None:
    if row is None:
        rows.pop(key, None)
    else:
        rows[key] = row


def _codes(selection: BatchSelection) -> dict[int, int]:
    if not len(selection):
        return {}
    codes = [0] * len(selection)
    if selection.transitions is not None:
        codes = selection.transitions.tolist()
    return dict(zip(selection.rows.tolist(), codes, strict=True))


def _check_granted(granted: BatchSelection, plain: BatchSelection) -> None:
    names = granted.names or ("",) * len(granted)
    rows = granted.rows.tolist()
    unjudged = {row for row, name in zip(rows, names, strict=True) if name is UNJUDGED}
    told = _codes(plain)
    assert unjudged == {row for row, code in told.items() if code == Transition.LEAVE | UNSURE}
    assert {
        row: code & ~VEILED for row, code in _codes(granted).items() if row not in unjudged
    } == {row: code for row, code in told.items() if row not in unjudged}
    # Each of them is apart, so that it ends nobody who does not come to it.
    for part in granted.apart(None) if len(granted) else ():
        assert part.is_unjudged == unjudged.issuperset(part.rows.tolist())
        assert part.is_unjudged or unjudged.isdisjoint(part.rows.tolist())


def _check(
    code: int,
    mutation: Mutation,
    before: Row | None,
    after: Row | None,
    alternatives: Asked,
    *,
    noted: bool,
) -> None:
    """Compare a code with what is plain to see, and with what is not."""
    was, now = is_in(before, alternatives), is_in(after, alternatives)
    if not code & UNSURE:
        expected = {
            (False, False): 0,
            (False, True): Transition.ENTER,
            (True, True): Transition.UPDATE,
            (True, False): Transition.LEAVE,
        }
        assert code == expected[was, now]
        return
    # Nobody knows: the source did not send the row before, or of a removal perhaps the key alone.
    assert before is not None
    assert mutation.before is None or (mutation.operation is Operation.REMOVE and not noted)
    assert code & TRANSITION_BITS == (Transition.ENTER if now else Transition.LEAVE)


def test_a_condition_that_comes_while_images_are_decoded_misses_nothing(log_root: Path) -> None:
    before = b'{"id":"1","name":"%b","price":1}' % PLACEHOLDER.encode()
    view = write(
        log_root, [Mutation("product", "1", before=before, after=b'{"id":"1","name":"b"}')]
    )
    router = Router()
    router.add(1, Predicate(criteria_of([("price > 4", KEYS)], view)))
    with BatchReader(log_root / "shop") as reader:
        ref = view.batch(len(view) - 1)
        grouped = group_by_class(reader.head(ref))
        images = images_of(reader, ref, view)
        decoded = router.decoded(grouped, images)
        assert decoded is not None
        decoded.decode()
        router.add(2, Predicate(criteria_of([("name = 'a'", KEYS)], view)))
        found = {id: each for id, each in router.route(grouped, images, decoded) if each}
    assert {id: told(each) for id, each in found.items() if not isinstance(each, Exception)} == {
        2: ([1], None, None, [Transition.LEAVE | UNSURE])
    }
