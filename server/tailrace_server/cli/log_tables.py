"""The output of ``tailrace log``: a summary, tables of a log's parts, and the result of a verification."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Final, Literal

from tailrace_server.cli.terminal.output import date_text
from tailrace_server.units import counted
from tailrace_server.wal.sequences.settings import OF_CATALOG, OF_ENTITY_TYPE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table

    from tailrace_server.wal.upkeep import inspect
    from tailrace_server.wal.upkeep.verify_objects import Fault, Verification

_SOURCES_MAX: Final = 10
"""Maximum number of source files or partitions in the summary; the last ones are shown."""
_MEBIBYTE = 1 << 20
_PIPED_WIDTH = 10_000
"""Width of lines in a pipe or file, in cells; so wide that no line is folded."""


def print_summary(console: Console, summary: inspect.LogSummary) -> None:
    """Print the summary of a catalog's log."""
    waiting = summary.committed - summary.published
    behind = f"  [yellow]{waiting:,} committed, not published[/]" if waiting else ""
    grid = label_grid()
    grid.add_row("catalog", f"[bold]{printable(summary.name)}[/]  {summary.uuid}")
    grid.add_row("created", date_text(summary.created))
    grid.add_row("committed", f"{summary.committed:,}")
    gate = f"  [dim]by the gate {printable(summary.gate)}[/]" if summary.gate else ""
    grid.add_row("published", f"[bold]{summary.published:,}[/]{gate}{behind}")
    since = summary.oldest_timestamp
    when = f", committed {date_text(since)}" if since else ""
    grid.add_row("oldest retained", f"{summary.oldest}{when}")
    for name, value in summary.settings.items():
        kind = OF_CATALOG.get(name)
        grid.add_row(printable(name), str(value) if kind is None else kind.shown(value))
    if summary.excess:
        grid.add_row("too large", f"[yellow]{printable(summary.excess)}[/]")
    for name in summary.type_settings | summary.bodies_from:
        found = summary.type_settings.get(name, {}).items()
        shown = [
            f"{key}={OF_ENTITY_TYPE[key].shown(value)}"
            for key, value in found
            if key in OF_ENTITY_TYPE
        ]
        if name in summary.bodies_from:
            shown.append(f"only heads below version {summary.bodies_from[name]:,}")
        grid.add_row("", f"{printable(name)}  {', '.join(shown)}")
    for label, defined in (("views", summary.views), ("change tables", summary.change_tables)):
        if defined:
            grid.add_row(label, printable(", ".join(defined)))
    if summary.newest_timestamp:
        grid.add_row("newest", date_text(summary.newest_timestamp))
    grid.add_row("writer", f"epoch {summary.epoch}, {printable(str(summary.holder))}")
    grid.add_row(
        "entries",
        f"{summary.entries:,}, publications {summary.publications:,}, checkpoint {summary.checkpoint:,} "
        f"at entry {summary.checkpoint_entry:,}",
    )
    grid.add_row(
        "segments",
        f"{summary.segments:,} with {summary.batches:,} batches, {summary.rows:,} records, "
        f"{size_text(summary.bytes)}{', trimmed versions included' if summary.holds_trimmed else ''}",
    )
    for label, count in (("to be deleted", summary.unnamed), ("orphans", summary.orphans)):
        if count:
            grid.add_row(label, counted(count, "file"))
    for base in summary.bases:
        grid.add_row(
            "base",
            f"of version {base.version:,}: {counted(sum(base.rows.values()), 'row')} of "
            f"{counted(len(base.rows), 'entity type')} in {counted(base.files, 'file')}, "
            f"{size_text(base.bytes)}",
        )
    if summary.state_from is None:
        grid.add_row("state", "[yellow]not readable[/]: the log was trimmed and has no base")
    elif summary.state_from:
        grid.add_row("state", f"readable from version {summary.state_from:,} on")
    for pending in summary.pending:
        grid.add_row("pending", printable(pending))
    # Hide the source positions that writers use for themselves: times of expiry, and ids of batches.
    known = summary.source_positions.items()
    sources = [
        (name, position) for name, position in known if not name.startswith(("ttl:", "batch-ids:"))
    ]
    for partition, position in sources[-_SOURCES_MAX:]:
        # A number is the position up to which the source was read; a text is other knowledge of the source.
        between = " up to " if isinstance(position, int) else ": "
        grid.add_row("source", f"{printable(partition)}{between}{printable(str(position))}")
    if len(sources) > _SOURCES_MAX:
        grid.add_row(
            "", f"{counted(len(sources) - _SOURCES_MAX, 'source')} earlier; --json prints all"
        )
    width = max(map(len, summary.counts), default=0)
    for place, (name, count) in enumerate(summary.counts.items()):
        label = "" if place else "records of"
        grid.add_row(label, f"{printable(name.ljust(width))}  {count:>12,}")
    console.print(grid)


def entry_table(entries: list[inspect.EntrySummary]) -> Table:
    """Return a table of the log's entries."""
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
            printable(entry.writer),
            key,
            versions,
            "" if entry.rows is None else f"{entry.rows:,}",
            pending + mark,
        )
    return table


def segment_table(segments: list[inspect.SegmentSummary]) -> Table:
    """Return a table of the log's segments."""
    table = _table("segment", "first", "last", "records", "batches", "size", numbers=(3, 4, 5))
    for segment in segments:
        table.add_row(
            printable(segment.path),
            str(segment.first),
            str(segment.last),
            f"{segment.rows:,}",
            f"{segment.batches:,}",
            size_text(segment.bytes),
        )
    return table


def column_table(types: dict[str, list[dict[str, Any]]]) -> Table:
    """Return a table of the columns of all entity types."""
    table = _table(
        "entity type", "#", "column", "type", "encoding", "role", "from", "", numbers=(1,)
    )
    for name, columns in types.items():
        for ordinal, column in enumerate(columns, 1):
            marks = [f"key {column['key']}"] if column["key"] else []
            marks += [] if column["nullable"] else ["not null"]
            marks += ["[yellow]dropped[/]"] if column.get("dropped") else []
            table.add_row(
                printable(name) if ordinal == 1 else "",
                str(ordinal),
                printable(column["name"]),
                printable(column["sql_type"]),
                printable(column["encoding"]),
                column["role"],
                column["origin"],
                ", ".join(marks),
            )
    return table


def schema_table(history: list[inspect.SchemaChange]) -> Table:
    """Return a table of the schema's changes."""
    from tailrace_server.cli.terminal.capture_text import change_text

    table = _table("version", "schema", "entity type", "change", numbers=(0, 1))
    for each in history:
        for change in each.changes:
            table.add_row(
                f"{each.first_version:,}",
                str(each.schema_id),
                printable(each.entity_type),
                printable(change_text(change)),
            )
    return table


def print_verification(console: Console, result: Verification) -> None:
    """Print the result of a verification: the amounts that were read, and every fault."""
    console.print(
        f"read {result.entries:,} entries, {result.publications:,} publications, "
        f"{result.checkpoints:,} checkpoints, {result.segments:,} segments with {result.batches:,} batches: "
        f"{result.transactions:,} transactions, {result.rows:,} records, {size_text(result.bytes)}"
    )
    if result.bases:
        console.print(
            f"read {counted(result.bases, 'base')} with {counted(result.base_rows, 'row')}"
        )
    if result.key_files or result.key_files_missing:
        console.print(
            f"read {counted(result.key_files, 'key file')}; {result.key_files_missing:,} more can "
            "be created"
        )
    print_faults(console, result.faults)
    if result.sound:
        console.print("[bold green]sound[/]")


def print_faults(console: Console, faults: Sequence[Fault]) -> None:
    """Print faults and their number; print nothing if there are none."""
    for fault in faults:
        console.print(f"[bold red]damaged[/] {printable(str(fault))}", soft_wrap=True)
    if faults:
        console.print(f"[bold red]{counted(len(faults), 'fault')}[/]")


def terminal(*, stderr: bool = False) -> Console:
    """Return rich's console for stdout or stderr; in a pipe it does not fold lines."""
    from rich.console import Console

    seen = (sys.stderr if stderr else sys.stdout).isatty() or "COLUMNS" in os.environ
    return Console(stderr=stderr, highlight=False, width=None if seen else _PIPED_WIDTH)


def label_grid() -> Table:
    """Return an empty grid for labels and their values."""
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


def printable(text: str | None) -> str:
    """Return text that is safe for the terminal, with rich's markup and control characters escaped."""
    from rich.markup import escape

    if text is None:
        return "[dim]none[/]"
    return escape("".join(each if each.isprintable() else f"\\x{ord(each):02x}" for each in text))


def size_text(count: int) -> str:
    """Return an amount of bytes as text."""
    return f"{count:,} B" if count < _MEBIBYTE else f"{count / _MEBIBYTE:,.1f} MiB"
