"""What the tests of exports share: a catalog written by hand, and streams read back."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import orjson

from tailrace.cdcv2 import Reader
from tailrace.criteria import Operation
from tailrace_server.cdcv2 import ContainerReader
from tailrace_server.export.cdcv2 import Cdcv2Export, ExportSettings
from tailrace_server.export.folder import SCHEMA
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import SchemaMapping

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.cdcv2 import Statement

Collection = dict[Any, int]

MAPPING = SchemaMapping.parse(
    """
    [entity_types.item]
    key = ["id"]
    [entity_types.item.columns.id]
    type = "BIGINT"
    nullable = false
    [entity_types.item.columns.price]
    type = "INTEGER"
    """
)


def image(id: int, price: int | None, **more: Any) -> bytes:
    return orjson.dumps({"id": id, "price": price, **more})


def item(id: int, before: int | None, after: int | None) -> Mutation:
    """Return a change of an item's price; None is no row."""
    old, new = (None if price is None else image(id, price) for price in (before, after))
    operation = Operation.REMOVE if after is None else Operation.UPSERT
    return Mutation("item", str(id), operation, old, new)


class Shop:
    """Random transactions, and the collection after each version."""

    def __init__(self, root: Path, seed: int = 1, catalog: str = "shop") -> None:
        self.root = root
        self.catalog = catalog
        self.prices: dict[int, int] = {}
        self.history: list[Collection] = [{}]
        self._random = random.Random(seed)

    def write(self, transactions: int) -> None:
        """Write and publish some; every fourth changes nothing of the items."""
        with LogWriter.open(self.root, self.catalog, mapping=MAPPING) as writer:
            for number in range(transactions):
                writer.append(
                    self._changes() if number % 4 else [Mutation("other", "1", after=b'{"a":1}')]
                )
                self.history.append({row: 1 for row in self.prices.items()})
                if not self._random.randrange(3):
                    writer.commit()
                    writer.publish()

    def _changes(self) -> list[Mutation]:
        changes = []
        for id in self._random.sample(range(12), self._random.randint(1, 5)):
            before = self.prices.get(id)
            removed = before is not None and self._random.random() < 0.3
            after = None if removed else self._random.randint(1, 4)
            changes.append(item(id, before, after))
            if after is None:
                del self.prices[id]
            else:
                self.prices[id] = after
        return changes


def settings(root: Path, output: Path, **more: Any) -> ExportSettings:
    return ExportSettings(
        **{"log": root, "catalog": "shop", "entity_type": "item", "output": output, **more}
    )


def export(root: Path, output: Path, **more: Any) -> int:
    """Export what is published and return the frontier."""
    with Cdcv2Export.begin(settings(root, output, **more)) as exporting:
        return exporting.advance().frontier


def statements(*folders: Path) -> list[Statement[int]]:
    """Return the messages of folders, in the order of their files' names."""
    found: list[Statement[int]] = []
    for path in sorted(path for folder in folders for path in folder.glob("*.avro")):
        with path.open("rb") as file:
            found.extend(ContainerReader(file))
    return found


def collections(messages: list[Statement[int]]) -> tuple[dict[int, Collection], int]:
    """Return the collection after each time that has updates, and the frontier."""
    reader: Reader[int] = Reader()
    at: Collection = {}
    found: dict[int, Collection] = {}
    for message in messages:
        for updates, _ in reader.receive(message):
            for data, time, diff in updates:
                at[data] = at.get(data, 0) + diff
                if not at[data]:
                    del at[data]
                found[time] = dict(at)
    (frontier,) = reader.frontier
    return found, frontier


def schema(folder: Path) -> Any:
    return orjson.loads((folder / SCHEMA).read_bytes())
