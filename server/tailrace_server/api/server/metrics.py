"""/metrics: the server's statistics in a text format of Prometheus, computed at each scrape.

Each number is a field of `EngineStatistics` or of the records in it, or a counter of a face. So a dashboard
shows the same number that a test asserts. Figures of a catalog have the label ``catalog``. Subscriptions have
no label, because their number is not bounded; named subscriptions have one, because theirs is.
"""

# Long: the tables of all families, each of one record of statistics.

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from tailrace.named import SubscriptionHealth

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from prometheus_client.metrics_core import Metric

    from tailrace_server.access.audit_trail import TrailStatistics
    from tailrace_server.access.quotas import Quotas
    from tailrace_server.api.face_watch import FaceStatistics
    from tailrace_server.api.graphql.documents import DocumentStatistics
    from tailrace_server.api.grpc import GrpcStatistics
    from tailrace_server.api.transport_security.files import TlsStatistics
    from tailrace_server.api.websocket.sockets import SocketStatistics
    from tailrace_server.histogram import LatencyHistogram
    from tailrace_server.named.loss_watch import WatchedSubscription
    from tailrace_server.resources.disk_usage import DiskUsage
    from tailrace_server.resources.statistics import EngineStatistics, ObserverStatistics

    Kind = type[CounterMetricFamily | GaugeMetricFamily]
    Row = tuple[Kind, str, str, str]

_Found = TypeVar("_Found")

TEXT_TYPE: Final = "text/plain"
"""The text format that every Prometheus reads."""
OPENMETRICS_TYPE: Final = "application/openmetrics-text"

_COUNTER: Final = CounterMetricFamily
_GAUGE: Final = GaugeMetricFamily

# Families of one number each: kind, name behind `tailrace_`, field of the statistics, help text.
_CATALOG: Final[tuple[Row, ...]] = (
    (_GAUGE, "published_version", "published", "Highest version that subscribers can read."),
    (_GAUGE, "committed_version", "committed", "Highest durable version, published or not."),
    (_GAUGE, "oldest_version", "oldest", "First retained version."),
    (_GAUGE, "records", "records", "Published records, trimmed ones included."),
    (_GAUGE, "records_routed", "records_routed", "Running number of the last routed record."),
    (
        _GAUGE,
        "publishers",
        "publishers",
        "Shared publishers, one for each distinct criteria set.",
    ),
    (_GAUGE, "subscriptions", "subscriptions", "Open subscriptions."),
    (_GAUGE, "ring_bytes", "ring_bytes", "Bytes of row references in the rings."),
    (_GAUGE, "damaged_places", "damaged_places", "Places of the log that were found damaged."),
    (
        _GAUGE,
        "log_bytes_over",
        "bytes_over",
        "Bytes by which the records exceed max_bytes, else 0.",
    ),
    (
        _COUNTER,
        "batches_unreadable",
        "batches_unreadable",
        "Batches that the live path skipped because they could not be read or routed.",
    ),
)
_ENGINE: Final[tuple[Row, ...]] = (
    (_COUNTER, "subscriptions_opened", "subscriptions_opened", "Subscriptions opened."),
    (
        _COUNTER,
        "subscriptions_failed",
        "subscriptions_failed",
        "Subscriptions ended by an error.",
    ),
    (
        _COUNTER,
        "disconnected_for_memory",
        "disconnected_for_memory",
        "Readers disconnected to free memory.",
    ),
    (_COUNTER, "captures_delivered", "captures_delivered", "Captures handed to transports."),
    (_COUNTER, "delivered_bytes", "bytes_delivered", "Bytes of captures handed to transports."),
    (_COUNTER, "heartbeats_sent", "heartbeats_sent", "Heartbeats handed to transports."),
    (_COUNTER, "resyncs", "resyncs", "Moves of a subscription from live into resync."),
    (_COUNTER, "returns", "returns", "Moves of a subscription from resync back to live."),
)
_GRPC: Final[tuple[Row, ...]] = (
    (
        _COUNTER,
        "grpc_streams_too_slow",
        "streams_too_slow",
        "gRPC streams ended because a message was not read within the send deadline.",
    ),
    (
        _COUNTER,
        "grpc_streams_refused",
        "streams_refused",
        "gRPC calls rejected because their connection had too many open calls.",
    ),
    (
        _COUNTER,
        "grpc_connections_cut",
        "connections_cut",
        "gRPC connections closed because of unfinished requests.",
    ),
)
_MEMORY: Final[tuple[Row, ...]] = (
    (
        _GAUGE,
        "message_bytes_max",
        "message_bytes_max",
        "Present size limit of messages, in bytes; smaller while memory is short.",
    ),
    (
        _GAUGE,
        "waiting_for_memory",
        "waiting_for_memory",
        "Readers that wait until other large messages are delivered.",
    ),
)
_CACHE: Final[tuple[Row, ...]] = (
    (_COUNTER, "cache_hits", "hits", "Requests for values that were in the batch cache."),
    (_COUNTER, "cache_misses", "misses", "Loads of values into the batch cache."),
    (_COUNTER, "cache_evicted", "evicted", "Values evicted from the batch cache."),
    (
        _GAUGE,
        "process_anonymous_bytes",
        "process_bytes",
        "Anonymous memory of the process when last measured; --memory limits it.",
    ),
)
_SQL: Final[tuple[Row, ...]] = (
    (_GAUGE, "sql_statements", "statements", "Open SQL statements."),
    (
        _GAUGE,
        "sql_computing",
        "computing",
        "SQL statements that are being computed; the others wait for their readers.",
    ),
    (_COUNTER, "sql_answered", "answered", "SQL statements whose answer was read to the end."),
    (
        _COUNTER,
        "sql_refused",
        "refused",
        "SQL statements ended by an error, including those rejected because the server was full.",
    ),
    (_COUNTER, "sql_left", "left", "SQL statements that their readers ended early."),
    (
        _COUNTER,
        "sql_computing_seconds",
        "computing_s",
        "Seconds for which completed SQL statements were computed.",
    ),
    (
        _COUNTER,
        "sql_answer_bytes",
        "answer_bytes",
        "Bytes of answers of completed SQL statements that were handed to transports.",
    ),
)
_SOCKETS: Final[tuple[Row, ...]] = (
    (_GAUGE, "live_connections", "open", "Open WebSockets and event streams."),
    (_COUNTER, "live_connections_opened", "opened", "WebSockets and event streams opened."),
    (
        _COUNTER,
        "live_connections_refused",
        "refused",
        "WebSockets and event streams rejected because too many were open.",
    ),
    (
        _COUNTER,
        "live_subscriptions_refused",
        "subscriptions_refused",
        "Subscribes rejected because their WebSocket had too many open subscriptions.",
    ),
    (
        _COUNTER,
        "inbound_refused",
        "inbound_refused",
        "Senders rejected because all peers together sent more than the inbound budget.",
    ),
    (_GAUGE, "event_loop_tasks", "tasks", "Tasks of the server's event loop."),
)
_AUDIT: Final[tuple[Row, ...]] = (
    (_COUNTER, "audit_lines", "written", "Lines of the audit."),
    (
        _COUNTER,
        "audit_lines_lost",
        "lost",
        "Audit lines lost because the queue was full.",
    ),
    (_GAUGE, "audit_queue_bytes", "queued_bytes", "Bytes of audit lines that wait to be written."),
    (
        _GAUGE,
        "audit_standing_still_seconds",
        "standing_still_s",
        "Seconds since the audit could last be written; 0 while it can.",
    ),
)
_TLS: Final[tuple[Row, ...]] = (
    (_COUNTER, "tls_reloads", "reloads", "Changes of the TLS files that were applied."),
    (
        _COUNTER,
        "tls_reloads_failed",
        "reloads_failed",
        "Changes of the TLS files that could not be used; /health and the log say why.",
    ),
)


class _Families(Collector):
    """A collector of metric families that a function returns at each scrape."""

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        """Set the function."""
        self._collect = collect

    def collect(self) -> Iterable[Metric]:
        """Return the families with their current values."""
        return self._collect()


def registry(
    statistics: Callable[[], EngineStatistics], grpc: Callable[[], GrpcStatistics], *, version: str
) -> CollectorRegistry:
    """Return a new registry, so that two servers in one process do not share the global one.

    Args:
        statistics: Returns the figures of the engine.
        grpc: Returns the figures of the gRPC face.
        version: The version of this distribution.
    """
    made = CollectorRegistry()
    made.register(_Families(lambda: _engine(statistics(), grpc(), version)))
    ProcessCollector(registry=made)
    return made


def expose(metrics: CollectorRegistry, kind: str = TEXT_TYPE) -> tuple[bytes, str]:
    """Return the text of all metrics and its content type, in the format `TEXT_TYPE` or `OPENMETRICS_TYPE`."""
    if kind == TEXT_TYPE:
        return generate_latest(metrics), CONTENT_TYPE_PLAIN_0_0_4
    text: bytes = openmetrics.generate_latest(metrics)  # type: ignore[no-untyped-call]
    return text, openmetrics.CONTENT_TYPE_LATEST


def register(
    metrics: CollectorRegistry,
    families: Callable[[_Found], Iterable[Metric]],
    read: Callable[[], _Found],
) -> None:
    """Add metrics to a registry: each scrape calls ``read``, and ``families`` with its result."""
    metrics.register(_Families(lambda: families(read())))


def _of_fields(rows: Iterable[Row], found: object) -> Iterator[Metric]:
    """Yield a family for each row of a table; its value is a field of one record of statistics."""
    for kind, name, field, text in rows:
        yield kind(f"tailrace_{name}", text, getattr(found, field))


def _labelled(
    kind: Kind, name: str, text: str, labels: Sequence[str], values: Iterable[Sequence[object]]
) -> Metric:
    """Return a family with labels; each of ``values`` has the labels' values and then the number."""
    family = kind(f"tailrace_{name}", text, labels=labels)
    for *of, number in values:
        family.add_metric(list(map(str, of)), float(number))  # type: ignore[arg-type]
    return family


def _engine(found: EngineStatistics, grpc: GrpcStatistics, version: str) -> Iterator[Metric]:
    yield InfoMetricFamily("tailrace_build", "Version of the running server.", {"version": version})
    yield from _of_fields(_ENGINE, found)
    yield from _of_fields(_GRPC, grpc)
    yield _labelled(
        _COUNTER,
        "grpc_errors",
        "Errors that gRPC calls ended with, by machine code.",
        ["code"],
        sorted(grpc.errors.items()),
    )
    yield _latencies(found.latencies)
    yield from _catalogs(found.observers)
    yield from _disks(found.disks)
    yield _labelled(
        _GAUGE,
        "fault",
        "1 for each present fault, by its kind and its catalog or folder; /health says more.",
        ["kind", "subject"],
        ((each.kind, each.subject, 1) for each in found.faults),
    )
    yield from _of_fields(_MEMORY, found)
    yield _labelled(
        _GAUGE,
        "memory_bytes",
        "Bytes in each account of the memory budget; rest is all memory without an account.",
        ["account"],
        ((each.name, each.bytes) for each in found.memory),
    )
    yield _labelled(
        _GAUGE,
        "memory_bytes_max",
        "Bound of each account of the memory budget.",
        ["account"],
        ((each.name, each.bytes_max) for each in found.memory if each.bytes_max is not None),
    )
    yield from _of_fields(_CACHE, found.cache)
    yield from _of_fields(_SQL, found.sql)


def _catalogs(observers: Sequence[ObserverStatistics]) -> Iterator[Metric]:
    for kind, name, field, text in _CATALOG:
        values = ((each.catalog, getattr(each, field)) for each in observers)
        yield _labelled(kind, name, text, ["catalog"], values)
    yield _labelled(
        _GAUGE,
        "newest_commit_age_seconds",
        "Seconds since the newest published version appeared, by the server's clock.",
        ["catalog"],
        ((each.catalog, each.newest_age_s) for each in observers if each.newest_age_s is not None),
    )
    now = time.time()
    yield _labelled(
        _GAUGE,
        "oldest_commit_age_seconds",
        "Seconds since the commit timestamp of the oldest retained version.",
        ["catalog"],
        (
            (each.catalog, max(0.0, now - each.oldest_timestamp / 1e6))
            for each in observers
            if each.oldest_timestamp
        ),
    )
    yield _labelled(
        _GAUGE,
        "oldest_bodies_version",
        "First version that has bodies, for each entity type whose older bodies were removed.",
        ["catalog", "entity_type"],
        (
            (each.catalog, entity_type, version)
            for each in observers
            for entity_type, version in each.bodies_from.items()
        ),
    )


def _latencies(found: Mapping[str, LatencyHistogram]) -> Metric:
    latency = HistogramMetricFamily(
        "tailrace_hand_over_latency_seconds",
        "Seconds from a commit to the hand-over of its captures to the transport, once for each message or "
        "run of messages; only for commits after the start of the subscription.",
        labels=["transport"],
    )
    for transport, histogram in sorted(found.items()):
        latency.add_metric([transport], histogram.cumulative(), histogram.sum_s)
    return latency


def _disks(found: Mapping[str, DiskUsage]) -> Iterator[Metric]:
    for name, field, text in (
        (
            "log_bytes",
            "nbytes",
            "Bytes on disk below the catalog's folder, measured at most once a minute.",
        ),
        ("log_files", "files", "Files below the catalog's folder."),
        (
            "log_free_bytes",
            "free_bytes",
            "Bytes free on the file system of the catalog's folder, measured at the same time.",
        ),
    ):
        values = ((catalog, getattr(usage, field)) for catalog, usage in found.items())
        yield _labelled(_GAUGE, name, text, ["catalog"], values)


def sockets(found: SocketStatistics) -> Iterator[Metric]:
    """Yield the metrics of the HTTP listener's live connections."""
    yield from _of_fields(_SOCKETS, found)
    yield _labelled(
        _COUNTER,
        "live_connections_ended",
        "Connections that the server ended, by the guard or the close code that ended them.",
        ["guard"],
        sorted(found.guards.items()),
    )
    yield _labelled(
        _COUNTER,
        "http_errors",
        "Errors sent over the HTTP listener, by transport (http: an answer or its end) and machine code.",
        ["transport", "code"],
        ((*of, count) for of, count in sorted(found.errors.items())),
    )


def documents(found: DocumentStatistics) -> Iterator[Metric]:
    """Yield the metrics of GraphQL documents and subscriptions."""
    yield _labelled(
        _COUNTER,
        "graphql_documents",
        "GraphQL documents, by result: cached, validated, refused.",
        ["result"],
        ((result, getattr(found, result)) for result in ("cached", "validated", "refused")),
    )
    yield _labelled(
        _COUNTER,
        "graphql_subscriptions",
        "GraphQL subscriptions begun, by how they are served: compiled.",
        ["path"],
        [("compiled", found.compiled)],
    )


def faces(found: Sequence[FaceStatistics]) -> Iterator[Metric]:
    """Yield the metrics of the watch of the faces."""
    yield _labelled(
        _GAUGE,
        "face_accepting",
        "1 for each face that answered its last probe, else 0; /health says why.",
        ["face"],
        ((each.name, each.reason is None) for each in found),
    )
    yield _labelled(
        _COUNTER,
        "face_probes_unanswered",
        "Probes of a face that failed.",
        ["face"],
        ((each.name, each.unanswered) for each in found),
    )
    yield _labelled(
        _COUNTER,
        "face_listeners_renewed",
        "Listeners of a face that replaced one that did not accept connections.",
        ["face"],
        ((each.name, each.renewed) for each in found),
    )


def tls(found: TlsStatistics) -> Iterator[Metric]:
    """Yield the metrics of the TLS files."""
    yield _GAUGE(
        "tailrace_tls_certificate_ends_seconds",
        "When the server's certificate expires, in seconds since 1970.",
        found.ends.timestamp(),
    )
    yield from _of_fields(_TLS, found)


def named(watched: Sequence[WatchedSubscription]) -> Iterator[Metric]:
    """Yield the metrics of named subscriptions."""
    for name, text, value in (
        (
            "age_seconds",
            "Seconds since the commit of the first change that is not acknowledged.",
            lambda each: each.named.hold.age_us / 1e6,
        ),
        ("behind_bytes", "Unacknowledged bytes of the log.", lambda each: each.named.hold.bytes),
        (
            "kept",
            "1 if retention keeps the records that the subscription needs, 0 if its hold has ended.",
            lambda each: each.named.health is SubscriptionHealth.HELD,
        ),
        (
            "lost_in_seconds",
            "Seconds until retention may remove needed records; absent if time alone removes none.",
            lambda each: None if each.loss.in_us is None else each.loss.in_us / 1e6,
        ),
        (
            "lost_in_bytes",
            "Log growth, in bytes, until retention may remove needed records; absent if growth removes none.",
            lambda each: each.loss.in_bytes,
        ),
    ):
        values = ((each.named.catalog, each.named.name, value(each)) for each in watched)
        yield _labelled(
            _GAUGE,
            f"named_subscription_{name}",
            text,
            ["catalog", "name"],
            (each for each in values if each[-1] is not None),
        )


def quotas(found: Quotas) -> Iterator[Metric]:
    """Yield the metrics of quotas: used amounts and refusals."""
    for kind, name, text, amounts in (
        (
            _GAUGE,
            "quota_used",
            "Present use of the quotas that are set, by quota and kind of credential.",
            found.used,
        ),
        (
            _COUNTER,
            "quota_refused",
            "Refusals because a quota was used up, by quota and kind of credential.",
            found.refused,
        ),
    ):
        values = ((*of, amount) for of, amount in sorted(amounts.items()))
        yield _labelled(kind, name, text, ["quota", "class"], values)


def audit(found: TrailStatistics | None) -> Iterable[Metric]:
    """Return the metrics of the audit; there are none while the audit is off."""
    return () if found is None else _of_fields(_AUDIT, found)


def issuers(ages_s: Mapping[str, float]) -> Iterator[Metric]:
    """Yield the metric of the age of issuers' keys."""
    yield _labelled(
        _GAUGE,
        "issuer_keys_age_seconds",
        "Seconds since the keys of an issuer were last fetched; a value above --jwks-refresh-s means that "
        "fetches fail.",
        ["issuer"],
        sorted(ages_s.items()),
    )
