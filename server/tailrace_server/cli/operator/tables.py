"""The figures of a server as tables, for terminals of any width.

Each column has a rank. If a table is too wide, columns of the highest rank are left out until the rest fits.
Texts that are longer than their column are cut. Control characters in foreign names (keys, programs) are
escaped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from tailrace_server.cli.terminal.output import clock_text, printable
from tailrace_server.units import counted, duration

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rich.console import RenderableType

Row = dict[str, Any]
_GAP: Final = 2
_DASH: Final = "–"
_LINES_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class _ShownColumn:
    """One column of a table."""

    head: str
    say: Callable[[Row], str]
    width_max: int = 12
    """Maximum width in cells; 0 takes the rest of the line."""
    rank: int = 0
    """Rank for leaving out: columns of the highest rank are left out first, those of rank 0 never."""
    is_number: bool = False


def amount(value: int | None) -> str:
    """Return an amount of bytes, rounded to three digits."""
    if value is None:
        return _DASH
    size = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"


def _number(name: str) -> Callable[[Row], str]:
    return lambda row: _DASH if row.get(name) is None else f"{row[name]:,}"


def _text(name: str) -> Callable[[Row], str]:
    return lambda row: printable(str(row.get(name) or ""))


def _age(name: str) -> Callable[[Row], str]:
    return lambda row: _DASH if row.get(name) is None else duration(row[name])


def _rate(row: Row) -> str:
    value = row.get("records_per_s")
    return _DASH if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _writer(row: Row) -> str:
    writers = row.get("writers")
    if not writers:
        return _DASH
    newest = writers[0]
    host = f" on {newest['host']}" if newest["host"] else ""
    return printable(f"{newest['name']}{host}, batch {newest['batch']:,}")


def _cpu(row: Row) -> str:
    value = row.get("conditions_cpu_s")
    return duration(value) if value else _DASH


def _read_for_filter(row: Row) -> str:
    value = row.get("conditions_image_bytes")
    return amount(value) if value else _DASH


def _who(row: Row) -> str:
    return printable(row["principal"] if row["principal"] != "anonymous" else row["peer"]) or _DASH


_CATALOG: Final = (
    _ShownColumn("CATALOG", _text("catalog"), 24),
    _ShownColumn("PUBLISHED", _number("published"), is_number=True),
    _ShownColumn("COMMITTED", _number("committed"), rank=2, is_number=True),
    _ShownColumn("NEWEST", _age("newest_age_s"), 10, is_number=True),
    _ShownColumn("RECORDS/S", _rate, is_number=True),
    _ShownColumn("OLDEST", _text("oldest"), rank=1),
    _ShownColumn("SIZE", lambda row: amount(row.get("log_bytes")), is_number=True),
    _ShownColumn("SUBSCRIBERS", _number("subscriptions"), is_number=True),
    _ShownColumn("WRITER", _writer, 0, rank=3),
)
_SUBSCRIPTION: Final = (
    _ShownColumn("BEHIND", _number("lag_records"), is_number=True),
    _ShownColumn("LAG", _age("lag_s"), 9, is_number=True),
    _ShownColumn("MODE", _text("mode"), 6),
    _ShownColumn("CATALOG", _text("catalog"), 12),
    _ShownColumn("WHO", _who, 24),
    _ShownColumn("TRANSPORT", _text("transport"), 17, rank=2),
    _ShownColumn("DELIVERED", _number("delivered"), rank=1, is_number=True),
    _ShownColumn("DEMAND", _number("demand"), 10, rank=3, is_number=True),
    _ShownColumn("RESYNCS", _number("resyncs"), 7, rank=4, is_number=True),
    _ShownColumn("AGE", _age("age_s"), 9, rank=5, is_number=True),
    _ShownColumn("CLIENT", _text("client"), 22, rank=6),
    _ShownColumn("ASKED FOR", _text("criteria_text"), 0),
)
_PUBLISHER: Final = (
    _ShownColumn("SUBSCRIBERS", _number("subscriptions"), is_number=True),
    _ShownColumn("CATALOG", _text("catalog"), 16),
    _ShownColumn("RING", lambda row: amount(row["ring_bytes"]), is_number=True),
    _ShownColumn("KEYS KEEP", lambda row: amount(row["criteria_bytes"]), is_number=True),
    _ShownColumn("EVICTED", _number("ring_evicted"), is_number=True),
    _ShownColumn("FILTER CPU", _cpu, rank=1, is_number=True),
    _ShownColumn("FILTER READ", _read_for_filter, rank=2, is_number=True),
    _ShownColumn("CRITERIA", _text("criteria_text"), 0),
)
_FLEXIBLE_MIN: Final = 14
"""Minimum width of the column that takes the rest of the line, in cells; with less, another column is left
out."""


def shown(found: Mapping[str, Any], where: str, width: int, rows: int | None = None) -> Group:
    """Return all figures as one renderable of rich.

    Args:
        found: The answer of the server.
        where: The address of the server, for the first line.
        width: Width of the terminal, in cells.
        rows: Lines of the terminal; None = no limit. If they do not suffice, publishers and subscribers are
            cut.
    """
    parts: list[RenderableType] = [*_head(found, where)]
    lines = len(parts) + len(found["faults"])
    parts += [_fault(each) for each in found["faults"]]
    parts += ["", _table(_CATALOG, found["catalogs"], width)]
    lines += 2 + max(1, len(found["catalogs"]))
    publishers, subscriptions = found["publishers"], found["subscriptions"]
    warnings = found["lines"][:_LINES_SHOWN]
    if rows is not None:
        # Headings and blank lines take seven lines. Of the rest, publishers get at most a quarter.
        room = max(2, rows - lines - len(warnings) - 7)
        publishers = publishers[: max(1, room // 4)]
        subscriptions = subscriptions[: max(1, room - max(1, len(publishers)))]
    parts += ["", _title("subscribers", len(subscriptions), found["counters"]["subscriptions"])]
    if subscriptions:
        parts.append(_table(_SUBSCRIPTION, subscriptions, width))
    total = sum(each.get("publishers", 0) for each in found["catalogs"])
    parts += ["", _title("publishers", len(publishers), max(total, len(publishers)))]
    if publishers:
        parts.append(_table(_PUBLISHER, publishers, width))
    if warnings:
        parts += ["", *(_line(each) for each in warnings)]
    return Group(*parts)


def _head(found: Mapping[str, Any], where: str) -> list[Text]:
    status, memory, counters = found["status"], found["memory"], found["counters"]
    first = Text.assemble(
        (where, "bold"),
        "  ",
        (status, "green" if status == "serving" else "bold yellow"),
        f"  {found['version']}, up {duration(found['up_s'])}",
        no_wrap=True,
        overflow="ellipsis",
    )
    accounts = [
        f"{each['name']} {amount(each['bytes'])}" for each in memory["accounts"] if each["bytes"]
    ]
    second = Text(
        f"memory {amount(memory['process_bytes'])} of {amount(memory['budget_bytes'])} "
        f"({', '.join(accounts)})",
        no_wrap=True,
        overflow="ellipsis",
    )
    third = Text(
        f"{counters['captures_delivered']:,} captures delivered, "
        f"{counted(counters['resyncs'], 'resync')}",
        no_wrap=True,
        overflow="ellipsis",
    )
    return [first, second, third]


def _fault(fault: Mapping[str, str]) -> Text:
    return Text.assemble(
        (f"{printable(fault['subject'])}: {fault['kind']} ", "bold red"), printable(fault["reason"])
    )


def _title(what: str, shown_count: int, total: int) -> Text:
    which = "" if shown_count >= total else f"; {shown_count:,} of them below"
    return Text(f"{total:,} {what if total != 1 else what[:-1]}{which}", "bold")


def _line(line: Mapping[str, Any]) -> Text:
    fields = "  ".join(f"{name}={value}" for name, value in line["fields"].items())
    return Text.assemble(
        (clock_text(line["timestamp"])[:8], "bright_black"),
        " ",
        (line["level"], "yellow" if line["level"] == "warning" else "bold red"),
        f" {printable(line['event'])}  ",
        (printable(fields), "bright_black"),
        no_wrap=True,
        overflow="ellipsis",
    )


def _table(columns: Sequence[_ShownColumn], rows: Sequence[Row], width: int) -> Table:
    cells = {each: [each.say(row) for row in rows] for each in columns}
    # Fixed columns get what they need; the flexible one gets the rest of the line.
    kept = _fitting(columns, cells, width)
    left = width - sum(_needed(each, cells[each]) + _GAP for each in kept if each.width_max)
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bright_black")
    for each in kept:
        # Set exact widths: if a table were too wide, rich would shorten every column a bit.
        table.add_column(
            each.head,
            justify="right" if each.is_number else "left",
            no_wrap=True,
            overflow="ellipsis",
            width=_needed(each, cells[each]) if each.width_max else max(left, _FLEXIBLE_MIN),
        )
    for place in range(len(rows)):
        table.add_row(*(Text(cells[each][place]) for each in kept))
    return table


def _fitting(
    columns: Sequence[_ShownColumn], cells: Mapping[_ShownColumn, Sequence[str]], width: int
) -> list[_ShownColumn]:
    """Return the columns that fit into a width, in their order."""
    # Drop one column at a time, the highest rank first, until the rest fits or only rank 0 is left.
    kept = list(columns)
    while sum(_needed(each, cells[each]) + _GAP for each in kept) > width:
        dearest = max(kept, key=lambda each: each.rank)
        if not dearest.rank:
            break
        kept.remove(dearest)
    return kept


def _needed(column: _ShownColumn, cells: Sequence[str]) -> int:
    if not column.width_max:
        return max(_FLEXIBLE_MIN, len(column.head))
    longest = max(map(len, cells), default=0)
    return max(len(column.head), min(longest, column.width_max))
