"""``tailrace ps``: what a server does now, once. ``tailrace top``: the same, until Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

from tailrace.errors import InvalidRequest, TransportError
from tailrace.tls import Tls
from tailrace_server.cli import options, typed
from tailrace_server.cli.declared import Option
from tailrace_server.cli.operator.asking import OverviewAddress, address_of, ask, context_of
from tailrace_server.cli.running import run
from tailrace_server.cli.token import token_of

if TYPE_CHECKING:
    import ssl

    from tailrace.transport.token import TokenSource

__all__ = ["ps", "top"]

_PLAIN_WIDTH: Final = 160
"""Of output that goes into a file or a pipe."""
_AGAIN_S: Final = 2.0
"""The pace if no answer has given another."""

Http = Annotated[
    str | None,
    typed.typed(
        Option(
            "--http",
            metavar="HOST:PORT",
            environment="TAILRACE_SERVER_HTTP",
            help="HTTP address of the server, or its URL behind a proxy; needed unless --server is at "
            "port 7411: then it is port 7412 of that host.",
        )
    ),
]


@dataclass(frozen=True, slots=True)
class _Asked:
    """The server that a command asks, and its output options."""

    address: OverviewAddress
    token: TokenSource | None
    tls: ssl.SSLContext | None

    async def now(self) -> tuple[bytes, dict[str, Any]]:
        """Ask; a file of a token is read each time, since they are renewed."""
        token = await self.token() if callable(self.token) else self.token
        return await asyncio.to_thread(ask, self.address, token, self.tls)


def ps(
    server: typed.Server = options.DEFAULT_SERVER,
    http: Http = None,
    token_file: typed.TokenFile = None,
    tls: typed.WithTls = False,
    tls_ca: typed.TlsCa = None,
    tls_certificate: typed.TlsCertificate = None,
    tls_key: typed.TlsKey = None,
    as_json: typed.AsJson = False,
) -> int:
    """Show what a server does now: catalogs, subscribers, publishers.

    Subscribers are sorted by how far they are behind. The page at the
    server's HTTP address shows the same, and ends subscriptions too.
    """
    asked = _asked(server, http, token_file, tls, tls_ca, tls_certificate, tls_key)
    return run(_ps(asked, as_json=as_json))


def top(
    server: typed.Server = options.DEFAULT_SERVER,
    http: Http = None,
    token_file: typed.TokenFile = None,
    tls: typed.WithTls = False,
    tls_ca: typed.TlsCa = None,
    tls_certificate: typed.TlsCertificate = None,
    tls_key: typed.TlsKey = None,
) -> int:
    """Show what ps shows, on the whole terminal, until Ctrl-C.

    Asks every 2 s, or less often where the server says so.
    """
    if not sys.stdout.isatty():
        raise InvalidRequest("top: this is no terminal; `tailrace ps` shows the same once")
    asked = _asked(server, http, token_file, tls, tls_ca, tls_certificate, tls_key)
    return run(_top(asked))


async def _ps(asked: _Asked, *, as_json: bool) -> None:
    body, found = await asked.now()
    if as_json:
        sys.stdout.buffer.write(body + b"\n")
        sys.stdout.buffer.flush()
        return
    from rich.console import Console

    from tailrace_server.cli.operator.tables import shown

    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(highlight=False, width=_PLAIN_WIDTH)
    console.print(shown(found, str(asked.address), console.width))


async def _top(asked: _Asked) -> None:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from tailrace_server.cli.operator.tables import shown

    console = Console(highlight=False)
    _, found = await asked.now()  # what is wrong from the beginning is an error
    where, lost = str(asked.address), ""
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            figures = shown(found, where, console.width, console.height - bool(lost))
            note = [Text(lost, "bold red", no_wrap=True, overflow="ellipsis")] if lost else []
            live.update(Group(*note, figures), refresh=True)
            await asyncio.sleep(_AGAIN_S if lost else found["ask_again_s"])
            try:
                _, found = await asked.now()
                lost = ""
            except TransportError as error:
                lost = f"from before: {error}"


def _asked(
    server: str,
    http: str | None,
    token_file: str | None,
    tls: bool,
    ca: str | None,
    certificate: str | None,
    key: str | None,
) -> _Asked:
    """Return whom to ask, from a command's options.

    Raises:
        InvalidRequest: An option has another form, or a file of TLS cannot be used.
    """
    token = token_of(token_file)
    address = address_of(server, http, tls=bool(tls or ca or certificate or key))
    if not address.is_tls:
        return _Asked(address, token, None)
    files = Tls(ca=ca or None, certificate=certificate or None, key=key or None)
    return _Asked(address, token, context_of(files))
