"""The command ``tailrace play``: a server, and a made-up shop whose rows keep changing, to try subscribers on.

::

    shop_writer (a process) ──log──▶ serve (a process) ──▶ whatever the user tries in a second terminal
            └── what the shop did, a line a version ──▶ this process
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from tailrace_server.cli.terminal.output import note
from tailrace_server.demo.processes import DemoFailed

if TYPE_CHECKING:
    from asyncio.subprocess import Process

    from tailrace_server.demo.processes import DemoServer

_GRPC: Final = "127.0.0.1:7411"
_HTTP: Final = "127.0.0.1:7412"
_FAULTS: Final = ("warning", "error", "critical")


def play(
    rate: Annotated[
        float, typer.Option("--rate", min=0.1, max=1_000, help="Transactions a second.")
    ] = 5.0,
    grpc: Annotated[
        str, typer.Option("--grpc", metavar="HOST:PORT", help="Port 0 takes a free one.")
    ] = _GRPC,
    http: Annotated[
        str, typer.Option("--http", metavar="HOST:PORT", help="Port 0 takes a free one.")
    ] = _HTTP,
) -> int:
    """Serve a shop whose rows keep changing, to try subscribers on.

    Starts a server and a small program that writes the shop's transactions,
    and says what to try in a second terminal. Needs neither Spark nor Java.
    The log is in a temporary folder; Ctrl-C ends all and removes it.
    """
    from tailrace_server.cli.terminal.signals import run

    folder = Path(tempfile.mkdtemp(prefix="tailrace-play-"))
    try:
        return run(_play(folder, rate, grpc, http))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _play(log: Path, rate: float, grpc: str, http: str) -> None:
    from tailrace_server.demo.processes import Processes, start_server, stop

    async with Processes() as processes:
        # 1. Start both at once: each needs a second for its imports, and they do not depend on each other.
        writer = await processes.start_module(
            "tailrace_server.demo.shop_writer", log, "--rate", rate
        )
        server = await start_server(processes, log, "--grpc", grpc, "--http", http)
        assert writer.stdout is not None
        first = (await writer.stdout.readline()).decode().strip()
        _greet(server, rate)
        # 2. Run until Ctrl-C, or until one of them fails.
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_show(writer, first))
                tasks.create_task(_watch_over("the writer", writer))
                tasks.create_task(_watch_over("the server", server.process))
        except* DemoFailed as group:
            raise group.exceptions[0] from None
        finally:
            # 3. Stop the server first: its subscribers get a regular end, and print where to resume.
            await stop(server.process, signal.SIGTERM)


def _greet(server: DemoServer, rate: float) -> None:
    """Print what is running, and commands to try."""
    at = "" if server.grpc == _GRPC else f" --server {server.grpc}"
    live = f"http://{server.http}/v1/catalogs/shop/changes/live?body=after"
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"A shop, with {rate:g} transactions a second. Ctrl-C ends it. In a second terminal:\n"
    )
    for what in (
        f"tailrace watch shop{at}",
        f"tailrace watch shop{at} --since 0 --entity-type order",
        f'tailrace watch shop{at} --entity-type product --where "stock > 300"',
        f"tailrace state shop product{at}",
        f"tailrace sql shop{at} \"SELECT _change_type, count(*) FROM CHANGES('product') GROUP BY 1\"",
        f"curl -N -H 'accept: text/event-stream' '{live}'",
    ):
        console.print(f"  {what}", style="bold")
    console.print("\nIn a browser:\n")
    for what, address in server.places():
        console.print(f"  {what:<22}{address}")
    console.print()


async def _show(writer: Process, line: str) -> None:
    """Print the changes of the shop: on a terminal only the newest line, elsewhere a line for each version."""
    assert writer.stdout is not None
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        print(line, flush=True)
        async for text in writer.stdout:
            print(text.decode().rstrip(), flush=True)
        return
    with Live(
        Text(line, style="dim"), console=console, refresh_per_second=10, transient=True
    ) as live:
        async for text in writer.stdout:
            live.update(Text(text.decode().rstrip(), style="dim"))


async def _watch_over(name: str, process: Process) -> None:
    """Print the warnings and errors of a process until it ends.

    Raises:
        DemoFailed: The process ended.
    """
    assert process.stderr is not None
    last = ""
    async for text in process.stderr:
        last = text.decode(errors="replace").rstrip()
        try:
            event = json.loads(last)
        except ValueError:
            continue
        if event.get("level") in _FAULTS:
            note(f"{name}: {last}")
    raise DemoFailed(f"{name} ended with status {await process.wait()}: {last}")
