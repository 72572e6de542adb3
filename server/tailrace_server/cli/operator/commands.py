"""``tailrace ps`` prints the figures of a server's operator page once, ``tailrace top`` until Ctrl-C."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import ssl
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from tailrace.errors import InvalidRequest, TransportError, Unauthenticated
from tailrace.tls import Tls, load
from tailrace.transport.target import DEFAULT_PORT, Target
from tailrace_server.cli.terminal.options import AS_JSON, FORM, ServerOptions
from tailrace_server.cli.terminal.signals import run
from tailrace_server.option_fields import option, text

if TYPE_CHECKING:
    from tailrace.transport.token import TokenSource

_PORT: Final = 7412
"""The port of ``tailrace serve --http``, beside port 7411 for gRPC."""
_PATIENCE_S: Final = 10.0
_REFUSED: Final = (401, 403)


@dataclass(frozen=True, slots=True)
class OverviewAddress:
    """The HTTP address of a server."""

    host: str
    port: int
    path: str = "/"
    """The path below which a proxy has put it; ends with a slash."""
    is_tls: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        path = "" if self.path == "/" else self.path
        return f"http{'s' if self.is_tls else ''}://{host}:{self.port}{path}"


def address_of(server: str, http: str | None, *, tls: bool) -> OverviewAddress:
    """Return where to ask: the address of ``--http``, or port 7412 beside a server at port 7411.

    A server at another port may have any HTTP port. Port 7412 of its host may be that of another server, whose
    figures would pass for those of the first. ``tls`` says that the command's options are for TLS.

    Raises:
        InvalidRequest: One of them is no address, or the HTTP port is not known.
    """
    if http is None:
        try:
            found = Target.parse(server, tls=tls)
        except InvalidRequest as error:
            raise InvalidRequest(f"--server {error}") from error
        if not found.host:
            raise InvalidRequest(f"--server {server}: it names no host; give --http HOST:PORT")
        if not found.name.endswith(f":{DEFAULT_PORT}"):
            raise InvalidRequest(
                f"--server {server}: a server that is not at port {DEFAULT_PORT} may have any HTTP port; give "
                "--http HOST:PORT, the address of its `serve --http`"
            )
        return OverviewAddress(found.host, _PORT, is_tls=tls or found.tls)
    url = urlsplit(http if "://" in http else f"http{'s' if tls else ''}://{http}")
    try:
        port = url.port
    except ValueError:
        port = -1
    if url.scheme not in ("http", "https") or not url.hostname or url.query or port == -1:
        raise InvalidRequest(
            f"--http {http}: the HTTP address of a server reads host:port, as 127.0.0.1:7412, or "
            "https://example.org/path behind a proxy"
        )
    is_tls = url.scheme == "https"
    if tls and not is_tls:
        raise InvalidRequest(f"--http {http}: http:// is plain text, and the options are for TLS")
    return OverviewAddress(
        url.hostname,
        port or (443 if is_tls else 80 if "://" in http else _PORT),
        url.path.rstrip("/") + "/",
        is_tls,
    )


def ask(
    address: OverviewAddress, token: str | None, tls: ssl.SSLContext | None
) -> tuple[bytes, dict[str, Any]]:
    """Return the figures of this moment, as they came and as a mapping. Blocks.

    Raises:
        Unauthenticated: The server asks for a token, or takes another one.
        TransportError: There is no answer, or not that of a tailrace server.
    """
    try:
        status, body = _get(address, token, tls)
    except http.client.HTTPException as error:
        raise TransportError(
            f"{address} does not speak HTTP; if that is the gRPC address, --http names the other one"
        ) from error
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", "") or error.reason or str(error)
        raise TransportError(f"{address}: TLS: {reason.lower().replace('_', ' ')}") from error
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise TransportError(
            f"{address}: {reason}; --http HOST:PORT names the HTTP address of a server if it is another one"
        ) from error
    found = _object(body)
    if status in _REFUSED:
        detail = str((found or {}).get("detail", f"{address} answers {status}"))
        if status == 401 and not token:
            detail = f"{address} asks who you are: give --token-file FILE, or TAILRACE_TOKEN"
        raise Unauthenticated(detail)
    if status != 200 or found is None or "ask_again_s" not in found:
        detail = (found or {}).get("detail", "no server of ours, or an older one, is there")
        raise TransportError(f"{address} answers {status}: {detail}")
    return body, found


def _get(
    address: OverviewAddress, token: str | None, tls: ssl.SSLContext | None
) -> tuple[int, bytes]:
    connection: http.client.HTTPConnection
    if tls is not None:
        connection = http.client.HTTPSConnection(
            address.host, address.port, timeout=_PATIENCE_S, context=tls
        )
    else:
        connection = http.client.HTTPConnection(address.host, address.port, timeout=_PATIENCE_S)
    try:
        headers = {"Accept": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        connection.request("GET", f"{address.path}overview", headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def context_of(tls: Tls) -> ssl.SSLContext:
    """Return how a server is trusted over TLS.

    Raises:
        InvalidRequest: A file cannot be used; says which and why.
    """
    load(tls)
    context = ssl.create_default_context(cafile=tls.ca)
    if tls.certificate is not None:
        context.load_cert_chain(tls.certificate, tls.key)
    return context


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(body)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


__all__ = ["ps", "top"]

_PLAIN_WIDTH: Final = 160
"""Of output that goes into a file or a pipe."""
_AGAIN_S: Final = 2.0
"""The pace if no answer has given another."""


@dataclass(frozen=True, kw_only=True)
class OverviewOptions(ServerOptions):
    """The server whose figures are printed, by its gRPC or its HTTP address."""

    http: str | None = option(
        "--http",
        "HTTP address of the server, or its URL behind a proxy; needed unless --server is at port 7411: then "
        "it is port 7412 of that host.",
        text("HOST:PORT"),
        None,
        environment="TAILRACE_SERVER_HTTP",
    )

    def overview(self) -> _Overview:
        """Return the server's overview.

        Raises:
            InvalidRequest: An address or a file of the options cannot be used.
        """
        token = self.token
        address = address_of(self.server, self.http, tls=self.asks_for_tls)
        return _Overview(
            address, token, context_of(self.trust or Tls()) if address.is_tls else None
        )


@dataclass(frozen=True, slots=True)
class _Overview:
    """The overview of a server, asked again at each call."""

    address: OverviewAddress
    token: TokenSource | None
    tls: ssl.SSLContext | None

    async def now(self) -> tuple[bytes, dict[str, Any]]:
        """Ask; a file of a token is read each time, since they are renewed."""
        token = await self.token() if callable(self.token) else self.token
        return await asyncio.to_thread(ask, self.address, token, self.tls)


@dataclass(frozen=True, kw_only=True)
class OverviewFormOptions:
    """The form of the figures."""

    as_json: bool = option(*AS_JSON, panel=FORM)


def ps(server: OverviewOptions, form: OverviewFormOptions) -> int:
    """Show what a server does now: catalogs, subscribers, publishers.

    Subscribers are sorted by how far they are behind. The page at the
    server's HTTP address shows the same, and ends subscriptions too.
    """
    return run(_ps(server.overview(), as_json=form.as_json))


def top(server: OverviewOptions) -> int:
    """Show what ps shows, on the whole terminal, until Ctrl-C.

    Asks every 2 s, or less often where the server says so.
    """
    if not sys.stdout.isatty():
        raise InvalidRequest("top: this is no terminal; `tailrace ps` shows the same once")
    return run(_top(server.overview()))


async def _ps(overview: _Overview, *, as_json: bool) -> None:
    body, found = await overview.now()
    if as_json:
        sys.stdout.buffer.write(body + b"\n")
        sys.stdout.buffer.flush()
        return
    from rich.console import Console

    from tailrace_server.cli.operator.tables import shown

    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(highlight=False, width=_PLAIN_WIDTH)
    console.print(shown(found, str(overview.address), console.width))


async def _top(overview: _Overview) -> None:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from tailrace_server.cli.operator.tables import shown

    console = Console(highlight=False)
    _, found = await overview.now()  # what is wrong from the beginning is an error
    where, lost = str(overview.address), ""
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            figures = shown(found, where, console.width, console.height - bool(lost))
            note = [Text(lost, "bold red", no_wrap=True, overflow="ellipsis")] if lost else []
            live.update(Group(*note, figures), refresh=True)
            await asyncio.sleep(_AGAIN_S if lost else found["ask_again_s"])
            try:
                _, found = await overview.now()
                lost = ""
            except TransportError as error:
                lost = f"from before: {error}"
