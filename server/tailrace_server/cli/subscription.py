"""``tailrace subscription``: create named subscriptions, look at them, move, pause and delete them."""

from __future__ import annotations

import inspect
import re
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path  # noqa: TC003 - read by Typer
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from tailrace.errors import InvalidRequest
from tailrace.named import SubscriptionHealth
from tailrace_server.cli.subscription_access import AtServer, InFolder
from tailrace_server.cli.terminal import options, times
from tailrace_server.cli.terminal.output import date_text, note, printable
from tailrace_server.cli.terminal.signals import run
from tailrace_server.cli.terminal.typer_options import (
    AsJson,
    LogInsteadOfServer,
    Server,
    TlsCa,
    TlsCertificate,
    TlsKey,
    TokenFile,
    WithTls,
)
from tailrace_server.units import duration, format_bytes, format_seconds, parse_bytes, parse_seconds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from tailrace.criteria import Criteria
    from tailrace.named import NamedSubscription
    from tailrace_server.cli.subscription_access import SubscriptionsPlace


@dataclass(frozen=True, slots=True)
class Where:
    """The catalog that a command is about, and where it is found."""

    catalog: str
    log: Path | None
    server: options.ServerOptions | None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[SubscriptionsPlace]:
        """Open the folder, or a connection."""
        if self.log is not None:
            yield InFolder(self.log, self.catalog)
            return
        assert self.server is not None
        async with self.server.connect() as client:
            yield AtServer(client, self.catalog)


def _where(
    catalog: Annotated[
        str, typer.Option("--catalog", metavar="CATALOG", help="Name of the catalog.")
    ],
    log: LogInsteadOfServer = None,
    server: Server = options.DEFAULT_SERVER,
    token_file: TokenFile = None,
    tls: WithTls = False,
    tls_ca: TlsCa = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
) -> Where:
    """Return where a command looks; a folder needs no server."""
    if log is not None:
        return Where(catalog, log, None)
    asked = options.server_of(
        server, tls=tls, ca=tls_ca, certificate=tls_certificate, key=tls_key, token_file=token_file
    )
    return Where(catalog, None, asked)


def located(command: Callable[..., int]) -> Callable[..., int]:
    """Return a command that takes ``where`` as options: ``--catalog``, and ``--log`` or ``--server``."""
    own = inspect.signature(command, eval_str=True).parameters
    shared = inspect.signature(_where, eval_str=True).parameters

    @wraps(command)
    def with_options(**given: Any) -> int:
        where = _where(**{name: given.pop(name) for name in shared})
        return command(where=where, **given)

    # Typer calls by name, so that what has no default need not stand first.
    parameters = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for each in (*own.values(), *shared.values())
        if each.name != "where"
    ]
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_options


_HEALTH: Final = {
    SubscriptionHealth.HELD: "held",
    SubscriptionHealth.NOT_HELD: "not held",
    SubscriptionHealth.BROKEN: "hold broken",
    SubscriptionHealth.LOST: "lost",
}
_EXPLAINED: Final = {
    SubscriptionHealth.HELD: "what it needs is kept by retention",
    SubscriptionHealth.NOT_HELD: "the next trim may take what it needs",
    SubscriptionHealth.BROKEN: "a trim has broken its hold; what it needs is there still, but no longer kept",
    SubscriptionHealth.LOST: "the log has no longer what it needs: read the state, and go on behind it",
}


def show_table(found: Sequence[NamedSubscription]) -> None:
    """Print a line for each."""
    if not found:
        note("no named subscriptions yet")
        return
    rows = [("NAME", "NEXT", "BEHIND", "BYTES", "HOLD", "STATE", "TAKEN BY")]
    rows += [
        (
            each.name,
            str(each.needed),
            duration(each.age_s) if each.age_s else "-",
            f"{each.behind_bytes:,}",
            _hold(each),
            f"{_HEALTH[each.health]}{', paused' if each.paused else ''}",
            printable(each.reader) or "none yet",
        )
        for each in found
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        cells[3] = row[3].rjust(widths[3])
        typer.echo("  ".join(cells).rstrip())


def show_one(one: NamedSubscription) -> None:
    """Print all of one."""
    from tailrace_server.rows.criteria_form import in_words

    lines = (
        ("name", one.name),
        ("catalog", one.catalog),
        ("takes", printable(in_words(one.criteria))),
        (
            "next",
            f"{one.needed}, {duration(one.age_s)} old, {one.behind_bytes:,} bytes from there on"
            if one.age_s
            else f"{one.needed}, which is still to come",
        ),
        ("state", f"{_HEALTH[one.health]}: {_EXPLAINED[one.health]}"),
        ("hold", f"up to {_hold(one)}"),
        ("taken by", f"{printable(one.reader)} (epoch {one.epoch})" if one.epoch else "none yet"),
        ("paused", "yes: it takes no readers" if one.paused else "no"),
        ("owner", printable(one.owner) or "nobody in particular"),
        ("created", date_text(one.created)),
        ("moved", date_text(one.moved)),
        ("cursor", str(one.cursor)),
    )
    for name, text in lines:
        typer.echo(f"{name:>8}  {text}")


def print_lines(found: Sequence[NamedSubscription]) -> None:
    """Print each as a line of JSON."""
    import orjson

    from tailrace_server.rows.criteria_form import criteria_form

    for each in found:
        fields = {
            "name": each.name,
            "catalog": each.catalog,
            "criteria": criteria_form(each.criteria),
            "cursor": str(each.cursor),
            "needed": str(each.needed),
            "epoch": each.epoch,
            "reader": each.reader,
            "holdMs": round(each.hold_s * 1000),
            "holdBytes": each.hold_bytes,
            "ageMs": round(each.age_s * 1000),
            "behindBytes": each.behind_bytes,
            "health": each.health.name,
            "paused": each.paused,
            "owner": each.owner,
            "created": each.created,
            "moved": each.moved,
        }
        sys.stdout.buffer.write(orjson.dumps(fields) + b"\n")
    sys.stdout.buffer.flush()


def _hold(one: NamedSubscription) -> str:
    if not one.hold_s or not one.hold_bytes:
        return "nothing"
    return f"{format_seconds(one.hold_s)}, {format_bytes(one.hold_bytes)}"


app = typer.Typer(
    no_args_is_help=True,
    help="Named subscriptions: a reader's place, kept with the log, and what retention holds for it.",
)

_Amount = TypeVar("_Amount", int, float)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the subscription.")]
_PLACE: Final = (
    "earliest, latest, VERSION, VERSION:INDEX, or a time: 2026-05-04T10:30, or an age as 15m"
)
_AT_A_TIME: Final = re.compile(r"[0-9.]+[a-z]|[0-9]{4}-|[0-9]{15}")


@app.command()
@located
def create(
    where: Where,
    name: Name,
    entity_type: Annotated[
        list[str] | None, typer.Option("--entity-type", metavar="TYPE", help="Only this one.")
    ] = None,
    key: Annotated[
        list[str] | None, typer.Option("--key", metavar="KEY", help="Only this primary key.")
    ] = None,
    operation: Annotated[
        list[str] | None,
        typer.Option(
            "--operation", metavar="OP", help="Only upsert, remove, expire or transaction."
        ),
    ] = None,
    area: Annotated[
        str | None,
        typer.Option("--area", metavar="AREA", help="Only data, schema or infrastructure."),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option("--column", metavar="NAME", help="Only changes of this column."),
    ] = None,
    begin: Annotated[
        str, typer.Option("--from", metavar="PLACE", help=f"Where it begins: {_PLACE}.")
    ] = "latest",
    hold: Annotated[
        str | None,
        typer.Option(
            "--hold",
            metavar="TIME",
            help=r"How old a change may be that retention keeps for it: 12h, 3d; 0: none. \[default: 1d]",
        ),
    ] = None,
    hold_bytes: Annotated[
        str | None,
        typer.Option(
            "--hold-bytes",
            metavar="BYTES",
            help=r"How large the log may be that it keeps: 20GiB; 0: nothing. \[default: 10GiB]",
        ),
    ] = None,
) -> int:
    """Create a named subscription. By default it takes every change of rows and of the schema."""
    criteria = options.criteria_of(
        entity_types=entity_type,
        keys=key,
        operations=operation,
        area=area,
        columns=column,
        leads=False,
    )
    held_s = None if hold is None else _read("--hold", hold, parse_seconds)
    held_bytes = None if hold_bytes is None else _read("--hold-bytes", hold_bytes, parse_bytes)
    return run(_create(where, name, criteria, _place(begin, "--from"), held_s, held_bytes))


@app.command("list")
@located
def list_(where: Where, as_json: AsJson = False) -> int:
    """List the named subscriptions of a catalog, with how far their readers are behind."""
    return run(_list(where, as_json=as_json))


@app.command()
@located
def show(where: Where, name: Name, as_json: AsJson = False) -> int:
    """Show one named subscription in full."""
    return run(_show(where, name, as_json=as_json))


@app.command()
@located
def reset(
    where: Where,
    name: Name,
    to: Annotated[
        str, typer.Option("--to", metavar="PLACE", help=f"Where it continues: {_PLACE}.")
    ],
) -> int:
    """Move a named subscription to another place. A reader that it has is ended."""
    return run(_reset(where, name, _place(to, "--to")))


@app.command()
@located
def pause(where: Where, name: Name) -> int:
    """Let it take no readers; one that it has is ended. It keeps its place, and its hold up to the cap."""
    return run(_pause(where, name, paused=True))


@app.command()
@located
def resume(where: Where, name: Name) -> int:
    """Let it take readers again."""
    return run(_pause(where, name, paused=False))


@app.command()
@located
def delete(where: Where, name: Name) -> int:
    """Delete a named subscription with its place; what it held may go. A reader that it has is ended."""
    return run(_delete(where, name))


def _place(text: str, option: str) -> str:
    """Return a place as servers take it; a time gets a zone."""
    if not _AT_A_TIME.match(text):
        return text
    return times.datetime_of(text, option).isoformat()


async def _create(
    where: Where,
    name: str,
    criteria: tuple[Criteria, ...],
    begin: str,
    hold_s: float | None,
    hold_bytes: int | None,
) -> None:
    async with where.opened() as subscriptions:
        found = await subscriptions.create(name, criteria, begin, hold_s, hold_bytes)
    note(f"created {found.name}: it begins with {found.needed}")


async def _list(where: Where, *, as_json: bool) -> None:
    async with where.opened() as subscriptions:
        found = await subscriptions.all()
    (print_lines if as_json else show_table)(found)


async def _show(where: Where, name: str, *, as_json: bool) -> None:
    async with where.opened() as subscriptions:
        found = await subscriptions.get(name)
    if as_json:
        print_lines([found])
    else:
        show_one(found)


async def _reset(where: Where, name: str, to: str) -> None:
    async with where.opened() as subscriptions:
        found = await subscriptions.reset(name, to)
    note(f"{found.name} continues with {found.needed}")


async def _pause(where: Where, name: str, *, paused: bool) -> None:
    async with where.opened() as subscriptions:
        found = await subscriptions.pause(name, paused=paused)
    note(f"{found.name} {'is paused' if paused else 'takes readers again'}, next {found.needed}")


async def _delete(where: Where, name: str) -> None:
    async with where.opened() as subscriptions:
        await subscriptions.delete(name)
    note(f"deleted {name}")


def _read(option: str, text: str, parse: Callable[[object], _Amount]) -> _Amount:
    try:
        return parse(text)
    except ValueError as error:
        raise InvalidRequest(f"{option} {text!r}: {error}") from None
