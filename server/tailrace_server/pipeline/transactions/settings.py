"""The settings of an ingest."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tailrace_server.option_fields import (
    BYTES,
    FLAG,
    FOLDER,
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
from tailrace_server.pipeline.run.metrics_outlets import MetricsOutlets

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
        "A transaction without END is complete when no row of it came for this long.",
        SECONDS,
        5.0,
        panel=GROUPING,
    )
    ordered_input: bool = option(
        "--ordered-input",
        "Files are one stream in commit order: a transaction ends where the next begins.",
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

    input: Path = option("--input", "Folder of files, one message a line.", FOLDER)
    log: Path
    """The log root."""
    catalog: str = option("--catalog", "Catalog to write; made if absent.", text("NAME"))
    follow: bool = option(
        "--follow/--once",
        "Go on with files as they appear, or take those that are new and end.",
        FLAG,
        False,
        panel=RUNNING,
    )
    source: Source
    strict: bool = option(
        "--strict",
        "Stop at a line that cannot be used, instead of setting it aside.",
        FLAG,
        False,
        panel=READING,
    )
    mapping: SchemaMapping | None = option(
        "--schema",
        "TOML that declares roles, types and renames of columns.",
        OptionForm(kind=Path | None, parse=_load_mapping, metavar="FILE"),
        None,
        panel=READING,
    )
    stop_on_incompatible: bool = option(
        "--on-incompatible",
        "quarantine rows that their column's type cannot hold, or stop.",
        choice("quarantine", "stop", "WHAT"),
        False,
        panel=READING,
    )
    """True stops the ingest, also at a change of the schema that the log cannot hold."""
    takes_older: bool = option(
        "--on-older",
        "quarantine changes that are older than what the log has of their row, or take them.",
        choice("quarantine", "take", "WHAT"),
        False,
        panel=READING,
    )
    removes_missing: bool = option(
        "--missing-from-snapshot",
        "report rows that a whole snapshot of their table lacks, or remove them.",
        choice("report", "remove", "WHAT"),
        False,
        panel=READING,
    )
    whole_images: bool = option(
        "--images",
        "as-sent, or full: fill what the source left out from the last image of the row.",
        choice("as-sent", "full", "WHAT"),
        False,
        panel=READING,
    )
    """True fills images, for entity types whose mapping does not say otherwise."""
    max_record_bytes: int = option(
        "--max-record-bytes",
        "Images of a row above this are set aside.",
        BYTES,
        MAX_RECORD_BYTES,
        panel=READING,
    )
    rules: Rules = field(default_factory=Rules)
    snapshot_rows: int = option(
        "--snapshot-rows", "Snapshot rows in one version.", whole(1), 10_000, panel=GROUPING
    )
    publish_window_s: float = option(
        "--publish-window",
        "Publish at most this often; 0 after each commit.",
        SECONDS,
        0.0,
        panel=RUNNING,
    )
    small_batch_rows: int = option(
        "--small-batch-rows",
        "Batches below this run in the driver, in one Spark job.",
        whole(0),
        20_000,
        panel=RUNNING,
    )
    batch_bytes: int = option(
        "--batch-bytes",
        "Input files of one batch, together.",
        BYTES,
        256 * 1024 * 1024,
        panel=RUNNING,
    )
    """Maximum total size of a batch's files, in bytes; a larger file is a batch of its own."""
    master: str = option("--master", "Spark master.", text("URL"), "local[*]", panel=RUNNING)
    take_over: bool = option(
        "--take-over",
        "Go on where another writer, or a lost checkpoint, left off.",
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
