"""``tailrace watch``: show changes as they are published, for a person or as JSON lines, until Ctrl-C."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from tailrace.capture import Heartbeat, StateComplete
from tailrace.criteria import Operation
from tailrace.errors import InvalidRequest, NotGrpc
from tailrace_server.cli.terminal import options
from tailrace_server.cli.terminal.capture_lines import Shown, form_for_stdout
from tailrace_server.cli.terminal.declared import Argument, Option
from tailrace_server.cli.terminal.errors import describe
from tailrace_server.cli.terminal.output import note, note_unknown_changes
from tailrace_server.cli.terminal.signals import run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.capture import Capture
    from tailrace.client import Client
    from tailrace.criteria import Content, Criteria, Initial, Start
    from tailrace.link import Disconnected, Reconnected
    from tailrace.subscription import Subscription
    from tailrace_server.cli.terminal.capture_lines import OutputForm

_EVER_S: Final = 3e7
"""Nearly a year: how long ``watch`` waits for a server that is not there yet."""


def watch(
    catalog: Annotated[str | None, Argument(metavar="CATALOG", help="Name of the catalog.")] = None,
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
    initial: options.InitialState = None,
    catch_up: options.CatchUpName = None,
    overrun: options.OverrunName = None,
    body: options.Bodies = "all",
    values: options.Values = None,
    as_json: options.AsJson = False,
    leads: options.WithLeads = False,
    tls: options.WithTls = False,
    tls_ca: options.TlsCa = None,
    tls_certificate: options.TlsCertificate = None,
    tls_key: options.TlsKey = None,
    heartbeats: Annotated[
        bool,
        Option(
            "--heartbeats",
            help="Heartbeats as well, with what was scanned.",
            panel="Form of the output",
        ),
    ] = False,
    system: Annotated[
        bool, Option("--system", help="Catalogs created, dropped and replaced instead.")
    ] = False,
) -> int:
    """Show the changes of a catalog as they are published.

    Without a start only what is published from now on is shown; with
    --initial state, the rows as they are now come first. A server that goes
    away is waited for, and nothing is lost or shown twice.
    """
    if system == (catalog is not None):
        raise InvalidRequest("watch: name a catalog, or give --system alone")
    if system and (entity_type or key or operation or area or column or where):
        raise InvalidRequest("watch --system: the system log is shown whole; leave the filter out")
    behind = options.behind_arguments(catch_up, overrun)
    if system and behind:
        raise InvalidRequest("watch --system: --catch-up and --overrun go with a catalog")
    begins = options.initial_of(initial)
    if begins is not None and (system or since is not None or from_time is not None):
        raise InvalidRequest(
            "watch: --initial goes with a catalog, and not with --since or --from-time"
        )
    wanted = WatchOptions(
        catalog=catalog,
        criteria=options.criteria_of(
            entity_types=entity_type,
            keys=key,
            operations=operation,
            area=area,
            columns=column,
            leads=leads,
            where=where,
            parameters=param,
        ),
        leads=leads or operation is not None or area is not None,
        start=options.start_of(since, after, from_time),
        initial=begins,
        behind=behind,
        content=options.content_of(body),
        decoded=options.decoded_of(values, as_json=as_json),
    )
    form = form_for_stdout(wanted.content, as_json=as_json)
    return run(
        _watch(
            options.server_of(
                server,
                tls=tls,
                ca=tls_ca,
                certificate=tls_certificate,
                key=tls_key,
                token_file=token_file,
            ),
            wanted,
            form,
            heartbeats=heartbeats,
        )
    )


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """The request of a watch, from the command's options."""

    catalog: str | None
    """None: the system log."""
    criteria: tuple[Criteria, ...]
    leads: bool
    """Whether to show transaction leads; the server cannot leave them out of the system log."""
    start: Start | None
    initial: Initial | None
    behind: options.BehindArguments
    content: Content
    decoded: bool


async def _watch(
    asked: options.ServerOptions, wanted: WatchOptions, form: OutputForm, *, heartbeats: bool
) -> int:
    import tailrace

    shown, server = Shown(form), asked.server
    async with (
        asked.connect(timeouts=tailrace.Timeouts(connect_s=_EVER_S)) as client,
        _subscribe(client, wanted, server) as subscription,
    ):
        acknowledgement = subscription.acknowledgement
        rows = ""
        if acknowledgement.state_version is not None:
            rows = f", first the rows as of version {acknowledgement.state_version}"
        note(
            f"watching {acknowledgement.catalog} on {server} from {acknowledgement.start}{rows}; "
            f"subscription {acknowledgement.subscription_id}; "
            f"published so far: {acknowledgement.published}; Ctrl-C ends"
        )
        if acknowledgement.unknown_names:
            names = ", ".join(map(repr, acknowledgement.unknown_names))
            note(
                f"no entity type or column is called {names} yet: waiting for it; if the name is misspelt, "
                f"GET /v1/catalogs/{acknowledgement.catalog}/schema lists all of them"
            )
        note_unknown_changes(acknowledgement.unknown_changes)
        if wanted.catalog is not None:
            form.learn(await client.get_schema(wanted.catalog))
        shown.cursor = subscription.cursor
        try:
            async for message in subscription.messages():
                if isinstance(message, StateComplete):
                    await shown.state_complete(message)
                elif not isinstance(message, Heartbeat):
                    await shown.captures(message if wanted.leads else without_leads(message))
                elif heartbeats:
                    await shown.heartbeat(message)
                shown.cursor = subscription.cursor
        finally:
            note(f"{shown.count:,} shown; go on with --after {shown.cursor}")
    return 0


def _subscribe(client: Client, wanted: WatchOptions, server: str) -> Subscription:
    teller = Teller(server)
    start = options.start_arguments(wanted.start)
    if wanted.catalog is None:
        return client.subscribe_system(
            content=wanted.content,
            on_disconnect=teller.disconnected,
            on_reconnect=teller.reconnected,
            **start,
        )
    return client.subscribe(
        wanted.catalog,
        wanted.criteria,
        content=wanted.content,
        decoded=wanted.decoded,
        initial=wanted.initial,
        on_disconnect=teller.disconnected,
        on_reconnect=teller.reconnected,
        **wanted.behind,
        **start,
    )


def without_leads(captures: Sequence[Capture]) -> list[Capture]:
    """Return the captures that are no transaction leads."""
    return [each for each in captures if each.operation is not Operation.TRANSACTION]


class Teller:
    """Tells of a lost server once, not at every attempt."""

    def __init__(self, server: str) -> None:
        """The server's name for messages."""
        self._server = server
        self._lost = False

    def disconnected(self, event: Disconnected) -> None:
        """Print that the server is waited for, and where the watch resumes; not for a wrong address."""
        if isinstance(event.error, NotGrpc):
            raise event.error
        if not self._lost:
            resume = f", to go on after {event.cursor}" if event.cursor is not None else ""
            note(f"waiting for {self._server}{resume}: {describe(event.error)}")
        self._lost = True

    def reconnected(self, event: Reconnected) -> None:
        """Say that it is back."""
        self._lost = False
        attempts = "attempt" if event.attempts == 1 else "attempts"
        note(f"{self._server} is back after {event.attempts} {attempts}; nothing was missed")
