"""``tailrace subscription``: create named subscriptions, look at them, move, pause and delete them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from tailrace.errors import InvalidRequest
from tailrace_server.cli import options, times
from tailrace_server.cli.output import note
from tailrace_server.cli.running import run
from tailrace_server.cli.subscriptions.located import Where, located
from tailrace_server.cli.subscriptions.shown import print_lines, show_one, show_table
from tailrace_server.cli.typed import AsJson
from tailrace_server.units import parse_bytes, parse_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.criteria import Criteria

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
