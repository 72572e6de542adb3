"""/metrics: the engine's statistics in the text format that is asked for, computed at the moment of the scrape.

Nothing is counted twice or kept on the side: each number is one field of `EngineStatistics` or of the
records in it, or one that a face counts, so that what a dashboard shows is what a test asserts. Per-catalog
figures carry the label ``catalog``; there is no label per subscription, whose number has no bound.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

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

from tailrace_server.api.sql_metrics import sql_families

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from prometheus_client.metrics_core import Metric

    from tailrace_server.access.audit_trail import TrailStatistics
    from tailrace_server.access.quotas import Quotas
    from tailrace_server.api.face_watch import FaceStatistics
    from tailrace_server.api.graphql.documents import DocumentStatistics
    from tailrace_server.api.grpc import GrpcStatistics
    from tailrace_server.api.transport_security.files import TlsStatistics
    from tailrace_server.api.websocket.sockets import SocketStatistics
    from tailrace_server.histogram import LatencyHistogram
    from tailrace_server.resources.disk_usage import DiskUsage
    from tailrace_server.resources.statistics import EngineStatistics, ObserverStatistics

TEXT_TYPE: Final = "text/plain"
"""The text format that every Prometheus reads."""
OPENMETRICS_TYPE: Final = "application/openmetrics-text"

_CATALOG_GAUGES: Final[tuple[tuple[str, str, str], ...]] = (
    ("published_version", "published", "Highest version that subscribers may see."),
    ("committed_version", "committed", "Highest durable version, published or not."),
    ("oldest_version", "oldest", "First version that is kept."),
    ("records", "records", "Published records, trimmed ones included."),
    ("records_routed", "records_routed", "How far the live path has come, in records."),
    ("publishers", "publishers", "Shared publishers, one for each distinct criteria set."),
    ("subscriptions", "subscriptions", "Subscriptions that are open."),
    ("ring_bytes", "ring_bytes", "Bytes of row references in the rings."),
    ("damaged_places", "damaged_places", "Places of the log that were found damaged."),
    ("log_bytes_over", "bytes_over", "By how much the records exceed max_bytes, else 0."),
)
_ENGINE_COUNTERS: Final[tuple[tuple[str, str, str], ...]] = (
    ("subscriptions_opened", "subscriptions_opened", "Subscriptions opened."),
    ("subscriptions_failed", "subscriptions_failed", "Subscriptions ended by an error."),
    ("disconnected_for_memory", "disconnected_for_memory", "Readers ended to free memory."),
    ("captures_delivered", "captures_delivered", "Captures handed to transports."),
    ("delivered_bytes", "bytes_delivered", "Bytes of captures handed to transports."),
    ("heartbeats_sent", "heartbeats_sent", "Heartbeats handed to transports."),
    ("resyncs", "resyncs", "Moves of a subscription from live into resync."),
    ("returns", "returns", "Moves of a subscription from resync back to live."),
)


class EngineCollector(Collector):
    """Turns one look at the statistics into metric families."""

    def __init__(
        self,
        statistics: Callable[[], EngineStatistics],
        grpc: Callable[[], GrpcStatistics],
        *,
        version: str,
    ) -> None:
        """Read from both at each scrape."""
        self._statistics = statistics
        self._grpc = grpc
        self._version = version

    def collect(self) -> Iterable[Metric]:
        """Return the families of this moment."""
        found = self._statistics()
        yield InfoMetricFamily("tailrace_build", "What runs.", {"version": self._version})
        for name, field, help_text in _ENGINE_COUNTERS:
            value = getattr(found, field)
            yield CounterMetricFamily(f"tailrace_{name}", help_text, value)
        grpc = self._grpc()
        yield CounterMetricFamily(
            "tailrace_grpc_streams_too_slow",
            "gRPC streams ended because a message stayed unread past the send deadline.",
            grpc.streams_too_slow,
        )
        yield CounterMetricFamily(
            "tailrace_grpc_streams_refused",
            "gRPC calls refused because their connection had too many open.",
            grpc.streams_refused,
        )
        yield CounterMetricFamily(
            "tailrace_grpc_connections_cut",
            "gRPC connections cut because they sent what they did not finish.",
            grpc.connections_cut,
        )
        errors = CounterMetricFamily(
            "tailrace_grpc_errors",
            "Errors that gRPC calls ended with, by machine code.",
            labels=["code"],
        )
        for code, count in sorted(grpc.errors.items()):
            errors.add_metric([code], count)
        yield errors
        yield _latencies(found.latencies)
        yield from _catalogs(found.observers)
        yield from _disks(found.disks)
        faults = GaugeMetricFamily(
            "tailrace_fault",
            "1 for each thing that is wrong now, by its kind and its catalog or folder; /health says more.",
            labels=["kind", "subject"],
        )
        for each in found.faults:
            faults.add_metric([each.kind, each.subject], 1)
        yield faults
        yield GaugeMetricFamily(
            "tailrace_message_bytes_max",
            "What messages are cut to at most, less while memory is short.",
            found.message_bytes_max,
        )
        yield GaugeMetricFamily(
            "tailrace_waiting_for_memory",
            "Readers that wait until other large messages have gone.",
            found.waiting_for_memory,
        )
        cache = found.cache
        yield GaugeMetricFamily("tailrace_cache_bytes", "Charged to the batch cache.", cache.bytes)
        yield CounterMetricFamily("tailrace_cache_hits", "Found in the batch cache.", cache.hits)
        yield CounterMetricFamily(
            "tailrace_cache_misses", "Loaded into the batch cache.", cache.misses
        )
        yield CounterMetricFamily(
            "tailrace_cache_evicted", "Dropped from the batch cache.", cache.evicted
        )
        yield GaugeMetricFamily(
            "tailrace_process_anonymous_bytes",
            "Anonymous memory of the process when last measured; what --memory bounds.",
            cache.process_bytes,
        )
        yield from sql_families(found.sql)


class SocketCollector(Collector):
    """The live connections of the HTTP listener."""

    def __init__(self, statistics: Callable[[], SocketStatistics]) -> None:
        """Read from ``statistics`` at each scrape."""
        self._statistics = statistics

    def collect(self) -> Iterable[Metric]:
        """Return the families of this moment."""
        found = self._statistics()
        yield GaugeMetricFamily(
            "tailrace_live_connections", "WebSockets and event streams that are open.", found.open
        )
        yield CounterMetricFamily(
            "tailrace_live_connections_opened", "WebSockets and event streams opened.", found.opened
        )
        yield CounterMetricFamily(
            "tailrace_live_connections_refused",
            "WebSockets and event streams refused because too many were open.",
            found.refused,
        )
        yield CounterMetricFamily(
            "tailrace_live_subscriptions_refused",
            "Subscribes refused because their WebSocket had too many open.",
            found.subscriptions_refused,
        )
        yield GaugeMetricFamily(
            "tailrace_inbound_bytes",
            "Bytes that peers have sent over HTTP and that are not dealt with yet.",
            found.inbound_bytes,
        )
        yield CounterMetricFamily(
            "tailrace_inbound_refused",
            "Senders refused because peers sent more at once than there is room for.",
            found.inbound_refused,
        )
        yield GaugeMetricFamily(
            "tailrace_event_loop_tasks", "Tasks of the server's event loop.", found.tasks
        )
        guards = CounterMetricFamily(
            "tailrace_live_connections_ended",
            "Connections that the server ended, by the guard or the close code that ended them.",
            labels=["guard"],
        )
        for guard, count in sorted(found.guards.items()):
            guards.add_metric([guard], count)
        yield guards
        errors = CounterMetricFamily(
            "tailrace_http_errors",
            "Errors told over the HTTP listener, by how (http: an answer or the end of one) and machine code.",
            labels=["transport", "code"],
        )
        for (transport, code), count in sorted(found.errors.items()):
            errors.add_metric([transport, code], count)
        yield errors


class GraphqlCollector(Collector):
    """Documents and subscriptions of the GraphQL face."""

    def __init__(self, statistics: Callable[[], DocumentStatistics]) -> None:
        """Read from ``statistics`` at each scrape."""
        self._statistics = statistics

    def collect(self) -> Iterable[Metric]:
        """Return the families of this moment."""
        found = self._statistics()
        documents = CounterMetricFamily(
            "tailrace_graphql_documents",
            "GraphQL documents, by what became of them: cached, validated, refused.",
            labels=["result"],
        )
        for result in ("cached", "validated", "refused"):
            documents.add_metric([result], getattr(found, result))
        yield documents
        subscriptions = CounterMetricFamily(
            "tailrace_graphql_subscriptions",
            "GraphQL subscriptions begun, by how they are served: compiled.",
            labels=["path"],
        )
        subscriptions.add_metric(["compiled"], found.compiled)
        yield subscriptions


class AuditCollector(Collector):
    """The audit's queue."""

    def __init__(self, statistics: Callable[[], TrailStatistics | None]) -> None:
        """Read from ``statistics`` at each scrape."""
        self._statistics = statistics

    def collect(self) -> Iterable[Metric]:
        """Return the families of this moment; none where nothing is recorded."""
        found = self._statistics()
        if found is None:
            return
        yield CounterMetricFamily("tailrace_audit_lines", "Lines of the audit.", found.written)
        yield CounterMetricFamily(
            "tailrace_audit_lines_lost",
            "Lines of the audit that were lost, as the queue had no room.",
            found.lost,
        )
        yield GaugeMetricFamily(
            "tailrace_audit_queue_bytes", "Of lines that wait to be written.", found.queued_bytes
        )
        yield GaugeMetricFamily(
            "tailrace_audit_standing_still_seconds",
            "For how long the audit could not be written; 0 while it can.",
            found.standing_still_s,
        )


def register_audit(
    metrics: CollectorRegistry, statistics: Callable[[], TrailStatistics | None]
) -> None:
    """Add the audit to a registry."""
    metrics.register(AuditCollector(statistics))


class QuotaCollector(Collector):
    """The used part of quotas, and refusals."""

    def __init__(self, quotas: Quotas) -> None:
        """Read from ``quotas`` at each scrape."""
        self._quotas = quotas

    def collect(self) -> Iterable[Metric]:
        """Return the families of this moment."""
        used = GaugeMetricFamily(
            "tailrace_quota_used",
            "What is held now of quotas that are set, by quota and by how its principals prove who they are.",
            labels=["quota", "class"],
        )
        refused = CounterMetricFamily(
            "tailrace_quota_refused",
            "Times that a quota was used up, by the same.",
            labels=["quota", "class"],
        )
        for (quota, kind), amount in sorted(self._quotas.used.items()):
            used.add_metric([quota, kind], amount)
        for (quota, kind), amount in sorted(self._quotas.refused.items()):
            refused.add_metric([quota, kind], amount)
        yield from (used, refused)


def register_quotas(metrics: CollectorRegistry, quotas: Quotas) -> None:
    """Add quotas to a registry."""
    metrics.register(QuotaCollector(quotas))


class IssuerCollector(Collector):
    """How old the keys of issuers are."""

    def __init__(self, ages: Callable[[], Mapping[str, float]]) -> None:
        """Read from ``ages`` at each scrape."""
        self._ages = ages

    def collect(self) -> Iterable[Metric]:
        """Return the family of this moment."""
        found = GaugeMetricFamily(
            "tailrace_issuer_keys_age_seconds",
            "Since the keys of an issuer were last had from their address; more than --jwks-refresh-s: it is "
            "away.",
            labels=["issuer"],
        )
        for issuer, age_s in sorted(self._ages().items()):
            found.add_metric([issuer], age_s)
        yield found


def register_issuers(metrics: CollectorRegistry, ages: Callable[[], Mapping[str, float]]) -> None:
    """Add issuers to a registry."""
    metrics.register(IssuerCollector(ages))


class FaceCollector(Collector):
    """Whether the faces accept."""

    def __init__(self, statistics: Callable[[], tuple[FaceStatistics, ...]]) -> None:
        """Read from ``statistics`` at each scrape."""
        self._statistics = statistics

    def collect(self) -> Iterable[Metric]:
        """Return the families of this moment."""
        accepting = GaugeMetricFamily(
            "tailrace_face_accepting",
            "1 for each face whose last probe was answered, else 0; /health says why.",
            labels=["face"],
        )
        unanswered = CounterMetricFamily(
            "tailrace_face_probes_unanswered",
            "Probes of a face without an answer.",
            labels=["face"],
        )
        renewed = CounterMetricFamily(
            "tailrace_face_listeners_renewed",
            "Listeners of a face that took the place of one that accepted nobody.",
            labels=["face"],
        )
        for each in self._statistics():
            accepting.add_metric([each.name], each.reason is None)
            unanswered.add_metric([each.name], each.unanswered)
            renewed.add_metric([each.name], each.renewed)
        yield from (accepting, unanswered, renewed)


def register_faces(
    metrics: CollectorRegistry, statistics: Callable[[], tuple[FaceStatistics, ...]]
) -> None:
    """Add the watch of the faces to a registry."""
    metrics.register(FaceCollector(statistics))


class TlsCollector(Collector):
    """The files of TLS."""

    def __init__(self, statistics: Callable[[], TlsStatistics]) -> None:
        """Read from ``statistics`` at each scrape."""
        self._statistics = statistics

    def collect(self) -> Iterable[Metric]:
        """Return the families of this moment."""
        found = self._statistics()
        yield GaugeMetricFamily(
            "tailrace_tls_certificate_ends_seconds",
            "When the server's certificate expires, in seconds since 1970.",
            found.ends.timestamp(),
        )
        yield CounterMetricFamily(
            "tailrace_tls_reloads", "Changes of the TLS files that were taken.", found.reloads
        )
        yield CounterMetricFamily(
            "tailrace_tls_reloads_failed",
            "Changes of the TLS files that could not be used; /health and the log say why.",
            found.reloads_failed,
        )


def register_tls(metrics: CollectorRegistry, statistics: Callable[[], TlsStatistics]) -> None:
    """Add the files of TLS to a registry."""
    metrics.register(TlsCollector(statistics))


def register_graphql(
    metrics: CollectorRegistry, statistics: Callable[[], DocumentStatistics]
) -> None:
    """Add the GraphQL face to a registry."""
    metrics.register(GraphqlCollector(statistics))


def register_sockets(
    metrics: CollectorRegistry, statistics: Callable[[], SocketStatistics]
) -> None:
    """Add the live connections to a registry."""
    metrics.register(SocketCollector(statistics))


def registry(
    statistics: Callable[[], EngineStatistics], grpc: Callable[[], GrpcStatistics], *, version: str
) -> CollectorRegistry:
    """Return a registry of its own, so that two servers in one process do not meet in the global one.

    Args:
        statistics: The engine's.
        grpc: Returns the figures of the gRPC face.
        version: Of this distribution.
    """
    made = CollectorRegistry()
    made.register(EngineCollector(statistics, grpc, version=version))
    ProcessCollector(registry=made)
    return made


def expose(metrics: CollectorRegistry, kind: str = TEXT_TYPE) -> tuple[bytes, str]:
    """Return the scrape's answer and its content type, in the format of `TEXT_TYPE` or `OPENMETRICS_TYPE`."""
    if kind == TEXT_TYPE:
        return generate_latest(metrics), CONTENT_TYPE_PLAIN_0_0_4
    text: bytes = openmetrics.generate_latest(metrics)  # type: ignore[no-untyped-call]
    return text, openmetrics.CONTENT_TYPE_LATEST


def _catalogs(observers: tuple[ObserverStatistics, ...]) -> Iterable[Metric]:
    for name, field, help_text in _CATALOG_GAUGES:
        gauge = GaugeMetricFamily(f"tailrace_{name}", help_text, labels=["catalog"])
        for each in observers:
            gauge.add_metric([each.catalog], getattr(each, field))
        yield gauge
    unreadable = CounterMetricFamily(
        "tailrace_batches_unreadable",
        "Batches that the live path had to leave out.",
        labels=["catalog"],
    )
    for each in observers:
        unreadable.add_metric([each.catalog], each.batches_unreadable)
    yield unreadable
    since = "Since the newest published version appeared, by the server's clock."
    newest = GaugeMetricFamily("tailrace_newest_commit_age_seconds", since, labels=["catalog"])
    since = "Since the commit timestamp of the oldest version that is kept."
    oldest = GaugeMetricFamily("tailrace_oldest_commit_age_seconds", since, labels=["catalog"])
    now = time.time()
    for each in observers:
        if each.newest_age_s is not None:
            newest.add_metric([each.catalog], each.newest_age_s)
        if each.oldest_timestamp:
            oldest.add_metric([each.catalog], max(0.0, now - each.oldest_timestamp / 1e6))
    yield from (newest, oldest)
    bodies = GaugeMetricFamily(
        "tailrace_oldest_bodies_version",
        "First version that has bodies, of each entity type that has lost some.",
        labels=["catalog", "entity_type"],
    )
    for each in observers:
        for entity_type, version in each.bodies_from.items():
            bodies.add_metric([each.catalog, entity_type], version)
    yield bodies


def _latencies(found: Mapping[str, LatencyHistogram]) -> Metric:
    latency = HistogramMetricFamily(
        "tailrace_hand_over_latency_seconds",
        "From a commit to the hand-over of its captures to the transport, once a message or a run of messages; "
        "only of what was committed since the subscription began.",
        labels=["transport"],
    )
    for transport, histogram in sorted(found.items()):
        latency.add_metric([transport], histogram.cumulative(), histogram.sum_s)
    return latency


def _disks(found: Mapping[str, DiskUsage]) -> Iterable[Metric]:
    occupied = GaugeMetricFamily(
        "tailrace_log_bytes",
        "On disk below the catalog's folder, measured once a minute at most.",
        labels=["catalog"],
    )
    files = GaugeMetricFamily(
        "tailrace_log_files", "Files below the catalog's folder.", labels=["catalog"]
    )
    left = "Left on the file system of the catalog's folder, measured with it."
    free = GaugeMetricFamily("tailrace_log_free_bytes", left, labels=["catalog"])
    for name, usage in found.items():
        occupied.add_metric([name], usage.nbytes)
        files.add_metric([name], usage.files)
        free.add_metric([name], usage.free_bytes)
    yield from (occupied, files, free)
