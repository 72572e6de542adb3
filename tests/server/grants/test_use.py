"""A policy that shrinks ends what it no longer grants, and nothing else; one that grows ends nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.criteria import Content, Criteria, Operation
from tailrace.errors import NotPermitted
from tailrace_server.codecs import CDCV2, JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.filters.claims import read_claimed
from tailrace_server.grants.grant import EVERYTHING, Action, Allowance, Columns, Grant
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.rows.criteria_form import criteria_form
from tests.support.model import ModelMutation
from tests.support.principals import Holder

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.inprocess import ModelWriter

ORDERS = frozenset({"order"})
KEYED = Grant((Allowance(ORDERS, frozenset({"1", "2"}), Columns(frozenset({"total"}))),))
ASKED = [Criteria(entity_type=("order",), primary_key=("1",))]


@pytest.mark.parametrize(
    ("before", "after", "goes_on"),
    [
        (KEYED, KEYED, True),
        (KEYED, EVERYTHING, True),
        (KEYED, Grant((Allowance(ORDERS, frozenset({"1"}), Columns(frozenset({"total"}))),)), True),
        (KEYED, Grant((Allowance(ORDERS, frozenset({"1"})),)), True),
        # Two that together give what one gave.
        (
            Grant((Allowance(ORDERS, columns=Columns(frozenset({"id", "total"}), listed=True)),)),
            Grant(
                (
                    Allowance(None, frozenset({"1"}), Columns(frozenset({"id"}), listed=True)),
                    Allowance(ORDERS, columns=Columns(frozenset({"total"}), listed=True)),
                )
            ),
            True,
        ),
        (KEYED, None, False),
        (KEYED, Grant((Allowance(ORDERS, frozenset({"2"})),)), False),
        (KEYED, Grant((Allowance(frozenset({"product"})),)), False),
        (KEYED, Grant((Allowance(ORDERS, columns=Columns(frozenset({"id"}))),)), False),
        (KEYED, Grant((Allowance(ORDERS, bodies=False),)), False),
        (KEYED, Grant((Allowance(ORDERS, actions=frozenset({Action.HISTORY})),)), False),
        (EVERYTHING, KEYED, False),
    ],
)
async def test_contract_47_a_stream_ends_when_what_it_gives_is_no_longer_granted(
    log_root: Path, writer: ModelWriter, before: Grant, after: Grant | None, *, goes_on: bool
) -> None:
    caller = Holder({"shop": before})
    async with Engine(log_root) as engine:
        stream = await engine.subscribe(caller, "shop", ASKED, content=Content.AFTER, codec=JSON)
        read = await engine.history(caller, "shop", ASKED, content=Content.AFTER, codec=JSON)
        caller.grants = {} if after is None else {"shop": after}
        await engine.end_what_is_not_granted()
        assert (stream.error is None) == goes_on
        if not goes_on:
            assert isinstance(stream.error, NotPermitted)
            assert "policy has changed" in str(stream.error)
        # The read is of another action, and of the same otherwise.
        reads_on = goes_on or (
            after is not None and Action.SUBSCRIBE not in after.allowances[0].actions
        )
        assert (read.error is None) == reads_on
        read.close()


async def test_equal_effective_criteria_share_a_publisher_whoever_asks(
    log_root: Path, writer: ModelWriter
) -> None:
    narrow = Holder({"shop": Grant((Allowance(ORDERS, frozenset({"1"})),))})
    wide = Holder({"shop": EVERYTHING})
    async with Engine(log_root) as engine:
        for caller in (narrow, wide):
            await engine.subscribe(caller, "shop", ASKED, codec=JSON)
        assert len(engine.publishers(wide)) == 1
        # Who holds the key alone asks for all, and gets leads and records of the schema beside it.
        stream = await engine.subscribe(narrow, "shop", codec=JSON)
        assert len(engine.publishers(wide)) == 2
        assert engine.publishers(narrow) == []
        effective = stream.acknowledgement.effective_criteria
        assert Criteria(entity_type=("order",), primary_key=("1",)) in effective


async def test_a_thousand_principals_with_a_key_each_have_one_codec(
    log_root: Path, writer: ModelWriter
) -> None:
    async with Engine(log_root) as engine:
        streams = []
        for number in range(1000):
            allowance = Allowance(ORDERS, frozenset({str(number)}), Columns(frozenset({"total"})))
            caller = Holder({"shop": Grant((allowance,))})
            streams.append(await engine.subscribe(caller, "shop", codec=JSON))
        assert len({each.options.codec for each in streams}) == 1


async def test_cdcv2_is_refused_where_a_column_is_hidden(
    log_root: Path, writer: ModelWriter
) -> None:
    asked = [Criteria(entity_type=("order",), primary_key=("1",))]
    async with Engine(log_root) as engine:
        whole = Holder({"shop": Grant((Allowance(ORDERS),))})
        await engine.subscribe(whole, "shop", asked, content=Content.BODY, codec=CDCV2)
        with pytest.raises(NotPermitted, match="CDCV2 needs whole rows"):
            await engine.subscribe(
                Holder({"shop": KEYED}), "shop", asked, content=Content.BODY, codec=CDCV2
            )


async def test_principals_whose_conditions_have_the_same_claims_share_a_publisher(
    log_root: Path, writer: ModelWriter
) -> None:
    """What is shown of columns is one for all; a policy with another condition ends the stream."""
    writer.write([ModelMutation("order", "1", Operation.UPSERT, None, {"id": "1", "total": 7})])

    def of(tenant: str) -> Grant:
        rows = read_claimed("total = {tenant}").filled({"tenant": tenant})
        return Grant((Allowance(ORDERS, columns=Columns(frozenset({"total"})), rows=rows),))

    async with Engine(log_root) as engine:
        callers = [Holder({"shop": of(tenant)}) for tenant in ("1", "2", "1")]
        streams = [await engine.subscribe(each, "shop", codec=JSON) for each in callers]
        assert len({each.options.codec for each in streams}) == 1
        assert len(engine.publishers(ANONYMOUS)) == 2
        # Effective criteria say nothing of a condition, which may have hidden columns in it.
        assert "total" not in repr(criteria_form(streams[0].acknowledgement.effective_criteria))
        callers[0].grants = {"shop": of("3")}
        await engine.end_what_is_not_granted()
        assert [each.error is not None for each in streams] == [True, False, False]
