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
        "most records of a JSON page of history if the request has no limit; NDJSON and Arrow "
        "have no pages",
    )
    request_head_s: float = setting(
        10.0,
        "seconds",
        "longest time for a connection to send a complete request head; later it is closed",
    )
    request_body_s: float = setting(
        10.0, "seconds", "longest time for the body of a request to arrive; later the answer is 408"
    )
    http_keepalive_s: float = setting(
        75.0,
        "seconds",
        "time after which an idle connection is closed; must be longer than the proxy's own time "
        "(nginx and ALB: 60 s)",
    )
    http_connections: int = setting(
        10_000,
        "connections",
        "most open WebSockets and event streams; further handshakes get 429",
    )
    http_send_buffer_bytes: int = setting(
        512 << 10,
        "bytes",
        "size of the kernel's send buffer for each connection; the kernel's default takes "
        "megabytes for each stalled reader",
    )
    http_hosts: str = setting(
        "",
        "names",
        "names accepted in `Host`, separated by commas, besides addresses, `localhost`, the host "
        "of `--http` and the machine's name; `*.example.com` for all names below it, or * for "
        "all names",
    )
    root_path: str = setting(
        "",
        "path",
        "path below which a proxy serves this server, such as /changes",
    )
    http_origins: str = setting(
        "",
        "origins",
        "origins whose pages may read answers over HTTP (CORS), separated by commas; "
        "`https://*.example.com` for all names below it, or * for all origins",
    )
    ws_origins: str = setting(
        "",
        "origins",
        "origins whose pages may open WebSockets and read answers; same form as http_origins",
    )
    ws_subscriptions: int = setting(
        100,
        "subscriptions",
        "most open subscriptions of one socket; a further one ends with an error",
    )
    ws_init_timeout_s: float = setting(
        10.0,
        "seconds",
        "longest time for a socket to send connection_init; later it is closed with code 4408",
    )
    ws_message_bytes: int = setting(
        4 << 20,
        "bytes",
        "largest message of a client: 10,000 keys of 400 bytes; a larger one closes the socket "
        "with code 1009",
    )
    ws_init_message_bytes: int = setting(
        64 << 10,
        "bytes",
        "largest message before connection_init",
    )
    ws_ping_interval_s: float = setting(
        20.0,
        "seconds",
        "interval between pings to a socket; they detect peers that vanished or stopped reading",
    )
    ws_ping_timeout_s: float = setting(
        20.0,
        "seconds",
        "longest time for the answer to a ping; while messages are unread, the send deadline "
        "applies instead",
    )
    ws_pings_unread: int = setting(
        1_000,
        "pings",
        "most pings of a client that does not read the answers; at the next one its connection "
        "is closed",
    )
    graphql_document_bytes: int = setting(
        64 << 10,
        "bytes",
        "largest document; a selection of 1,000 columns takes 1/5 of the default",
    )
    graphql_tokens: int = setting(4_000, "tokens", "most tokens of a document")
    graphql_depth: int = setting(
        20,
        "fields",
        "deepest nesting of fields in a document; GraphiQL's introspection has 15 levels",
    )
    graphql_fields: int = setting(
        1_000,
        "fields",
        "most fields of an operation, with its fragments spread; the cost of validation grows "
        "with their square",
    )
    graphql_aliases: int = setting(
        100, "aliases", "most aliases of an operation, with its fragments spread"
    )
    graphql_history_bytes: int = setting(
        16 << 20, "bytes", "most bytes of history that one operation reads, all pages together"
    )
    graphql_answer_bytes: int = setting(
        32 << 20,
        "bytes",
        "most memory of one answer: 200 bytes for each field; GraphiQL's introspection takes 3 "
        "KB a column",
    )
    graphql_introspection: bool = setting(
        True, "yes or no", "allow clients to read the schema; GraphiQL needs it"
    )
    graphql_graphiql: bool = setting(
        True, "yes or no", "serve GraphiQL to a browser that opens a GraphQL path"
    )
    graphql_documents_bytes: int = setting(
        256 << 10,
        "bytes",
        "most bytes of validated documents in the cache; an equal document is not validated again",
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
        "largest request: 10,000 keys of 400 bytes; gRPC rejects a larger one by its length",
    )
    request_s: float = setting(
        10.0,
        "seconds",
        "longest time for a connection to have more than 64 KiB of unfinished requests; later it "
        "is closed",
    )
    grpc_send_buffer_bytes: int = setting(
        512 << 10,
        "bytes",
        "size of the kernel's send buffer for each connection; the kernel's default takes "
        "megabytes for each stalled client",
    )
    subscribe_deadline_s: float = setting(
        10.0, "seconds", "longest wait of SubscribeWithDemand for its first message"
    )
    streams_per_connection: int = setting(
        10_000,
        "calls",
        "most open calls of one connection; a further one ends with INVALID_REQUEST",
    )
    handshake_s: float = setting(
        10.0, "seconds", "longest time for a new connection to speak HTTP/2"
    )
    keepalive_s: float = setting(
        30.0,
        "seconds",
        "idle time after which a connection is pinged; the ping detects peers that vanished",
    )
    keepalive_timeout_s: float = setting(
        20.0,
        "seconds",
        "longest time for the answer to a ping, also if the peer does not read its socket",
    )
    ping_interval_min_s: float = setting(
        10.0,
        "seconds",
        "shortest time between two pings of a client; a client that pings more often is "
        "disconnected",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportSecuritySettings:
    """TLS and trusted proxies of both listeners; in the settings file also a table, ``[tls]``."""

    tls_certificate: Path | None = setting(
        None,
        "file",
        "PEM file with the server's certificate and the intermediate certificates; with it, both "
        "listeners accept only TLS 1.2 and 1.3; this file, the key and the CA are read again "
        "when they change",
    )
    tls_key: Path | None = setting(
        None,
        "file",
        "PEM file with the key, without a password; needed if the key is not in the file of the "
        "certificate",
    )
    tls_client_ca: Path | None = setting(
        None,
        "file",
        "PEM file with the CA that must have signed the certificates of clients; without it, no "
        "client certificate is required",
    )
    allow_insecure: bool = setting(
        False,
        "yes or no",
        "allow listening beyond loopback without TLS or without identities",
    )
    trusted_proxies: str = setting(
        "",
        "networks",
        "addresses and networks of the proxies whose headers name the client, separated by commas",
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
                    f"{origin!r} is not an origin; write one such as https://example.org:8443, "
                    "https://*.example.org for all names below it, or * for all origins"
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
