"""``tailrace ps`` prints the figures of a server's operator page once, ``tailrace top`` again and again."""

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
"""Default port of ``tailrace serve --http``; that of gRPC is 7411."""
_PATIENCE_S: Final = 10.0
_REFUSED: Final = (401, 403)


@dataclass(frozen=True, slots=True)
class OverviewAddress:
    """The HTTP address of a server."""

    host: str
    port: int
    path: str = "/"
    """Path prefix of the server behind a proxy; ends with a slash."""
    is_tls: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        path = "" if self.path == "/" else self.path
        return f"http{'s' if self.is_tls else ''}://{host}:{self.port}{path}"


def address_of(server: str, http: str | None, *, tls: bool) -> OverviewAddress:
    """Return the HTTP address of a server: that of ``--http``, or port 7412 if the server is at port 7411.

    The HTTP port of a server at another gRPC port is unknown. Port 7412 of that host may belong to another
    server, whose figures would be mistaken for those of the first.

    Args:
        server: Value of ``--server``.
        http: Value of ``--http``; None: not given.
        tls: True if an option of the command requests TLS.

    Raises:
        InvalidRequest: A value is not an address, or the HTTP port is unknown.
    """
    if http is None:
        try:
            found = Target.parse(server, tls=tls)
        except InvalidRequest as error:
            raise InvalidRequest(f"--server {error}") from error
        if not found.host:
            raise InvalidRequest(
                f"--server {server}: no host in this address; give --http HOST:PORT"
            )
        if not found.name.endswith(f":{DEFAULT_PORT}"):
            raise InvalidRequest(
                f"--server {server}: the HTTP port is only known if the gRPC port is "
                f"{DEFAULT_PORT}; give --http HOST:PORT, the address of `serve --http`"
            )
        return OverviewAddress(found.host, _PORT, is_tls=tls or found.tls)
    url = urlsplit(http if "://" in http else f"http{'s' if tls else ''}://{http}")
    try:
        port = url.port
    except ValueError:
        port = -1
    if url.scheme not in ("http", "https") or not url.hostname or url.query or port == -1:
        raise InvalidRequest(
            f"--http {http}: write host:port, such as 127.0.0.1:7412, or https://example.org/path "
            "behind a proxy"
        )
    is_tls = url.scheme == "https"
    if tls and not is_tls:
        raise InvalidRequest(
            f"--http {http}: http:// means plain text, but there are options for TLS; write https://, "
            "or leave them out"
        )
    return OverviewAddress(
        url.hostname,
        port or (443 if is_tls else 80 if "://" in http else _PORT),
        url.path.rstrip("/") + "/",
        is_tls,
    )


def ask(
    address: OverviewAddress, token: str | None, tls: ssl.SSLContext | None
) -> tuple[bytes, dict[str, Any]]:
    """Request the current figures of a server; return them as bytes and as a mapping. Blocks.

    Raises:
        Unauthenticated: The server requires a token, or does not accept this one.
        TransportError: There was no answer, or it did not come from a tailrace server.
    """
    try:
        status, body = _get(address, token, tls)
    except http.client.HTTPException as error:
        raise TransportError(
            f"{address} does not speak HTTP; if it is the gRPC address, give the HTTP address "
            "with --http"
        ) from error
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", "") or error.reason or str(error)
        raise TransportError(f"{address}: TLS: {reason.lower().replace('_', ' ')}") from error
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise TransportError(
            f"{address}: {reason}; if the server has another HTTP address, give --http HOST:PORT"
        ) from error
    # A member of our answers identifies a tailrace server: any other HTTP server may answer with status 200.
    found = _object(body)
    if status in _REFUSED:
        detail = str((found or {}).get("detail", f"{address} answers {status}"))
        if status == 401 and not token:
            detail = f"{address} requires credentials: give --token-file FILE, or TAILRACE_TOKEN"
        raise Unauthenticated(detail)
    if status != 200 or found is None or "ask_again_s" not in found:
        detail = (found or {}).get("detail", "it is not a tailrace server, or an older one")
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
    """Return the TLS context for requests to a server.

    Raises:
        InvalidRequest: A file cannot be used; the error names the file and the reason.
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


_PLAIN_WIDTH: Final = 160
"""Width of output into a file or a pipe, in cells."""
_AGAIN_S: Final = 2.0
"""Interval between requests while the server does not answer, in seconds."""


@dataclass(frozen=True, kw_only=True)
class OverviewOptions(ServerOptions):
    """The server whose figures are printed, by its gRPC or its HTTP address."""

    http: str | None = option(
        "--http",
        "HTTP address of the server, or its URL behind a proxy. [default: port 7412 of the host "
        "of --server, if that has port 7411]",
        text("HOST:PORT"),
        None,
        environment="TAILRACE_SERVER_HTTP",
    )

    def overview(self) -> _Overview:
        """Return the source of the server's figures.

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
    """The source of a server's figures; each call requests them anew."""

    address: OverviewAddress
    token: TokenSource | None
    tls: ssl.SSLContext | None

    async def now(self) -> tuple[bytes, dict[str, Any]]:
        """Request the figures. A token file is read each time, since its token may have been renewed."""
        token = await self.token() if callable(self.token) else self.token
        return await asyncio.to_thread(ask, self.address, token, self.tls)


@dataclass(frozen=True, kw_only=True)
class OverviewFormOptions:
    """The form of the figures."""

    as_json: bool = option(*AS_JSON, panel=FORM)


def ps(server: OverviewOptions, form: OverviewFormOptions) -> int:
    """Show what a server does now: catalogs, subscribers, publishers.

    Subscribers are sorted by their lag. The page at the server's HTTP address
    shows the same, and can also end subscriptions.
    """
    return run(_ps(server.overview(), as_json=form.as_json))


def top(server: OverviewOptions) -> int:
    """Show the figures of ps on the whole terminal, until Ctrl-C.

    They are refreshed every 2 s, or less often if the server says so.
    """
    if not sys.stdout.isatty():
        raise InvalidRequest("top needs a terminal; `tailrace ps` prints the same once")
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
    _, found = await overview.now()  # an error of the first request ends the command
    where, lost = str(overview.address), ""
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            figures = shown(found, where, console.width, console.height - bool(lost))
            note = [Text(lost, "bold red", no_wrap=True, overflow="ellipsis")] if lost else []
            live.update(Group(*note, figures), refresh=True)
            await asyncio.sleep(_AGAIN_S if lost else found["ask_again_s"])
            # A server that is gone does not end the command: the last figures remain, marked as old.
            try:
                _, found = await overview.now()
                lost = ""
            except TransportError as error:
                lost = f"not refreshed: {error}"


__all__ = ["ps", "top"]
