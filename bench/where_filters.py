"""What does a routed row cost with 1,000 different conditions on one table, against one condition?

::

    log ─▶ heads and images of a batch ─▶ router ─▶ 1 / 1,000 publishers with a condition each

Half of the conditions ask for a value of one column (``tenant = 't17'``), half for a range of another
(``price >= 100 AND price < 120``). All rows are updates with both images, of 150 bytes each. CPU time of one
thread, images in memory, best of several runs; beside it the same batch without a condition.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench._harness import machine, pin_to_the_server, table
from bench._routing import ENTITY_TYPE, read_batches, routed, write_updates
from tailrace.criteria import Area, Criteria
from tailrace_server.filters.parsing import parse
from tailrace_server.live.router import Router
from tailrace_server.rows.predicate import Predicate
from tailrace_server.rows.row_condition import ConditionText, RowCondition, filtered

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = 8_192
TENANTS = 500
PRICES = 10_000
FILTERS = (1, 1_000)
RUNS = 5


def updates() -> Iterator[tuple[int, int, int, int]]:
    """Yield updates of different rows."""
    random = np.random.default_rng(1)
    tenants = random.integers(0, TENANTS, ROWS).tolist()
    prices = random.integers(0, PRICES, (ROWS, 2)).tolist()
    for row, (tenant, (before, after)) in enumerate(zip(tenants, prices, strict=True)):
        yield row, tenant, before, after


def texts(count: int) -> list[str]:
    """Return different conditions: every other one is a range."""
    step = PRICES // max(count // 2, 1)
    return [
        f"tenant = 't{number // 2}'"
        if number % 2 == 0
        else f"price >= {number // 2 * step} AND price < {(number // 2 + 1) * step}"
        for number in range(count)
    ]


def main() -> None:
    """Measure and print."""
    pin_to_the_server()
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        view = write_updates(Path(folder), updates(), ROWS)
        batches = read_batches(Path(folder), view)
        columns = view.schema_of(view.published).columns(ENTITY_TYPE)
        routers = {}
        for count in FILTERS:
            router = routers[f"{count:,} conditions"] = Router()
            for number, text in enumerate(texts(count)):
                condition = RowCondition([ConditionText(parse(text))], columns, view.published)
                one = Criteria(area=Area.DATA, entity_type=(ENTITY_TYPE,))
                router.add(number, Predicate((filtered(one, condition),)))
        plain = routers["no condition"] = Router()
        plain.add(0, Predicate((Criteria(area=Area.DATA, entity_type=(ENTITY_TYPE,)),)))
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
