"""``tailrace ingest``: turn Debezium's JSON, or messages of Materialize CDCv2, into versions of a catalog."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from tailrace.errors import InvalidRequest, TailraceError
from tailrace_server.cli.errors import INCOMPLETE, complain
from tailrace_server.cli.options import LogRoot
from tailrace_server.units import counted, parse_bytes, parse_seconds

_INPUT = "How lines are read"
_GROUPING = "How rows become versions"
_RUNNING = "How it runs"

Catalog = Annotated[
    str, typer.Option("--catalog", metavar="NAME", help="Catalog to write; made if absent.")
]
Follow = Annotated[
    bool,
    typer.Option(
        "--follow/--once",
        help="Go on with files as they appear, or take those that are new and end.",
        rich_help_panel=_RUNNING,
    ),
]
BatchBytes = Annotated[
    str,
    typer.Option(
        "--batch-bytes",
        metavar="BYTES",
        help="Input files of one batch, together.",
        rich_help_panel=_RUNNING,
    ),
]
Master = Annotated[
    str, typer.Option("--master", metavar="URL", help="Spark master.", rich_help_panel=_RUNNING)
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Say nothing but errors.", rich_help_panel=_RUNNING)
]

ingest_app: Final = typer.Typer(
    name="ingest", no_args_is_help=True, help="Turn a source's changes into versions of a catalog."
)


class NothingUsable(TailraceError):
    """Not one line of the input could be used. The source's doing, or the wrong folder."""

    code = "NOTHING_USABLE"


@ingest_app.command("debezium")
def debezium(
    input: Annotated[
        Path,
        typer.Option("--input", metavar="DIR", help="Folder of files, one message a line."),
    ],
    log: LogRoot,
    catalog: Catalog,
    follow: Follow = False,
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key",
            metavar="TABLE=COL,…",
            help="Key columns of a table whose messages carry no key.",
            rich_help_panel=_INPUT,
        ),
    ] = None,
    entity_type_from: Annotated[
        str,
        typer.Option(
            "--entity-type-from",
            metavar="FORM",
            help="table, or schema.table for the long form.",
            rich_help_panel=_INPUT,
        ),
    ] = "table",
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Stop at a line that cannot be used, instead of setting it aside.",
            rich_help_panel=_INPUT,
        ),
    ] = False,
    schema: Annotated[
        Path | None,
        typer.Option(
            "--schema",
            metavar="FILE",
            help="TOML that declares roles, types and renames of columns.",
            rich_help_panel=_INPUT,
        ),
    ] = None,
    on_incompatible: Annotated[
        str,
        typer.Option(
            "--on-incompatible",
            metavar="WHAT",
            help="quarantine rows that their column's type cannot hold, or stop.",
            rich_help_panel=_INPUT,
        ),
    ] = "quarantine",
    max_record_bytes: Annotated[
        str,
        typer.Option(
            "--max-record-bytes",
            metavar="BYTES",
            help="Images of a row above this are set aside.",
            rich_help_panel=_INPUT,
        ),
    ] = "16MiB",
    transaction_idle: Annotated[
        str,
        typer.Option(
            "--transaction-idle",
            metavar="SECONDS",
            help="A transaction without END is complete when no row of it came for this long.",
            rich_help_panel=_GROUPING,
        ),
    ] = "5s",
    ordered_input: Annotated[
        bool,
        typer.Option(
            "--ordered-input",
            help="Files are one stream in commit order: a transaction ends where the next begins.",
            rich_help_panel=_GROUPING,
        ),
    ] = False,
    snapshot_rows: Annotated[
        int,
        typer.Option(
            "--snapshot-rows",
            min=1,
            help="Snapshot rows in one version.",
            rich_help_panel=_GROUPING,
        ),
    ] = 10_000,
    publish_window: Annotated[
        str,
        typer.Option(
            "--publish-window",
            metavar="SECONDS",
            help="Publish at most this often; 0 after each commit.",
            rich_help_panel=_RUNNING,
        ),
    ] = "0",
    small_batch_rows: Annotated[
        int,
        typer.Option(
            "--small-batch-rows",
            min=0,
            help="Batches below this run in the driver, in one Spark job.",
            rich_help_panel=_RUNNING,
        ),
    ] = 20_000,
    batch_bytes: BatchBytes = "256MiB",
    master: Master = "local[*]",
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over",
            help="Go on where another writer, or a lost checkpoint, left off.",
            rich_help_panel=_RUNNING,
        ),
    ] = False,
    quiet: Quiet = False,
) -> int:
    """Turn Debezium's JSON, one message a line, into versions of a catalog.

    Each source transaction becomes one version. Run it again and it takes
    only files that are new. Lines that cannot be used are set aside in the
    catalog's quarantine folder with the reason.
    """
    from tailrace_server.pipeline.progress import Reporter
    from tailrace_server.pipeline.sources.debezium.decoder import DebeziumOptions
    from tailrace_server.pipeline.transactions.grouping import Rules
    from tailrace_server.pipeline.transactions.ingest import ingest_debezium
    from tailrace_server.pipeline.transactions.settings import IngestSettings
    from tailrace_server.wal.schema.mapping import SchemaMapping

    if on_incompatible not in ("quarantine", "stop"):
        raise InvalidRequest(f"--on-incompatible {on_incompatible!r}: choose quarantine or stop")
    mapping = None if schema is None else SchemaMapping.load(schema)
    settings = IngestSettings(
        input=input.absolute(),
        log=log.absolute(),
        catalog=catalog,
        follow=follow,
        source=DebeziumOptions(
            keys=dict(_key_columns(text) for text in key or ()),
            long_entity_types=_is_long(entity_type_from),
            max_record_bytes=_bytes("--max-record-bytes", max_record_bytes),
            mapping=mapping,
        ),
        mapping=mapping,
        stop_on_incompatible=on_incompatible == "stop",
        rules=Rules(
            idle_s=_seconds("--transaction-idle", transaction_idle), ordered_input=ordered_input
        ),
        snapshot_rows=snapshot_rows,
        small_batch_rows=small_batch_rows,
        batch_bytes=_bytes("--batch-bytes", batch_bytes),
        publish_window_s=_seconds("--publish-window", publish_window),
        strict=strict,
        take_over=take_over,
        master=master,
    )
    reporter = Reporter(quiet=quiet)
    try:
        outcome = ingest_debezium(settings, reporter)
    finally:
        reporter.finish()
    counters = outcome.counters
    quarantine = settings.log / catalog / "quarantine"
    reporter.summary(counters, str(quarantine))
    lines = counters.lines - counters.ignored
    if not follow and counters.quarantined and counters.quarantined == lines:
        raise NothingUsable(
            f"none of {counted(lines, 'new line')} in {input} could be used; "
            f"{quarantine} has each with its reason"
        )
    return 0 if outcome.signal is None else 128 + outcome.signal


@ingest_app.command("cdcv2")
def cdcv2(
    input: Annotated[
        Path,
        typer.Option("--input", metavar="DIR", help="Folder of .avro and .json files of messages."),
    ],
    schema: Annotated[
        Path,
        typer.Option("--schema", metavar="FILE", help="Avro schema of the messages, or of a row."),
    ],
    entity_type: Annotated[
        str, typer.Option("--entity-type", metavar="NAME", help="What its rows are in the catalog.")
    ],
    log: LogRoot,
    catalog: Catalog,
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key",
            metavar="COL",
            help="Key column, again for more; without, the row is the key and is counted.",
            rich_help_panel=_GROUPING,
        ),
    ] = None,
    start_time: Annotated[
        int | None,
        typer.Option(
            "--start-time",
            metavar="T",
            min=0,
            help="First time wanted; what is below counts as finished.",
            rich_help_panel=_GROUPING,
        ),
    ] = None,
    on_conflict: Annotated[
        str,
        typer.Option(
            "--on-conflict",
            metavar="WHAT",
            help="stop where messages contradict each other, or let the first stand.",
            rich_help_panel=_GROUPING,
        ),
    ] = "stop",
    follow: Follow = False,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Stop at a message that cannot be used, instead of setting it aside.",
            rich_help_panel=_INPUT,
        ),
    ] = False,
    small_batch_rows: Annotated[
        int,
        typer.Option(
            "--small-batch-rows",
            min=0,
            help="Batches below this run in the driver, without Spark.",
            rich_help_panel=_RUNNING,
        ),
    ] = 100_000,
    batch_bytes: BatchBytes = "256MiB",
    master: Master = "local[*]",
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over",
            help="Go on where another writer left off.",
            rich_help_panel=_RUNNING,
        ),
    ] = False,
    quiet: Quiet = False,
) -> int:
    """Turn messages of Materialize CDCv2 into versions of a catalog.

    Messages may be repeated, in any order and cut anew. Each time that is
    finished and not empty becomes one version. Run it again and it takes only
    files that are new. If times miss updates at the end of the input, it says
    which and ends with status 3.
    """
    from tailrace_server.pipeline.cdcv2.files import StreamSchema
    from tailrace_server.pipeline.cdcv2.folding import Folding
    from tailrace_server.pipeline.cdcv2.ingest import ingest_cdcv2
    from tailrace_server.pipeline.cdcv2.settings import Cdcv2Settings
    from tailrace_server.pipeline.progress import Reporter
    from tailrace_server.pipeline.stop_signals import stop_signals

    if on_conflict not in ("stop", "first"):
        raise InvalidRequest(f"--on-conflict {on_conflict!r}: choose stop or first")
    stream = StreamSchema.load(schema)
    columns = tuple(name.strip() for text in key or () for name in text.split(","))
    for name in columns:
        if name not in stream.columns:
            known = ", ".join(stream.columns)
            raise InvalidRequest(f"--key {name!r}: the schema's columns are {known}")
    settings = Cdcv2Settings(
        input=input.absolute(),
        log=log.absolute(),
        catalog=catalog,
        folding=Folding(stream, entity_type, columns),
        follow=follow,
        start=start_time,
        small_batch_rows=small_batch_rows,
        batch_bytes=_bytes("--batch-bytes", batch_bytes),
        first_stands=on_conflict == "first",
        strict=strict,
        take_over=take_over,
        master=master,
    )
    reporter = Reporter(quiet=quiet)
    try:
        with stop_signals() as stopping:
            outcome = ingest_cdcv2(settings, reporter, stopping=stopping)
    finally:
        reporter.finish()
    reporter.messages(outcome.counters, str(settings.log / catalog / "quarantine"))
    if outcome.signal is not None:
        return 128 + outcome.signal
    if follow or not outcome.waiting:
        return 0
    for reason in outcome.waiting:
        complain(str(reason))
    if outcome.waiting_more:
        complain(f"and {outcome.waiting_more:,} more")
    return INCOMPLETE


@ingest_app.command("prepare")
def prepare() -> None:
    """Archive Spark's classes, so that it starts in half the time from now on.

    Once for a Java and a Spark; takes about a minute and 170 MB. Nothing
    else changes: without the archive Spark starts as it always has.
    """
    from tailrace_server.pipeline.prepare_spark import prepare as prepare_spark
    from tailrace_server.pipeline.progress import Reporter

    reporter = Reporter()
    try:
        reporter.wait("running Spark once …")
        archive = prepare_spark()
    finally:
        reporter.finish()
    reporter.note(f"{archive.stat().st_size / 1e6:,.0f} MB of classes in {archive}")


def _key_columns(text: str) -> tuple[str, tuple[str, ...]]:
    table, _, columns = text.partition("=")
    names = tuple(name.strip() for name in columns.split(","))
    if not table.strip() or not all(names):
        raise InvalidRequest(f"--key {text!r}: it reads TABLE=COLUMN or TABLE=COLUMN,COLUMN")
    return table.strip(), names


def _is_long(form: str) -> bool:
    if form not in ("table", "schema.table"):
        raise InvalidRequest(f"--entity-type-from {form!r}: choose table or schema.table")
    return form == "schema.table"


def _seconds(option: str, text: str) -> float:
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise InvalidRequest(f"{option} {text!r}: {error}") from error


def _bytes(option: str, text: str) -> int:
    try:
        amount = parse_bytes(text)
    except ValueError as error:
        raise InvalidRequest(f"{option} {text!r}: {error}") from error
    if not amount:
        raise InvalidRequest(f"{option} {text!r}: it must be at least 1")
    return amount
