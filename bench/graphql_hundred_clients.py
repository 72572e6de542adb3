"""What does a GraphQL subscription cost when a hundred browsers have the same page, or a hundred others?

::

    log of changes ──▶ tailrace                          ──▶ 100 sockets, one document / 100 documents
                   ──▶ Strawberry's ASGI application     ──▶ … (the baseline: same schema, same resolvers)

From the oldest change on, typed rows of four columns; the slow one gets fewer changes, since a rate does not
depend on it. Clients count messages without decoding. It does not show a browser.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench._harness import (
    Server,
    http_server,
    http_subscribers,
    machine,
    median,
    result,
    server,
    table,
)
from bench._log import CATALOG, write_log

CLIENTS = 100
RUNS = 3
COMPILED, STOCK = "compiled", "stock"
CHANGES = {COMPILED: 20_000, STOCK: 200}
"""To each client."""
DOCUMENT = (
    "subscription {{ onProductChange(sinceVersion: 0) {{ {alias}version cursor operation primaryKey changed "
    "after {{ id name price note }} }} }}"
)
ONE = [DOCUMENT.format(alias="")] * CLIENTS
MANY = [DOCUMENT.format(alias=f"v{number}: ") for number in range(CLIENTS)]


def measure(kind: str, root: Path, documents: list[str]) -> tuple[float, float]:
    """Return changes a second and server CPU µs a delivery."""
    match kind:
        case "compiled":
            subject = http_server(root)
        case _:
            subject = server(["bench._stock_graphql", str(root), CATALOG])
    path = "/" if kind == STOCK else f"/v1/catalogs/{CATALOG}/graphql"
    with subject as running:
        run(running, path, min(100, CHANGES[kind]), documents[:2])  # warm
        before = running.cpu_s()
        report = run(running, path, CHANGES[kind], documents)
        cpu_s = running.cpu_s() - before
    return report["captures"] / report["seconds"], cpu_s / report["captures"] * 1e6


def run(subject: Server, path: str, changes: int, documents: list[str]) -> dict[str, float]:
    """Have clients read so many changes each."""
    options = {
        "protocol": "graphql-transport-ws",
        "marker": '"next"',
        "payloads": [{"query": document} for document in documents],
    }
    with http_subscribers(subject.address, path, changes, **options) as process:
        return result(process)


def main() -> None:
    """Measure and print."""
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        roots = {kind: Path(folder) / kind for kind in CHANGES}
        for kind, root in roots.items():
            write_log(
                root,
                rows=CHANGES[kind],
                rows_per_transaction=10,
                transactions_per_commit=100,
            )
        rows = []
        for name, documents in (("one document", ONE), ("100 documents", MANY)):
            runs = [
                {kind: measure(kind, roots[kind], documents) for kind in CHANGES}
                for _ in range(RUNS)
            ]
            found = {
                kind: tuple(median([each[kind][figure] for each in runs]) for figure in (0, 1))
                for kind in CHANGES
            }
            rows.append(
                [
                    name,
                    *(f"{rate:,.0f}/s, {cpu:.2f} µs" for rate, cpu in found.values()),
                    f"{median([each[COMPILED][0] / each[STOCK][0] for each in runs]):.0f}x",
                ]
            )
        table(
            f"{CLIENTS} clients, changes/s in all and server CPU a delivery, median of {RUNS}",
            ["clients have", *CHANGES, "compiled/stock"],
            rows,
        )


if __name__ == "__main__":
    main()
