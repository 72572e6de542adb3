"""The bounds of REST, WebSocket and server-sent events; docs/settings.md is made from these fields."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace_server.api.http.origins import Origins
from tailrace_server.resources.settings import setting


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
        """Those of ``http_hosts``, one by one."""
        return listed(self.http_hosts)

    @property
    def origins(self) -> Origins:
        """Those of ``ws_origins``.

        Raises:
            ValueError: One is none.
        """
        return Origins(listed(self.ws_origins))

    @property
    def readers(self) -> Origins:
        """Those whose pages may read answers.

        Raises:
            ValueError: One is none.
        """
        return Origins((*listed(self.http_origins), *listed(self.ws_origins)))


def listed(text: str) -> tuple[str, ...]:
    """Return what a setting lists, separated by commas."""
    return tuple(filter(None, map(str.strip, text.split(","))))
