"""The settings of an ingest."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tailrace_server.option_fields import (
    BYTES,
    FLAG,
    GROUPING,
    READING,
    RUNNING,
    SECONDS,
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
    from tailrace_server.pipeline.input.source import DecodeLine, Source
    from tailrace_server.pipeline.input.table_bindings import Bindings
    from tailrace_server.wal.schema.mapping import SchemaMapping, TimeToLive

MAX_RECORD_BYTES: Final = 16 * 1024 * 1024
"""Default maximum size of the images of one row, in bytes. A larger row goes to quarantine, because no reader
could receive it in one message."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules by which a transaction is complete."""

    idle_s: float = option(
        "--transaction-idle",
        "Time without a new row after which a transaction without END is complete.",
        SECONDS,
        5.0,
        panel=GROUPING,
    )
    ordered_input: bool = option(
        "--ordered-input",
        "All files together are one stream in commit order: a transaction ends where the next "
        "one begins.",
        FLAG,
        False,
        panel=GROUPING,
    )


def _load_mapping(_: str, file: Path | None) -> SchemaMapping | None:
    from tailrace_server.wal.schema.mapping import SchemaMapping

    return None if file is None else SchemaMapping.load(file)


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestSettings:
    """The settings of an ingest of transactions; docs/ingest.md describes each."""

    input: Path = option("--input", "Folder of input files, one message a line.", INPUT)
    log: Path
    """The log root."""
    catalog: str = option("--catalog", "Catalog to write; created if absent.", text("NAME"))
    follow: bool = option(
        "--follow/--once",
        "Keep running and read what arrives, or read what is new and exit.",
        FLAG,
        False,
        panel=RUNNING,
    )
    source: Source
    strict: bool = option(
        "--strict",
        "Stop at a line that cannot be used; default: move the line to quarantine and continue.",
        FLAG,
        False,
        panel=READING,
    )
    mapping: SchemaMapping | None = option(
        "--schema",
        "TOML file with the roles, types and new names of columns.",
        OptionForm(kind=Path | None, parse=_load_mapping, metavar="FILE"),
        None,
        panel=READING,
    )
    stop_on_incompatible: bool = option(
        "--on-incompatible",
        "Rows with a value that their column's type cannot hold: quarantine them, or stop.",
        choice("quarantine", "stop", "WHAT"),
        False,
        panel=READING,
    )
    """True stops the ingest, also at a change of the schema that the log cannot hold."""
    takes_older: bool = option(
        "--on-older",
        "Changes that are older than the log's last change of their row: quarantine them, or "
        "take them.",
        choice("quarantine", "take", "WHAT"),
        False,
        panel=READING,
    )
    removes_missing: bool = option(
        "--missing-from-snapshot",
        "Rows that are missing from a complete snapshot of their table: report them, or remove "
        "them.",
        choice("report", "remove", "WHAT"),
        False,
        panel=READING,
    )
    whole_images: bool = option(
        "--images",
        "as-sent: store images as the source sends them; full: fill in values that the source "
        "left out, from the last image of the row.",
        choice("as-sent", "full", "WHAT"),
        False,
        panel=READING,
    )
    """True fills images, for entity types whose mapping does not say otherwise."""
    max_record_bytes: int = option(
        "--max-record-bytes",
        "Largest images of one row; a row with larger ones goes to quarantine.",
        BYTES,
        MAX_RECORD_BYTES,
        panel=READING,
    )
    rules: Rules = field(default_factory=Rules)
    snapshot_rows: int = option(
        "--snapshot-rows",
        "Number of snapshot rows in one version.",
        whole(1),
        10_000,
        panel=GROUPING,
    )
    publish_window_s: float = option(
        "--publish-window",
        "Shortest time between two publications; 0: publish after each commit.",
        SECONDS,
        0.0,
        panel=RUNNING,
    )
    small_batch_rows: int = option(
        "--small-batch-rows",
        "Number of rows below which a batch is processed by the driver, in one Spark job.",
        whole(0),
        20_000,
        panel=RUNNING,
    )
    batch_bytes: int = option(
        "--batch-bytes",
        "Largest total size of the input files of one batch.",
        BYTES,
        256 * 1024 * 1024,
        panel=RUNNING,
    )
    """Maximum total size of a batch's files, in bytes; a larger file is a batch of its own."""
    spark: SparkOptions = field(default_factory=SparkOptions)
    take_over: bool = option(
        "--take-over",
        "Continue where another writer stopped, or where a lost checkpoint ended.",
        FLAG,
        False,
        panel=RUNNING,
    )

    outlets: MetricsOutlets = field(default_factory=MetricsOutlets)

    @property
    def quarantine(self) -> Path:
        """The folder of the quarantine files."""
        return self.log / self.catalog / "quarantine"

    @property
    def makes_images_whole(self) -> bool:
        """True if images of any entity type are filled."""
        types = () if self.mapping is None else self.mapping.entity_types.values()
        return self.whole_images or any(declared.whole_images for declared in types)

    def makes_whole(self, entity_type: str) -> bool:
        """Return True if the images of an entity type are filled with the values that the source left out."""
        if self.source.counts(entity_type):
            return False
        declared = None if self.mapping is None else self.mapping.entity_types.get(entity_type)
        if declared is None or declared.whole_images is None:
            return self.whole_images
        return declared.whole_images

    @property
    def expires(self) -> bool:
        """True if rows of any entity type expire."""
        return self.mapping is not None and any(
            declared.time_to_live is not None for declared in self.mapping.entity_types.values()
        )

    def time_to_live(self, entity_type: str) -> TimeToLive | None:
        """Return the time to live of an entity type's rows; None if they never expire."""
        declared = None if self.mapping is None else self.mapping.entity_types.get(entity_type)
        return None if declared is None else declared.time_to_live

    def line_decoder(self, bindings: Bindings) -> DecodeLine:
        """Return a function that decodes the lines of one task."""
        return self.source.line_decoder(self.mapping, self.max_record_bytes, bindings)
