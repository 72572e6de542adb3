"""Batches of updates of one table, and what it costs to route them: for benches of conditions on rows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tailrace.schema import Column, Origin, Schema
from tailrace_server.rows.batch_images import BatchImages
from tailrace_server.rows.record_classes import group_by_class
from tailrace_server.wal.catalog import create_catalog, open_writer
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.segment.reader import BatchReader
from tailrace_server.wal.state.commit_log import CommitLog

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from tailrace_server.live.router import Router
    from tailrace_server.rows.record_classes import GroupedHead
    from tailrace_server.wal.state.view import LogView

CATALOG = "shop"
ENTITY_TYPE = "product"
_COLUMNS = tuple(
    Column(name, sql_type=kind, origin=Origin.DECLARED, id=number, key=int(name == "id"))
    for number, (name, kind) in enumerate(
        (("id", "BIGINT"), ("tenant", "VARCHAR"), ("price", "BIGINT"), ("note", "VARCHAR")), 1
    )
)

Update = tuple[int, int, int, int]
"""Key, tenant, and price before and after."""
Batches = list[tuple["GroupedHead", BatchImages]]


def write_updates(root: Path, updates: Iterable[Update], rows_per_commit: int) -> LogView:
    """Write updates with both images, of 150 bytes each, a transaction a row; return the log."""
    create_catalog(root, CATALOG)
    with open_writer(root, CATALOG, writer="log-writer") as writer:
        writer.commit(batch_id=0, schema_changes=[(-1, Schema(1, {ENTITY_TYPE: _COLUMNS}))])
    with LogWriter.open(root, CATALOG) as log:
        for row, (key, tenant, *prices) in enumerate(updates, 1):
            before, after = (
                b'{"id":%d,"tenant":"t%d","price":%d,"note":"%s"}'
                % (key, tenant, price, b"x" * 100)
                for price in prices
            )
            log.append([Mutation(ENTITY_TYPE, str(key), before=before, after=after)])
            if row % rows_per_commit == 0:
                log.commit(publish=True)
        log.commit(publish=True)
    return CommitLog.open(root / CATALOG).view


def read_batches(root: Path, view: LogView) -> Batches:
    """Return all batches of the log, in memory."""
    batches = []
    with BatchReader(root / CATALOG) as reader:
        for place in range(len(view)):
            ref = view.batch(place)
            bodies = reader.body(ref, ("before", "after"))
            images = BatchImages(bodies.__getitem__, view)
            batches.append((group_by_class(reader.head(ref)), images))
    return batches


def routed(router: Router, batches: Sequence[tuple[GroupedHead, BatchImages]]) -> tuple[float, int]:
    """Return the CPU time of a routed row, in ns, and how many matches there are."""
    rows = matches = 0
    started = time.process_time_ns()
    for grouped, images in batches:
        for _, selection in router.route(grouped, images):
            assert not isinstance(selection, Exception)
            matches += len(selection)
        rows += len(grouped.head.versions)
    return (time.process_time_ns() - started) / rows, matches
