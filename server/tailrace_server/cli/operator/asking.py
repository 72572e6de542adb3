"""Asks a server for the figures of its operator's page, over HTTP."""

from __future__ import annotations

import http.client
import json
import ssl
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from tailrace.errors import InvalidRequest, TransportError, Unauthenticated
from tailrace.tls import Tls, load
from tailrace.transport.target import DEFAULT_PORT, Target

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
