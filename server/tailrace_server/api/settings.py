"""The bounds of REST, WebSocket and server-sent events; docs/settings.md is made from these fields."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace_server.api.http.origins import Origins
from tailrace_server.capture.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """Bounds of the faces on the HTTP listener."""

    page_records: int = setting(
        1_000,
        "records",
        "in a JSON page of history that names no limit; NDJSON and Arrow are read as they come",
    )
    request_head_s: float = setting(
        10.0,
        "seconds",
        "how long a connection may stay without a whole request; then it is cut: request_head",
    )
    request_body_s: float = setting(
        10.0, "seconds", "how long the body of a request may take to arrive; then 408"
    )
    http_keepalive_s: float = setting(
        75.0,
        "seconds",
        "how long an idle connection stays open for another request, in whole seconds; longer than a proxy "
        "keeps its idle ones (nginx and ALB 60 s), or it sends a request to one that closes",
    )
    http_connections: int = setting(
        10_000,
        "connections",
        "WebSockets and event streams that are open at once; above it a handshake is answered with 429",
    )
    http_send_buffer_bytes: int = setting(
        512 << 10,
        "bytes",
        "of the kernel for each connection, its own overhead included; left to itself it takes megabytes for "
        "each reader that stalls",
    )
    http_hosts: str = setting(
        "",
        "names",
        "by which requests may name the server (`Host`) besides addresses, `localhost`, `--http` and the "
        "machine's name, separated by commas; `*.example.com` for all below one, or *",
    )
    root_path: str = setting(
        "",
        "path",
        "below which a proxy has put the server, as /changes, whether or not it takes that away again; "
        "documents name it",
    )
    http_origins: str = setting(
        "",
        "origins",
        "whose pages may read answers over HTTP (CORS) besides our own, separated by commas; "
        "`https://*.example.com` for all names below one, or * for every page",
    )
    ws_origins: str = setting(
        "",
        "origins",
        "whose pages may open WebSockets besides our own, and read answers too; written as http_origins",
    )
    ws_subscriptions: int = setting(
        100, "subscriptions", "open at once on one socket; above it the new one ends with an error"
    )
    ws_init_timeout_s: float = setting(
        10.0, "seconds", "how long a socket may stay without connection_init; then close code 4408"
    )
    ws_message_bytes: int = setting(
        4 << 20,
        "bytes",
        "largest message of a client: 10,000 keys of 400 bytes; above it close code 1009",
    )
    ws_init_message_bytes: int = setting(
        64 << 10,
        "bytes",
        "the same before connection_init, when nobody knows yet who is there",
    )
    ws_ping_interval_s: float = setting(
        20.0,
        "seconds",
        "how often a socket is probed: finds peers that vanished or stopped reading",
    )
    ws_ping_timeout_s: float = setting(
        20.0,
        "seconds",
        "how long a probe may stay unanswered; behind what is unread it is the send deadline; then it is cut",
    )
    ws_pings_unread: int = setting(
        1_000,
        "pings",
        "taken from a client that does not read our answers, which are dropped; then the connection is cut",
    )
    graphql_document_bytes: int = setting(
        64 << 10,
        "bytes",
        "longest GraphQL document; a selection of 1,000 columns has a fifth of it",
    )
    graphql_tokens: int = setting(
        4_000, "tokens", "in a GraphQL document: it is not parsed further"
    )
    graphql_depth: int = setting(
        20, "fields", "one in the other in a GraphQL document: GraphiQL's introspection has 15"
    )
    graphql_fields: int = setting(
        1_000,
        "fields",
        "of a GraphQL operation with its fragments spread; what validation costs grows with the square",
    )
    graphql_aliases: int = setting(
        100, "aliases", "in a GraphQL operation with its fragments spread"
    )
    graphql_history_bytes: int = setting(
        16 << 20, "bytes", "of history that one GraphQL operation reads, its pages together"
    )
    graphql_answer_bytes: int = setting(
        32 << 20,
        "bytes",
        "of memory for one GraphQL answer as it is made, 200 for each field; GraphiQL's introspection takes "
        "some 3 KB a column",
    )
    graphql_introspection: bool = setting(
        True, "yes or no", "whether GraphQL clients may read the schema; GraphiQL needs it"
    )
    graphql_graphiql: bool = setting(
        True, "yes or no", "whether a browser that opens a GraphQL path is given GraphiQL"
    )
    graphql_documents_bytes: int = setting(
        256 << 10,
        "bytes",
        "of valid GraphQL documents, kept so that an equal one is not validated again",
    )

    graphql_reservations: int = setting(
        1_000,
        "reservations",
        "of event streams (graphql-sse) that wait for their stream; where there are more the oldest ends",
    )
    graphql_reservation_s: float = setting(
        10.0, "seconds", "how long a reserved event stream may take to be opened"
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
