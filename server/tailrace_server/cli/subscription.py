"""``tailrace subscription``: create, list, move, pause and delete named subscriptions."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tailrace.errors import InvalidRequest
from tailrace.named import PLACE_WORDS, SubscriptionHealth
from tailrace.position import position_in
from tailrace_server.cli.subscription_access import InFolder
from tailrace_server.cli.terminal.listings import print_json, print_table
from tailrace_server.cli.terminal.options import FilterOptions, ServerOptions
from tailrace_server.cli.terminal.output import date_text, note, printable
from tailrace_server.cli.terminal.signals import run
from tailrace_server.cli.terminal.times import version_or_time
from tailrace_server.cli.terminal.typer_options import AsJson, with_options
from tailrace_server.option_fields import BYTES_OR_NONE, TIME, OptionForm, option, text
from tailrace_server.units import duration, format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from tailrace.client import Client
    from tailrace.criteria import Criteria
    from tailrace.named import NamedSubscription


app = typer.Typer(
    no_args_is_help=True,
    help=(
        "Named subscriptions: positions of readers, stored with the log, and the records that are "
        "held for them."
    ),
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the subscription.")]
_PLACES: Final = (
    "earliest, latest, VERSION, VERSION:INDEX, or a time: 2026-05-04T10:30, or an age as 15m"
)


def _place(flag: str, given: str) -> str:
    """Return a place in the form that servers accept; a time gets a time zone."""
    # "12:30" is a position here, version 12 and index 30; a time of day alone is not accepted.
    if given in PLACE_WORDS or (":" in given and position_in(given) is not None):
        return given
    try:
        found = version_or_time(given, flag)
    except InvalidRequest:
        raise InvalidRequest(f"{flag} {given!r} is not a position; write {_PLACES}") from None
    return str(found) if isinstance(found, int) else found.isoformat()


_PLACE: Final = OptionForm(kind=str, parse=_place, metavar="PLACE")


@dataclass(frozen=True, kw_only=True)
class WhereOptions(ServerOptions):
    """The catalog of named subscriptions, and its log root or server."""

    catalog: str = option("--catalog", "Name of the catalog.", text("CATALOG"))
    log: Path | None = option(
        "--log",
        "Read this log root instead of a server.",
        OptionForm(kind=Path, metavar="ROOT"),
        None,
    )

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Client | InFolder]:
        """Yield the log's folder or a connection to the server; both have the same methods."""
        if self.log is not None:
            yield InFolder(self.log)
            return
        async with self.connect() as client:
            yield client


@dataclass(frozen=True, kw_only=True)
class TermOptions:
    """The start of a named subscription, and the bounds of what is retained for it."""

    begin: str = option("--from", f"Start position: {_PLACES}.", _PLACE, "latest")
    hold_s: float | None = option(
        "--hold",
        "Age up to which changes are held for the subscription: 12h, 3d; 0: no hold. [default: 1d]",
        TIME,
        None,
    )
    hold_bytes: int | None = option(
        "--hold-bytes",
        "Largest size of the log that is held for the subscription: 20GiB; 0: no hold. [default: "
        "10GiB]",
        BYTES_OR_NONE,
        None,
    )


@dataclass(frozen=True, kw_only=True)
class ResetOptions:
    """The place to which a named subscription is moved."""

    to: str = option("--to", f"New position: {_PLACES}.", _PLACE)


@app.command()
@with_options
def create(name: Name, filters: FilterOptions, terms: TermOptions, where: WhereOptions) -> int:
    """Create a named subscription. By default it gets every change of rows and of the schema."""
    return run(_create(where, name, filters.criteria(), terms))


@app.command("list")
@with_options
def list_(where: WhereOptions, as_json: AsJson = False) -> int:
    """List the named subscriptions of a catalog, with the lag of their readers."""
    return run(_list(where, as_json=as_json))


@app.command()
@with_options
def show(where: WhereOptions, name: Name, as_json: AsJson = False) -> int:
    """Show one named subscription in full."""
    return run(_show(where, name, as_json=as_json))


@app.command()
@with_options
def reset(where: WhereOptions, name: Name, target: ResetOptions) -> int:
    """Move a named subscription to another place. Its current reader ends."""
    return run(_reset(where, name, target.to))


@app.command()
@with_options
def pause(where: WhereOptions, name: Name) -> int:
    """Pause a named subscription: its reader ends, and no other is accepted. Its place and hold remain."""
    return run(_pause(where, name, paused=True))


@app.command()
@with_options
def resume(where: WhereOptions, name: Name) -> int:
    """Resume a paused named subscription: it accepts readers again."""
    return run(_pause(where, name, paused=False))


@app.command()
@with_options
def delete(where: WhereOptions, name: Name) -> int:
    """Delete a named subscription and its place. Its reader ends, and its hold on the log with it."""
    return run(_delete(where, name))


async def _create(
    where: WhereOptions, name: str, criteria: tuple[Criteria, ...], terms: TermOptions
) -> None:
    async with where.opened() as subscriptions:
        found = await subscriptions.create_subscription(
            where.catalog,
            name,
            criteria,
            since=terms.begin,
            hold_s=terms.hold_s,
            hold_bytes=terms.hold_bytes,
        )
    note(f"created {found.name}: it begins with {found.needed}")


async def _list(where: WhereOptions, *, as_json: bool) -> None:
    async with where.opened() as subscriptions:
        found = await subscriptions.list_subscriptions(where.catalog)
    (print_lines if as_json else show_table)(found)


async def _show(where: WhereOptions, name: str, *, as_json: bool) -> None:
    async with where.opened() as subscriptions:
        found = await subscriptions.get_subscription(where.catalog, name)
    if as_json:
        print_lines([found])
    else:
        show_one(found)


async def _reset(where: WhereOptions, name: str, to: str) -> None:
    async with where.opened() as subscriptions:
        found = await subscriptions.reset_subscription(where.catalog, name, to)
    note(f"{found.name} continues with {found.needed}")


async def _pause(where: WhereOptions, name: str, *, paused: bool) -> None:
    async with where.opened() as subscriptions:
        change = subscriptions.pause_subscription if paused else subscriptions.resume_subscription
        found = await change(where.catalog, name)
    note(f"{found.name} {'is paused' if paused else 'accepts readers again'}, next {found.needed}")


async def _delete(where: WhereOptions, name: str) -> None:
    async with where.opened() as subscriptions:
        await subscriptions.delete_subscription(where.catalog, name)
    note(f"deleted {name}")


_HEALTH: Final = {
    SubscriptionHealth.HELD: "held",
    SubscriptionHealth.NOT_HELD: "not held",
    SubscriptionHealth.BROKEN: "hold broken",
    SubscriptionHealth.LOST: "lost",
}
_EXPLAINED: Final = {
    SubscriptionHealth.HELD: "retention keeps the records that it needs",
    SubscriptionHealth.NOT_HELD: "the next trim may remove records that it needs",
    SubscriptionHealth.BROKEN: "its hold was broken by a trim; "
    "its records still exist, but the next trim may remove them",
    SubscriptionHealth.LOST: "the log no longer has the records that it needs: "
    "read the state, and continue after it",
}


def show_table(found: Sequence[NamedSubscription]) -> None:
    """Print a table with a line for each named subscription."""
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
    print_table(rows, numbers=(3,))


def show_one(one: NamedSubscription) -> None:
    """Print all figures of one named subscription."""
    from tailrace_server.rows.criteria_form import in_words

    lines = (
        ("name", one.name),
        ("catalog", one.catalog),
        ("takes", printable(in_words(one.criteria))),
        (
            "next",
            f"{one.needed}, {duration(one.age_s)} old, {one.behind_bytes:,} bytes from there on"
            if one.age_s
            else f"{one.needed}, which is not published yet",
        ),
        ("state", f"{_HEALTH[one.health]}: {_EXPLAINED[one.health]}"),
        ("hold", f"up to {_hold(one)}"),
        ("taken by", f"{printable(one.reader)} (epoch {one.epoch})" if one.epoch else "none yet"),
        ("paused", "yes: it accepts no readers" if one.paused else "no"),
        ("owner", printable(one.owner) or "none"),
        ("created", date_text(one.created)),
        ("moved", date_text(one.moved)),
        ("cursor", str(one.cursor)),
    )
    for name, words in lines:
        typer.echo(f"{name:>8}  {words}")


def print_lines(found: Sequence[NamedSubscription]) -> None:
    """Print each named subscription as a line of JSON."""
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
        print_json(fields)


def _hold(one: NamedSubscription) -> str:
    if not one.hold_s or not one.hold_bytes:
        return "nothing"
    return f"{format_seconds(one.hold_s)}, {format_bytes(one.hold_bytes)}"
