"""The options of ``tailrace ingest snapshot`` and ``tailrace ingest delta``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tailrace_server.option_fields import FLAG, RUNNING, SECONDS, option, text, texts
from tailrace_server.pipeline.run.metrics_outlets import MetricsOutlets

if TYPE_CHECKING:
    from pathlib import Path

FORMATS: Final = ("csv", "json", "parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings:
    """The catalog, and the entity type that has the rows of the table."""

    log: Path
    """The log root."""
    catalog: str = option("--catalog", "Catalog to write; created if absent.", text("NAME"))
    entity_type: str = option(
        "--entity-type", "Entity type of the rows in the catalog.", text("NAME")
    )
    key: tuple[str, ...] = option(
        "--key", "Column of the primary key; repeat for more.", texts("COL")
    )
    take_over: bool = option(
        "--take-over", "Continue where another writer stopped.", FLAG, False, panel=RUNNING
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSettings(TableSettings):
    """The options of ``tailrace ingest snapshot``."""

    input: str = option("--input", "File, or folder of files, with all rows.", text("PATH"))
    format: str | None = option(
        "--format",
        "csv, json (an object in each line) or parquet. Default: by the ending of the names.",
        text(",".join(FORMATS)),
        None,
    )
    text: tuple[str, ...] = option(
        "--text",
        "Column of CSV files to read as text, such as a postal code; repeat for more.",
        texts("COL"),
        factory=tuple,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaFeedSettings(TableSettings):
    """The options of ``tailrace ingest delta``."""

    table: str = option("--table", "Folder or URI of the Delta table.", text("PATH"))
    follow: bool = option(
        "--follow/--once",
        "Keep running and write versions as they appear, or write the versions so far and exit.",
        FLAG,
        False,
        panel=RUNNING,
    )
    every_s: float = option(
        "--every",
        "With --follow, time between two looks at the table.",
        SECONDS,
        1.0,
        panel=RUNNING,
    )
    resnapshot: bool = option(
        "--resnapshot",
        "Read all rows again, and write only what differs from the catalog.",
        FLAG,
        False,
        panel=RUNNING,
    )
    outlets: MetricsOutlets = field(default_factory=MetricsOutlets)
