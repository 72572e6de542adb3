"""The law of rights and requests: all ways to read agree with one plain model (``rows_seen``).

Generated: schemas that change, changes that may lack images, values and certainty, rights, conditions, views.
Read: live, from the log, history, the state of each version, the state that a subscription begins with, the
latest of each key, CDCv2, and SQL: tables, ``CHANGES`` and change tables.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tailrace.capture import StateComplete
from tailrace.criteria import Area, CatchUp, Content, Criteria, FromState, Operation, Since
from tailrace.cursor import StateCursor
from tailrace.errors import InvalidRequest
from tailrace.position import Position
from tailrace.v1.change_capture_pb2 import SubscribeResponse
from tailrace_server.codecs import CDCV2, JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.filters.claims import read_claimed
from tailrace_server.grants.grant import Allowance, Columns, Grant
from tailrace_server.grants.tables import granted_tables
from tailrace_server.log_cache.frames import Frames
from tailrace_server.reads.state_request import StateRequest
from tailrace_server.resources.settings import SubscriptionLimits
from tailrace_server.sql.query import Query
from tailrace_server.sql.scans import LogSource
from tailrace_server.typed.misfits import OnMisfit
from tailrace_server.wal.catalog import open_catalog
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import SchemaMapping
from tailrace_server.wal.segment.reader import BatchReader
from tests.model.rows_seen import (
    UNSENT,
    Asked,
    Form,
    Image,
    Record,
    Right,
    Seen,
    Tree,
    columns_in,
    rows,
    seen,
)
from tests.server.sql.test_change_tables import define
from tests.support.inprocess import PATIENCE_S, has_passed, objects
from tests.support.principals import Holder

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from tailrace_server.grants.principal import Principal
    from tailrace_server.live.subscription import Subscription

ID, T, V, N = 1, 2, 3, 4
KINDS: Final = {ID: "BIGINT", T: "VARCHAR", V: "VARCHAR"}
LARGE: Final = 1 << 40
LIMITS: Final = {"INTEGER": (1 << 31) - 1, "BIGINT": (1 << 63) - 1}
LITERALS: Final = {T: ("a", "b"), N: (1, 2, 3)}
Step = tuple[str, str, Any, Any, str]
"""Key, what it does, the values of its row, and how much of the row before is sent."""


# The log.


def altered(form: Form, change: str) -> Form:
    names = dict(form.names)
    table, number_max = form.table, form.number_max
    match change:
        case "rename":
            names[T] += "x"
        case "reuse" if names[T] != "t":
            names[V] = "t"
        case "narrow":
            number_max = LIMITS["INTEGER"]
        case "widen":
            number_max = LIMITS["BIGINT"]
        case "table":
            table = "thing"
    return Form(table, names, number_max)


def mapping_of(form: Form, before: Form | None) -> SchemaMapping:
    """Return what declares a form of the table, and what each of its names was before."""
    number = next(kind for kind, limit in LIMITS.items() if limit == form.number_max)
    lines = [f"[entity_types.{form.table}]", 'key = ["id"]']
    if before is not None and before.table != form.table:
        lines.append(f'renamed_from = "{before.table}"')
    lines.append(f"[entity_types.{form.table}.columns]")
    for column, name in form.names.items():
        fields = [f'type = "{ {**KINDS, N: number}[column] }"']
        if before is not None and before.names[column] != name:
            fields.append(f'renamed_from = "{before.names[column]}"')
        lines.append(f"{name} = {{ {', '.join(fields)} }}")
    return SchemaMapping.parse("\n".join(lines))


def text_of(form: Form, image: Image | None) -> bytes | None:
    if image is None:
        return None
    return json.dumps({form.names[id]: value for id, value in image.items()}).encode()


def records_of(phases: Sequence[tuple[Form, Sequence[Step]]]) -> list[Record]:
    """Return the changes that steps make; a step that makes none is passed over."""
    left: dict[str, Image] = {}
    found: list[Record] = []
    for form, steps in phases:
        # The first change of a phase is of a row: the table takes its form by it.
        for key, what, text, number, sent in (("1", "upsert", "a", 1, "whole"), *steps):
            before = left.get(key)
            if before is not None and (before[N] or 0) > form.number_max:
                sent = "nothing"  # a writer refuses a value that the declared type cannot hold
            given: dict[str, Any] = {"version": len(found) + 1, "form": form, "key": key}
            if what == "truncate":
                left.clear()
                found.append(Record(**{**given, "key": None}, operation=Operation.REMOVE))
            elif what == "upsert":
                if before is None and text == UNSENT:
                    text = "a"
                if form.number_max < LARGE and number == LARGE:
                    number = 3
                after = {ID: int(key), T: text, V: "v" if sent == "nothing" else "w", N: number}
                changed = None
                if before is not None:
                    changed = tuple(
                        id for id in after if after[id] != before[id] and after[id] != UNSENT
                    )
                if sent == "nothing":
                    before = None
                left[key] = after
                found.append(
                    Record(
                        **given,
                        operation=Operation.UPSERT,
                        before=before,
                        after=after,
                        changed=changed,
                    )
                )
            elif before is not None:
                del left[key]
                operation = Operation.EXPIRE if what == "expire" else Operation.REMOVE
                if sent == "key" and operation is Operation.REMOVE:
                    before = {**dict.fromkeys(before), ID: int(key)}
                elif sent == "nothing":
                    before = None
                found.append(Record(**given, operation=operation, before=before))
    return found


def append(root: Path, records: Iterable[Record], mapping: SchemaMapping) -> None:
    """Write each change as a version of its own."""
    with LogWriter.open(root, "shop", mapping=mapping) as writer:
        for each in records:
            names = None
            if each.changed is not None:
                names = tuple(each.form.names[id] for id in each.changed)
            images = text_of(each.form, each.before), text_of(each.form, each.after)
            writer.append(
                [Mutation(each.form.table, each.key, each.operation, *images, changed=names)]
            )
            writer.commit(publish=True)


# What is asked for.


def sql_of(tree: Tree, names: dict[int, str]) -> str:
    match tree:
        case ("and" | "or") as word, one, other:
            return f"({sql_of(one, names)} {word.upper()} {sql_of(other, names)})"
        case "not", one:
            return f"NOT ({sql_of(one, names)})"
        case "null", column:
            return f"{names[column]} IS NULL"
        case sign, column, value:
            return f"{names[column]} {sign} " + (
                f"'{value}'" if isinstance(value, str) else str(value)
            )
    raise AssertionError(tree)


@st.composite
def leaves(draw: st.DrawFn) -> Tree:
    column = draw(st.sampled_from([T, N]))
    sign = draw(st.sampled_from(["=", "<", "null"]))
    return (
        (sign, column)
        if sign == "null"
        else (sign, column, draw(st.sampled_from(LITERALS[column])))
    )


trees = st.recursive(
    leaves(),
    lambda part: st.one_of(
        st.tuples(st.sampled_from(["and", "or"]), part, part), st.tuples(st.just("not"), part)
    ),
    max_leaves=3,
)
steps = st.tuples(
    st.sampled_from("123"),
    st.sampled_from(["upsert"] * 7 + ["remove", "remove", "expire", "truncate"]),
    st.sampled_from(["a", "a", "b", None, UNSENT]),
    st.sampled_from([1, 2, 3, None, LARGE]),
    st.sampled_from(["whole", "whole", "whole", "key", "nothing"]),
)
ALTERED: Final = ["", "rename", "rename", "reuse", "narrow", "widen", "table"]
phases = st.lists(
    st.tuples(st.sampled_from(ALTERED), st.lists(steps, min_size=3, max_size=6)),
    min_size=2,
    max_size=3,
)
hidden = st.sampled_from([frozenset[str](), frozenset({"v"}), frozenset({"n"}), frozenset({"t"})])


@st.composite
def rights(draw: st.DrawFn) -> list[Right]:
    """Rights as a policy may give them: with a condition among them, all show the same columns."""
    kind = draw(st.sampled_from(["all", "columns", "rows", "rows", "keys"]))
    one = draw(hidden)
    match kind:
        case "all":
            return [Right()]
        case "columns":
            return [Right(hidden=one)]
        case "keys":
            return [Right(frozenset({"1"}), one), Right(frozenset({"2", "3"}), draw(hidden))]
    found = [Right(None, one, draw(trees))]
    more = draw(st.sampled_from(["", "keys", "rows"]))
    if more == "keys":
        found.append(Right(frozenset({"1"}), one))
    elif more == "rows":
        found.append(Right(frozenset({"1", "2"}), one, draw(trees)))
    return found


def grant_of(held: Sequence[Right], form: Form, tables: frozenset[str]) -> Grant:
    return Grant(
        tuple(
            Allowance(
                tables,
                each.keys,
                Columns(each.hidden),
                rows=None
                if each.rows is None
                else read_claimed(sql_of(each.rows, form.names)).filled({}),
            )
            for each in held
        )
    )


# What is read.

Capture = tuple[int, str, str | None, Any, Any, Any]
"""Version, how it moves, key, names of what changed, and the images."""


def plain(captures: Iterable[dict[str, Any]]) -> list[Capture]:
    return [
        (
            each["version"],
            each.get("transition", ""),
            each["primaryKey"],
            None if each["changed"] is None else sorted(each["changed"]),
            each["before"],
            each["after"],
        )
        for each in captures
    ]


def named(record: Record, image: Image | None) -> dict[str, Any] | None:
    return None if image is None else {record.form.names[id]: value for id, value in image.items()}


def capture_of(found: Seen) -> Capture:
    record = found.record
    changed = (
        None if found.changed is None else sorted(record.form.names[id] for id in found.changed)
    )
    images = named(record, found.before), named(record, found.after)
    return record.version, found.move, record.key, changed, *images


async def received(stream: Subscription, version: int) -> tuple[list[Any], str]:
    """Return the messages up to a version, and the name of the error that ends them."""
    found: list[Any] = []
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                message = await stream.receive()
            except InvalidRequest as error:
                return found, type(error).__name__
            if isinstance(message, Frames):
                found.append(message)
            elif isinstance(message, StateComplete) or (
                not isinstance(message.cursor, StateCursor) and has_passed(message.cursor, version)
            ):
                return found, ""


async def captures_of(stream: Subscription, version: int) -> tuple[list[Capture], str]:
    found, error = await received(stream, version)
    return plain(each for frames in found for each in objects(frames)), error


async def history(engine: Engine, caller: Principal, asked: Criteria) -> tuple[list[Capture], str]:
    read = await engine.history(caller, "shop", [asked], content=Content.BODY, codec=JSON)
    found: list[Any] = []
    with read:
        try:
            async for frames in read:
                found += objects(frames)
        except InvalidRequest as error:
            return plain(found), type(error).__name__
    return plain(found), ""


async def state(
    engine: Engine, caller: Principal, table: str, version: int, where: str | None
) -> dict[str, tuple[dict[str, Any], bool]]:
    asked = StateRequest(entity_type=table, at_version=version, where=where)
    with await engine.state(caller, "shop", asked, codec=JSON) as read:
        return {
            each["primaryKey"]: (each["after"], each.get("transition") != "UNKNOWN")
            async for frames in read
            for each in objects(frames)
        }


def ask(root: Path, grant: Grant, text: str) -> list[dict[str, Any]] | None:
    """Return the rows of an answer; None where the log does not say what is asked for."""
    log = open_catalog(root, "shop")
    try:
        with BatchReader(log.path) as reader:
            source = LogSource(
                log.view, reader, lambda _: log.view, shown=granted_tables(grant.allowances)
            )
            with Query(source, text, on_misfit=OnMisfit.NULL) as query:
                return [row for batch in query.batches() for row in batch.to_pylist()]
    except InvalidRequest as error:
        if "unknown whether" in str(error) or "did not send" in str(error):
            return None
        raise


def in_sql(found: Seen, names: dict[int, str], number_max: int) -> tuple[Any, ...]:
    """Return a change as SQL has it; NULLs are left out."""
    record = found.record
    kind = "insert" if record.changed is None or found.move == "ENTER" else "update"
    if record.operation is Operation.EXPIRE:
        kind = "expire"
    elif record.key is None:
        kind = "truncate"
    elif record.operation is Operation.REMOVE or found.move == "LEAVE":
        kind = "delete"
    images = (typed(each, names, number_max) for each in (found.before, found.after))
    return record.version, kind, record.key, *images


def typed(image: Image | None, names: dict[int, str], number_max: int) -> dict[str, Any] | None:
    if image is None:
        return None
    return {
        names[id]: value
        for id, value in image.items()
        if id in names
        and value is not None
        and value != UNSENT
        and not (id == N and value > number_max)
    }


def without_nulls(image: dict[str, Any] | None) -> dict[str, Any] | None:
    return (
        None
        if image is None
        else {name: value for name, value in image.items() if value is not None}
    )


CHANGES_OF: Final = (
    "SELECT _commit_version, _change_type, _primary_key, before, after FROM CHANGES('{}')"
)


def changes_in_sql(root: Path, grant: Grant, name: str) -> list[tuple[Any, ...]] | None:
    found = ask(root, grant, CHANGES_OF.format(name))
    if found is None:
        return None
    return [
        (*[*each.values()][:3], *map(without_nulls, (each["before"], each["after"])))
        for each in found
    ]


def elements_of(found: Seen) -> list[tuple[int, str | None, dict[str, Any] | None, int]]:
    """Return a change in CDCv2; a missing image is an element that says 0."""
    record = found.record
    if record.key is None:
        return [(record.version, None, None, 0)]
    is_upsert = record.operation is Operation.UPSERT and found.move != "LEAVE"
    needs_before = not is_upsert or (record.changed is not None and found.move in ("", "UPDATE"))
    if not found.is_sure or found.move == "UNKNOWN" or (needs_before and found.before is None):
        return [(record.version, record.key, None, 0)]
    before, after = named(record, found.before), named(record, found.after)
    if (
        found.before is not None
        and found.after is not None
        and text_of(record.form, found.before) == text_of(record.form, found.after)
    ):
        return []
    made: list[tuple[int, str | None, dict[str, Any] | None, int]] = []
    if before is not None:
        made.append((record.version, record.key, before, -1))
    if after is not None:
        made.append((record.version, record.key, after, 1))
    return made


async def elements(stream: Subscription, version: int) -> tuple[list[Any], str]:
    messages, error = await received(stream, version)
    return [
        (
            each.time,
            each.primary_key if each.HasField("primary_key") else None,
            json.loads(each.data) if each.data else None,
            each.diff,
        )
        for frames in messages
        for each in SubscribeResponse.FromString(frames.data).updates
    ], error


def until_stop(found: Iterable[Seen]) -> tuple[list[Seen], str]:
    given: list[Seen] = []
    for each in found:
        if each.move == "STOP":
            return given, "ChangeNotJudged"
        given.append(each)
    return given, ""


# The law.

SOON: Final = SubscriptionLimits(heartbeat_interval_s=0.02)
LATEST: Final = SubscriptionLimits(heartbeat_interval_s=0.02, catch_up=CatchUp.LATEST)
OLDEST: Final = Since(Position(0, 0))
FIRST: Final = Form("item", {ID: "id", T: "t", V: "v", N: "n"}, LIMITS["BIGINT"])
view_requests = st.builds(
    Asked, st.none() | trees, st.sampled_from([None, frozenset({ID, T}), frozenset({V})])
)


@dataclass
class Case:
    """One request of one caller, and the changes that the model has for it."""

    engine: Engine
    caller: Principal
    criteria: Criteria
    expected: list[Seen]
    """Of all records."""
    last: int
    """The newest version."""

    async def check(self, live: Subscription | None, live_since: int) -> None:
        until, error = until_stop(self.expected)
        wanted = [*map(capture_of, until)], error
        assert await history(self.engine, self.caller, self.criteria) == wanted, "history"
        assert await captures_of(await self.subscribe(OLDEST), self.last) == wanted, "from the log"
        if live is not None:
            later, error = until_stop(
                each for each in self.expected if each.record.version > live_since
            )
            found = await captures_of(live, self.last)
            assert found == ([*map(capture_of, later)], error), "live"
        await self.check_latest()

    async def check_latest(self) -> None:
        """The latest of each key are changes of the history, the last of each key; a stop ends them."""
        stream = await self.subscribe(OLDEST, limits=LATEST)
        found, error = await captures_of(stream, self.last)
        left: dict[Any, Seen] = {}
        for each in self.expected:  # a table that was renamed is another one here
            table = each.record.form.table
            if each.record.key is None:
                left = {place: other for place, other in left.items() if place[0] != table}
            left[table, each.record.key] = each
        if all(each.move != "STOP" for each in self.expected):
            wanted = sorted((capture_of(each) for each in left.values()), key=lambda each: each[0])
            assert (sorted(found, key=lambda each: each[0]), error) == (wanted, ""), "latest"

    async def subscribe(
        self, start: Any, limits: SubscriptionLimits = SOON, codec: Any = JSON
    ) -> Subscription:
        return await self.engine.subscribe(
            self.caller,
            "shop",
            [self.criteria],
            start=start,
            content=Content.BODY,
            codec=codec,
            limits=limits,
        )

    async def check_cdcv2(self) -> None:
        until, error = until_stop(self.expected)
        found = await elements(await self.subscribe(OLDEST, codec=CDCV2), self.last)
        assert found == ([one for each in until for one in elements_of(each)], error), "CDCv2"

    async def check_state(self, expected: dict[str, Any]) -> None:
        """A subscription that begins with a state has the rows of the state."""
        stream = await self.subscribe(FromState())
        found, error = await captures_of(stream, self.last)
        assert not error
        assert {each[2]: (each[5], each[1] != "UNKNOWN") for each in found} == expected, (
            "initial state"
        )


SMALL: Final[list[tuple[str, list[Step]]]] = [
    ("", [("1", "upsert", "b", 2, "whole"), ("2", "upsert", "a", 1, "whole")]),
    ("rename", [("2", "upsert", "b", 3, "whole"), ("1", "remove", None, None, "key")]),
]


UNSURE: Final[list[tuple[str, list[Step]]]] = [
    ("", [("2", "upsert", "a", 1, "whole")]),
    ("", [("2", "upsert", "b", 1, "nothing")]),
]
UNSENT_IN_VIEW: Final[list[tuple[str, list[Step]]]] = [
    ("narrow", [("2", "upsert", UNSENT, 2, "whole"), ("2", "upsert", UNSENT, 2, "whole")]),
    ("", [("3", "upsert", "a", 3, "key")]),
]


@pytest.mark.parametrize(
    ("made", "held", "of_view"),
    [
        (
            SMALL,
            [Right(None, frozenset({"v"}), ("<", N, 3)), Right(frozenset({"1"}), frozenset({"v"}))],
            Asked(("null", N), frozenset({ID, T})),
        ),
        # A view without a condition has every row, so a row that a grant moves is in it all the same.
        (UNSURE, [Right(None, frozenset(), ("=", N, 1))], Asked(None, frozenset({V}))),
        # A view whose condition needs a value that was not sent.
        (UNSENT_IN_VIEW, [Right()], Asked(("not", ("<", T, "b")), frozenset({ID, T}))),
    ],
)
async def test_a_small_log_agrees_with_the_model(
    made: list[tuple[str, list[Step]]], held: list[Right], of_view: Asked
) -> None:
    await agree(made, held, ("=", T, "a"), of_view)


@pytest.mark.slow
@settings(
    max_examples=15,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),  # to make an example smaller takes minutes
    suppress_health_check=[HealthCheck.too_slow],
)
@given(made=phases, held=rights(), where=trees, of_view=view_requests)
async def test_all_ways_to_read_agree_with_the_model(
    made: list[tuple[str, list[Step]]], held: list[Right], where: Tree, of_view: Asked
) -> None:
    await agree(made, held, where, of_view)


async def agree(
    made: list[tuple[str, list[Step]]], held: list[Right], where: Tree, of_view: Asked
) -> None:
    """Read a log in every way, and hold what comes against the model."""
    forms = [FIRST]
    for number, (change, _) in enumerate(made[1:], 2):
        is_last = number == len(made) and change in ("table", "narrow")
        forms.append(altered(forms[-1], "" if is_last else change))
    records = records_of([(form, listed) for form, (_, listed) in zip(forms, made, strict=True)])
    with TemporaryDirectory() as folder:
        await _Reading(Path(folder), forms, records, held).check(where, of_view)


class _Reading:
    """One log and one caller."""

    def __init__(
        self, root: Path, forms: list[Form], records: list[Record], held: list[Right]
    ) -> None:
        self.root, self.forms, self.records, self.held = root, forms, records, held
        self.newest = forms[-1]
        self.grant = grant_of(held, self.newest, frozenset(each.table for each in forms))
        self.caller = Holder({"shop": self.grant})
        self.last = len(records)
        self.is_renamed = self.newest.table != "item"
        self.before = sum(each.form is not self.newest for each in records)

    def expected(self, asked: Asked, tables: Collection[str]) -> list[Seen]:
        found = (
            seen(each, self.held, asked, self.newest.number_max)
            for each in self.records
            if each.form.table in tables
        )
        return [each for each in found if each is not None]

    async def check_states(self, case: Case, asked: Asked, name: str, is_where: bool) -> None:
        """Each version's state, by each way to read it."""
        for version in range(1, self.last + 1):
            form = self.records[version - 1].form
            if name != "seen" and form.table != name:
                continue
            found = rows(
                self.records[:version],
                self.held,
                asked,
                self.newest.number_max,
                form.number_max,
            )
            wanted = {
                key: (named(record, image), is_sure)
                for key, (record, image, is_sure) in found.items()
            }
            text = sql_of(asked.where, form.names) if is_where and asked.where else None
            needed = columns_in(asked.where) if asked.where else set[int]()
            if name == "seen":
                needed |= asked.columns or {*form.names}
            if (name == "seen" or text is not None) and not self.knows_at(form, needed):
                continue  # refused, by names of that version
            assert await state(case.engine, self.caller, name, version, text) == wanted, version
            if text is None:
                self.check_table(asked, name, version, found)
        if version == self.last and (name != "seen" or not self.is_renamed):
            await case.check_state(wanted)

    def check_table(self, asked: Asked, name: str, version: int, found: dict[str, Any]) -> None:
        """The table in SQL; one of whose rows it is unknown whether it is in is refused there."""
        form = self.records[version - 1].form
        names = form.names if asked.columns is None else FIRST.names  # a star has those of now
        text = f"SELECT * FROM {name} FOR VERSION AS OF {version}"
        answer = ask(self.root, self.grant, text)
        if not all(is_sure for _, _, is_sure in found.values()):
            assert answer is None, version
            return
        names = {id: name for id, name in names.items() if self.knows_at(form, {id})}
        wanted = {key: typed(image, names, form.number_max) for key, (_, image, _) in found.items()}
        assert answer is not None, version
        own = {"_primary_key", "_version", "_index", "_commit_timestamp", "_misfits"}
        assert {
            each["_primary_key"]: {
                name: value for name, value in each.items() if name not in own and value is not None
            }
            for each in answer
        } == wanted, (version, "in SQL")

    def check_sql(self, case: Case, asked: Asked, name: str) -> None:
        """Changes in SQL: those of history, or an error where one of them is unsure."""
        is_view = name == "seen"
        names = self.newest.names if asked.columns is None else FIRST.names
        expected = case.expected
        if not is_view:
            expected = self.expected(asked, {each.table for each in self.forms})
        found = changes_in_sql(self.root, self.grant, name)
        unsure = ("UNKNOWN", "STOP")
        if any(
            each.move in unsure or (is_view and asked.where is not None and not each.is_sure)
            for each in expected
        ):
            assert found is None, "CHANGES"
        else:
            limit = self.newest.number_max
            # A column whose name of now is hidden is not there, whatever its earlier names were.
            names = {id: name for id, name in names.items() if self.knows({id})}
            assert found == [in_sql(each, names, limit) for each in expected], "CHANGES"

    def knows_at(self, form: Form, columns: Collection[int]) -> bool:
        return all(any(form.names[id] not in each.hidden for each in self.held) for id in columns)

    def append(self, number: int) -> None:
        """Write the changes of one form of the table."""
        form = self.forms[number]
        before = self.forms[number - 1] if number else None
        mine = [each for each in self.records if each.form is form]
        append(self.root, mine, mapping_of(form, before))

    def learn_whole_removals(self) -> None:
        """Note for each removal whether the log says that its image is whole: the writer says so."""
        known = open_catalog(self.root, "shop").view.whole_removals
        self.records = [
            replace(each, is_whole=bool(known.of(each.form.table, np.array([each.version]))[0]))
            for each in self.records
        ]

    def define(self, of_view: Asked) -> None:
        names = FIRST.names
        columns = "*"
        if of_view.columns is not None:
            columns = ", ".join(names[each] for each in sorted(of_view.columns))
        told = "" if of_view.where is None else f" WHERE {sql_of(of_view.where, names)}"
        define(self.root, f"CREATE VIEW seen AS SELECT {columns} FROM item{told}")

    def knows(self, columns: Collection[int]) -> bool:
        """Return whether columns are visible in some row, by their newest names."""
        names = {self.newest.names[each] for each in columns}
        return all(any(name not in each.hidden for each in self.held) for name in names)

    async def check(self, where: Tree, of_view: Asked) -> None:
        # 1. The log. Its last phase comes while it is read.
        for number in range(len(self.forms) - 1):
            self.append(number)
            if not number:
                self.define(of_view)
        table, names = self.newest.table, self.newest.names
        whole = Criteria(entity_type=(table,), area=Area.DATA)
        shows = of_view.columns or {*names}
        requests: list[tuple[Asked, Criteria, tuple[str, ...]]]
        requests = [(Asked(), whole, (table,))]
        if self.knows(columns_in(where)):
            filtered = replace(whole, where=sql_of(where, self.forms[-2].names))
            requests.append((Asked(where), filtered, (table,)))
        # A condition of a grant is for a table that is there by that name.
        is_followed = table == "item" or all(each.rows is None for each in self.held)
        needed = shows | (set() if of_view.where is None else columns_in(of_view.where))
        if is_followed and self.knows(needed):
            every = tuple({each.table for each in self.forms})
            requests.append((of_view, Criteria(entity_type=("seen",)), every))
        async with Engine(self.root) as engine:
            await engine.view(self.caller, "shop", self.before)
            # Grants are of names: who has a part of the table is followed live as long as these stay.
            stays = self.forms[-2].names == names or self.held == [Right()]
            live = [
                await Case(engine, self.caller, criteria, [], 0).subscribe(None) if stays else None
                for _, criteria, _ in requests
            ]
            self.append(-1)
            await engine.view(self.caller, "shop", self.last)
            self.learn_whole_removals()
            # 2. Each request, in every way.
            for (asked, criteria, tables), stream in zip(requests, live, strict=True):
                if criteria.where is not None:
                    criteria = replace(criteria, where=sql_of(where, names))
                case = Case(engine, self.caller, criteria, self.expected(asked, tables), self.last)
                await case.check(stream, self.before)
                if asked.columns is None and not any(each.hidden for each in self.held):
                    await case.check_cdcv2()
                name = criteria.entity_type[0]
                await self.check_states(case, asked, name, criteria.where is not None)
                if criteria.where is None:
                    self.check_sql(case, asked, name)
