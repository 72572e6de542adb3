"""The commands of feeds: PostgreSQL, Python, several sources, and the request to read rows again."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tailrace_server.cli.ingest.group import exposing
from tailrace_server.option_fields import values_of
from tailrace_server.pipeline.feed.postgres.options import PostgresOptions, ResnapshotOptions
from tailrace_server.pipeline.feed.settings import FeedSettings, PythonOptions, SourcesOptions
from tailrace_server.pipeline.run.metrics_outlets import MetricsOutlets
from tailrace_server.pipeline.run.room import run_with_room

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from tailrace_server.pipeline.feed_sources import SourceOptions


def resnapshot(**given: Any) -> None:
    """Ask the ingest of a PostgreSQL database to read rows of a table again.

    The ingest writes the rows that differ from the catalog. It removes the
    rows that the table does not have. Use it if a table was changed while
    it was not in the publication, or was added to it.
    """
    from tailrace_server.pipeline.feed.postgres.resnapshot import request_resnapshot
    from tailrace_server.pipeline.run.progress import ProgressReporter

    options = ResnapshotOptions(**values_of(ResnapshotOptions, given))
    slot, is_running = request_resnapshot(options)
    ProgressReporter().note(
        f"the ingest of slot {slot} reads {options.table} again "
        + ("now, and says when it has" if is_running else "when it runs the next time")
    )


def postgres(log: Path, quiet: bool, **given: Any) -> int:
    """Turn the changes of PostgreSQL tables into versions of a catalog.

    The tables are read once, as of one moment; then each transaction becomes
    one version. Run it again and it continues where the catalog ends. It needs
    no Spark, but wal_level = logical and a user that may replicate.
    """
    options = PostgresOptions(**values_of(PostgresOptions, given))
    return _fed("postgres", [options], log, given, quiet=quiet)


def python(log: Path, quiet: bool, **given: Any) -> int:
    """Turn the transactions of a Python generator into versions of a catalog.

    MODULE:FUNCTION is called with the catalog's position, None at first, and
    yields what follows it. Run it again and it continues where the catalog
    ends. Modules are also searched in the current folder.
    """
    options = PythonOptions(**values_of(PythonOptions, given))
    return _fed("python", [options], log, given, quiet=quiet)


def sources(log: Path, quiet: bool, **given: Any) -> int:
    """Turn the changes of several sources into versions of one catalog.

    FILE lists PostgreSQL databases and Python generators, each with its own
    position. One that waits, or cannot be reached, does not hold up the
    others. Run it again and each continues where the catalog ends.
    """
    from tailrace_server.pipeline.feed_sources import read_sources

    options = SourcesOptions(**values_of(SourcesOptions, given))
    found = read_sources(options.sources_file)
    return _fed("sources", found, log, given, quiet=quiet, resnapshot=options.resnapshot)


def _fed(
    writer: str,
    sources: Sequence[SourceOptions],
    log: Path,
    given: Mapping[str, Any],
    *,
    quiet: bool,
    resnapshot: Collection[str] = (),
) -> int:
    """Run a feed, report the result, and return its exit status.

    Args:
        writer: Name of the writer in the log.
        sources: Options of each source.
        log: The log root.
        given: The options of the command.
        quiet: True prints only errors.
        resnapshot: Names of sources that are read again.
    """
    from tailrace_server.pipeline.feed.loop import run_feed
    from tailrace_server.pipeline.feed_sources import sources_of
    from tailrace_server.pipeline.run.progress import ProgressReporter
    from tailrace_server.pipeline.run.stop_signals import stop_signals

    settings = FeedSettings(
        log=log.absolute(),
        outlets=MetricsOutlets(**values_of(MetricsOutlets, given)),
        **values_of(FeedSettings, given),
    )
    reporter = ProgressReporter(quiet=quiet)
    made = sources_of(sources, settings, reporter, resnapshot)
    with exposing(settings, writer, reporter) as metrics, stop_signals() as stopping:
        run = partial(
            run_feed, made, writer, settings, reporter, stopping=stopping, metrics=metrics
        )
        try:
            counters = run_with_room(run, settings.log, reporter, follow=settings.follow)
        finally:
            reporter.finish()
    reporter.total(counters, "change", "transaction")
    return 0 if stopping.signal is None else 128 + stopping.signal
