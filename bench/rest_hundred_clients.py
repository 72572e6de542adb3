"""How much of what bare Starlette can do does the REST face reach, over WebSocket and as server-sent events?

::

    log of 20,000 captures ──▶ tailrace  ──▶ 100 raw sockets, 100 raw event streams     (from the oldest)
    constant text          ──▶ Starlette ──▶ the same                                   (baseline, same sizes)

Captures with one image, in arrays of more than a hundred. The server has the first core, clients the
second. It does not show a browser.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench._harness import (
    http_server,
    http_subscribers,
    machine,
    median,
    result,
    server,
    table,
)
from bench._log import CATALOG, write_log

CAPTURES = 20_000
CLIENTS = 100
ARRAY = 160
"""Captures in a message of the baseline: as many as 64 KiB hold."""
RUNS = 3
MARKER = '"commitTimestamp"'
PATH = f"/v1/catalogs/{CATALOG}/changes/live"
CRITERIA = [{"area": "DATA", "entityType": ["product"]}]
SOCKETS: dict[str, object] = {
    "protocol": "tailrace.v1",
    "payloads": [{"sinceVersion": 0, "body": ["after"], "criteria": CRITERIA}] * CLIENTS,
}
EVENTS: dict[str, object] = {"payloads": [None] * CLIENTS}
EVENTS_PATH = f"{PATH}?sinceVersion=0&body=after&area=DATA&entityType=product"
CAPTURE = (
    '{"version":1000,"index":10,"ordinal":0,"cursor":"1.0123456789abcdef0123456789abcdef.1000.10.0",'
    '"commitTimestamp":1700000000000000,"area":"DATA","operation":"UPSERT","entityType":"product",'
    '"primaryKey":"000000000","changed":null,"after":{"id":1000000000,"name":"product 000000000",'
    '"price":"0000000.99","note":"' + "n" * 50 + '"}}'
)
MESSAGE = '{"id":"1","type":"next","payload":{"captures":[' + ",".join([CAPTURE] * ARRAY) + "]}}"
EVENT = f"id: 1.0123456789abcdef0123456789abcdef.1000.10.0\ndata: {CAPTURE}\n\n"


def subject(root: Path, path: str, options: dict[str, object]) -> tuple[float, float]:
    """Return captures a second and server CPU µs a delivery of our server."""
    with http_server(root) as running:
        with http_subscribers(running.address, path, CAPTURES, marker=MARKER, **options) as clients:
            result(clients)  # warm
        before = running.cpu_s()
        with http_subscribers(running.address, path, CAPTURES, marker=MARKER, **options) as clients:
            report = result(clients)
        return rates(report, running.cpu_s() - before)


def bare(options: dict[str, object]) -> tuple[float, float]:
    """Return the same of constant text."""
    messages = CAPTURES // ARRAY
    command = ["bench._bare_starlette", str(messages), MESSAGE, EVENT * ARRAY]
    with server(command) as running:
        before = running.cpu_s()
        wanted = messages * ARRAY
        with http_subscribers(running.address, "/", wanted, marker=MARKER, **options) as clients:
            report = result(clients)
        return rates(report, running.cpu_s() - before)


def rates(report: dict[str, float], cpu_s: float) -> tuple[float, float]:
    """Return captures a second and CPU µs a capture."""
    return report["captures"] / report["seconds"], cpu_s / report["captures"] * 1e6


def main() -> None:
    """Measure and print."""
    print(machine())
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_log(root, rows=CAPTURES, rows_per_transaction=100, transactions_per_commit=20)
        for name, path, options, goal in (
            ("WebSocket", PATH, SOCKETS, "0.7"),
            ("server-sent events", EVENTS_PATH, EVENTS, "0.6"),
        ):
            runs = [(bare(options), subject(root, path, options)) for _ in range(RUNS)]
            base, ours = (
                tuple(median([run[kind][figure] for run in runs]) for figure in (0, 1))
                for kind in (0, 1)
            )
            rows.append(
                [
                    name,
                    *(f"{rate / 1e6:.2f} M/s, {cpu:.2f} µs" for rate, cpu in (base, ours)),
                    f"{median([ours[0] / base[0] for base, ours in runs]):.2f}",
                    goal,
                ]
            )
    table(
        f"{CLIENTS} clients, {CAPTURES:,} captures to each; captures/s and server CPU a capture, "
        f"median of {RUNS}",
        ["over", "bare Starlette", "tailrace", "ratio", "to reach"],
        rows,
    )


if __name__ == "__main__":
    main()
