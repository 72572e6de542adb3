"""Keep the list of metrics in docs/operations.md in step with the code; its words are written by hand.

``python -m tools.operations`` rewrites the list; ``--check`` only compares.
"""

from __future__ import annotations

import dataclasses
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tailrace_server.access.audit_trail import TrailStatistics
from tailrace_server.access.quotas import Quotas
from tailrace_server.api.graphql.documents import DocumentStatistics
from tailrace_server.api.grpc import GrpcStatistics
from tailrace_server.api.server import metrics
from tailrace_server.api.transport_security.files import TlsStatistics
from tailrace_server.api.websocket.sockets import SocketStatistics
from tailrace_server.pipeline.run.metrics import IngestMetrics
from tailrace_server.resources.statistics import (
    CacheStatistics,
    EngineStatistics,
    ObserverStatistics,
    SqlStatistics,
)
from tools.pages import renew

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client.metrics_core import Metric

PAGE = Path(__file__).resolve().parent.parent / "docs" / "operations.md"

HEAD = "## Metrics\n"
OF_A_SERVER = """
Counters end in `_total` in the answer, as OpenMetrics has it. Metrics are gauges unless marked.

"""
OF_AN_INGEST = """
### Metrics of an ingest

On its `--metrics` port, with the `process_` metrics from above, and in its `--metrics-file`
([ingest.md](ingest.md#metrics)).

"""


def render(page: str) -> str:
    """Return the page with its chapter of metrics renewed, which is its last.

    Raises:
        SystemExit: The page has no such chapter.
    """
    words, head, _ = page.partition(HEAD)
    if not head:
        raise SystemExit(f"docs/operations.md has no chapter {HEAD!r}")
    ingest = "".join(rows_of_an_ingest())
    return words + head + OF_A_SERVER + "".join(rows()) + OF_AN_INGEST + ingest


def rows() -> Iterator[str]:
    """Yield a line for each metric, in the order of the answer."""
    cache, observer = (
        zeros(CacheStatistics),
        zeros(ObserverStatistics, catalog="", uuid=UUID(int=0), bodies_from=nothing()),
    )
    named: dict[str, object] = {
        "unreadable": nothing(),
        "latencies": nothing(),
        "disks": nothing(),
        "faults": (),
    }
    named["sql"] = SqlStatistics()
    engine = zeros(EngineStatistics, cache=cache, observers=(observer,), memory=(), **named)
    sockets = zeros(SocketStatistics, guards=nothing(), errors=nothing())
    registry = metrics.registry(lambda: engine, lambda: GrpcStatistics(0, 0), version="")
    metrics.register(registry, metrics.sockets, lambda: sockets)
    metrics.register(registry, metrics.documents, lambda: zeros(DocumentStatistics))
    metrics.register(registry, metrics.faces, tuple)
    metrics.register(registry, metrics.tls, lambda: TlsStatistics(datetime.now(UTC), 0, 0))
    metrics.register(registry, metrics.quotas, Quotas)
    metrics.register(registry, metrics.named, tuple)
    metrics.register(registry, metrics.issuers, dict)
    metrics.register(registry, metrics.audit, lambda: TrailStatistics(0, 0, 0, 0.0, ""))
    yield from rows_of(registry.collect())


def rows_of_an_ingest() -> Iterator[str]:
    """Yield a line for each metric of an ingest, in the order of the answer."""
    yield from rows_of(IngestMetrics("", "", version="").collect())


def rows_of(families: Iterable[Metric]) -> Iterator[str]:
    """Yield a line for each family."""
    for family in families:
        labels = ", ".join(f"`{name}`" for name in getattr(family, "_labelnames", ()))
        kind = "" if family.type == "gauge" else family.type
        marks = " by ".join(each for each in (kind, labels) if each)
        yield f"- `{family.name}`{f' ({marks})' if marks else ''}: {family.documentation}\n"


def zeros(kind: type[Any], **given: object) -> Any:
    """Return a record of statistics in which every number is 0."""
    names = [each.name for each in dataclasses.fields(kind) if each.name not in given]
    return kind(**dict.fromkeys(names, 0), **given)


def nothing() -> MappingProxyType[Any, Any]:
    """Return figures by name, of which there are none."""
    return MappingProxyType({})


def main(arguments: list[str]) -> None:
    """Renew the page, or with ``--check`` fail if it is behind."""
    renew(PAGE, render(PAGE.read_text()), arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
