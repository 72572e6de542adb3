"""The group of the commands of ``tailrace ingest``, and the metrics of a run."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from typer.core import TyperGroup

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace_server.pipeline.cdcv2.settings import Cdcv2Settings
    from tailrace_server.pipeline.feed.settings import FeedSettings
    from tailrace_server.pipeline.run.metrics import IngestMetrics
    from tailrace_server.pipeline.run.progress import ProgressReporter
    from tailrace_server.pipeline.tables.settings import DeltaFeedSettings
    from tailrace_server.pipeline.transactions.settings import IngestSettings

CHANGE_STREAMS: Final = "kafka-cdcv2"
"""The hidden command behind ``kafka --format cdcv2``: it has the options of another kind of ingest."""


class IngestCommands(TyperGroup):
    """The commands, one for each source."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command that a command line means, and its arguments."""
        name, command, rest = super().resolve_command(ctx, args)
        words = " ".join(rest).replace("=", " ").split()
        if name == "kafka" and ("--format", "cdcv2") in itertools.pairwise(words):
            command = self.commands[CHANGE_STREAMS]
        return name, command, rest


@contextmanager
def exposing(
    settings: IngestSettings | Cdcv2Settings | FeedSettings | DeltaFeedSettings,
    source: str,
    reporter: ProgressReporter,
) -> Iterator[IngestMetrics]:
    """Expose the metrics of a run while the context is open."""
    from importlib.metadata import version

    from tailrace_server.pipeline.run.metrics import IngestMetrics, exposed
    from tailrace_server.pipeline.run.standstill import standstill_told

    metrics = IngestMetrics(settings.catalog, source, version=version("tailrace"))
    with (
        exposed(metrics, settings.outlets, reporter.complain) as address,
        standstill_told(metrics, reporter),
    ):
        if address is not None:
            reporter.note(f"metrics at http://{address}/metrics")
        yield metrics
