"""What does a routed row cost with 1,000 different conditions on one table, against one condition?

::

    log ─▶ heads and images of a batch ─▶ router ─▶ 1 / 1,000 publishers with a condition each

Half of the conditions ask for a value of one column (``tenant = 't17'``), half for a range of another
(``price >= 100 AND price < 120``). All rows are updates with both images, of 150 bytes each. CPU time of one
thread, images in memory, best of several runs; beside it the same batch without a condition.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench._harness import machine, pin_to_the_server, table
from tailrace.criteria import Area, Criteria
from tailrace.schema import Column, Origin, Schema
from tailrace_server.capture.matching.batch_images import BatchImages
from tailrace_server.capture.matching.predicate import Predicate
from tailrace_server.capture.matching.record_classes import group_by_class
from tailrace_server.capture.matching.router import Router
from tailrace_server.capture.matching.row_condition import ConditionText, RowCondition, filtered
from tailrace_server.filters.parsing import parse
from tailrace_server.wal.catalog import create_catalog, open_writer
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.segment.reader import BatchReader
from tailrace_server.wal.state.commit_log import CommitLog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace_server.capture.matching.record_classes import GroupedHead

ROWS = 8_192
TENANTS = 500
PRICES = 10_000
FILTERS = (1, 1_000)
RUNS = 5
_COLUMNS = tuple(
    Column(name, sql_type=kind, origin=Origin.DECLARED, id=number, key=int(name == "id"))
    for number, (name, kind) in enumerate(
        (("id", "BIGINT"), ("tenant", "VARCHAR"), ("price", "BIGINT"), ("note", "VARCHAR")), 1
    )
)


def write(root: Path) -> None:
    """Write one commit of updates."""
    create_catalog(root, "shop")
    with open_writer(root, "shop", writer="log-writer") as writer:
        writer.commit(batch_id=0, schema_changes=[(-1, Schema(1, {"product": _COLUMNS}))])
    random = np.random.default_rng(1)
    tenants = random.integers(0, TENANTS, ROWS)
    prices = random.integers(0, PRICES, (ROWS, 2))
    with LogWriter.open(root, "shop") as log:
        for row, (tenant, pair) in enumerate(zip(tenants, prices, strict=True)):
            before, after = (
                b'{"id":%d,"tenant":"t%d","price":%d,"note":"%s"}'
                % (row, tenant, price, b"x" * 100)
                for price in pair
            )
            log.append([Mutation("product", str(row), before=before, after=after)])
        log.commit(publish=True)


def texts(count: int) -> list[str]:
    """Return different conditions: every other one is a range."""
    step = PRICES // max(count // 2, 1)
    return [
        f"tenant = 't{number // 2}'"
        if number % 2 == 0
        else f"price >= {number // 2 * step} AND price < {(number // 2 + 1) * step}"
        for number in range(count)
    ]


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


def main() -> None:
    """Measure and print."""
    pin_to_the_server()
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write(root)
        view = CommitLog.open(root / "shop").view
        columns = view.schema_of(view.published).columns("product")
        batches = []
        with BatchReader(root / "shop") as reader:
            for place in range(len(view)):
                ref = view.batch(place)
                bodies = reader.body(ref, ("before", "after"))
                images = BatchImages(bodies.__getitem__, view)
                batches.append((group_by_class(reader.head(ref)), images))
        routers = {}
        for count in FILTERS:
            router = routers[f"{count:,} conditions"] = Router()
            for number, text in enumerate(texts(count)):
                condition = RowCondition([ConditionText(parse(text))], columns, view.published)
                one = Criteria(area=Area.DATA, entity_type=("product",))
                router.add(number, Predicate((filtered(one, condition),)))
        plain = routers["no condition"] = Router()
        plain.add(0, Predicate((Criteria(area=Area.DATA, entity_type=("product",)),)))
        found = {
            name: [routed(router, batches) for _ in range(RUNS)] for name, router in routers.items()
        }
        best = {name: min(ns for ns, _ in runs) for name, runs in found.items()}
        base = best["1 conditions"]
        table(
            f"CPU of a routed row, {ROWS:,} updates, best of {RUNS}",
            ["publishers", "ns a row", "matches", "against one condition"],
            [
                (name, f"{best[name]:,.0f}", f"{runs[0][1]:,}", f"{best[name] / base:.1f} x")
                for name, runs in found.items()
            ],
        )


if __name__ == "__main__":
    main()
