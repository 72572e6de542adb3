"""The settings of every feed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tailrace_server.option_fields import FLAG, RUNNING, argument, option, text, texts, whole
from tailrace_server.pipeline.run.metrics_outlets import MetricsOutlets

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedSettings:
    """The options that all feeds share."""

    log: Path
    """The log root."""
    catalog: str = option("--catalog", "Catalog to write; created if absent.", text("NAME"))
    follow: bool = option(
        "--follow/--once",
        "Keep running and write changes as they happen, or write the changes so far and exit.",
        FLAG,
        False,
        panel=RUNNING,
    )
    batch_rows: int = option(
        "--batch-rows",
        "Number of rows from which transactions are committed without waiting for more.",
        whole(1),
        20_000,
        panel=RUNNING,
    )
    take_over: bool = option(
        "--take-over", "Continue where another writer stopped.", FLAG, False, panel=RUNNING
    )
    outlets: MetricsOutlets = field(default_factory=MetricsOutlets)


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonOptions:
    """The options of ``tailrace ingest python``."""

    function: str = argument(
        "MODULE:FUNCTION", "Generator of transactions, such as shop.feed:changes."
    )
    name: str | None = option(
        "--name",
        "Name under which the catalog stores the position. Default: MODULE:FUNCTION.",
        text("NAME"),
        None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcesOptions:
    """The options of ``tailrace ingest sources``."""

    sources_file: str = argument(
        "FILE",
        "TOML file with a [[source]] for each: kind, postgres or python, and that command's options.",
    )
    resnapshot: tuple[str, ...] = option(
        "--resnapshot",
        "Source, such as postgresql:SLOT, whose tables are read again; repeat for more.",
        texts("SOURCE"),
        factory=tuple,
        panel=RUNNING,
    )
