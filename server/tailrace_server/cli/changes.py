"""``tailrace changes``: read a closed range of a catalog's history, in either direction, and end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from tailrace.errors import InvalidRequest, TailraceError
from tailrace_server.cli.terminal import options, times
from tailrace_server.cli.terminal.capture_lines import Shown, form_for_stdout
from tailrace_server.cli.terminal.declared import Option
from tailrace_server.cli.terminal.output import clock_text, note, note_unknown_changes
from tailrace_server.cli.terminal.signals import run
from tailrace_server.units import parse_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.capture import Capture
    from tailrace.reads.history import History
    from tailrace_server.cli.terminal.capture_lines import OutputForm

_RANGE: Final = "Which part of the history"
_LINES: Final = 256
"""Captures that are rendered before a write: history is read to be read on, not waited for."""


def changes(
    catalog: options.Catalog,
    server: options.Server = options.DEFAULT_SERVER,
    token_file: options.TokenFile = None,
    entity_type: options.EntityTypes = None,
    key: options.Keys = None,
    operation: options.Operations = None,
    area: options.AreaName = None,
    column: options.ColumnNames = None,
    where: options.Where = None,
    param: options.Parameters = None,
    since: options.SincePosition = None,
    after: options.AfterCursor = None,
    from_time: options.FromTimeText = None,
    until: Annotated[
        str | None,
        Option(
            "--until",
            metavar="V[:INDEX]",
            help="Up to this version (and record), inclusive.",
            panel=_RANGE,
        ),
    ] = None,
    before: Annotated[
        str | None,
        Option(
            "--before",
            metavar="CURSOR",
            help="Up to this cursor, exclusive.",
            panel=_RANGE,
        ),
    ] = None,
    to_time: Annotated[
        str | None,
        Option(
            "--to-time",
            metavar="T",
            help="Up to this time, exclusive; written as --from-time.",
            panel=_RANGE,
        ),
    ] = None,
    last: Annotated[
        str | None,
        Option("--last", metavar="AGE", help="The last 15m, 2h, 1d.", panel=_RANGE),
    ] = None,
    limit: Annotated[
        int | None,
        Option("--limit", metavar="N", least=1, help="N records at most.", panel=_RANGE),
    ] = None,
    reverse: Annotated[bool, Option("--reverse", help="Newest first.", panel=_RANGE)] = False,
    wait_for: Annotated[
        int | None,
        Option(
            "--wait-for",
            metavar="V",
            least=0,
            help="Wait until this version is published.",
            panel=_RANGE,
        ),
    ] = None,
    wait: Annotated[
        str,
        Option(
            "--wait",
            metavar="TIME",
            help="How long to wait for it: 500ms, 30s, 5m.",
            panel=_RANGE,
        ),
    ] = "10s",
    body: options.Bodies = "all",
    values: options.Values = None,
    as_json: options.AsJson = False,
    leads: options.WithLeads = False,
    tls: options.WithTls = False,
    tls_ca: options.TlsCa = None,
    tls_certificate: options.TlsCertificate = None,
    tls_key: options.TlsKey = None,
) -> int:
    """Show what changed in a closed range: by version, cursor or time.

    Without bounds it is all that is kept and published now. Both
    directions show the same records.
    """
    if last is not None:
        others = {"--since": since, "--after": after, "--from-time": from_time}
        for name, value in others.items():
            if value is not None:
                raise InvalidRequest(f"--last and {name} both say where to begin; give one of them")
        from_time = _age(last)
    content = options.content_of(body)
    arguments: dict[str, Any] = {
        **options.start_arguments(options.start_of(since, after, from_time)),
        **_upper(until, before, to_time),
        "criteria": options.criteria_of(
            entity_types=entity_type,
            keys=key,
            operations=operation,
            area=area,
            columns=column,
            leads=leads,
            where=where,
            parameters=param,
        ),
        "content": content,
        "decoded": options.decoded_of(values, as_json=as_json),
        "reverse": reverse,
        "limit": limit,
        "wait_for": wait_for,
        "wait_s": times.wait_s(wait),
    }
    form = form_for_stdout(content, as_json=as_json)
    return run(
        _changes(
            options.server_of(
                server,
                tls=tls,
                ca=tls_ca,
                certificate=tls_certificate,
                key=tls_key,
                token_file=token_file,
            ),
            catalog,
            arguments,
            form,
        )
    )


async def _changes(
    server: options.ServerOptions, catalog: str, arguments: Mapping[str, Any], form: OutputForm
) -> int:
    shown = Shown(form)
    onward = "--before" if arguments["reverse"] else "--after"
    async with (
        server.connect() as client,
        client.read_changes(catalog, **arguments) as history,
    ):
        if history.header.truncated:
            note(f"older changes are no longer kept; this begins at {history.header.oldest}")
        note_unknown_changes(history.header.unknown_changes)
        form.learn(await client.get_schema(catalog))
        try:
            await _show(history, shown)
        except BaseException:
            if shown.cursor is not None:
                note(f"{shown.count:,} shown; go on with {onward} {shown.cursor}")
            raise
        end = history.end
        closed = history.header.closed_until
        until = f"; complete up to {clock_text(closed)}" if closed else ""
        what = "older ones" if arguments["reverse"] else "more"
        more = f"; {what} follow: go on with {onward} {end.next_cursor}" if end.has_next else ""
        note(f"{shown.count:,} shown, of versions up to {history.header.anchor}{until}{more}")
    return 0


async def _show(history: History, shown: Shown) -> None:
    """Show a read, some lines at a time; where it breaks, what came before that, too."""
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


def _age(text: str) -> str:
    """Return a length of time, checked. One without a unit is refused as ambiguous."""
    try:
        parse_seconds(text)
    except ValueError:
        raise InvalidRequest(f"--last {text!r}: write 15m, 2h or 1d") from None
    if not text.strip()[-1:].isalpha():
        raise InvalidRequest(f"--last {text!r} has no unit; write {text}m for minutes, or s, h, d")
    return text


def _upper(until: str | None, before: str | None, to_time: str | None) -> dict[str, Any]:
    """Return the upper bound as the client takes it.

    Raises:
        InvalidRequest: More than one is given, or one is not of its form.
    """
    from tailrace.cursor import Cursor

    given = {"--until": until, "--before": before, "--to-time": to_time}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise InvalidRequest(f"{' and '.join(names)} both say where to end; give one of them")
    if until is not None:
        position = options.position_of(until, "--until")
        return {"until": position if ":" in until else position.version}
    if before is not None:
        return {"before": Cursor.parse(before)}
    return {} if to_time is None else {"to_time": times.time_of(to_time, "--to-time")}
