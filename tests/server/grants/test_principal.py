"""The engine's door: of what is not granted nothing is told, whichever way it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.errors import NotPermitted
from tailrace_server.codecs import JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.grant import EVERYTHING
from tailrace_server.grants.principal import ANONYMOUS
from tests.support.inprocess import ModelWriter
from tests.support.model import ModelLog
from tests.support.principals import Holder

if TYPE_CHECKING:
    from pathlib import Path


def granted_one(catalog: str) -> Holder:
    return Holder({catalog: EVERYTHING})


async def test_a_caller_learns_nothing_of_a_catalog_that_it_may_not_read(
    log_root: Path, writer: ModelWriter
) -> None:
    caller = granted_one("shop")
    depot = ModelWriter(log_root, "depot", ModelLog())
    async with Engine(log_root) as engine:
        for catalog in ("shop", "depot"):
            await engine.subscribe(ANONYMOUS, catalog, codec=JSON)
        asks = (
            engine.view(caller, "depot"),
            engine.subscribe(caller, "depot", codec=JSON),
            engine.history(caller, "depot", codec=JSON),
        )
        told = []
        for each in asks:
            with pytest.raises(NotPermitted) as refused:
                await each
            told.append(str(refused.value))
        with pytest.raises(NotPermitted) as refused:  # one that is not there is refused alike
            await engine.view(caller, "nowhere")
        assert {*told} == {str(refused.value).replace("nowhere", "depot")}
        assert [each.name for each in engine.catalogs(caller)] == ["shop"]
        assert [each.catalog for each in engine.statistics(caller).observers] == ["shop"]
        assert [name for name, _ in engine.subscriptions(caller)] == ["shop"]
        assert [name for name, _ in engine.publishers(caller)] == ["shop"]
        assert [each.name for each in engine.catalogs(ANONYMOUS)] == ["depot", "shop"]
    depot.writer.close()


async def test_why_a_catalog_is_unreadable_is_told_to_those_who_may_read_it(
    log_root: Path, writer: ModelWriter
) -> None:
    (log_root / "shop" / "catalog.json").write_bytes(b"{")
    async with Engine(log_root) as engine:
        assert list(engine.unreadable(ANONYMOUS)) == ["shop"]
        assert list(engine.statistics(ANONYMOUS).unreadable) == ["shop"]
        assert engine.unreadable(granted_one("depot")) == {}


async def test_a_caller_that_may_read_a_catalog_gets_all_of_it(
    log_root: Path, writer: ModelWriter
) -> None:
    async with Engine(log_root) as engine:
        caller = granted_one("shop")
        view = await engine.view(caller, "shop")
        subscription = await engine.subscribe(caller, "shop", codec=JSON)
        assert view.uuid == subscription.acknowledgement.catalog_uuid == writer.writer.uuid
