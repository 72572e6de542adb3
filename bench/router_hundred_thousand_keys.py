"""Does the router's cost per row stay flat from 1 to 100,000 publishers that want one key each?

::

    batches of 4,096 rows ──▶ router ──▶ 1 / 100 / 10,000 / 100,000 key publishers

One core, in process, no log: heads are made up. Rows that nobody asked for are the common case of key criteria
and are measured; a row that matches costs its publisher's delivery instead.
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from bench._harness import machine, median, table
from tailrace.criteria import Criteria, canonical
from tailrace_server.capture.classes import group
from tailrace_server.capture.predicate import Predicate
from tailrace_server.capture.router import Router
from tailrace_server.wal.keyhash import key_hashes, type_seed

if TYPE_CHECKING:
    from tailrace_server.capture.classes import GroupedHead

ROWS = 4096
KEYS = (1, 100, 10_000, 100_000)
ROUNDS = 300
RUNS = 5


def batch() -> GroupedHead:
    """Return a grouped head of rows of one entity type with keys that nobody wants."""
    random = np.random.default_rng(1)
    keys = pa.array([str(key) for key in random.integers(0, 10_000_000, ROWS)])
    seeds = np.full(ROWS, type_seed("product"), np.uint64)
    head: Any = SimpleNamespace(
        versions=np.arange(ROWS) // 10 + 1,
        indexes=(np.arange(ROWS) % 10).astype(np.int32),
        areas=np.full(ROWS, 2, np.uint8),
        operations=np.full(ROWS, 1, np.uint8),
        type_codes=np.zeros(ROWS, np.int32),
        entity_types=("product",),
        key_hashes=key_hashes(seeds, keys),
        primary_keys=keys,
    )
    return group(head)


def router(keys: int) -> Router:
    """Return a router with one publisher a key."""
    made = Router()
    for key in range(keys):
        criteria = Criteria(entity_type=("product",), primary_key=(str(20_000_000 + key),))
        made.add(key, Predicate(canonical([criteria])))
    return made


def ns_per_row(subject: Router, grouped: GroupedHead) -> float:
    """Return what routing a batch costs."""
    images: Any = None
    started = time.perf_counter()
    for _ in range(ROUNDS):
        assert not list(subject.route(grouped, images))
    return (time.perf_counter() - started) / ROUNDS / ROWS * 1e9


def main() -> None:
    """Measure and print."""
    print(machine())
    grouped = batch()
    routers = [router(keys) for keys in KEYS]
    runs = [[ns_per_row(each, grouped) for each in routers] for _ in range(RUNS)]
    rows = [
        [
            f"{keys:,}",
            f"{median([run[place] for run in runs]):.1f}",
            f"{median([run[place] / run[0] for run in runs]):.2f}",
        ]
        for place, keys in enumerate(KEYS)
    ]
    table(
        f"router, batches of {ROWS:,} rows, median of {RUNS}",
        ["key publishers", "ns a row", "against 1"],
        rows,
    )


if __name__ == "__main__":
    main()
