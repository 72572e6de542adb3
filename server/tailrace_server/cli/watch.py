"""``tailrace watch``: show changes as they are published, for a person or as JSON lines, until Ctrl-C."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tailrace.capture import Heartbeat, StateComplete
from tailrace.criteria import Operation
from tailrace.errors import InvalidRequest, NotGrpc
from tailrace_server.cli.terminal.capture_lines import Shown, form_for_stdout
from tailrace_server.cli.terminal.errors import describe
from tailrace_server.cli.terminal.options import (
    FORM,
    BehindOptions,
    ConditionFilterOptions,
    FormOptions,
    ServerOptions,
    StartOptions,
)
from tailrace_server.cli.terminal.output import note, note_unknown_changes
from tailrace_server.cli.terminal.signals import run
from tailrace_server.option_fields import FLAG, argument, option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.capture import Capture
    from tailrace.link import Disconnected, Reconnected

_EVER_S: Final = 3e7
"""Maximum wait of ``watch`` for a server that is not there yet, in seconds: nearly a year."""


@dataclass(frozen=True, kw_only=True)
class WatchedOptions:
    """The catalog to watch, or the system log."""

    catalog: str | None = argument("CATALOG", "Name of the catalog.", None)
    system: bool = option(
        "--system",
        "Watch the system log: catalogs that are created, dropped and replaced.",
        FLAG,
        False,
    )


@dataclass(frozen=True, kw_only=True)
class WatchFormOptions(FormOptions):
    """The form of captures, and the option to print heartbeats between them."""

    heartbeats: bool = option(
        "--heartbeats",
        "Also print heartbeats, with the number of records scanned.",
        FLAG,
        False,
        panel=FORM,
    )


def watch(
    watched: WatchedOptions,
    filters: ConditionFilterOptions,
    start: StartOptions,
    behind: BehindOptions,
    form: WatchFormOptions,
    server: ServerOptions,
) -> int:
    """Show the changes of a catalog as they are published.

    Without a start, only changes that are published from now on are shown.
    With --initial state, the current rows come first. If the server goes
    away, the command waits for it; no change is lost or shown twice.
    """
    catalog, initial = watched.catalog, behind.initial
    policy = {"catch_up": behind.catch_up, "overrun": behind.overrun}
    policy = {name: each for name, each in policy.items() if each is not None}
    if watched.system == (catalog is not None):
        raise InvalidRequest("watch: name a catalog, or give --system alone")
    if watched.system and filters != ConditionFilterOptions(param=filters.param):
        raise InvalidRequest(
            "watch --system: the system log cannot be filtered; leave the options of the filter out"
        )
    if watched.system and policy:
        raise InvalidRequest("watch --system: --catch-up and --overrun apply only to a catalog")
    if initial is not None and (
        watched.system or start.since is not None or start.from_time is not None
    ):
        raise InvalidRequest(
            "watch: --initial needs a catalog, and excludes --since and --from-time"
        )
    arguments = {"content": form.body, **start.arguments()}
    if catalog is not None:
        arguments |= {
            "criteria": filters.criteria(leads=form.leads),
            "decoded": form.decoded,
            "initial": initial,
            **policy,
        }
    # The server cannot leave leads out of the system log.
    leads = form.leads or bool(filters.operation) or filters.area is not None
    return run(_watch(server, catalog, arguments, form, leads=leads))


async def _watch(
    server: ServerOptions,
    catalog: str | None,
    arguments: dict[str, Any],
    form: WatchFormOptions,
    *,
    leads: bool,
) -> int:
    import tailrace

    name = server.target.name
    output = form_for_stdout(form.body, as_json=form.as_json)
    shown, teller = Shown(output), Teller(name)
    arguments |= {"on_disconnect": teller.disconnected, "on_reconnect": teller.reconnected}
    async with (
        server.connect(timeouts=tailrace.Timeouts(connect_s=_EVER_S)) as client,
        client.subscribe_system(**arguments)
        if catalog is None
        else client.subscribe(catalog, **arguments) as subscription,
    ):
        acknowledgement = subscription.acknowledgement
        rows = ""
        if acknowledgement.state_version is not None:
            rows = f", first the rows as of version {acknowledgement.state_version}"
        note(
            f"watching {acknowledgement.catalog} on {name} from {acknowledgement.start}{rows}; "
            f"subscription {acknowledgement.subscription_id}; "
            f"published so far: {acknowledgement.published}; Ctrl-C ends"
        )
        if acknowledgement.unknown_names:
            names = ", ".join(map(repr, acknowledgement.unknown_names))
            note(
                f"no entity type or column is called {names} yet: waiting for one; if the name is "
                f"misspelt, GET /v1/catalogs/{acknowledgement.catalog}/schema lists all names"
            )
        note_unknown_changes(acknowledgement.unknown_changes)
        if catalog is not None:
            output.learn(await client.get_schema(catalog))
        # The cursor to resume from is that of what was printed. Heartbeats move it on if nothing matches, and
        # so do lead records that are not printed.
        shown.cursor = subscription.cursor
        try:
            async for message in subscription.messages():
                if isinstance(message, StateComplete):
                    await shown.state_complete(message)
                elif not isinstance(message, Heartbeat):
                    await shown.captures(message if leads else without_leads(message))
                elif form.heartbeats:
                    await shown.heartbeat(message)
                shown.cursor = subscription.cursor
        finally:
            note(f"printed {shown.count:,}; to continue: --after {shown.cursor}")
    return 0


def without_leads(captures: Sequence[Capture]) -> list[Capture]:
    """Return the captures without those of lead records."""
    return [each for each in captures if each.operation is not Operation.TRANSACTION]


class Teller:
    """Reporter of a lost connection, which prints it once and not at every attempt."""

    def __init__(self, server: str) -> None:
        """Store the server's name, for messages."""
        self._server = server
        self._lost = False

    def disconnected(self, event: Disconnected) -> None:
        """Print that the command waits for the server, and where it resumes.

        Raises:
            NotGrpc: The address is wrong; waiting would not help.
        """
        if isinstance(event.error, NotGrpc):
            raise event.error
        if not self._lost:
            resume = f", to resume after {event.cursor}" if event.cursor is not None else ""
            note(f"waiting for {self._server}{resume}: {describe(event.error)}")
        self._lost = True

    def reconnected(self, event: Reconnected) -> None:
        """Print that the server is back."""
        self._lost = False
        attempts = "attempt" if event.attempts == 1 else "attempts"
        note(f"{self._server} is back after {event.attempts} {attempts}; nothing was missed")
