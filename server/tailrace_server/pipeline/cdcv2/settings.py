"""The settings of an ingest of CDCv2."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tailrace_server.option_fields import (
    BYTES,
    FLAG,
    GROUPING,
    READING,
    RUNNING,
    OptionForm,
    choice,
    option,
    text,
    whole,
)
from tailrace_server.pipeline.input.folder import INPUT
from tailrace_server.pipeline.run.metrics_outlets import MetricsOutlets
from tailrace_server.pipeline.spark.start_settings import SparkOptions

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace_server.pipeline.cdcv2.folding import Folding


@dataclass(frozen=True, slots=True, kw_only=True)
class Cdcv2Settings:
    """The options of `tailrace ingest cdcv2`; docs/ingest-cdcv2.md describes the main ones."""

    input: Path = option("--input", "Folder of .avro and .json files with messages.", INPUT)
    folding: Folding
    log: Path
    """The log root."""
    catalog: str = option("--catalog", "Catalog to write; created if absent.", text("NAME"))
    start: int | None = option(
        "--start-time",
        "First time to read; earlier times count as finished.",
        OptionForm(kind=int | None, metavar="T", least=0),
        None,
        panel=GROUPING,
    )
    """The first time of the stream; None: the start of the existing stream, or 0 for a new one."""
    first_stands: bool = option(
        "--on-conflict",
        "At messages that contradict each other: stop, or use the first one.",
        choice("stop", "first", "WHAT"),
        False,
        panel=GROUPING,
    )
    follow: bool = option(
        "--follow/--once",
        "Keep running and read files as they appear, or read the new files and exit.",
        FLAG,
        False,
        panel=RUNNING,
    )
    strict: bool = option(
        "--strict",
        "Stop at a message that cannot be used; default: move the message to quarantine and "
        "continue.",
        FLAG,
        False,
        panel=READING,
    )
    small_batch_rows: int = option(
        "--small-batch-rows",
        "Number of rows below which a batch is processed by the driver, without Spark.",
        whole(0),
        100_000,
        panel=RUNNING,
    )
    batch_bytes: int = option(
        "--batch-bytes",
        "Largest total size of the input files of one batch.",
        BYTES,
        256 * 1024 * 1024,
        panel=RUNNING,
    )
    """A larger file is a batch of its own."""
    partitions: int | None = None
    """Number of hash partitions of a large batch; None: two for each core."""
    spark: SparkOptions = field(default_factory=SparkOptions)
    take_over: bool = option(
        "--take-over", "Continue where another writer stopped.", FLAG, False, panel=RUNNING
    )
    outlets: MetricsOutlets = field(default_factory=MetricsOutlets)
