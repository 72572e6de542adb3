"""The settings of the faces and of transport security; docs/settings.md is made from these fields.

The forms of an origin in the settings ``ws_origins`` and ``http_origins``, whose pages may read from the
server:

::

    https://shop.example.com:8443     this origin
    https://*.example.com             any name below example.com, at any depth, but not example.com itself
    *                                 every page
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - get_type_hints reads it
from typing import TYPE_CHECKING, Final, Literal

from tailrace_server.api.transport_security.proxies import TrustedProxies
from tailrace_server.resources.settings import setting

if TYPE_CHECKING:
    from collections.abc import Iterable


_ORIGIN: Final = re.compile(r"([a-z][a-z0-9+.-]*)://(\*\.)?([^\s/?#*@]+)", re.ASCII)
_LABELS: Final = r"(?:[a-z0-9_-]+\.)+"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """Bounds of the faces on the HTTP listener."""

    page_records: int = setting(
        1_000,
        "records",
        "records of a JSON page of history without a limit; NDJSON and Arrow have no pages",
    )
    request_head_s: float = setting(
        10.0,
        "seconds",
        "how long a connection may stay without a whole request before it is cut",
    )
    request_body_s: float = setting(
        10.0, "seconds", "how long the body of a request may take to arrive before a 408"
    )
    http_keepalive_s: float = setting(
        75.0,
        "seconds",
        "how long an idle connection stays open; longer than a proxy's own time (nginx and ALB 60 "
        "s)",
    )
    http_connections: int = setting(
        10_000,
        "connections",
        "open WebSockets and event streams; above it a handshake gets 429",
    )
    http_send_buffer_bytes: int = setting(
        512 << 10,
        "bytes",
        "buffer of the kernel for each connection; its default takes megabytes for each stalled "
        "reader",
    )
    http_hosts: str = setting(
        "",
        "names",
        "names in `Host` that are accepted besides addresses, `localhost`, `--http` and the "
        "machine's name, separated by commas; `*.example.com` for all below one, or *",
    )
    root_path: str = setting(
        "",
        "path",
        "path below which a proxy has put the server, as /changes",
    )
    http_origins: str = setting(
        "",
        "origins",
        "origins whose pages may read answers over HTTP (CORS), separated by commas; "
        "`https://*.example.com` for all names below one, or *",
    )
    ws_origins: str = setting(
        "",
        "origins",
        "origins whose pages may open WebSockets and read answers; written as http_origins",
    )
    ws_subscriptions: int = setting(
        100,
        "subscriptions",
        "open subscriptions of one socket; above it a new one ends with an error",
    )
    ws_init_timeout_s: float = setting(
        10.0, "seconds", "how long a socket may stay without connection_init before close code 4408"
    )
    ws_message_bytes: int = setting(
        4 << 20,
        "bytes",
        "largest message of a client: 10,000 keys of 400 bytes; above it close code 1009",
    )
    ws_init_message_bytes: int = setting(
        64 << 10,
        "bytes",
        "largest message before connection_init",
    )
    ws_ping_interval_s: float = setting(
        20.0,
        "seconds",
        "how often a socket is probed for peers that vanished or stopped reading",
    )
    ws_ping_timeout_s: float = setting(
        20.0,
        "seconds",
        "how long a probe may stay unanswered; behind unread messages the send deadline counts",
    )
    ws_pings_unread: int = setting(
        1_000,
        "pings",
        "pings of a client that does not read the answers, before its connection is cut",
    )
    graphql_document_bytes: int = setting(
        64 << 10,
        "bytes",
        "longest document; a selection of 1,000 columns has a fifth of it",
    )
    graphql_tokens: int = setting(4_000, "tokens", "tokens of a document")
    graphql_depth: int = setting(
        20, "fields", "nested fields of a document; GraphiQL's introspection has 15"
    )
    graphql_fields: int = setting(
        1_000,
        "fields",
        "fields of an operation with its fragments spread; validation costs their square",
    )
    graphql_aliases: int = setting(
        100, "aliases", "aliases of an operation with its fragments spread"
    )
    graphql_history_bytes: int = setting(
        16 << 20, "bytes", "history that one operation reads, its pages together"
    )
    graphql_answer_bytes: int = setting(
        32 << 20,
        "bytes",
        "memory of one answer, 200 bytes for each field; GraphiQL's introspection takes 3 KB a "
        "column",
    )
    graphql_introspection: bool = setting(
        True, "yes or no", "allow clients to read the schema; GraphiQL needs it"
    )
    graphql_graphiql: bool = setting(
        True, "yes or no", "show GraphiQL to a browser that opens a GraphQL path"
    )
    graphql_documents_bytes: int = setting(
        256 << 10,
        "bytes",
        "valid documents that are cached, so that equal ones are not validated again",
    )

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names in ``http_hosts``."""
        return listed(self.http_hosts)

    @property
    def origins(self) -> Origins:
        """The origins in ``ws_origins``.

        Raises:
            ValueError: A text is no origin.
        """
        return Origins(listed(self.ws_origins))

    @property
    def readers(self) -> Origins:
        """The origins whose pages may read answers: those of ``http_origins`` and ``ws_origins``.

        Raises:
            ValueError: A text is no origin.
        """
        return Origins((*listed(self.http_origins), *listed(self.ws_origins)))


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcSettings:
    """Bounds of the gRPC server."""

    request_bytes: int = setting(
        4 << 20,
        "bytes",
        "largest request: 10,000 keys of 400 bytes; gRPC refuses a larger one by its length",
    )
    request_s: float = setting(
        10.0,
        "seconds",
        "how long a connection may have more than 64 KiB of unfinished requests before it is cut",
    )
    grpc_send_buffer_bytes: int = setting(
        512 << 10,
        "bytes",
        "buffer of the kernel for each connection; its default takes megabytes for each stalled "
        "client",
    )
    subscribe_deadline_s: float = setting(
        10.0, "seconds", "how long SubscribeWithDemand waits for its first message"
    )
    streams_per_connection: int = setting(
        10_000, "calls", "open calls of one connection; above it a new one is INVALID_REQUEST"
    )
    handshake_s: float = setting(
        10.0, "seconds", "how long a new connection may take to speak HTTP/2"
    )
    keepalive_s: float = setting(
        30.0, "seconds", "how often a silent connection is probed for peers that vanished"
    )
    keepalive_timeout_s: float = setting(
        20.0, "seconds", "how long a probe may stay unanswered, an unread socket included"
    )
    ping_interval_min_s: float = setting(
        10.0,
        "seconds",
        "shortest time between two pings of a client; more pings cost it the connection",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportSecuritySettings:
    """TLS and trusted proxies of both listeners; in the settings file also a table, ``[tls]``."""

    tls_certificate: Path | None = setting(
        None,
        "file",
        "PEM: the server's certificate and the intermediate ones; both listeners then speak TLS "
        "1.2 and 1.3 only; read again when it changes, as the other two are",
    )
    tls_key: Path | None = setting(
        None,
        "file",
        "PEM, without a password: the key, if it is not in the file of the certificate",
    )
    tls_client_ca: Path | None = setting(
        None,
        "file",
        "PEM: the CA whose certificates clients must show; without it none is required",
    )
    allow_insecure: bool = setting(
        False,
        "yes or no",
        "listen beyond loopback without TLS or without identities",
    )
    trusted_proxies: str = setting(
        "",
        "networks",
        "addresses and networks of proxies whose headers name the client, separated by commas",
    )
    proxy_headers: Literal["x-forwarded", "forwarded"] = setting(
        "x-forwarded",
        "name",
        "headers that these proxies write: X-Forwarded-For, -Proto and -Host, or Forwarded (RFC "
        "7239); the server ignores the other form",
    )

    @property
    def proxies(self) -> TrustedProxies:
        """The proxies in ``trusted_proxies``.

        Raises:
            ValueError: A text is no address or network.
        """
        named = filter(None, map(str.strip, self.trusted_proxies.split(",")))
        return TrustedProxies(named, rfc7239=self.proxy_headers == "forwarded")


class Origins:
    """A set of allowed origins."""

    def __init__(self, listed: Iterable[str]) -> None:
        """Parse the texts of a setting.

        Raises:
            ValueError: A text is no origin; the error shows the valid forms.
        """
        patterns = []
        for origin in listed:
            found = _ORIGIN.fullmatch(origin.lower())
            if origin == "*":
                patterns.append(".*")
            elif found is None:
                raise ValueError(
                    f"{origin!r} is no origin such as https://example.org:8443, nor https://*.example.org for "
                    "all names below one, nor *"
                )
            else:
                labels = _LABELS if found[2] else ""
                patterns.append(f"{re.escape(found[1])}://{labels}{re.escape(found[3])}")
        self.any = ".*" in patterns
        """True if every page is allowed."""
        self.pattern = re.compile("|".join(patterns) or r"(?!)", re.ASCII)
        """A pattern for ``fullmatch`` that matches the allowed origins."""

    def has(self, origin: str) -> bool:
        """Return True if an origin, as a browser writes it, is allowed."""
        return self.pattern.fullmatch(origin) is not None


def listed(text: str) -> tuple[str, ...]:
    """Return the texts of a setting that are separated by commas."""
    return tuple(filter(None, map(str.strip, text.split(","))))
