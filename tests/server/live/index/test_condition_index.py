"""The index of conditions: it finds what judging every row finds, and looks at nothing else."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.criteria import Area, Criteria, Operation, Transition, canonical
from tailrace.errors import InvalidRequest
from tailrace.schema import Column, Origin, Schema
from tailrace_server.filters.parsing import parse
from tailrace_server.filters.tree import ConditionRefused
from tailrace_server.grants.grant import Columns
from tailrace_server.grants.shown import Rule, Visibility, columns_shown
from tailrace_server.live.router import Router
from tailrace_server.rows.predicate import Predicate
from tailrace_server.rows.record_classes import group_by_class
from tailrace_server.rows.row_condition import ConditionText, RowCondition, filtered
from tailrace_server.wal.catalog import create_catalog, open_writer
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.record.unavailable import PLACEHOLDER
from tailrace_server.wal.segment.reader import BatchReader
from tailrace_server.wal.state.commit_log import CommitLog
from tests.support.images import images_of
from tests.support.older_writer import OlderWriter

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace_server.rows.batch_images import Images
    from tailrace_server.rows.record_classes import GroupedHead
    from tailrace_server.rows.run import BatchSelection
    from tailrace_server.wal.segment.reader import BatchHead

TYPES = {
    "id": "VARCHAR",
    "name": "VARCHAR",
    "price": "INTEGER",
    "cost": "DECIMAL(10,2)",
    "day": "DATE",
    "at": "TIMESTAMP",
    "rate": "DOUBLE",
    "is_open": "BOOLEAN",
}
VALUES: dict[str, list[Any]] = {
    "name": ["a", "ab", "b", "é", "\U0001f600", "\uffff", PLACEHOLDER],
    "price": [-3, 0, 1, 2, 5],
    "cost": [-3.25, 0, 1, 1.5, 99.99],
    "day": ["1969-12-31", "2024-02-29", "2024-03-01"],
    "at": ["1969-12-31T23:59:59", "2024-02-29T13:37:00", "2024-02-29T13:37:00.5"],
    "rate": [-1.5, -0.0, 0.0, 2.5, "NaN", "Infinity"],
    "is_open": [True, False],
}
ASKED: dict[str, list[str]] = {
    "name": ["'a'", "'b'", "'é'", "'\U0001f600'", "''", "NULL"],
    "price": ["-3", "0", "1", "1.5", "5", "1e20", "-1e20", "NULL"],
    "cost": ["-3.25", "-3.251", "1", "1.005", "1.5", "1e20"],
    "day": ["'1969-12-31'", "'2024-02-29'"],
    "at": ["'1969-12-31T23:59:59'", "'2024-02-29T13:37:00'", "'2024-02-29'"],
    "rate": ["-1.5", "0", "2.5", "CAST('NaN' AS DOUBLE)"],
    "is_open": ["TRUE", "FALSE"],
}


RESTS = ["price > 0", "cost IS NULL OR day > '2000-01-01'"]
"""Of many conditions the same."""
SOME, OTHERS = Columns(frozenset({"id", "price", "day"}), listed=True), Columns(frozenset({"cost"}))
SHOWN_BY_NAME = (("product", (Rule(None, SOME, True),)),), (), None, True
SHOWN = [
    columns_shown("product", SOME),
    columns_shown("product", OTHERS),
    Visibility(
        (("product", (Rule(frozenset("12"), SOME, True), Rule(frozenset("2"), OTHERS, True))),),
        (),
        None,
        counted_are_all=True,
    ),
]
"""What readers may be shown."""


def columns_of(price: str) -> tuple[Column, ...]:
    return tuple(
        Column(name, sql_type=kind, key=int(name == "id"), origin=Origin.DECLARED, id=number)
        for number, (name, kind) in enumerate((TYPES | {"price": price}).items(), 1)
    )


def a_part(random: Random) -> str:
    """Return a condition that can be looked up, or one of others."""
    name = random.choice([*ASKED])
    value, other = random.choices(ASKED[name], k=2)
    match random.choice(["equal", "in", "range", "range", "other"]):
        case "in":
            return f"{name} IN ({value}, {other})"
        case "range" if name != "is_open":
            both = [
                f"{name} {random.choice(['>', '>='])} {value}",
                f"{name} {random.choice(['<', '<='])} {other}",
            ]
            return " AND ".join(random.choice([both, both[:1], both[1:]]))
        case "other":
            return random.choice([f"{name} IS NULL", f"{name} <> {value}"])
        case _:
            return f"{name} = {value}"


def a_row(random: Random, key: str) -> dict[str, Any] | None:
    if random.random() < 0.2:
        return None
    given = {name: random.choice([None, *values]) for name, values in VALUES.items()}
    return {"id": key, **{name: given[name] for name in given if random.random() < 0.8}}


def a_mutation(random: Random, *, plain: bool) -> Mutation:
    """Return a change; of a plain one the row before is known whole."""
    key = random.choice("123")
    if not plain and random.random() < 0.05:
        return Mutation("product", None, Operation.REMOVE)
    before, after = a_row(random, key), a_row(random, key)
    if plain and before is not None:
        before = {name: random.choice(values) for name, values in VALUES.items()} | {
            "id": key,
            "name": "a",
        }
    if before is not None and random.random() < 0.4:  # one column has changed, which few are shown
        name = random.choice([*VALUES])
        after = {**before, name: random.choice(VALUES[name])}
    images = [None if row is None else json.dumps(row).encode() for row in (before, after)]
    operation, changed = Operation.REMOVE, None
    if after is not None:
        operation = Operation.UPSERT
        if not plain and random.random() < 0.1:
            images[0], changed = None, tuple(after)
    return Mutation("product", key, operation, images[0], images[1], changed=changed)


def a_predicate(random: Random, columns: tuple[Column, ...], since: int) -> Predicate:
    one = Criteria(
        area=Area.DATA,
        entity_type=("product",),
        primary_key=random.choice([(), (), (), ("1", "2")]),
        operation=random.choice([(), (), (), (Operation.REMOVE,)]),
    )
    found: list[Criteria] = []
    for _ in range(random.choice([1, 1, 2])):
        text = " AND ".join(a_part(random) for _ in range(random.choice([1, 1, 2])))
        part = ConditionText(parse(text), is_granted=random.random() < 0.3)
        found.append(filtered(replace(one, where=text), RowCondition([part], columns, since)))
    return Predicate(canonical(found), random.choice([None, *SHOWN]))


def one_of_a_crowd(random: Random, columns: tuple[Column, ...], since: int) -> Predicate:
    """Return a predicate that differs from many others in a value alone."""
    text = f"name = {random.choice(ASKED['name'])} AND {random.choice(RESTS)}"
    part = ConditionText(parse(text), is_granted=random.random() < 0.5)
    one = Criteria(area=Area.DATA, entity_type=("product",), where=text)
    asked = filtered(one, RowCondition([part], columns, since))
    return Predicate((asked,), random.choice([None, *SHOWN[::2]]))


def told(found: BatchSelection | Exception) -> object:
    if isinstance(found, Exception):
        return str(found)
    codes = found.transitions
    return found.rows.tolist(), found.names, None if codes is None else codes.tolist()


def judged_alone(subject: Predicate, grouped: GroupedHead, images: Images) -> object:
    """Return what a predicate finds that has nobody to look anything up for it; None: nothing."""
    try:
        found = subject.select(grouped, images)
    except ConditionRefused as error:
        return str(error)
    return told(found) if found else None


@pytest.mark.parametrize("seed", range(2))
def test_what_the_index_finds_is_what_judging_every_row_finds(log_root: Path, seed: int) -> None:
    """Of all types that have an order; with images that do not tell, and a column that becomes wider."""
    random = Random(seed)
    create_catalog(log_root, "shop")
    router = Router()
    predicates: list[Predicate] = []
    batches = 0
    for number, price in enumerate(("INTEGER", "BIGINT")):
        columns = columns_of(price)
        with open_writer(log_root, "shop", writer="log-writer") as writer:
            schema = Schema(1, {"product": columns})
            writer.commit(batch_id=1000 * number, schema_changes=[(-1, schema)])
        if not predicates:
            since = CommitLog.open(log_root / "shop").view.published
            predicates = [a_predicate(random, columns, since) for _ in range(50)]
            predicates += (one_of_a_crowd(random, columns, since) for _ in range(90))
            for id, each in enumerate(predicates):
                router.add(id, each)
        with OlderWriter.open(log_root, "shop") as log:
            for rows in (1, 12, 60):
                log.append([a_mutation(random, plain=rows == 60) for _ in range(rows)])
                log.commit(publish=True)
        view = CommitLog.open(log_root / "shop").view
        with BatchReader(log_root / "shop") as reader:
            for place in range(batches, len(view)):
                ref = view.batch(place)
                grouped, images = group_by_class(reader.head(ref)), images_of(reader, ref, view)
                found = {id: told(each) for id, each in router.route(grouped, images) if each}
                for id, each in enumerate(predicates):
                    assert found.get(id) == judged_alone(each, grouped, images), [
                        one.where for one in each.criteria
                    ]
        batches = len(view)
    # Nothing of them is left behind.
    for id in range(len(predicates)):
        router.remove(id)
    assert not router._conditions
    assert not router._shared


@dataclass(frozen=True)
class _Outdated(Visibility):
    """As of a view, one of whose columns has been dropped."""

    def check(self, head: BatchHead) -> None:
        raise InvalidRequest("a column has been dropped")


@pytest.mark.parametrize("count", [1, 9])
def test_who_cannot_be_told_gets_the_reason_and_the_others_their_rows(
    log_root: Path, count: int
) -> None:
    create_catalog(log_root, "shop")
    columns = columns_of("INTEGER")
    with open_writer(log_root, "shop", writer="log-writer") as writer:
        schema = Schema(1, {"product": columns})
        writer.commit(batch_id=0, schema_changes=[(-1, schema)])
    with LogWriter.open(log_root, "shop") as log:
        log.append([Mutation("product", "1", after=b'{"id":"1","name":"a","price":3}')])
        log.commit(publish=True)
    view = CommitLog.open(log_root / "shop").view
    condition = RowCondition([ConditionText(parse("name = 'a'"))], columns, view.published)
    asked = (filtered(Criteria(area=Area.DATA, entity_type=("product",)), condition),)
    router = Router()
    for id in range(count):
        router.add(id, Predicate(asked, _Outdated(*SHOWN_BY_NAME)))
    router.add(count, Predicate(asked))
    with BatchReader(log_root / "shop") as reader:
        ref = view.batch(len(view) - 1)
        found = dict(router.route(group_by_class(reader.head(ref)), images_of(reader, ref, view)))
    assert told(found.pop(count)) == ([1], None, [Transition.ENTER])
    assert {type(each) for each in found.values()} == {InvalidRequest}
    assert len(found) == count
