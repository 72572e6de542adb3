"""``tailrace ingest``: turn lines, messages of CDCv2 or transactions of a database into versions of a catalog.

The options of a command come from the fields of its settings (`option_fields`). Options that set several
fields, or that other commands also have, are defined here.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from tailrace.errors import InvalidRequest, TailraceError
from tailrace_server.cli.ingest.feeds import postgres, python, resnapshot, sources
from tailrace_server.cli.ingest.group import CHANGE_STREAMS, IngestCommands, exposing
from tailrace_server.cli.terminal.errors import INCOMPLETE, complain
from tailrace_server.cli.terminal.typer_options import (
    LOG_ROOT,
    parameters_of,
    with_parameters,
    with_settings,
)
from tailrace_server.option_fields import (
    GROUPING,
    OptionForm,
    option,
    text,
    texts,
    values_of,
)
from tailrace_server.pipeline.cdcv2.settings import Cdcv2Settings
from tailrace_server.pipeline.feed.postgres.options import PostgresOptions, ResnapshotOptions
from tailrace_server.pipeline.feed.settings import FeedSettings, PythonOptions, SourcesOptions
from tailrace_server.pipeline.input.folder import local_folder
from tailrace_server.pipeline.kafka.options import KafkaOptions
from tailrace_server.pipeline.run.metrics_outlets import MetricsOutlets
from tailrace_server.pipeline.run.room import run_with_room
from tailrace_server.pipeline.sources.registry import SOURCES
from tailrace_server.pipeline.spark.start_settings import SparkOptions
from tailrace_server.pipeline.tables.settings import DeltaFeedSettings, SnapshotSettings
from tailrace_server.pipeline.transactions.settings import IngestSettings, Rules
from tailrace_server.units import counted

if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable, Mapping

    from tailrace_server.pipeline.cdcv2.ingest import Cdcv2Outcome
    from tailrace_server.pipeline.input.source import Source
    from tailrace_server.pipeline.run.progress import EntityCounts, ProgressReporter
    from tailrace_server.pipeline.run.summary import IngestSummary

_OF_TOPICS: Final = SOURCES["debezium"]  # decodes the messages of Kafka
ingest_app: Final = typer.Typer(
    cls=IngestCommands,
    name="ingest",
    no_args_is_help=True,
    help="Write a source's changes to a catalog as versions.",
)


class NothingUsable(TailraceError):
    """No line of the input could be used. The cause is the source, or the folder is the wrong one."""

    code = "NOTHING_USABLE"


class TablesShutOut(TailraceError):
    """Every row of a table was set aside. The cause is the source or the schema mapping."""

    code = "TABLES_SHUT_OUT"

    def __init__(self, found: Mapping[str, EntityCounts], quarantine: str) -> None:
        """Describe the entity types and their counts in the message."""
        told = (
            f"all of {counted(counts.set_aside_since, 'row')} of {entity_type} ({counts.reason})"
            for entity_type, counts in found.items()
        )
        super().__init__(f"in quarantine: {'; '.join(told)}; {quarantine} has each with its reason")


def source_command(source: type[Source]) -> Callable[..., int]:
    """Return the command that ingests a source, with the options of all its settings."""

    def command(log: Path, quiet: bool, **given: Any) -> int:
        from tailrace_server.pipeline.run.progress import ProgressReporter

        settings = IngestSettings(
            log=local_folder("--log", log),
            source=source(**values_of(source, given)),
            rules=Rules(**values_of(Rules, given)),
            spark=SparkOptions(**values_of(SparkOptions, given)),
            outlets=MetricsOutlets(**values_of(MetricsOutlets, given)),
            **values_of(IngestSettings, given),
        )
        reporter = ProgressReporter(quiet=quiet)
        from tailrace_server.pipeline.transactions.ingest import run_ingest

        with exposing(settings, settings.source.name, reporter) as metrics:
            run = partial(run_ingest, settings, reporter, metrics=metrics)
            return _ingested(settings, reporter, run, str(settings.input))

    command.__doc__ = f"""Turn {source.title} into versions of a catalog.

    Each source transaction becomes one version. Run it again and it reads
    only new files. Lines that cannot be used are set aside in the catalog's
    quarantine folder with the reason.
    """
    return with_settings(command, IngestSettings, _line_options(source))


def _line_options(source: type[Source]) -> dict[str, list[inspect.Parameter]]:
    """Return the options that take the place of fields of `IngestSettings`."""
    return {
        "log": [LOG_ROOT],
        "source": parameters_of(source),
        "rules": parameters_of(Rules),
        "spark": parameters_of(SparkOptions),
        "outlets": parameters_of(MetricsOutlets),
    }


def _ingested(
    settings: IngestSettings,
    reporter: ProgressReporter,
    run: Callable[[], IngestSummary],
    origin: str,
) -> int:
    """Run an ingest, report the result, and return its exit status; ``origin`` is what it reads."""
    from tailrace_server.pipeline.spark.java import is_to_be_offered

    try:
        summary = run_with_room(run, settings.log, reporter, follow=settings.follow)
    finally:
        reporter.finish()
    counters = summary.counters
    quarantine = settings.quarantine
    reporter.summary(counters, str(quarantine))
    for remark in settings.source.remarks(summary.bindings):
        reporter.note(remark)
    reporter.changed(summary.changed_files)
    java = os.environ.get("JAVA_HOME")
    if reporter.is_watched and java and is_to_be_offered(Path(java)):
        reporter.note(
            "Spark starts in half the time after `tailrace ingest prepare`: once, about a minute and 170 MB"
        )
    # Fail if nothing was usable: most likely the folder or the source is wrong, and success would hide that.
    messages = counters.messages - counters.ignored
    unusable = counters.quarantined - sum(each.count for each in counters.effects.values())
    if not settings.follow and unusable and unusable == messages:
        raise NothingUsable(
            f"none of {counted(messages, 'new line')} in {origin} could be used. The most "
            f"frequent reason is: {counters.commonest_reason}. {quarantine} has each line with "
            "its reason"
        )
    if shut_out := counters.shut_out(lately=settings.follow):
        raise TablesShutOut(shut_out, str(quarantine))
    return 0 if summary.signal is None else 128 + summary.signal


_OF_FILES: Final = {"input": Path("/"), "batch_bytes": "1MiB"}
"""Options of `IngestSettings` that only an ingest of files has, with values that nothing reads."""


def kafka(log: Path, quiet: bool, **given: Any) -> int:
    """Turn messages in topics of Kafka into versions of a catalog.

    Each source transaction becomes one version. Run it again and it
    continues at the offsets in the catalog. It needs Spark only if very many
    messages wait. Messages that cannot be used are set aside in the catalog's
    quarantine folder with the reason.

    With --format cdcv2 it has the options of ingest cdcv2: add --help.
    """
    from tailrace_server.pipeline.kafka.ingest import run_kafka
    from tailrace_server.pipeline.kafka.partitions import NAME
    from tailrace_server.pipeline.run.progress import ProgressReporter

    options = KafkaOptions(**values_of(KafkaOptions, given))
    settings = IngestSettings(
        log=local_folder("--log", log),
        source=_OF_TOPICS(**values_of(_OF_TOPICS, given)),
        rules=Rules(**values_of(Rules, given)),
        spark=SparkOptions(**values_of(SparkOptions, given)),
        outlets=MetricsOutlets(**values_of(MetricsOutlets, given)),
        **values_of(IngestSettings, {**given, **_OF_FILES}),
    )
    reporter = ProgressReporter(quiet=quiet)
    with exposing(settings, NAME, reporter) as metrics:
        run = partial(run_kafka, settings, options, reporter, metrics)
        return _ingested(settings, reporter, run, f"the topics of {options.bootstrap}")


_WITHOUT_SPARK: Final = {"input": Path("/"), "small_batch_rows": 0, "batch_rows": 1}
"""Options that a change stream in topics does not have, with values that nothing reads."""


def cdcv2(
    schema: Path, entity_type: str, key: list[str] | None, log: Path, quiet: bool, **given: Any
) -> int:
    """Turn messages of Materialize CDCv2 into versions of a catalog.

    Messages may be repeated, in any order and split differently. Each time
    that is complete and has updates becomes one version. Run it again and it
    reads only what is new. If times lack updates at the end of the input, the
    command names them and ends with status 3.
    """
    from tailrace_server.pipeline.cdcv2.files import StreamSchema
    from tailrace_server.pipeline.cdcv2.folding import Folding
    from tailrace_server.pipeline.cdcv2.ingest import ingest_cdcv2
    from tailrace_server.pipeline.run.progress import ProgressReporter
    from tailrace_server.pipeline.run.stop_signals import stop_signals

    topics, spark = None, SparkOptions()
    if "bootstrap" in given:
        given |= _WITHOUT_SPARK
        topics = KafkaOptions(**values_of(KafkaOptions, given))
    else:
        spark = SparkOptions(**values_of(SparkOptions, given))
    values = values_of(Cdcv2Settings, given)
    stream = StreamSchema.load(schema)
    columns = tuple(name.strip() for text in key or () for name in text.split(","))
    for name in columns:
        if name not in stream.columns:
            known = ", ".join(stream.columns)
            raise InvalidRequest(f"--key {name!r}: the schema's columns are {known}")
    settings = Cdcv2Settings(
        log=local_folder("--log", log),
        folding=Folding(stream, entity_type, columns),
        spark=spark,
        outlets=MetricsOutlets(**values_of(MetricsOutlets, given)),
        **values,
    )
    reporter = ProgressReporter(quiet=quiet)
    with exposing(settings, "cdcv2", reporter) as metrics:
        try:

            def run() -> Cdcv2Outcome:
                with stop_signals() as stopping:
                    if topics is None:
                        return ingest_cdcv2(settings, reporter, stopping=stopping, metrics=metrics)
                    from tailrace_server.pipeline.kafka.change_streams import ingest_topics

                    return ingest_topics(
                        settings, topics, reporter, stopping=stopping, metrics=metrics
                    )

            outcome = run_with_room(run, settings.log, reporter, follow=settings.follow)
        finally:
            reporter.finish()
    reporter.messages(outcome.counters, str(settings.log / settings.catalog / "quarantine"))
    if outcome.signal is not None:
        return 128 + outcome.signal
    if settings.follow or not outcome.waiting:
        return 0
    for reason in outcome.waiting:
        complain(str(reason))
    if outcome.waiting_more:
        complain(f"and {outcome.waiting_more:,} more")
    return INCOMPLETE


def snapshot(log: Path, quiet: bool, **given: Any) -> int:
    """Turn files that have all rows of a table into a version with what changed.

    Rows that differ from the catalog become one version; rows that the files
    lack are removed. Run it again with newer files. It needs no Spark.
    """
    from tailrace_server.pipeline.run.progress import ProgressReporter
    from tailrace_server.pipeline.tables.files import ingest_snapshot

    settings = SnapshotSettings(log=log.absolute(), **values_of(SnapshotSettings, given))
    reporter = ProgressReporter(quiet=quiet)
    try:
        ingest_snapshot(settings, reporter)
    finally:
        reporter.finish()
    return 0


def delta(log: Path, quiet: bool, **given: Any) -> int:
    """Turn the versions of a Delta table into versions of a catalog.

    All rows are read once; then each version of the table with changes of
    rows becomes one version. Run it again and it continues where the catalog
    ends. The table needs a change feed; Spark is not needed.
    """
    from tailrace_server.pipeline.run.progress import ProgressReporter
    from tailrace_server.pipeline.run.stop_signals import stop_signals
    from tailrace_server.pipeline.tables.delta import WRITER, DeltaSource

    settings = DeltaFeedSettings(
        log=log.absolute(),
        outlets=MetricsOutlets(**values_of(MetricsOutlets, given)),
        **values_of(DeltaFeedSettings, given),
    )
    reporter = ProgressReporter(quiet=quiet)
    with exposing(settings, WRITER, reporter) as metrics, stop_signals() as stopping:
        source = DeltaSource(settings, reporter)
        metrics.follow(source)
        run = partial(source.run, stopping)
        try:
            run_with_room(run, settings.log, reporter, follow=settings.follow)
        finally:
            reporter.finish()
    reporter.total(source.counters, "row", "read")
    return 0 if stopping.signal is None else 128 + stopping.signal


def prepare() -> None:
    """Archive Spark's classes, so that it starts in half the time from now on.

    Needed once for each version of Java and Spark; it takes about a minute
    and 170 MB. Without the archive Spark still works, but starts slower.
    """
    from tailrace_server.pipeline.prepare_spark import prepare as prepare_spark
    from tailrace_server.pipeline.run.progress import ProgressReporter

    reporter = ProgressReporter()
    try:
        reporter.wait("running Spark once …")
        archive = prepare_spark()
    finally:
        reporter.finish()
    reporter.note(f"{archive.stat().st_size / 1e6:,.0f} MB of classes in {archive}")


@dataclass(frozen=True, kw_only=True)
class _FoldingOptions:
    schema: Path = option(
        "--schema",
        "File with the Avro schema of the messages, or of a row.",
        OptionForm(kind=Path, metavar="FILE"),
    )
    entity_type: str = option(
        "--entity-type", "Entity type of the rows in the catalog.", text("NAME")
    )


@dataclass(frozen=True, kw_only=True)
class _KeyOptions:
    key: tuple[str, ...] = option(
        "--key",
        "Key column; repeat for more. Default: the whole row is the key, and equal rows are "
        "counted.",
        texts("COL"),
        factory=tuple,
        panel=GROUPING,
    )


def _options_of(settings: type, *names: str) -> list[inspect.Parameter]:
    return [each for each in parameters_of(settings) if each.name in names]


# The help lists the commands in this order.
for _name, _command, _options in (
    ("postgres", postgres, PostgresOptions),
    ("python", python, PythonOptions),
    ("sources", sources, SourcesOptions),
):
    ingest_app.command(_name)(
        with_settings(
            _command,
            FeedSettings,
            {
                "log": [*parameters_of(_options), LOG_ROOT],
                "outlets": parameters_of(MetricsOutlets),
            },
        )
    )
ingest_app.command("kafka")(
    with_settings(
        kafka,
        IngestSettings,
        {**_line_options(_OF_TOPICS), "input": parameters_of(KafkaOptions)},
        without=_OF_FILES,
    )
)
for _name, _source in SOURCES.items():
    ingest_app.command(_name)(source_command(_source))
ingest_app.command("cdcv2")(
    with_settings(
        cdcv2,
        Cdcv2Settings,
        {
            "folding": parameters_of(_FoldingOptions),
            "log": [LOG_ROOT],
            "start": parameters_of(_KeyOptions),
            "spark": parameters_of(SparkOptions),
            "outlets": parameters_of(MetricsOutlets),
        },
    )
)
ingest_app.command(CHANGE_STREAMS, hidden=True)(
    with_settings(
        # A function of its own: the signature is set on it.
        wraps(cdcv2)(lambda **given: cdcv2(**given)),
        Cdcv2Settings,
        {
            "input": [each for each in parameters_of(KafkaOptions) if each.name != "batch_rows"],
            "folding": parameters_of(_FoldingOptions),
            "log": [LOG_ROOT],
            "start": parameters_of(_KeyOptions),
            "outlets": parameters_of(MetricsOutlets),
        },
        without=("input", "small_batch_rows"),
    )
)
ingest_app.command("delta")(
    with_settings(
        delta,
        DeltaFeedSettings,
        {
            "log": [*_options_of(DeltaFeedSettings, "table"), LOG_ROOT],
            "outlets": parameters_of(MetricsOutlets),
        },
        without=("table",),
    )
)
ingest_app.command("snapshot")(
    with_settings(
        snapshot,
        SnapshotSettings,
        {"log": [*_options_of(SnapshotSettings, "input", "format"), LOG_ROOT]},
        without=("input", "format"),
    )
)
ingest_app.command("resnapshot")(with_parameters(resnapshot, parameters_of(ResnapshotOptions)))
ingest_app.command("prepare")(prepare)
