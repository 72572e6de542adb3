"""The engine's door: what a caller may not read does not exist for it, whichever way it asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import CatalogUnknown, TailraceError
from tailrace_server.capture.codecs import JSON
from tailrace_server.capture.engine import Engine
from tailrace_server.capture.principal import ANONYMOUS
from tests.support.inprocess import ModelWriter
from tests.support.model import ModelLog

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class ReadsOne:
    """A caller that may read one catalog."""

    catalog: str
    name: str = "a test"
    expires_at: float | None = None

    def refusal(self) -> TailraceError | None:
        return None

    def may_read(self, catalog: str) -> bool:
        return catalog == self.catalog


async def test_a_caller_learns_nothing_of_a_catalog_that_it_may_not_read(
    log_root: Path, writer: ModelWriter
) -> None:
    caller = ReadsOne("shop")
    depot = ModelWriter(log_root, "depot", ModelLog())
    async with Engine(log_root) as engine:
        for catalog in ("shop", "depot"):
            await engine.subscribe(ANONYMOUS, catalog, codec=JSON)
        asks = (
            engine.view(caller, "depot"),
            engine.subscribe(caller, "depot", codec=JSON),
            engine.history(caller, "depot", codec=JSON),
        )
        for each in asks:
            with pytest.raises(CatalogUnknown) as raised:
                await each
            assert list(raised.value.known) == ["shop"]
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
        assert engine.unreadable(ReadsOne("depot")) == {}


async def test_a_caller_that_may_read_a_catalog_gets_all_of_it(
    log_root: Path, writer: ModelWriter
) -> None:
    async with Engine(log_root) as engine:
        caller = ReadsOne("shop")
        view = await engine.view(caller, "shop")
        subscription = await engine.subscribe(caller, "shop", codec=JSON)
        assert view.uuid == subscription.acknowledgement.catalog_uuid == writer.writer.uuid
