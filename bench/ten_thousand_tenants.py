"""What does a routed row cost with 10,000 tenants, told by a column, against 10,000 subscribers of a key?

::

    log ─▶ heads and images of a batch ─▶ router ─▶ 10,000 publishers: tenant = 't17' │ key 17   (baseline)

Row 17 is tenant t17's, so both kinds find the same matches, one for each row. All rows are updates with both
images, of 150 bytes each. As `where` of subscribers or as the condition of a grant, which may hide columns.
Also with a second condition, the same for all of them or another for each. In large commits and in small ones.
Conditions have to read the images, keys are in the head. CPU time of one thread, images in memory, best of
several runs that alternate.
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
from tailrace_server.grants.grant import Columns
from tailrace_server.grants.shown import columns_shown
from tailrace_server.live.router import Router
from tailrace_server.rows.predicate import Predicate
from tailrace_server.rows.row_condition import ConditionText, RowCondition, filtered

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tailrace.schema import Column
    from tailrace_server.wal.state.view import LogView

TENANTS = 10_000
ROWS = 8_192
ROWS_PER_COMMIT = (8_192, 64)
RUNS = 3
KEYS = "key = '17'"
WHERE = "tenant = 't17'"
GRANTED = "tenant = {tenant}, granted"
HIDING = f"{GRANTED}, columns hidden"
SECOND = f"{GRANTED}, and price > 1"
OTHERS = f"{GRANTED}, and note <> 'n17'"
KINDS = (KEYS, WHERE, GRANTED, HIDING, SECOND, OTHERS)
SHOWN = columns_shown(ENTITY_TYPE, Columns(frozenset({"id", "price"}), listed=True))


def updates() -> Iterator[tuple[int, int, int, int]]:
    """Yield updates of rows whose key is the number of their tenant."""
    for number in np.random.default_rng(1).integers(0, TENANTS, ROWS).tolist():
        yield number, number, 1, 2


def made(kind: str, columns: Sequence[Column], view: LogView) -> Router:
    """Return a router with a publisher for each tenant."""
    router = Router()
    for tenant in range(TENANTS):
        if kind is KEYS:
            one = Criteria(area=Area.DATA, entity_type=(ENTITY_TYPE,), primary_key=(str(tenant),))
        else:
            texts = [ConditionText(parse(f"tenant = 't{tenant}'"), is_granted=kind is not WHERE)]
            if kind is SECOND:
                texts.append(ConditionText(parse("price > 1")))
            elif kind is OTHERS:
                texts.append(ConditionText(parse(f"note <> 'n{tenant}'")))
            condition = RowCondition(texts, columns, view.published)
            one = filtered(Criteria(area=Area.DATA, entity_type=(ENTITY_TYPE,)), condition)
        router.add(tenant, Predicate((one,), SHOWN if kind is HIDING else None))
    return router


def main() -> None:
    """Measure and print."""
    pin_to_the_server()
    print(machine())
    for rows_per_commit in ROWS_PER_COMMIT:
        with tempfile.TemporaryDirectory() as folder:
            view = write_updates(Path(folder), updates(), rows_per_commit)
            batches = read_batches(Path(folder), view)
        columns = view.schema_of(view.published).columns(ENTITY_TYPE)
        routers = {kind: made(kind, columns, view) for kind in KINDS}
        best = dict.fromkeys(KINDS, float("inf"))
        matches = dict.fromkeys(KINDS, 0)
        for _ in range(RUNS):
            for kind, router in routers.items():
                cost, matches[kind] = routed(router, batches)
                best[kind] = min(best[kind], cost)
        table(
            f"CPU of a routed row, {TENANTS:,} publishers, commits of {rows_per_commit:,} rows, best of {RUNS}",
            ["publishers", "ns a row", "matches", "against keys"],
            [
                (kind, f"{ns:,.0f}", f"{matches[kind]:,}", f"{ns / best[KEYS]:.2f} x")
                for kind, ns in best.items()
            ],
        )


if __name__ == "__main__":
    main()
