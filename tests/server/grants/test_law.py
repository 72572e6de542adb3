"""The law of grants: whoever asks for whatever gets filter(grant ∩ request), live and from the log."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.criteria import CatchUp, Content, Criteria, Since
from tailrace.errors import NotPermitted
from tailrace.position import Position
from tailrace_server.codecs import JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.filters.claims import read_claimed
from tailrace_server.grants.grant import Allowance, Columns, Grant
from tailrace_server.grants.principal import ANONYMOUS, IN_PROCESS
from tailrace_server.log_cache.frames import Frames
from tailrace_server.reads.sql_request import SqlRequest
from tailrace_server.resources.settings import EngineSettings, SubscriptionLimits
from tests.server.grants.grants import grants, moved, names_what_is_not_granted, plain, shown
from tests.support.inprocess import PATIENCE_S, ModelWriter, has_passed
from tests.support.model import KNOWN, ModelLog, criteria_lists, transactions
from tests.support.principals import Holder

if TYPE_CHECKING:
    from tailrace_server.grants.principal import Principal
    from tailrace_server.live.subscription import Subscription

PRODUCTS = frozenset({"product"})
_OLDEST = Since(Position(0, 0))


@settings(max_examples=25, deadline=None)
@given(
    written=st.lists(transactions, min_size=2, max_size=6),
    held=st.tuples(grants, grants),
    asked=criteria_lists,
    content=st.sampled_from([Content.HEADER, Content.BODY]),
)
def test_contract_47_two_principals_get_what_is_granted_of_what_they_ask_for(
    written: list[list[Any]],
    held: tuple[Grant, Grant],
    asked: tuple[Criteria, ...],
    content: Content,
) -> None:
    with TemporaryDirectory() as folder:
        asyncio.run(_judge(Path(folder), written, held, asked, content))


async def _judge(
    root: Path,
    written: list[list[Any]],
    held: tuple[Grant, Grant],
    asked: tuple[Criteria, ...],
    content: Content,
) -> None:
    writer = ModelWriter(root, "shop", ModelLog())
    writer.write(*written[:1])
    async with Engine(root, EngineSettings()) as engine:
        callers = [Holder({"shop": grant}, name=f"holder {n}") for n, grant in enumerate(held)]
        streams = [await _subscribe(engine, each, asked, content) for each in callers]
        # One transaction each, so that some are routed live and not all are one batch.
        for transaction in written[1:]:
            writer.write(transaction)
        # What was published a moment ago is read by its version, wherever the tailer is.
        await engine.view(ANONYMOUS, "shop", len(written))
        whole = await _history(engine, ANONYMOUS, asked, content)
        assert whole is not None
        for caller, grant, stream in zip(callers, held, streams, strict=True):
            refused = names_what_is_not_granted(grant, asked)
            refused |= bool(content) and not any(each.bodies for each in grant.allowances)
            expected = shown(grant, whole, asked)
            found = await _history(engine, caller, asked, content)
            assert (stream is None) == (found is None)
            if found is None or stream is None:
                # Where no name says why, nothing of it may be granted.
                assert refused or not expected
                continue
            assert not refused
            assert found == expected
            assert await _received(stream, len(written)) == expected
    writer.writer.close()


hidden = st.sampled_from([Columns(), Columns(frozenset({"price"})), Columns(frozenset({"name"}))])


@settings(max_examples=12, deadline=None)
@given(
    written=st.lists(transactions, min_size=2, max_size=6),
    columns=hidden,
    keys=st.none() | st.just(frozenset({"1"})),
    asked=st.sampled_from([(), (Criteria(entity_type=("product",)),)]),
)
def test_contract_47_rows_that_are_granted_by_a_condition_enter_and_leave(
    written: list[list[Any]],
    columns: Columns,
    keys: frozenset[str] | None,
    asked: tuple[Criteria, ...],
) -> None:
    rows = read_claimed("price > CAST({least} AS INT)").filled({"least": 4})
    allowances = [Allowance(PRODUCTS, None, columns, rows=rows), Allowance(frozenset({"order"}))]
    if keys is not None:
        allowances.append(Allowance(PRODUCTS, keys, columns))
    with TemporaryDirectory() as folder:
        asyncio.run(_judge_rows(Path(folder), written, tuple(allowances), keys, asked))


async def _judge_rows(
    root: Path,
    written: list[list[Any]],
    allowances: tuple[Allowance, ...],
    keys: frozenset[str] | None,
    asked: tuple[Criteria, ...],
) -> None:
    def concerned(capture: dict[str, Any]) -> dict[str, Any] | None:
        key = capture["primaryKey"]
        is_product = capture["area"] == "DATA" and capture["entityType"] == "product"
        if not is_product or key is None or (keys is not None and key in keys):
            return capture
        return moved(capture, lambda image: image.get("price", 0) > 4)

    columns = allowances[0].columns
    writer = ModelWriter(root, "shop", ModelLog())
    writer.write(*written[:1])
    async with Engine(root, EngineSettings()) as engine:
        caller = Holder({"shop": Grant(allowances)})
        stream = await _subscribe(engine, caller, asked, Content.BODY)
        assert stream is not None
        for transaction in written[1:]:
            writer.write(transaction)
        await engine.view(ANONYMOUS, "shop", len(written))
        whole = await _history(engine, ANONYMOUS, asked, Content.BODY)
        assert whole is not None
        told = [each for capture in whole if (each := concerned(capture)) is not None]
        expected = shown(Grant(allowances), told)
        assert await _history(engine, caller, asked, Content.BODY) == expected
        assert await _received(stream, len(written)) == expected
        # Changes in SQL are the same.
        assert await _in_sql(engine, caller) == _as_in_sql(expected, columns)
        # Of single columns, what enters is an insert and what leaves a removal.
        names = tuple(filter(columns.shows, ("name", "price")))
        of_columns = (Criteria(entity_type=("product",), container_name=names),)
        found = await _history(engine, caller, of_columns, Content.BODY)
        assert found is not None
        assert [*map(_of_column, found)] == _columns_of(expected, names)
        # The latest of each key are the last of these, and have no image more.
        stream = await _subscribe(engine, caller, asked, Content.BODY, CatchUp.LATEST)
        assert stream is not None
        latest = [each for each in await _received(stream, len(written)) if each["primaryKey"]]
        newest = {
            (each["entityType"], each["primaryKey"]): each
            for each in expected
            if each["primaryKey"]
        }
        for each in latest:
            assert each.pop("kind") == "LATEST"
            assert each == newest[each["entityType"], each["primaryKey"]]
    writer.writer.close()


async def _in_sql(engine: Engine, caller: Principal) -> list[list[Any]]:
    statement = (
        "SELECT _commit_version, _index, _primary_key, _change_type, before, after "
        "FROM CHANGES('product') ORDER BY 1, 2"
    )
    asked = SqlRequest(statement=statement)
    with await engine.reads.sql(caller, IN_PROCESS, "shop", asked) as read:
        return [json.loads(line) async for piece in read for line in piece.data.splitlines()]


def _of_column(capture: dict[str, Any]) -> tuple[Any, ...]:
    images = capture["before"], capture["after"]
    place = capture["version"], capture["index"], capture["containerName"]
    return *place, capture.get("transition"), *images


def _columns_of(captures: list[dict[str, Any]], names: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """Return the captures of columns that those of whole products come to."""

    def cut(image: dict[str, Any] | None, name: str) -> dict[str, Any] | None:
        return None if image is None or name not in image else {name: image[name]}

    found: list[tuple[Any, ...]] = []
    for each in captures:
        if each["area"] != "DATA" or each["entityType"] != "product" or each["after"] is None:
            continue
        changed = each["after"] if each["changed"] is None else each["changed"]
        for name in names:
            if name in changed:
                images = cut(each["before"], name), cut(each["after"], name)
                place = each["version"], each["index"], name
                found.append((*place, each.get("transition"), *images))
    return found


def _as_in_sql(captures: list[dict[str, Any]], shown: Columns) -> list[list[Any]]:
    """Return changes of products as SQL has them: what enters is new, and what leaves is gone."""

    def typed(image: dict[str, Any] | None) -> dict[str, Any] | None:
        if image is None:
            return None
        # Columns of no known type are JSON texts.
        values = ((name, image.get(name)) for name in KNOWN["product"] if shown.shows(name))
        return {name: None if value is None else json.dumps(value) for name, value in values}

    found = []
    for each in captures:
        if each["area"] != "DATA" or each["entityType"] != "product":
            continue
        kind = "insert" if each["changed"] is None else "update"
        if each.get("transition") == "LEAVE" or each["operation"] == "REMOVE":
            kind = "truncate" if each["primaryKey"] is None else "delete"
        if each["operation"] == "EXPIRE":
            kind = "expire"
        place = each["version"], each["index"], each["primaryKey"]
        found.append([*place, kind, typed(each["before"]), typed(each["after"])])
    return found


async def _subscribe(
    engine: Engine,
    caller: Principal,
    asked: tuple[Criteria, ...],
    content: Content,
    catch_up: CatchUp = CatchUp.ALL,
) -> Subscription | None:
    try:
        return await engine.subscribe(
            caller,
            "shop",
            asked,
            start=_OLDEST,
            content=content,
            codec=JSON,
            limits=SubscriptionLimits(heartbeat_interval_s=0.02, catch_up=catch_up),
        )
    except NotPermitted:
        return None


async def _history(
    engine: Engine, caller: Principal, asked: tuple[Criteria, ...], content: Content
) -> list[dict[str, Any]] | None:
    try:
        read = await engine.history(caller, "shop", asked, content=content, codec=JSON)
    except NotPermitted:
        return None
    with read:
        return [capture async for frames in read for capture in plain(frames.data)]


async def _received(subscription: Subscription, version: int) -> list[dict[str, Any]]:
    """Return all captures up to a version, which a heartbeat has passed."""
    received: list[dict[str, Any]] = []
    async with asyncio.timeout(PATIENCE_S):
        while True:
            message = await subscription.receive()
            if isinstance(message, Frames):
                received += plain(message.data)
            elif has_passed(message.cursor, version):
                return received
