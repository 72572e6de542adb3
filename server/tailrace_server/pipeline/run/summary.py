"""The result of an ingest of lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace_server.pipeline.input.table_bindings import Bindings
    from tailrace_server.pipeline.run.progress import IngestCounters


class IngestSummary(NamedTuple):
    """The result of an ingest."""

    counters: IngestCounters
    signal: int | None
    """The signal that ended the ingest; None if it ended at the end of its input."""
    bindings: Bindings
    """The catalog's bindings after the ingest."""
    changed_files: Sequence[str] = ()
    """Input files that changed after they were read."""
