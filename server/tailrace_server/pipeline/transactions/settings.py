"""How an ingest is to be run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tailrace_server.pipeline.sources.debezium.decoder import DebeziumOptions
from tailrace_server.pipeline.transactions.grouping import Rules

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace_server.wal.schema.mapping import SchemaMapping


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestSettings:
    """What `tailrace ingest debezium` takes; docs/ingest.md tells what each is for."""

    input: Path
    log: Path
    """The log root."""
    catalog: str
    follow: bool = False
    """Go on until stopped; else take what is there and end."""
    source: DebeziumOptions = field(default_factory=DebeziumOptions)
    rules: Rules = field(default_factory=Rules)
    snapshot_rows: int = 10_000
    """Snapshot rows in one version."""
    small_batch_rows: int = 20_000
    """Batches estimated below this run in the driver, in one Spark job."""
    batch_bytes: int = 256 * 1024 * 1024
    """Input files of one batch, together; a larger file is a batch alone."""
    publish_window_s: float = 0.0
    """Publish at most this often; 0 publishes with each commit."""
    mapping: SchemaMapping | None = None
    """What is declared of columns; the same as the source's options have."""
    stop_on_incompatible: bool = False
    """Stop where a change of the schema cannot be held, instead of setting its rows aside."""
    strict: bool = False
    """Stop at the first line that cannot be used."""
    take_over: bool = False
    """Go on where another writer, or a lost checkpoint, left off."""
    master: str = "local[*]"
    """Where Spark runs."""
