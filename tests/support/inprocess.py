"""What tests of the engine share: a writer of model transactions, and a reader of JSON frames."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from tailrace.capture import Heartbeat
from tailrace.position import END
from tailrace.schema import Column, Origin, Schema
from tailrace_server.log_cache.frames import Frames
from tailrace_server.wal.catalog import create_catalog, open_writer
from tailrace_server.wal.record.mutation import Mutation
from tests.support.older_writer import OlderWriter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tailrace.cursor import Cursor
    from tailrace_server.catalogs.observer import Observer
    from tailrace_server.engine.engine import Engine
    from tailrace_server.live.subscription import Subscription
    from tests.support.model import Coordinates, ModelLog, ModelMutation

PATIENCE_S = 20.0
"""How long a test waits for something that must happen; a passing one waits for none of it."""


def real(mutation: ModelMutation) -> Mutation:
    """Return the log writer's form of a model mutation."""
    return Mutation(
        entity_type=mutation.entity_type,
        primary_key=mutation.primary_key,
        operation=mutation.operation,
        before=mutation.image("before"),
        after=mutation.image("after"),
    )


def know(root: Path, catalog: str, columns: Mapping[str, Sequence[str]]) -> None:
    """Create a catalog whose schema has columns from the beginning, without a record of it.

    It is noted that the images of removed rows are whole, as those of the model are.
    """
    schema = Schema(
        entity_types={
            entity_type: tuple(
                Column(name, origin=Origin.DECLARED, id=(number << 20) + place)
                for place, name in enumerate(names, 1)
            )
            for number, (entity_type, names) in enumerate(columns.items())
        }
    )
    create_catalog(root, catalog)
    with open_writer(root, catalog, writer="log-writer") as writer:
        noted = {f"removed:{entity_type}": "1-" for entity_type in columns}
        writer.commit(batch_id=0, schema_changes=[(-1, schema)], source_positions=noted)


class ModelWriter:
    """Writes transactions to a real log and, once published, to the model."""

    def __init__(self, root: Path, catalog: str, log: ModelLog, **options: Any) -> None:
        if log.known and not (root / catalog).exists():
            know(root, catalog, log.known)
        self.writer = OlderWriter.open(root, catalog, **options)
        self.log = log
        self._unpublished: list[list[ModelMutation]] = []

    def commit(self, *transactions: Sequence[ModelMutation]) -> None:
        self._append(transactions)
        self.writer.commit()

    def publish(self) -> None:
        self.writer.publish()
        self._show()

    def _append(self, transactions: Sequence[Sequence[ModelMutation]]) -> None:
        for transaction in transactions:
            self.writer.append([real(each) for each in transaction])
            self._unpublished.append(list(transaction))

    def _show(self) -> None:
        self.log.transactions.extend(self._unpublished)
        self._unpublished.clear()

    def write(self, *transactions: Sequence[ModelMutation]) -> None:
        """Commit and publish in one step."""
        self._append(transactions)
        self.writer.commit(publish=True)
        self._show()


def observer_of(engine: Engine, catalog: str) -> Observer:
    """Return a catalog's observer, which no face reaches.

    Raises:
        TailraceError: Why the catalog cannot be read now.
    """
    return engine._catalogs.by_name[catalog].require()


def objects(frames: Frames) -> list[dict[str, Any]]:
    """Return the captures of JSON frames."""
    found: list[dict[str, Any]] = json.loads(b"[" + frames.data[:-1] + b"]")
    assert len(found) == frames.count
    return found


def coordinates(capture: dict[str, Any]) -> Coordinates:
    """Return version, index and ordinal of a JSON capture."""
    return capture["version"], capture["index"], capture["ordinal"]


async def receive(subscription: Subscription, count: int) -> list[dict[str, Any]]:
    """Return the next ``count`` captures exactly; heartbeats are passed over."""
    received: list[dict[str, Any]] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(received) < count:
            message = await subscription.receive()
            if isinstance(message, Frames):
                received.extend(objects(message))
    assert len(received) == count
    return received


def has_passed(cursor: Cursor, version: int) -> bool:
    """Return whether a safe cursor stands behind a whole version, and not before a match in the midst of it."""
    return cursor.version > version or (cursor.version == version and cursor.index == END)


async def heartbeat_at(subscription: Subscription, version: int) -> Heartbeat:
    """Return the first heartbeat whose resume cursor has passed a whole version; captures must not come."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            message = await subscription.receive()
            assert isinstance(message, Heartbeat), message
            if message.cursor.version >= version:
                return message
