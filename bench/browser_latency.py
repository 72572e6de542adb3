"""How long from the call that commits a transaction until a browser's handler has its change?

::

    LogWriter: append, commit, publish (fsync on), 50 transactions/s ──▶ tailrace ──▶ a page in Chromium
    constant text at the same pace ──▶ Starlette                                  ──▶ the same page   (baseline)

One client at a time: native WebSocket, EventSource, graphql-ws. A handler has a change once its JSON is
parsed. The latency of ours contains the log's fsync; the baseline's counts from the call that sends. The
median from the *intended* time stands beside it: where it is larger the disk did not keep the pace. The
servers have the first core, the browser has the second, the writer runs where there is room.

**Clocks.** Writer, servers and this process read one monotonic clock. The page's, ``performance.timeOrigin +
performance.now()``, is set against it by asking the page for its time: of 200 answers before and after each
run the quickest, whose round trip bounds the error by its half. Both offsets are printed as drift.

It needs the system's ``chromium`` and the packages of examples/browser.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from playwright.async_api import async_playwright

from bench._harness import CLIENT_CPU, SERVER_CPU, http_server, machine, server, table
from bench._log import CATALOG, write_at_pace, write_log
from bench._paced_starlette import LIBRARY
from bench.rest_hundred_clients import CAPTURE

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from playwright.async_api import Browser, Page

RATE = 50
SECONDS = 20
WARM_UP = 100
TRANSACTIONS = RATE * SECONDS
ALL = WARM_UP + TRANSACTIONS
ASKED = 200
"""Times that the page's clock is asked for."""
CRITERIA = [{"area": "DATA", "entityType": ["product"]}]
LIVE = f"/v1/catalogs/{CATALOG}/changes/live"
QUERY = (
    "subscription { onProductChange(signals: true) "
    "{ version cursor operation primaryKey after { id name price note } } }"
)
CLIENTS: dict[str, tuple[str, object]] = {
    "websocket": (LIVE, {"body": ["after"], "criteria": CRITERIA}),
    "eventsource": (f"{LIVE}?area=DATA&entityType=product&body=after", None),
    "graphql-ws": (f"/v1/catalogs/{CATALOG}/graphql", QUERY),
}
MESSAGE = '{"id":"1","type":"next","payload":{"captures":[' + CAPTURE + "]}}"


class Offset(NamedTuple):
    """How far the page's clock is ahead of ours."""

    ms: float
    error_ms: float


class Clock(NamedTuple):
    """What the page's clock said before and after a run."""

    first: Offset
    last: Offset


class Run(NamedTuple):
    """What one client measured."""

    latencies_ms: list[float]
    """From the call that commits or sends, sorted."""
    intended_ms: list[float]
    """From the intended time, sorted."""
    clock: Clock


async def offset(page: Page) -> Offset:
    """Ask the page for its time again and again; the quickest answer counts."""
    best = Offset(0.0, float("inf"))
    for _ in range(ASKED):
        before = time.perf_counter()
        theirs = await page.evaluate("now()")
        after = time.perf_counter()
        error_ms = (after - before) / 2 * 1e3
        if error_ms < best.error_ms:
            best = Offset(theirs - (before + after) / 2 * 1e3, error_ms)
    return best


def write(root: Path, begin: Connection) -> None:
    """Write one transaction every 20 ms, on any core."""
    os.sched_setaffinity(0, SERVER_CPU | CLIENT_CPU)
    begin.send(write_at_pace(root, RATE, ALL, begin))


async def ours(page: Page, client: str, address: str, root: Path) -> Run:
    """Measure one client of our server."""
    first = await offset(page)
    await page.evaluate(
        "asked => clients[asked[0]](...asked.slice(1))", [client, address, *CLIENTS[client]]
    )
    spawn = multiprocessing.get_context("spawn")
    told, begin = spawn.Pipe(duplex=False)
    writer = spawn.Process(target=write, args=(root, begin))
    writer.start()
    start_at = await asyncio.to_thread(told.recv)
    arrived = await page.evaluate("count => reach(count)", ALL)
    begun = await asyncio.to_thread(told.recv)
    await asyncio.to_thread(writer.join)
    return judged(arrived, begun, start_at, Clock(first, await offset(page)))


async def bare(page: Page, address: str) -> Run:
    """Measure the baseline."""
    first = await offset(page)
    await page.evaluate("address => clients.websocket(address, '/', {})", address)
    arrived = await page.evaluate("count => reach(count)", ALL)
    sent = await page.evaluate("sentTimes()")
    return judged(arrived, sent, sent[0], Clock(first, await offset(page)))


def judged(arrived_ms: list[float], begun_s: list[float], start_s: float, clock: Clock) -> Run:
    """Return latencies by our clock, without those of the warm-up."""
    ahead_ms = (clock.first.ms + clock.last.ms) / 2
    arrived = [each - ahead_ms for each in arrived_ms]
    due = [(start_s + number / RATE) * 1e3 for number in range(ALL)]
    begun = [each * 1e3 for each in begun_s]
    return Run(since(begun, arrived), since(due, arrived), clock)


def since(start_ms: list[float], arrived_ms: list[float]) -> list[float]:
    """Return what passed from each start to its arrival, sorted, without the warm-up."""
    pairs = zip(start_ms[WARM_UP:], arrived_ms[WARM_UP:], strict=True)
    return sorted(arrived - start for start, arrived in pairs)


async def measure(browser: Browser, home: str) -> dict[str, Run]:
    """Measure everything, each in a page and with a log of its own."""
    runs = {}
    page = await browser.new_page()
    await page.goto(f"http://{home}/")
    runs["bare Starlette, websocket"] = await bare(page, home)
    await page.close()
    for client in CLIENTS:
        page = await browser.new_page()
        await page.goto(f"http://{home}/")
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            write_log(root, rows=1, rows_per_transaction=1, transactions_per_commit=1)
            with http_server(root, "--ws-origins", f"http://{home}") as subject:
                runs[f"tailrace, {client}"] = await ours(page, client, subject.address, root)
        await page.close()
    return runs


async def run() -> dict[str, Run]:
    """Measure in a browser on the second core."""
    chromium = shutil.which("chromium")
    if chromium is None or not LIBRARY.is_dir():
        raise SystemExit("apt-get install chromium nodejs npm; npm ci --prefix examples/browser")
    with server(["bench._paced_starlette", str(RATE), str(ALL), MESSAGE]) as baseline:
        os.sched_setaffinity(0, CLIENT_CPU)
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=chromium)
            try:
                print(f"{machine()}, Chromium {browser.version}")
                return await measure(browser, baseline.address)
            finally:
                await browser.close()


def main() -> None:
    """Measure and print."""
    rows = []
    for name, run_ in asyncio.run(run()).items():
        latencies = run_.latencies_ms
        figures = [latencies[int(share * (len(latencies) - 1))] for share in (0.5, 0.99, 0.999, 1)]
        goal = "" if name.startswith("bare") else "p50 ≤ 15"
        first, last = run_.clock
        clock = f"± {max(first.error_ms, last.error_ms):.2f}, drift {last.ms - first.ms:+.2f}"
        intended = run_.intended_ms[len(run_.intended_ms) // 2]
        rows.append([name, *(f"{each:.2f}" for each in (*figures, intended)), clock, goal])
    table(
        f"{TRANSACTIONS:,} transactions at {RATE}/s, fsync on, to one page; ms to its handler",
        ["", "p50", "p99", "p99.9", "max", "p50, intended", "clock", "to reach"],
        rows,
    )


if __name__ == "__main__":
    main()
