"""``tailrace catalog``: list, create and drop catalogs, show and change their settings, and remove a gate."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tailrace.errors import CatalogUnknown, InvalidRequest, LogError
from tailrace.position import TimestampMicros
from tailrace.schema import Catalog
from tailrace_server.cli.terminal.errors import DONE, FAILED, complain, describe, status_of
from tailrace_server.cli.terminal.listings import print_json, print_table
from tailrace_server.cli.terminal.options import ServerOptions
from tailrace_server.cli.terminal.output import date_text, note, printable
from tailrace_server.cli.terminal.typer_options import (
    AsJson,
    LogInsteadOfServer,
    LogRoot,
    with_options,
)
from tailrace_server.units import counted, format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tailrace_server.wal.sequences.settings import CatalogSettings
    from tailrace_server.wal.state.commit_log import CommitLog
    from tailrace_server.wal.upkeep.keeping import Excess, Keeping

app = typer.Typer(no_args_is_help=True, help="The catalogs of a log root or a server.")

CatalogName = Annotated[
    str, typer.Argument(metavar="CATALOG", help="Name of the catalog.", show_default=False)
]
_ASSIGNED: Final = (
    "max_lookback=7d: versions younger than this are never trimmed, older ones are trimmed "
    "automatically. max_bytes=200GiB: without a lookback, the oldest versions are trimmed when "
    "the records have more bytes."
)
_OF_TYPE: Final = " For an entity type, bodies=3d: older records keep only their heads."
EntityType = Annotated[
    str | None,
    typer.Option(
        "--entity-type",
        metavar="TYPE",
        help="Apply to this entity type instead of the whole catalog.",
    ),
]


@app.command()
def create(
    name: CatalogName,
    log: LogRoot,
    assignments: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=VALUE …", help=_ASSIGNED, show_default=False),
    ] = None,
) -> int:
    """Create an empty catalog, with settings if they are given. Writers create one too, without settings."""
    from tailrace_server.wal.catalog import create_catalog, list_catalogs

    settings = _assigned(assignments or ())
    if name in list_catalogs(log):
        raise InvalidRequest(
            f"catalog {name!r} already exists; use tailrace catalog set to change its settings"
        )
    note(f"created {name} ({create_catalog(log, name, settings=settings)})")
    return 0


@app.command("set")
def set_(
    name: CatalogName,
    assignments: Annotated[
        list[str],
        typer.Argument(metavar="NAME=VALUE …", help=_ASSIGNED + _OF_TYPE, show_default=False),
    ],
    log: LogRoot,
    entity_type: EntityType = None,
) -> int:
    """Set how long and how much of a catalog's log is kept. Writers and servers apply it by themselves.

    A running writer, such as an ingest, trims the log within a minute of its
    next publication. If no writer runs, run tailrace log trim, for example by
    cron.
    """
    of_type = entity_type is not None
    return _change(name, log, dict(_assigned(assignments, of_type=of_type)), entity_type)


@app.command()
def unset(
    name: CatalogName,
    settings: Annotated[
        list[str],
        typer.Argument(metavar="NAME …", help="Name of the setting to remove.", show_default=False),
    ],
    log: LogRoot,
    entity_type: EntityType = None,
) -> int:
    """Remove settings of a catalog. Without settings its log keeps everything."""
    from tailrace_server.wal.sequences.settings import setting

    of_type = entity_type is not None
    names = [setting(each, of_type=of_type).name for each in settings]
    return _change(name, log, dict.fromkeys(names), entity_type)


@app.command()
def show(name: CatalogName, log: LogRoot, as_json: AsJson = False) -> int:
    """Show a catalog's settings, and how its log compares to them."""
    from tailrace.clock import SystemClock
    from tailrace_server.wal.sequences.settings import newest_settings
    from tailrace_server.wal.upkeep.keeping import judge

    opened = _opened(log, name)
    known = newest_settings(opened.store, opened.uuid)
    now = SystemClock().now()
    verdict, excess = judge(opened.view, known.settings, now), _excess(opened, known, now)
    if as_json:
        view = opened.view
        document: dict[str, Any] = {
            "name": name,
            "uuid": str(view.uuid),
            "oldest": str(view.oldest),
            "oldestTimestamp": view.known_timestamp_of(view.oldest.version) or None,
            "bytes": verdict.bytes,
            "bytesOver": 0 if excess is None else excess.bytes_over,
            "tooLarge": None if excess is None else str(excess),
            "settings": dict(known.settings),
            "entityTypes": {
                each: {
                    "settings": dict(of),
                    "bodiesFrom": view.bodies.by_name(view.published).get(each),
                }
                for each, of in _types(opened, known).items()
            },
        }
        print_json(document)
        return 0
    _echo(_lines(opened, known, verdict, excess))
    return 0


def _change(
    name: str, root: Path, changes: Mapping[str, int | None], entity_type: str | None
) -> int:
    from tailrace.clock import SystemClock
    from tailrace_server.wal.sequences.settings import change_settings, newest_settings
    from tailrace_server.wal.upkeep.keeping import judge

    opened, now = _opened(root, name), SystemClock().now()
    before = newest_settings(opened.store, opened.uuid)
    known = change_settings(opened.store, opened.view, changes, now, entity_type=entity_type)
    if known.number == before.number:
        note("it already has this value; nothing was changed")
    verdict, excess = judge(opened.view, known.settings, now), _excess(opened, known, now)
    _echo(_lines(opened, known, verdict, excess))
    return 0


def _excess(log: CommitLog, known: CatalogSettings, now: int) -> Excess | None:
    """Return by how much a log exceeds its settings at a time in µs; None if it does not."""
    from tailrace_server.wal.sequences.subscriptions import SubscriptionSequences
    from tailrace_server.wal.upkeep.keeping import excess_of

    named = SubscriptionSequences(log.path, log.uuid).all()
    return excess_of(log.view, known.settings, named, now)


def _opened(root: Path, name: str) -> CommitLog:
    """Open a catalog below a log root.

    Raises:
        CatalogUnknown: There is no catalog of that name.
    """
    from tailrace_server.log_root import check_log_root
    from tailrace_server.wal.catalog import list_catalogs, open_catalog

    check_log_root(root)
    known = list_catalogs(root)
    if name not in known:
        raise CatalogUnknown(name, known)
    return open_catalog(root, name)


def _types(log: CommitLog, known: CatalogSettings) -> dict[str, Mapping[str, int]]:
    """Return the entity types that have settings or have lost bodies, each with its settings."""
    view = log.view
    none: Mapping[str, int] = {}
    return dict.fromkeys(view.bodies.by_name(view.published), none) | known.by_type(view)


def _assigned(assignments: Sequence[str], *, of_type: bool = False) -> dict[str, int]:
    """Parse ``NAME=VALUE`` texts into settings; ``of_type``: settings of an entity type.

    Raises:
        InvalidRequest: A text has another form, a name is unknown or occurs twice, or a value is invalid.
    """
    from tailrace_server.wal.sequences.settings import setting

    found: dict[str, int] = {}
    for each in assignments:
        name, equals, value = each.partition("=")
        if not equals:
            example = "bodies=3d" if of_type else "max_lookback=7d"
            raise InvalidRequest(f"{each!r}: write NAME=VALUE, such as {example}")
        kind = setting(name.strip(), of_type=of_type)
        if kind.name in found:
            raise InvalidRequest(f"{kind.name} is given twice; give it once")
        found[kind.name] = kind.parsed(value)
    return found


def _echo(lines: Sequence[tuple[str, str]]) -> None:
    width = max(len(label) for label, _ in lines)
    for label, text in lines:
        typer.echo(f"{label.rjust(width)}  {text}")


def _lines(
    log: CommitLog, known: CatalogSettings, verdict: Keeping, excess: Excess | None
) -> list[tuple[str, str]]:
    """Return the lines that describe a catalog, each as label and text."""
    from tailrace_server.wal.sequences.settings import OF_CATALOG, OF_ENTITY_TYPE

    view, settings = log.view, known.settings
    since = view.known_timestamp_of(view.oldest.version)
    lines = [
        ("catalog", f"{view.name}  {view.uuid}"),
        (
            "oldest retained",
            f"{view.oldest}, committed {date_text(since)}" if since else str(view.oldest),
        ),
        ("records", f"{format_bytes(verdict.bytes)} bytes" if verdict.bytes else "none"),
    ]
    for name, kind in OF_CATALOG.items():
        value = settings.get(name)
        lines.append((name, "not set" if value is None else kind.shown(value)))
    lines += [
        (name, f"{settings[name]}  (a setting of a newer tailrace)")
        for name in settings
        if name not in OF_CATALOG
    ]
    begins = view.bodies.by_name(view.published)
    for name, of_type in _types(log, known).items():
        shown = [
            f"{key}={OF_ENTITY_TYPE[key].shown(value)}"
            for key, value in of_type.items()
            if key in OF_ENTITY_TYPE
        ]
        shown += [f"only heads below version {begins[name]:,}"] if name in begins else []
        lines.append((name, ", ".join(shown)))
    if verdict.due:
        lines.append(
            (
                "due",
                f"trim to version {verdict.before:,}, by the next writer or tailrace log trim",
            )
        )
    if excess is not None:
        lines.append(("too large", str(excess)))
    return lines


@app.command("list")
@with_options
def list_(server: ServerOptions, log: LogInsteadOfServer = None, as_json: AsJson = False) -> int:
    """List the catalogs, with the newest committed and published version of each."""
    if log is not None:
        catalogs, unreadable = _catalogs_in(log)
        reasons = {name: describe(error) for name, error in unreadable.items()}
        _show(catalogs, reasons, as_json=as_json)
        return max(map(status_of, unreadable.values()), default=DONE)
    from tailrace_server.cli.terminal.signals import run

    return run(_list(server, as_json=as_json))


@app.command()
def drop(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the catalog.")],
    log: LogRoot,
    yes: Annotated[bool, typer.Option("--yes", help="Drop without confirmation.")] = False,
) -> int:
    """Drop a catalog with its whole log; its subscriptions end with CatalogReplaced.

    There is no way back.
    """
    from tailrace_server.wal.catalog import drop_catalog, list_catalogs, read_catalog

    known = list_catalogs(log)
    if name not in known:
        raise CatalogUnknown(name, known)
    uuid = read_catalog(log / name).uuid
    if not yes:
        # In a script there is nobody who could confirm: dropping without --yes must not hang or succeed.
        if not sys.stdin.isatty():
            raise InvalidRequest(f"catalog drop {name}: no terminal to confirm at; add --yes")
        typer.confirm(f"Drop catalog {name!r} ({uuid}) in {log} with its whole log?", abort=True)
    drop_catalog(log, name)
    note(f"dropped {name} ({uuid})")
    return 0


@app.command()
def gate(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the catalog.")],
    log: LogRoot,
    remove: Annotated[
        bool,
        typer.Option(
            "--remove", help="Remove the gate, and publish the versions that wait for it."
        ),
    ] = False,
) -> int:
    """Show the gate that publication of a catalog waits for, or remove it.

    An export sets the gate (export delta --gate). It remains when the export
    ends: nothing is published until the export runs again or the gate is removed.
    """
    from tailrace.clock import SystemClock
    from tailrace_server.wal.catalog import open_catalog
    from tailrace_server.wal.gate import take_away_gate

    opened = open_catalog(log, name)
    shown = opened.gate
    if not shown:
        note(f"catalog {name} has no gate: commits are published by their writers")
        return DONE
    if remove:
        before = opened.state.published
        take_away_gate(opened, SystemClock())
        count = opened.state.published - before
        note(f"removed the gate {printable(shown)}; {counted(count, 'version')} published")
        return DONE
    published, committed = opened.state.published, opened.state.last_version
    waiting = (
        f"versions {published + 1:,} to {committed:,} wait"
        if committed > published
        else "no version waits"
    )
    note(f"publication of {name} waits for {printable(shown)}: {waiting}")
    return DONE


async def _list(server: ServerOptions, *, as_json: bool) -> int:
    async with server.connect() as client:
        catalogs, unreadable = await client.list_catalogs(), await client.list_unreadable()
    _show(catalogs, unreadable, as_json=as_json)
    return FAILED if unreadable else DONE


def _catalogs_in(root: Path) -> tuple[list[Catalog], dict[str, LogError]]:
    """Read the catalogs below a log root; return them, and the errors of those that cannot be read, by name."""
    from tailrace_server.log_root import check_log_root
    from tailrace_server.wal.catalog import list_catalogs, open_catalog

    check_log_root(root)
    catalogs: list[Catalog] = []
    unreadable: dict[str, LogError] = {}
    for name in list_catalogs(root):
        try:
            view = open_catalog(root, name).view
        except LogError as error:
            unreadable[name] = error
            continue
        catalogs.append(
            Catalog(
                name=view.name,
                uuid=view.uuid,
                oldest=view.oldest,
                published=view.published,
                committed=view.committed,
                newest_timestamp=TimestampMicros(view.newest_timestamp),
            )
        )
    return catalogs, unreadable


def _show(catalogs: Sequence[Catalog], unreadable: Mapping[str, str], *, as_json: bool) -> None:
    """Print catalogs, and an error line for each that cannot be read."""
    if catalogs or not unreadable:
        _list_catalogs(catalogs, as_json=as_json)
    for name, reason in unreadable.items():
        complain(f"catalog {name!r}: {reason}")


def _list_catalogs(catalogs: Sequence[Catalog], *, as_json: bool) -> None:
    if as_json:
        for each in catalogs:
            fields = {
                "name": each.name,
                "uuid": str(each.uuid),
                "oldest": str(each.oldest),
                "publishedVersion": each.published,
                "committedVersion": each.committed,
                "newestTimestamp": each.newest_timestamp,
            }
            print_json(fields)
        return
    if not catalogs:
        note("no catalogs yet")
        return
    rows = [("NAME", "PUBLISHED", "COMMITTED", "OLDEST", "NEWEST", "UUID")] + [
        (
            each.name,
            f"{each.published:,}",
            f"{each.committed:,}",
            str(each.oldest),
            date_text(each.newest_timestamp) if each.newest_timestamp else "-",
            str(each.uuid),
        )
        for each in catalogs
    ]
    print_table(rows, numbers=(1, 2))
