"""``tailrace sql``: one SQL statement over a catalog's log."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import pyarrow as pa

from tailrace.errors import InvalidRequest
from tailrace_server.cli import typed
from tailrace_server.cli.declared import Argument, Option
from tailrace_server.cli.output import Palette, note
from tailrace_server.cli.tables import answers
from tailrace_server.sql.query import Query, QueryLimits
from tailrace_server.sql.scans import LogSource
from tailrace_server.units import counted, parse_bytes, parse_seconds
from tailrace_server.wal.catalog import open_catalog
from tailrace_server.wal.segment.reader import BatchReader, SegmentMissing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tailrace.errors import LogCorrupted
    from tailrace_server.wal.state.commit_log import CommitLog
    from tailrace_server.wal.state.view import LogView

__all__ = ["sql"]

_STATEMENT: Final = "The statement"
_FORM: Final = "Form of the output"
_BOUNDS: Final = "What it may take"


def _option(name: str, help: str, panel: str, metavar: str | None = None) -> Any:
    return typed.typed(Option(name, help, metavar=metavar, panel=panel))


def sql(
    catalog: Annotated[str, typed.typed(Argument("CATALOG", "Name of the catalog."))],
    statement: Annotated[
        str,
        typed.typed(
            Argument("STATEMENT", "One SQL statement; - reads it from the standard input.")
        ),
    ],
    log: typed.LogRoot,
    parameter: Annotated[
        list[str] | None,
        _option("--param", "The value of $NAME in the statement.", _STATEMENT, "NAME=VALUE"),
    ] = None,
    as_json: typed.AsJson = False,
    csv: Annotated[bool, _option("--csv", "As CSV.", _FORM)] = False,
    arrow: Annotated[bool, _option("--arrow", "As a stream of Arrow batches.", _FORM)] = False,
    timeout: Annotated[
        str, _option("--timeout", "End it after so long: 30s, 5m.", _BOUNDS, "TIME")
    ] = "5m",
    memory: Annotated[
        str, _option("--memory", "What sorts, groups and joins may take.", _BOUNDS, "SIZE")
    ] = "512MiB",
) -> int:
    """Ask a catalog's log in SQL: tables as they are, as they were, and their changes.

    Every entity type is a table. FOR VERSION AS OF 12 or FOR TIMESTAMP AS OF '…' behind its name reads an
    earlier state; CHANGES('product', from, to) are its changes. SHOW TABLES and DESCRIBE say what there is.
    """
    if sum((as_json, csv, arrow)) > 1:
        raise InvalidRequest("--json, --csv and --arrow: give one of them")
    text = sys.stdin.read() if statement == "-" else statement
    limits = _limits(memory, timeout)
    values = _parameters(parameter or ())
    form = "json" if as_json else "csv" if csv else "arrow" if arrow else "text"
    began = time.monotonic()
    count = 0
    opened = open_catalog(log, catalog)
    with (
        BatchReader(opened.path) as reader,
        Query(_source(opened, reader), text, values, limits, may_define=True) as query,
    ):

        def batches() -> Iterator[pa.RecordBatch]:
            nonlocal count
            for batch in query.batches():
                count += len(batch)
                yield batch

        try:
            _write(query.schema, batches(), form)
        except KeyboardInterrupt:
            query.interruption.ask("stopped")
            raise
        if form == "text":
            seconds = time.monotonic() - began
            note(f"{counted(count, 'row')} as of version {query.version}, in {seconds:.2f} s")
    return 0


def _write(schema: pa.Schema, batches: Iterable[pa.RecordBatch], form: str) -> None:
    sink = sys.stdout.buffer
    if form == "arrow":
        with pa.ipc.new_stream(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        return
    if form == "json":
        lines = answers.json_lines(batches)
    elif form == "csv":
        lines = answers.csv_lines(schema, batches)
    else:
        lines = answers.text_lines(schema, batches, Palette.of(sys.stdout))
    for line in lines:
        sink.write(line)
    sink.flush()


def _source(log: CommitLog, reader: BatchReader) -> LogSource:
    """Return the log as a source of statements."""

    def newer(missing: SegmentMissing) -> LogView:
        log.refresh()
        view = log.view
        if any(segment.path == missing.path for segment in view.segments()):
            raise missing
        return view

    return LogSource(log.view, reader, newer, _note_damage)


def _note_damage(damaged: LogCorrupted) -> None:
    note(f"{damaged}; read around it. `tailrace log rebase --anew` makes the bases again")


def _limits(memory: str, timeout: str) -> QueryLimits:
    try:
        memory_bytes = parse_bytes(memory)
    except ValueError:
        raise InvalidRequest(f"--memory {memory!r}: write 512MiB or 2GiB") from None
    try:
        return QueryLimits(memory_bytes, parse_seconds(timeout))
    except ValueError:
        raise InvalidRequest(f"--timeout {timeout!r}: write 30s or 5m") from None


def _parameters(written: Sequence[str]) -> dict[str, Any]:
    found = {}
    for each in written:
        name, equals, value = each.partition("=")
        if not equals or not name.isidentifier():
            raise InvalidRequest(f"--param {each!r}: write NAME=VALUE")
        found[name] = value
    return found
