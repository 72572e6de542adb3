"""How an ingest of CDCv2 is to be run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace_server.pipeline.cdcv2.folding import Folding


@dataclass(frozen=True, slots=True, kw_only=True)
class Cdcv2Settings:
    """What `tailrace ingest cdcv2` takes; docs/ingest.md tells what each is for."""

    input: Path
    log: Path
    """The log root."""
    catalog: str
    folding: Folding
    follow: bool = False
    """Go on until stopped; else take what is there and end."""
    start: int | None = None
    """First time wanted; None is where the stream was begun, or 0."""
    small_batch_rows: int = 100_000
    """Batches estimated below this run in the driver, without Spark."""
    batch_bytes: int = 256 * 1024 * 1024
    """Input files of one batch, together; a larger file is a batch alone."""
    partitions: int | None = None
    """Shares of the exchanges; None is two a core."""
    first_stands: bool = False
    """Let what was heard first stand, where messages contradict each other; else stop."""
    strict: bool = False
    """Stop at the first message that cannot be used."""
    take_over: bool = False
    """Go on where another writer left off."""
    master: str = "local[*]"
    """Where Spark runs."""
