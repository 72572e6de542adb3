"""``tailrace log``: inspect, verify, trim, compact and copy a catalog's log, without a server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tailrace.errors import InvalidRequest, LogUnreadable
from tailrace_server.cli.log_tables import (
    column_table,
    entry_table,
    label_grid,
    print_faults,
    print_summary,
    print_verification,
    printable,
    schema_table,
    segment_table,
    size_text,
    terminal,
)
from tailrace_server.cli.terminal.listings import print_json
from tailrace_server.cli.terminal.output import date_text, note
from tailrace_server.cli.terminal.typer_options import AsJson
from tailrace_server.units import counted, duration
from tailrace_server.wal.sequences.holds import holding
from tailrace_server.wal.state.commit_log import CommitLog

app = typer.Typer(no_args_is_help=True, help="The log of one catalog, read from its folder.")

Folder = Annotated[
    Path,
    typer.Argument(metavar="PATH", help="The catalog's folder, ROOT/NAME.", show_default=False),
]


@app.command("inspect")
def inspect_(
    path: Folder,
    entries: Annotated[
        int, typer.Option("--entries", metavar="N", min=0, help="Number of newest entries to show.")
    ] = 10,
    segments: Annotated[bool, typer.Option("--segments", help="List the segments.")] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Show the columns and the history of the schema.")
    ] = False,
    record: Annotated[
        str | None,
        typer.Option("--record", metavar="V[:INDEX]", help="Show one published record in full."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Show entries, segments, committed and published versions, row counts by entity type, or one record."""
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
        print_json(document)
        return 0
    console = terminal()
    print_summary(console, summary)
    if newest:
        console.print(entry_table(newest))
    if listed:
        console.print(segment_table(listed))
    if schema:
        console.print(column_table(types))
        console.print(schema_table(history))
    return 0


@app.command()
def verify(
    path: Folder,
    whole_bases: Annotated[
        bool,
        typer.Option(
            "--whole-bases",
            help="Compare every row of the bases with the log; default: a sample of the rows.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Read the whole log and check it: checksums, chain, order, density, counts, bases.

    Every fault is reported with its file and byte offset. The exit status is
    0 if the log is sound, else 1.
    """
    from rich.progress import Progress

    from tailrace_server.wal.upkeep.verify import verify as verify_log

    _check_catalog(path)
    unseen = as_json or not sys.stderr.isatty()
    with Progress(console=terminal(stderr=True), transient=True, disable=unseen) as bar:
        task = bar.add_task("reading", total=None)
        result = verify_log(
            path,
            lambda done, total: bar.update(task, completed=done, total=total),
            whole_bases=whole_bases,
        )
    if as_json:
        print_json(result)
    else:
        print_verification(terminal(), result)
    return 0 if result.sound else 1


@app.command()
def trim(
    path: Folder,
    before: Annotated[
        int | None,
        typer.Option(
            "--before",
            metavar="VERSION",
            min=1,
            help="First version to retain. [default: from the settings of the catalog]",
            show_default=False,
        ),
    ] = None,
    without_state: Annotated[
        bool,
        typer.Option(
            "--without-state", help="Also give up the tables' state; this needs no free space."
        ),
    ] = False,
) -> int:
    """Remove all versions before one from the log. Their files remain for ten minutes, for readers at work.

    First the newest image of every row is stored in a base, so that the state
    of every table stays readable. After the ten minutes a writer, such as an
    ingest, deletes the files when it publishes. If no writer runs, run this
    command again.
    """
    from tailrace.clock import SystemClock
    from tailrace_server.wal.upkeep import expiring, retention

    _check_catalog(path)
    now = SystemClock().now()
    by_settings = before is None
    if before is None:
        before = _before_by_settings(path, now)
    published = CommitLog.open(path).view.published
    if before > published + 1:
        raise InvalidRequest(
            f"--before {before}: the newest published version is {published}; {published + 1} "
            "removes all versions"
        )
    oldest = retention.trim(path, before, now, keeps_state=not without_state)
    while by_settings and (done := expiring.expire(path, now, at_once=True)) is not None:
        note(
            f"bodies removed: {size_text(done.bytes_before)} → {size_text(done.bytes_after)} in "
            f"{counted(done.segments_after, 'segment')}"
        )
    deleted = retention.delete_unnamed(path, now)
    note(f"oldest retained position: {oldest}; files deleted now: {len(deleted):,}")
    note_holding(path, before, now)
    _note_waiting(path)
    return 0


@app.command()
def compact(path: Folder) -> int:
    """Rewrite neighbouring small segments into large ones; positions do not change.

    Also create missing key files, which are indexes of records by key. Replaced
    files remain for readers at work, and are deleted later like those of a trim.
    """
    from tailrace.clock import SystemClock
    from tailrace_server.wal.base.key_files import make_key_files
    from tailrace_server.wal.upkeep import compaction, retention

    _check_catalog(path)
    now = SystemClock().now()
    done = compaction.compact(path, now)
    made = make_key_files(path)
    deleted = retention.delete_unnamed(path, now)
    if done is None:
        note("nothing to compact")
    else:
        note(
            f"{done.segments_before:,} segments became {done.segments_after:,}: {done.rows:,} records, "
            f"{size_text(done.bytes_before)} → {size_text(done.bytes_after)}"
        )
    if made:
        note(f"key files created: {made:,}")
    note(f"files deleted now: {len(deleted):,}")
    _note_waiting(path)
    return 0


@app.command()
def rebase(
    path: Folder,
    anew: Annotated[
        bool,
        typer.Option(
            "--anew",
            help="Build the base only from the log and replace all bases; use it if a base is damaged.",
        ),
    ] = False,
) -> int:
    """Write the newest image of every row to a base, so that the state of large tables is read fast.

    A writer does that by itself after it has written enough. The log itself
    does not change.
    """
    from tailrace.clock import SystemClock
    from tailrace_server.wal.base import making
    from tailrace_server.wal.upkeep import retention

    _check_catalog(path)
    oldest = CommitLog.open(path).view.oldest
    if anew and oldest.version > 1:
        raise InvalidRequest(
            f"--anew: the log begins at {oldest}, so it does not have all earlier rows; without "
            "--anew the base is made from the previous base"
        )
    now = SystemClock().now()
    made = making.make_base(path, now, anew=anew)
    retention.delete_unnamed(path, now)
    if made is None:
        note(
            "no base was made: the newest published version already has one, no version is "
            "published, or the log was trimmed before it had a base"
        )
    else:
        note(
            f"base of version {made.version:,}: {counted(made.rows, 'row')} of "
            f"{counted(made.tables, 'entity type')} in {counted(made.files, 'file')}, {size_text(made.bytes)}"
        )
    return 0


@app.command()
def copy(
    path: Folder,
    target: Annotated[
        Path,
        typer.Argument(
            metavar="ROOT",
            help="Log root for the copy, which becomes ROOT/NAME.",
            show_default=False,
        ),
    ],
    with_damage: Annotated[
        bool,
        typer.Option(
            "--with-damage",
            help="Also copy damaged parts, as they are; the command then ends with status 1.",
        ),
    ] = False,
) -> int:
    """Copy the log as it is now, and verify the copy: a backup. Writers may continue meanwhile.

    The checkpoint of an ingest is not copied: to ingest into a copy, run it
    with --take-over.
    """
    from tailrace_server.wal.upkeep.copying import copy_log

    _check_catalog(path)
    done = copy_log(path, target, with_damage=with_damage)
    checked = "damaged" if done.faults else "verified"
    note(
        f"{done.path}: {counted(done.files, 'file')}, {size_text(done.bytes)}, {checked}; published up to "
        f"version {done.published:,}, committed up to {done.version:,}"
    )
    if done.subscriptions:
        note(
            f"copied {counted(done.subscriptions, 'named subscription')}, each at its last "
            "acknowledged position"
        )
    print_faults(terminal(stderr=True), done.faults)
    return 1 if done.faults else 0


def _before_by_settings(path: Path, now: int) -> int:
    """Return the first version that a catalog's settings retain; also print a note if the log stays too large.

    Raises:
        InvalidRequest: The catalog has no settings.
    """
    from tailrace_server.wal.sequences.settings import newest_settings
    from tailrace_server.wal.sequences.subscriptions import SubscriptionSequences
    from tailrace_server.wal.upkeep.keeping import excess_of, judge

    log = CommitLog.open(path)
    known = newest_settings(log.store, log.uuid)
    settings = known.settings
    if not settings and not known.of_types:
        raise InvalidRequest(
            "give --before, or set how long versions are retained: tailrace catalog set "
            f"{log.view.name} max_lookback=7d"
        )
    excess = excess_of(log.view, settings, SubscriptionSequences(path, log.uuid).all(), now)
    if excess is not None and not excess.is_due:
        note(f"the log is too large, and this trim does not help: {excess}")
    return judge(log.view, settings, now).before


def _note_waiting(path: Path) -> None:
    """Print how many files wait for their deletion, and when they will be deleted."""
    from tailrace_server.wal.state.checkpoint import DELETE_GRACE_S
    from tailrace_server.wal.upkeep import retention

    waiting = len(retention.unnamed(CommitLog.open(path)))
    if waiting:
        note(
            f"{counted(waiting, 'file')} retained for active readers until "
            f"{duration(DELETE_GRACE_S)} have passed; then the next publication of a writer "
            "deletes them; without a writer, run this command again"
        )


def _check_catalog(path: Path) -> None:
    """Check that a folder is a catalog; if it is a log root, name its catalogs in the error."""
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
        raise InvalidRequest(
            f"--record {text}: write a position as VERSION or VERSION:INDEX, such as 42:3"
        )
    position = Position(int(version), int(index or 0))
    found = inspect.record(path, position)
    if found is None:
        raise InvalidRequest(f"--record {text}: no published record has this position")
    if as_json:
        print_json(found)
        return 0
    grid = label_grid()
    grid.add_row("position", f"[bold]{position}[/]  row {found.row:,}")
    grid.add_row("committed", date_text(found.commit_timestamp))
    grid.add_row("what", f"{found.operation} in {found.area}")
    grid.add_row("entity type", printable(found.entity_type))
    grid.add_row(
        "primary key", f"{printable(found.primary_key)}  [dim]hash {found.key_hash:016x}[/]"
    )
    grid.add_row("changed", printable(None if found.changed is None else ", ".join(found.changed)))
    for name in ("change", "before", "after"):
        image: bytes | None = getattr(found, name)
        grid.add_row(name, printable(None if image is None else image.decode(errors="replace")))
    if found.bodies_expired:
        grid.add_row(
            "", "bodies removed: the entity type retains bodies for a shorter time than heads"
        )
    grid.add_row("segment", f"{found.segment} [dim]batch at byte {found.batch_offset:,}[/]")
    terminal().print(grid)
    return 0


def note_holding(path: Path, before: int, now: int) -> None:
    """Print the named subscriptions that prevent a trim to a version, at a time in µs."""
    if held := holding(path, CommitLog.open(path).view, before, now):
        note(
            f"held by named subscriptions: {held}; move or delete the subscription with `tailrace "
            "subscription`, or wait until its hold reaches its cap"
        )
