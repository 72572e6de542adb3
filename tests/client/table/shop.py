"""A table that is traded at random, and what its rows are as of every version."""

from __future__ import annotations

import random
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tailrace import Operation
from tailrace_server.api.grpc import GrpcServer
from tailrace_server.engine.engine import Engine
from tailrace_server.resources.settings import EngineSettings
from tests.conformance.shop import upsert
from tests.support.model import ModelMutation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.inprocess import ModelWriter

Rows = dict[str, dict[str, Any]]


class Shop:
    """Writes transactions; knows the products as of each version."""

    def __init__(self, writer: ModelWriter, seed: int = 7) -> None:
        self._writer = writer
        self._random = random.Random(seed)
        self._rows: Rows = {}
        self.states: list[Rows] = [{}]
        """By version."""

    @property
    def version(self) -> int:
        return len(self.states) - 1

    def trade(self, transactions: int) -> None:
        """Publish transactions of products and of others, some of them empty."""
        for _ in range(transactions):
            self.write(*(self._change() for _ in range(self._random.randrange(6))))

    def write(self, *mutations: ModelMutation) -> None:
        """Publish one transaction."""
        self._writer.write([*mutations])
        for each in mutations:
            if each.entity_type != "product":
                continue
            if each.primary_key is None:
                self._rows = {}
            elif each.after is None:
                self._rows.pop(each.primary_key, None)
            else:
                self._rows[each.primary_key] = typed(each.after)
        self.states.append(dict(self._rows))

    def _change(self) -> ModelMutation:
        entity_type = self._random.choice(["product", "product", "order"])
        key = str(self._random.randrange(30))
        chance = self._random.random()
        if chance < 0.02:
            return ModelMutation(entity_type, None, Operation.REMOVE, None, None)
        if chance < 0.3:
            operation = self._random.choice([Operation.REMOVE, Operation.EXPIRE])
            return ModelMutation(entity_type, key, operation, {"id": key}, None)
        price = self._random.choice([1.25, 7, None])
        return upsert(key, entity_type, price=price, text="x" * self._random.randrange(60))


def typed(row: dict[str, object]) -> dict[str, Any]:
    """Return a row as the client gives it."""
    return {
        name: Decimal(str(value)) if isinstance(value, float) else value
        for name, value in row.items()
    }


@asynccontextmanager
async def served(root: Path, **settings: Any) -> AsyncIterator[int]:
    """Serve the logs of a folder; gives the port."""
    async with Engine(root, EngineSettings(**{"heartbeat_interval_s": 0.2, **settings})) as engine:
        server = GrpcServer(engine)
        try:
            yield await server.start("127.0.0.1:0")
        finally:
            await server.stop(0.5)
