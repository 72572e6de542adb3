"""The run of the demo: start all processes, write the source, wait until everything is delivered, then compare.

::

    source ──files──▶ ingest --follow (Spark) ──log──▶ serve ──gRPC──────────────────▶ watch ×4, slow
                                                         ├──GraphQL, WebSocket, SSE──▶ http_subscribers ×3
                                                         │                               │ JSON lines
                                                         └──/metrics─────────────────────┴──▶ this process
"""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from tailrace.errors import TailraceError
from tailrace_server.demo.check import differs_from_source, judge, read_log
from tailrace_server.demo.processes import CATALOG, DemoFailed, Processes, start_server, stop
from tailrace_server.demo.screen import Screen
from tailrace_server.demo.watchers import SLOW, Watcher, capture_of, find, watchers_for
from tailrace_server.wal.state.commit_log import CommitLog

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Callable
    from pathlib import Path

    from tailrace_server.demo.source import DemoSource


MOVES_MIN: Final = 2
"""Minimum number of moves live → resync → live that the slow subscriber must make."""
_POLL_S: Final = 0.15
_QUIET_S: Final = 8.0
"""Time without a publication after which a source of unknown size counts as complete, in seconds."""
_SPARK_PATIENCE_S: Final = 300.0
"""Maximum wait for a publication, in seconds. About ten are usual, but a busy machine has taken minutes. If
Spark ends, the demo fails at once."""


async def run_demo(source: DemoSource, folder: Path, *, stay: bool = False) -> int:
    """Run the demo in a folder and return the exit status.

    Args:
        source: The source of the changes.
        folder: Folder for the input and the log.
        stay: True keeps the server running at the end, until Ctrl-C.

    Raises:
        DemoFailed: A process died, or a subscriber did not receive exactly the expected captures.
    """
    with Screen() as screen:
        async with Processes() as processes:
            await _Demo(source, folder, screen, processes).run(stay=stay)
    return 0


class _Demo:
    """One run of the demo; its tasks share the fields."""

    def __init__(
        self, source: DemoSource, folder: Path, screen: Screen, processes: Processes
    ) -> None:
        self._source = source
        self._inbox, self._log = folder / "input", folder / "log"
        self._screen = screen
        self._state = screen.state
        self._processes = processes
        self._http = ""
        self._grpc = ""
        self._places: list[tuple[str, str]] = []
        self._rise = asyncio.Event()
        """Event that is set when more versions have been published; the source clears it."""
        self._news = asyncio.Event()
        """Event that is set whenever a figure may have changed."""
        self._running: dict[str, Process] = {}

    async def run(self, *, stay: bool) -> None:
        self._log.mkdir(parents=True, exist_ok=True)
        self._inbox.mkdir(parents=True, exist_ok=True)
        self._state.source, self._state.parts = self._source, self._source.parts
        self._screen.step("source", self._source.title)
        tasks = asyncio.TaskGroup()
        try:
            async with tasks:
                # 1. Start the processes. Each gets a task that fails the group if the process ends early.
                await self._start_server(tasks)
                await self._start_spark(tasks)
                following = tasks.create_task(self._follow_server())
                flowing = tasks.create_task(self._source.flow(self._inbox, self._rise))
                # 2. Start the subscribers only now: their requests depend on the schema of the first version.
                await self._first_version()
                await self._start_watchers(tasks)
                await flowing
                self._screen.step("source", f"all {self._source.lines:,} lines are written")
                await self._all_have_all()
                # 3. Read the final figures while the server still runs, then stop all processes. Each is first
                #    removed from `_running`, so that its end does not count as a failure.
                following.cancel()
                await self._read_progress()
                for name, number in self._ends():
                    if name != "server" or not stay:
                        await stop(self._running.pop(name), number)
                self._judge()
                if stay:
                    await self._stay()
                    await stop(self._running.pop("server"), signal.SIGTERM)
        except* TailraceError as group:
            raise group.exceptions[0] from None

    async def _stay(self) -> None:
        """Print the server's addresses, and wait for Ctrl-C."""
        self._screen.addresses(
            "the server goes on, until Ctrl-C; look at",
            self._places,
        )
        me = asyncio.current_task()
        assert me is not None
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            me.uncancel()  # Ctrl-C is the normal end here, so the task must not count as cancelled

    def _ends(self) -> list[tuple[str, signal.Signals]]:
        """Return the processes to stop in this order, each with its signal: readers, the server, Spark."""
        readers = [name for name in self._running if name not in ("server", "spark")]
        return [
            *((name, signal.SIGINT) for name in readers),
            ("server", signal.SIGTERM),
            ("spark", signal.SIGTERM),
        ]

    async def _start_server(self, tasks: asyncio.TaskGroup) -> None:
        server = await start_server(
            *(self._processes, self._log, "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"),
            *("--heartbeat-interval-s", "250ms"),
            *("--ring-captures", self._source.ring_captures, "--queue-captures", "128"),
        )
        self._running["server"] = server.process
        self._grpc, self._http, self._places = server.grpc, server.http, server.places()
        self._screen.step(
            "server",
            f"listens on {self._grpc}; a ring holds {self._source.ring_captures:,} captures",
        )
        tasks.create_task(self._watch_over("server", server.process))

    async def _start_spark(self, tasks: asyncio.TaskGroup) -> None:
        spark = await self._processes.start(
            *("ingest", "debezium", "--input", self._inbox, "--log", self._log),
            *("--whole-before", "*"),
            *("--catalog", CATALOG, "--follow", "--publish-window", "1s"),
        )
        self._running["spark"] = spark
        self._screen.step("spark", "tailrace ingest --follow; its JVM takes some seconds to start")
        self._state.waiting = "waiting for Spark …"
        tasks.create_task(self._watch_over("spark", spark))

    async def _start_watchers(self, tasks: asyncio.TaskGroup) -> None:
        view = CommitLog.open(self._log / CATALOG).view
        watchers = watchers_for(view.schema_of(view.published))
        for watcher in watchers:
            process = await self._start_watcher(watcher)
            self._running[watcher.name] = process
            tasks.create_task(self._read(watcher, process))
            tasks.create_task(self._watch_over(watcher.name, process, watcher))
            self._screen.step("subscriber", f"{watcher.name}: {watcher.wish}", watcher.colour)
        self._state.watchers = watchers

    async def _start_watcher(self, watcher: Watcher) -> Process:
        match watcher.program:
            case "watch":
                return await self._processes.start(
                    *("watch", CATALOG, "--server", self._grpc, "--since", "0"),
                    *("--json", "--heartbeats", *watcher.arguments),
                )
            case "slow":
                return await self._processes.start_module(
                    "tailrace_server.demo.slow",
                    *("--server", self._grpc, "--catalog", CATALOG),
                    *("--behind", self._source.behind),
                )
            case way:
                return await self._processes.start_module(
                    "tailrace_server.demo.http_subscribers",
                    *(way, "--server", self._http, "--catalog", CATALOG, *watcher.arguments),
                )

    async def _watch_over(
        self, name: str, process: Process, watcher: Watcher | None = None
    ) -> None:
        """Read a process's stderr until it ends.

        Raises:
            DemoFailed: The process ended by itself.
        """
        assert process.stderr is not None
        last = ""
        async for text in process.stderr:
            line = text.decode(errors="replace").strip()
            last = line or last
            if watcher is not None:
                watcher.name_from(line)
        status = await process.wait()
        if name in self._running:
            raise DemoFailed(f"{name} ended with status {status}: {last}")

    async def _read(self, watcher: Watcher, process: Process) -> None:
        """Read the output of a subscriber, record all of it, and print a sample."""
        assert process.stdout is not None
        async for text in process.stdout:
            line = watcher.take(text)
            if line.does is not None:
                if "subscription" not in line.does:
                    self._screen.event(watcher, line.does)
            elif line.heartbeat:
                self._news.set()
            elif self._screen.wants(watcher, lead=line.index == 0):
                rendered = self._screen.form(watcher).render(capture_of(line))
                self._screen.capture(watcher, rendered)

    async def _follow_server(self) -> None:
        """Read the server's figures at intervals, without end."""
        while True:
            await asyncio.sleep(_POLL_S)
            with suppress(OSError, ValueError):
                await self._read_progress()
            self._screen.tick()

    async def _read_progress(self) -> None:
        """Read the published version and the state of each subscription from the server's HTTP listener."""
        metrics = (await _get(self._http, "/metrics")).decode()
        label = f'{{catalog="{CATALOG}"}} '
        figures = {
            name: int(float(line.rpartition(" ")[2]))
            for line in metrics.splitlines()
            for name in ("tailrace_published_version", "tailrace_committed_version")
            if line.startswith(name + label)
        }
        published = figures.get("tailrace_published_version", 0)
        self._state.committed = figures.get("tailrace_committed_version", 0)
        if published > self._state.published:
            self._state.published = published
            self._rise.set()
        for found in json.loads(await _get(self._http, "/subscriptions")):
            watcher = find(self._state.watchers, found["subscription_id"])
            if watcher is not None:
                self._note_moves(watcher, found)
        self._news.set()

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition is true; check it whenever a figure may have changed."""
        while not condition():
            self._news.clear()
            await self._news.wait()

    def _note_moves(self, watcher: Watcher, found: dict[str, object]) -> None:
        resyncs, returns = int(str(found["resyncs"])), int(str(found["returns"]))
        if watcher.name == SLOW:
            if resyncs > watcher.resyncs:
                lag = int(str(found["lag_records"]))
                behind = f", {lag:,} records behind" if lag else ""
                self._screen.event(watcher, f"overtaken by its ring{behind}: now read from the log")
            if returns > watcher.returns:
                self._screen.event(watcher, "has caught up with the ring: live again")
        watcher.resyncs, watcher.returns = resyncs, returns
        watcher.mode, watcher.lag_records = str(found["mode"]), int(str(found["lag_records"]))

    async def _first_version(self) -> None:
        try:
            async with asyncio.timeout(_SPARK_PATIENCE_S):
                await self._until(lambda: self._state.published > 0)
        except TimeoutError:
            raise DemoFailed(f"Spark published nothing within {_SPARK_PATIENCE_S:g} s") from None
        self._state.waiting = ""
        self._screen.step("spark", f"has published its first {self._state.published:,} versions")

    async def _all_have_all(self) -> None:
        """Wait until the whole source is published and delivered to every subscriber.

        Raises:
            DemoFailed: Spark has published nothing for too long.
        """
        feed = self._source.feed
        loop = asyncio.get_running_loop()
        published, since = self._state.published, loop.time()

        def through() -> bool:
            nonlocal published, since
            if self._state.published > published:
                published, since = self._state.published, loop.time()
            quiet_s = loop.time() - since
            if feed is None:
                return quiet_s > _QUIET_S
            if quiet_s > _SPARK_PATIENCE_S:
                wanted = len(feed.transactions)
                raise DemoFailed(f"Spark stopped at version {published:,} of {wanted:,}")
            return published == len(feed.transactions)

        await self._until(through)
        self._screen.step("spark", f"has published all {published:,} versions")
        self._state.waiting = "waiting for the slow one …"
        await self._until(lambda: all(w.reached >= published for w in self._state.watchers))

    def _judge(self) -> None:
        """Compare every subscriber with the log, and the log with the source.

        Raises:
            DemoFailed: There is a difference, or the slow subscriber was not overtaken often enough.
        """
        facts = read_log(self._log / CATALOG)
        self._screen.step(
            "log",
            f"{facts.published:,} versions, {len(facts.rows):,} records in {facts.entries:,} entries; "
            "what each subscriber should have is computed from it by a plain list and filter",
        )
        if self._source.feed is not None:
            difference = differs_from_source(self._source.feed, facts)
            if difference is not None:
                raise DemoFailed(f"the log is not the source: {difference}")
            self._screen.step("log", "equals the source, transaction by transaction, byte for byte")
        results = [(each, judge(each, facts.rows)) for each in self._state.watchers]
        self._screen.verdicts(results)
        wrong = [watcher.name for watcher, verdict in results if not verdict.exact]
        if wrong:
            raise DemoFailed(f"not exactly what was asked for: {', '.join(wrong)}")
        [slow] = [each for each in self._state.watchers if each.name == SLOW]
        if slow.moves < MOVES_MIN:
            raise DemoFailed(
                f"the slow subscriber went live → resync → live {slow.moves} times, not {MOVES_MIN}; "
                "the source was too short or came all at once"
            )
        self._screen.step(
            "demo",
            f"everybody received exactly what they asked for; the slow one was overtaken and came back "
            f"{slow.moves} times and missed nothing",
            "bold green",
        )


async def _get(address: str, path: str) -> bytes:
    """Return the body of a small response from the demo's own server."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode()
        )
        answer = await reader.read()
    finally:
        writer.close()
    return answer.partition(b"\r\n\r\n")[2]
