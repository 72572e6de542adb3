"""``tailrace log``: look into a catalog's log, verify, trim, compact and copy it. No server is needed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from tailrace.errors import InvalidRequest, LogUnreadable
from tailrace_server.cli.output import date_text, note
from tailrace_server.cli.typed import AsJson
from tailrace_server.units import counted, duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from tailrace_server.wal.upkeep import inspect
    from tailrace_server.wal.upkeep.verify import Verification

_SOURCES_MAX: Final = 10
"""Of the files or partitions that fed a log so many are shown, the last ones."""

app = typer.Typer(no_args_is_help=True, help="The log of one catalog, as it lies on the disk.")

Folder = Annotated[
    Path,
    typer.Argument(metavar="PATH", help="The catalog's folder, ROOT/NAME.", show_default=False),
]

_MEBIBYTE = 1 << 20
_PIPED_WIDTH = 10_000
"""Cells of a line into a pipe or file, where nothing is folded."""


@app.command("inspect")
def inspect_(
    path: Folder,
    entries: Annotated[
        int, typer.Option("--entries", metavar="N", min=0, help="Show the newest N entries.")
    ] = 10,
    segments: Annotated[bool, typer.Option("--segments", help="List the segments.")] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Show the columns and how they came about.")
    ] = False,
    record: Annotated[
        str | None,
        typer.Option("--record", metavar="V[:INDEX]", help="Show one published record in full."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Show entries, segments, versions committed and published, rows by entity type, one record."""
    from tailrace_server.wal.upkeep import inspect

    _check_catalog(path)
    if record is not None:
        return _show_record(path, record, as_json=as_json)
    summary = inspect.summarize(path)
    first = max(1, summary.entries - entries + 1)
    newest = list(inspect.entries(path, first=first)) if entries else []
    listed = inspect.segments(path) if segments else []
    types, history = inspect.schema(path) if schema else ({}, [])
    if as_json:
        document = {"summary": summary, "entries": newest, "segments": listed}
        if schema:
            document |= {"schema": types, "schema_history": history}
        _print_json(document)
        return 0
    console = _console()
    _print_summary(console, summary)
    if newest:
        console.print(_entry_table(newest))
    if listed:
        console.print(_segment_table(listed))
    if schema:
        console.print(_column_table(types))
        console.print(_schema_table(history))
    return 0


@app.command()
def verify(
    path: Folder,
    whole_bases: Annotated[
        bool,
        typer.Option(
            "--whole-bases", help="Compare every row of the bases with the log, not a sample."
        ),
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Read the whole log and check all of it: checksums, chain, order, density, counts, bases.

    Names every fault by file and byte offset. The exit status is 0 when the log is sound, 1 when it is not.
    """
    from rich.progress import Progress

    from tailrace_server.wal.upkeep.verify import verify as verify_log

    _check_catalog(path)
    unseen = as_json or not sys.stderr.isatty()
    with Progress(console=_console(stderr=True), transient=True, disable=unseen) as bar:
        task = bar.add_task("reading", total=None)
        result = verify_log(
            path,
            lambda done, total: bar.update(task, completed=done, total=total),
            whole_bases=whole_bases,
        )
    if as_json:
        _print_json(result)
    else:
        _print_verification(_console(), result)
    return 0 if result.sound else 1


@app.command()
def trim(
    path: Folder,
    before: Annotated[
        int, typer.Option("--before", metavar="VERSION", min=1, help="First version to keep.")
    ],
    without_state: Annotated[
        bool,
        typer.Option("--without-state", help="Give up the tables' state too: no room is needed."),
    ] = False,
) -> int:
    """Let go of all versions below one, at once. Their files stay for readers at work, for ten minutes.

    First the newest image of every row is kept in a base, so that the state of every table stays readable.
    Then a writer, as an ingest, deletes them when it publishes. Where none does, run this again.
    """
    from tailrace.clock import SystemClock
    from tailrace_server.wal.state.commit_log import CommitLog
    from tailrace_server.wal.upkeep import retention

    _check_catalog(path)
    published = CommitLog.open(path).view.published
    if before > published + 1:
        raise InvalidRequest(
            f"--before {before}: the newest published version is {published}; "
            f"{published + 1} lets go of everything"
        )
    now = SystemClock().now()
    oldest = retention.trim(path, before, now, keeps_state=not without_state)
    deleted = retention.delete_unnamed(path, now)
    note(f"oldest position kept: {oldest}; files deleted now: {len(deleted):,}")
    _note_waiting(path)
    return 0


@app.command()
def compact(path: Folder) -> int:
    """Rewrite neighbouring small segments into large ones; positions stay as they are.

    The files that they replace stay for readers at work and are deleted as after a trim.
    """
    from tailrace.clock import SystemClock
    from tailrace_server.wal.upkeep import compaction, retention

    _check_catalog(path)
    now = SystemClock().now()
    done = compaction.compact(path, now)
    deleted = retention.delete_unnamed(path, now)
    if done is None:
        note("nothing to compact")
    else:
        note(
            f"{done.segments_before:,} segments became {done.segments_after:,}: {done.rows:,} records, "
            f"{_size(done.bytes_before)} → {_size(done.bytes_after)}"
        )
    note(f"files deleted now: {len(deleted):,}")
    _note_waiting(path)
    return 0


@app.command()
def rebase(
    path: Folder,
    anew: Annotated[
        bool,
        typer.Option(
            "--anew", help="From the log alone, in place of all bases: where one is damaged."
        ),
    ] = False,
) -> int:
    """Put the newest image of every row into files, a base: the state of large tables is read fast again.

    A writer's upkeep does that by itself when enough was written. The log itself stays as it is.
    """
    from tailrace.clock import SystemClock
    from tailrace_server.wal.base import making
    from tailrace_server.wal.state.commit_log import CommitLog
    from tailrace_server.wal.upkeep import retention

    _check_catalog(path)
    oldest = CommitLog.open(path).view.oldest
    if anew and oldest.version > 1:
        raise InvalidRequest(
            f"--anew: the log begins at {oldest}, so it alone does not say what rows were before; without "
            "--anew the base is made from the one before"
        )
    now = SystemClock().now()
    made = making.make_base(path, now, anew=anew)
    retention.delete_unnamed(path, now)
    if made is None:
        note(
            "no base was made: the newest published version has one, or there is none, or the log was trimmed "
            "before it had any"
        )
    else:
        note(
            f"base of version {made.version:,}: {counted(made.rows, 'row')} of "
            f"{counted(made.tables, 'entity type')} in {counted(made.files, 'file')}, {_size(made.bytes)}"
        )
    return 0


@app.command()
def copy(
    path: Folder,
    target: Annotated[
        Path,
        typer.Argument(metavar="ROOT", help="Where the copy goes: ROOT/NAME.", show_default=False),
    ],
) -> int:
    """Copy the log as it is now, also while it is written to, and verify the copy: a backup.

    An ingest's checkpoint is not copied: over a copy, run it with --take-over.
    """
    from tailrace_server.wal.upkeep.copying import copy_log

    _check_catalog(path)
    done = copy_log(path, target)
    note(
        f"{done.path}: {counted(done.files, 'file')}, {_size(done.bytes)}, verified; published up to version "
        f"{done.published:,}, committed up to {done.version:,}"
    )
    return 0


def _note_waiting(path: Path) -> None:
    """Say how many files wait for their deletion, and who will do it."""
    from tailrace_server.wal.state.checkpoint import DELETE_GRACE_S
    from tailrace_server.wal.state.commit_log import CommitLog
    from tailrace_server.wal.upkeep import retention

    waiting = len(retention.unnamed(CommitLog.open(path)))
    if waiting:
        note(
            f"{counted(waiting, 'file')} kept for readers at work until {duration(DELETE_GRACE_S)} have "
            "passed; then a writer deletes them when it publishes: where none does, run this again"
        )


def _check_catalog(path: Path) -> None:
    """Refuse a folder that is no catalog, and say which catalogs are below it."""
    from tailrace_server.wal.catalog import list_catalogs, read_catalog

    try:
        read_catalog(path)
    except LogUnreadable:
        names = list_catalogs(path) if path.is_dir() else ()
        if not names:
            raise
        raise InvalidRequest(
            f"{path} is a log root, not a catalog; name one of its catalogs: "
            + ", ".join(str(path / name) for name in names)
        ) from None


def _show_record(path: Path, text: str, *, as_json: bool) -> int:
    from tailrace.position import Position
    from tailrace_server.wal.upkeep import inspect

    version, _, index = text.partition(":")
    if not version.isdecimal() or not (index or "0").isdecimal():
        raise InvalidRequest(f"--record {text}: a position reads VERSION or VERSION:INDEX, as 42:3")
    position = Position(int(version), int(index or 0))
    found = inspect.record(path, position)
    if found is None:
        raise InvalidRequest(f"--record {text}: no published record stands there")
    if as_json:
        _print_json(found)
        return 0
    grid = _grid()
    grid.add_row("position", f"[bold]{position}[/]  row {found.row:,}")
    grid.add_row("committed", date_text(found.commit_timestamp))
    grid.add_row("what", f"{found.operation} in {found.area}")
    grid.add_row("entity type", _shown(found.entity_type))
    grid.add_row("primary key", f"{_shown(found.primary_key)}  [dim]hash {found.key_hash:016x}[/]")
    grid.add_row("changed", _shown(None if found.changed is None else ", ".join(found.changed)))
    for name in ("change", "before", "after"):
        image: bytes | None = getattr(found, name)
        grid.add_row(name, _shown(None if image is None else image.decode(errors="replace")))
    grid.add_row("segment", f"{found.segment} [dim]batch at byte {found.batch_offset:,}[/]")
    _console().print(grid)
    return 0


def _print_summary(console: Console, summary: inspect.LogSummary) -> None:
    waiting = summary.committed - summary.published
    behind = f"  [yellow]{waiting:,} committed and not published[/]" if waiting else ""
    grid = _grid()
    grid.add_row("catalog", f"[bold]{_shown(summary.name)}[/]  {summary.uuid}")
    grid.add_row("created", date_text(summary.created))
    grid.add_row("committed", f"{summary.committed:,}")
    grid.add_row("published", f"[bold]{summary.published:,}[/]{behind}")
    grid.add_row("oldest kept", str(summary.oldest))
    if summary.newest_timestamp:
        grid.add_row("newest", date_text(summary.newest_timestamp))
    grid.add_row("writer", f"epoch {summary.epoch}, {_shown(str(summary.holder))}")
    grid.add_row(
        "entries",
        f"{summary.entries:,}, publications {summary.publications:,}, checkpoint {summary.checkpoint:,} "
        f"at entry {summary.checkpoint_entry:,}",
    )
    grid.add_row(
        "segments",
        f"{summary.segments:,} with {summary.batches:,} batches, {summary.rows:,} records, "
        f"{_size(summary.bytes)}{', trimmed versions included' if summary.holds_trimmed else ''}",
    )
    for label, count in (("to be deleted", summary.unnamed), ("orphans", summary.orphans)):
        if count:
            grid.add_row(label, counted(count, "file"))
    for base in summary.bases:
        grid.add_row(
            "base",
            f"of version {base.version:,}: {counted(sum(base.rows.values()), 'row')} of "
            f"{counted(len(base.rows), 'entity type')} in {counted(base.files, 'file')}, {_size(base.bytes)}",
        )
    if summary.state_from is None:
        grid.add_row("state", "[yellow]not readable[/]: the log was trimmed and has no base")
    elif summary.state_from:
        grid.add_row("state", f"readable from version {summary.state_from:,} on")
    for pending in summary.pending:
        grid.add_row("pending", _shown(pending))
    sources = [*summary.source_positions.items()]
    for partition, position in sources[-_SOURCES_MAX:]:
        # A number says how far the source was read; a text is something that is known of it.
        between = " up to " if isinstance(position, int) else ": "
        grid.add_row("source", f"{_shown(partition)}{between}{_shown(str(position))}")
    if len(sources) > _SOURCES_MAX:
        grid.add_row("", f"{counted(len(sources) - _SOURCES_MAX, 'source')} before; --json has all")
    width = max(map(len, summary.counts), default=0)
    for place, (name, count) in enumerate(summary.counts.items()):
        label = "" if place else "records of"
        grid.add_row(label, f"{_shown(name.ljust(width))}  {count:>12,}")
    console.print(grid)


def _entry_table(entries: list[inspect.EntrySummary]) -> Table:
    table = _table(
        "entry", "epoch", "when", "writer", "key", "versions", "records", "", numbers=(0, 1, 6)
    )
    for entry in entries:
        versions, key = "", "open"
        if entry.kind == "commit":
            key = f"{entry.batch_id}" + (f".{entry.k}" if entry.k else "")
            if entry.first_version is not None:
                versions = f"{entry.first_version:,} – {entry.last_version:,}"
        pending = f"{entry.pending} pending " if entry.pending else ""
        mark = "" if entry.published else "[yellow]unpublished[/]"
        table.add_row(
            f"{entry.number:,}",
            f"{entry.epoch:,}",
            date_text(entry.timestamp),
            _shown(entry.writer),
            key,
            versions,
            "" if entry.rows is None else f"{entry.rows:,}",
            pending + mark,
        )
    return table


def _segment_table(segments: list[inspect.SegmentSummary]) -> Table:
    table = _table("segment", "first", "last", "records", "batches", "size", numbers=(3, 4, 5))
    for segment in segments:
        table.add_row(
            _shown(segment.path),
            str(segment.first),
            str(segment.last),
            f"{segment.rows:,}",
            f"{segment.batches:,}",
            _size(segment.bytes),
        )
    return table


def _column_table(types: dict[str, list[dict[str, Any]]]) -> Table:
    table = _table(
        "entity type", "#", "column", "type", "encoding", "role", "from", "", numbers=(1,)
    )
    for name, columns in types.items():
        for ordinal, column in enumerate(columns, 1):
            marks = [f"key {column['key']}"] if column["key"] else []
            marks += [] if column["nullable"] else ["not null"]
            marks += ["[yellow]dropped[/]"] if column.get("dropped") else []
            table.add_row(
                _shown(name) if ordinal == 1 else "",
                str(ordinal),
                _shown(column["name"]),
                _shown(column["sql_type"]),
                _shown(column["encoding"]),
                column["role"],
                column["origin"],
                ", ".join(marks),
            )
    return table


def _schema_table(history: list[inspect.SchemaChange]) -> Table:
    from tailrace_server.cli.shown.human import change_text

    table = _table("version", "schema", "entity type", "change", numbers=(0, 1))
    for each in history:
        for change in each.changes:
            table.add_row(
                f"{each.first_version:,}",
                str(each.schema_id),
                _shown(each.entity_type),
                _shown(change_text(change)),
            )
    return table


def _print_verification(console: Console, result: Verification) -> None:
    console.print(
        f"read {result.entries:,} entries, {result.publications:,} publications, "
        f"{result.checkpoints:,} checkpoints, {result.segments:,} segments with {result.batches:,} batches: "
        f"{result.transactions:,} transactions, {result.rows:,} records, {_size(result.bytes)}"
    )
    if result.bases:
        console.print(
            f"read {counted(result.bases, 'base')} with {counted(result.base_rows, 'row')}"
        )
    for fault in result.faults:
        console.print(f"[bold red]damaged[/] {_shown(str(fault))}", soft_wrap=True)
    if result.sound:
        console.print("[bold green]sound[/]")
    else:
        console.print(f"[bold red]{counted(len(result.faults), 'fault')}[/]")


def _console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    seen = (sys.stderr if stderr else sys.stdout).isatty() or "COLUMNS" in os.environ
    return Console(stderr=stderr, highlight=False, width=None if seen else _PIPED_WIDTH)


def _grid() -> Table:
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", justify="right", no_wrap=True)
    grid.add_column(overflow="fold")
    return grid


def _table(*titles: str, numbers: tuple[int, ...]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim", padding=(0, 1, 0, 0))
    for place, title in enumerate(titles):
        side: Literal["left", "right"] = "right" if place in numbers else "left"
        table.add_column(title, justify=side, overflow="fold", no_wrap=title in ("when", ""))
    return table


def _shown(text: str | None) -> str:
    """Return text for the terminal: nothing in it is markup or moves the cursor."""
    from rich.markup import escape

    if text is None:
        return "[dim]none[/]"
    return escape("".join(each if each.isprintable() else f"\\x{ord(each):02x}" for each in text))


def _size(count: int) -> str:
    return f"{count:,} B" if count < _MEBIBYTE else f"{count / _MEBIBYTE:,.1f} MiB"


def _print_json(value: Any) -> None:
    import orjson

    def plain(other: object) -> object:
        if isinstance(other, bytes):
            return other.decode(errors="replace")
        if isinstance(other, tuple):
            return list(other)  # a named one
        raise TypeError(f"{type(other)} has no JSON form")

    sys.stdout.buffer.write(orjson.dumps(value, default=plain) + b"\n")
    sys.stdout.buffer.flush()
