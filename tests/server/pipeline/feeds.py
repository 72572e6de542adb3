"""A feed of Debezium's lines into a catalog, through the driver on a real log, without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from tailrace.criteria import Area
from tailrace_server.pipeline.input.change import FileSplit
from tailrace_server.pipeline.sources.debezium.source import Debezium
from tailrace_server.pipeline.transactions.driver import Driver
from tailrace_server.pipeline.transactions.settings import IngestSettings, Rules
from tailrace_server.wal.catalog import open_writer
from tailrace_server.wal.schema.mapping import SchemaMapping
from tailrace_server.wal.state.commit_log import CommitLog
from tests.process.ingest.reading import records
from tests.server.pipeline.shapes import decoder

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.clock import Clock
    from tailrace.schema import Schema


PLAIN = Debezium()


class Feed:
    """Feeds batches of transactions, one row each, to a catalog."""

    def __init__(
        self,
        root: Path,
        mapping: str = "",
        *,
        stop: bool = False,
        source: Debezium = PLAIN,
        clock: Clock | None = None,
        **options: Any,
    ) -> None:
        """Open the catalog; ``options`` are further settings of the ingest."""
        self.catalog = root / "shop"
        self._mapping = SchemaMapping.parse(mapping, "shop.toml") if mapping else None
        settings = IngestSettings(
            input=root,
            log=root,
            catalog="shop",
            source=source,
            mapping=self._mapping,
            stop_on_incompatible=stop,
            rules=Rules(idle_s=3600.0),
            **options,
        )
        self._whole_before = source.whole_before
        self._writer = open_writer(root, "shop", writer="test", take_over=True, clock=clock)
        self.driver = Driver(self._writer, settings)

    def batch(self, *lines: bytes) -> None:
        number = self.driver.last_batch + 1
        feed = decoder(mapping=self._mapping, whole_before=self._whole_before)
        changes = list(feed.feed(FileSplit(f"{number:06}", 0, number), lines))
        self.driver.batch(number, [*changes, *feed.finish()])

    def close(self) -> None:
        """End the upkeep that it may have begun."""
        self._writer.close(hurried=True)

    def schema(self, version: int | None = None) -> Schema:
        view = CommitLog.open(self.catalog).view
        return view.schema_of(view.published if version is None else version)

    def changes(self) -> list[tuple[int, int, str | None, list[dict[str, Any]]]]:
        """Return version, index, entity type and changes of every SCHEMA record."""
        return [
            (r.version, r.place, r.entity_type, orjson.loads(r.change or b"")["changes"])
            for r in records(self.catalog)
            if r.area == Area.SCHEMA
        ]

    def quarantine(self) -> list[dict[str, Any]]:
        files = sorted((self.catalog / "quarantine").iterdir())
        return [orjson.loads(each) for f in files for each in f.read_bytes().splitlines()]
