"""The command ``tailrace demo``: its options and folders."""

from __future__ import annotations

import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


def demo(
    input: Annotated[
        Path | None,
        typer.Option(
            "--input",
            metavar="DIR",
            help="Debezium JSON to use instead of the bundled shop; its files appear in parts, side by side.",
        ),
    ] = None,
    transactions: Annotated[
        int,
        typer.Option(
            "--transactions",
            min=1_200,
            help="Of the bundled shop; with fewer, nobody is slow for long enough.",
        ),
    ] = 3_000,
    seed: Annotated[int, typer.Option("--seed", help="Of the bundled shop.")] = 7,
    postgres: Annotated[
        bool,
        typer.Option(
            "--postgres",
            help="Start a PostgreSQL server instead, and follow its changes without Spark.",
        ),
    ] = False,
    keep: Annotated[
        Path | None,
        typer.Option(
            "--keep",
            metavar="DIR",
            help="Keep input and log there, and the server running at the end, to look at.",
        ),
    ] = None,
) -> int:
    """Run all of tailrace: Spark writes a log while subscribers watch it.

    Spark writes some thousand transactions of a made-up shop to a log.
    A server delivers them to subscribers over gRPC, GraphQL, WebSocket and
    server-sent events. Its rings are much too small, and one subscriber is
    too slow on purpose. At the end, each must have received exactly the
    changes that it requested. Takes about a minute; Ctrl-C removes everything.
    """
    from tailrace_server.cli.terminal.signals import run
    from tailrace_server.demo.run import run_demo
    from tailrace_server.demo.source import files_of, made_up_shop

    run_in: Callable[..., Coroutine[Any, Any, int]]
    if postgres:
        from tailrace_server.demo.postgres import run_postgres_demo

        run_in = run_postgres_demo
    else:
        source = made_up_shop(transactions, seed) if input is None else files_of(input)
        run_in = partial(run_demo, source)
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        return run(run_in(keep, stay=True))
    folder = Path(tempfile.mkdtemp(prefix="tailrace-demo-"))
    try:
        return run(run_in(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
