"""Does the router's cost per row stay flat from 1 to 100,000 publishers that want one key each?

::

    batches of 4,096 rows ──▶ router ──▶ 1 / 100 / 10,000 / 100,000 key publishers

One core, in process, no log: heads are made up. Twice: rows that nobody asked for, which is the common case of
key criteria, and one row in a hundred that a publisher wants, each another one's as far as there are so many.
What a match costs behind the router, its run and its delivery, is not in it.
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from bench._harness import machine, median, pin_to_the_server, table
from tailrace.criteria import Criteria, canonical
from tailrace_server.live.router import Router
from tailrace_server.rows.predicate import Predicate
from tailrace_server.rows.record_classes import group_by_class
from tailrace_server.wal.record.keys import key_hashes, type_seed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace_server.rows.record_classes import GroupedHead

ROWS = 4096
KEYS = (1, 100, 10_000, 100_000)
WANTED_EVERY = 100
"""One row in so many is wanted, in the second half of the figures."""
ROUNDS = 300
RUNS = 5
_FIRST_KEY = 20_000_000


def batch(wanted: int) -> GroupedHead:
    """Return a grouped head of rows of one entity type with keys that nobody wants but for some.

    Args:
        wanted: Publishers that there are; one row in a hundred has the key of one of them. 0: none has.
    """
    random = np.random.default_rng(1)
    numbers = random.integers(0, 10_000_000, ROWS)
    if wanted:
        numbers[::WANTED_EVERY] = _FIRST_KEY + random.integers(0, wanted, -(-ROWS // WANTED_EVERY))
    keys = pa.array([str(key) for key in numbers])
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
    return group_by_class(head)


def router(keys: int) -> Router:
    """Return a router with one publisher a key."""
    made = Router()
    for key in range(keys):
        criteria = Criteria(entity_type=("product",), primary_key=(str(_FIRST_KEY + key),))
        made.add(key, Predicate(canonical([criteria])))
    return made


def ns_per_row(subject: Router, grouped: GroupedHead, matches: int) -> float:
    """Return what routing a batch costs that has so many matches."""
    images: Any = None
    started = time.perf_counter()
    for _ in range(ROUNDS):
        found = 0
        for _, selection in subject.route(grouped, images):
            assert not isinstance(selection, Exception), selection
            found += len(selection)
        assert found == matches, (found, matches)
    return (time.perf_counter() - started) / ROUNDS / ROWS * 1e9


def figures(
    routers: Sequence[Router], batches: Sequence[GroupedHead], matches: int
) -> list[tuple[str, str]]:
    """Return ns a row of each router, and the ratio to the first one's in the same run."""
    runs = [
        [ns_per_row(*each, matches) for each in zip(routers, batches, strict=True)]
        for _ in range(RUNS)
    ]
    return [
        (
            f"{median([run[place] for run in runs]):.1f}",
            f"{median([run[place] / run[0] for run in runs]):.2f}",
        )
        for place in range(len(routers))
    ]


def main() -> None:
    """Measure and print."""
    print(machine())
    pin_to_the_server()
    routers = [router(keys) for keys in KEYS]
    nothing = figures(routers, [batch(0)] * len(KEYS), 0)
    some = figures(routers, [batch(keys) for keys in KEYS], -(-ROWS // WANTED_EVERY))
    rows = [[f"{keys:,}", *none, *few] for keys, none, few in zip(KEYS, nothing, some, strict=True)]
    wanted = f"ns a row, 1 in {WANTED_EVERY} wanted"
    table(
        f"router, batches of {ROWS:,} rows, median of {RUNS}",
        ["key publishers", "ns a row, none wanted", "against 1", wanted, "against 1"],
        rows,
    )


if __name__ == "__main__":
    main()
