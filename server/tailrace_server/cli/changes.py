"""``tailrace changes``: print a range of a catalog's history, in either direction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tailrace.errors import InvalidRequest, TailraceError
from tailrace_server.cli.terminal.capture_lines import Shown, form_for_stdout
from tailrace_server.cli.terminal.options import (
    CURSOR,
    MOMENT,
    UNTIL,
    CatalogOptions,
    ConditionFilterOptions,
    FormOptions,
    ServerOptions,
    StartOptions,
    one_of_given,
    wait_for_option,
    wait_option,
)
from tailrace_server.cli.terminal.output import clock_text, note, note_unknown_changes
from tailrace_server.cli.terminal.signals import run
from tailrace_server.cli.terminal.times import time_of
from tailrace_server.option_fields import FLAG, OptionForm, option, whole
from tailrace_server.units import parse_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.capture import Capture
    from tailrace.cursor import Cursor
    from tailrace.position import Position, TimestampMicros
    from tailrace.reads.history import History
    from tailrace_server.cli.terminal.capture_lines import OutputForm

_RANGE: Final = "Which part of the history"
_LINES: Final = 256
"""Number of captures that are rendered before a write; history is read for throughput, not for latency."""


def _age(flag: str, text: str) -> TimestampMicros:
    """Return the time that is an age before now. An age without a unit is refused as ambiguous."""
    try:
        parse_seconds(text)
    except ValueError:
        raise InvalidRequest(f"{flag} {text!r}: write 15m, 2h or 1d") from None
    if not text.strip()[-1:].isalpha():
        raise InvalidRequest(f"{flag} {text!r} has no unit; write {text}m for minutes, or s, h, d")
    return time_of(text, flag)


@dataclass(frozen=True, kw_only=True)
class RangeOptions:
    """The end of a range of history, the order of reading, and the version to wait for."""

    until: Position | int | None = option(
        "--until", "Last version (and record) to read, inclusive.", UNTIL, None, panel=_RANGE
    )
    before: Cursor | None = option(
        "--before", "Cursor to read up to, exclusive.", CURSOR, None, panel=_RANGE
    )
    to_time: TimestampMicros | None = option(
        "--to-time",
        "Time to read up to, exclusive; written as for --from-time.",
        MOMENT,
        None,
        panel=_RANGE,
    )
    last: TimestampMicros | None = option(
        "--last",
        "Only changes of this last period: 15m, 2h, 1d.",
        OptionForm(kind=str, parse=_age, metavar="AGE"),
        None,
        panel=_RANGE,
    )
    limit: int | None = option(
        "--limit", "Print at most N records.", whole(1, "N"), None, panel=_RANGE
    )
    reverse: bool = option("--reverse", "Print the newest change first.", FLAG, False, panel=_RANGE)
    wait_for: int | None = wait_for_option(_RANGE)
    wait_s: float = wait_option(_RANGE)


def changes(
    source: CatalogOptions,
    filters: ConditionFilterOptions,
    start: StartOptions,
    part: RangeOptions,
    form: FormOptions,
    server: ServerOptions,
) -> int:
    """Show the changes in a range of history, by versions, cursors or times.

    Without bounds the range is everything that is kept and published now.
    Both directions show the same records.
    """
    begin = start.arguments(last=part.last)
    if "last" in begin:
        begin = {"from_time": begin["last"]}
    bounds = {"until": part.until, "before": part.before, "to_time": part.to_time}
    arguments = {
        **begin,
        **one_of_given("end", bounds),
        "criteria": filters.criteria(leads=form.leads),
        "content": form.body,
        "decoded": form.decoded,
        "reverse": part.reverse,
        "limit": part.limit,
        "wait_for": part.wait_for,
        "wait_s": part.wait_s,
    }
    output = form_for_stdout(form.body, as_json=form.as_json)
    return run(_changes(server, source.catalog, arguments, output))


async def _changes(
    server: ServerOptions, catalog: str, arguments: Mapping[str, Any], output: OutputForm
) -> int:
    shown = Shown(output)
    onward = "--before" if arguments["reverse"] else "--after"
    async with (
        server.connect() as client,
        client.read_changes(catalog, **arguments) as history,
    ):
        if history.header.truncated:
            note(
                f"older changes are no longer in the log; the output begins at {history.header.oldest}"
            )
        note_unknown_changes(history.header.unknown_changes)
        output.learn(await client.get_schema(catalog))
        try:
            await _show(history, shown)
        except BaseException:
            # Also at Ctrl-C: say where to continue, since part of the range was printed.
            if shown.cursor is not None:
                note(f"printed {shown.count:,}; to continue: {onward} {shown.cursor}")
            raise
        end = history.end
        closed = history.header.closed_until
        until = f"; complete up to {clock_text(closed)}" if closed else ""
        what = "older changes" if arguments["reverse"] else "more"
        more = f"; {what} follow; to continue: {onward} {end.next_cursor}" if end.has_next else ""
        note(f"printed {shown.count:,}, of versions up to {history.header.anchor}{until}{more}")
    return 0


async def _show(history: History, shown: Shown) -> None:
    """Print the captures of a read, in groups of lines. If the read breaks, print those that came before."""
    lines: list[Capture] = []
    try:
        async for capture in history:
            lines.append(capture)
            if len(lines) == _LINES:
                taken, lines = lines, []
                await shown.captures(taken)
    except TailraceError:
        await shown.captures(lines)
        raise
    await shown.captures(lines)
