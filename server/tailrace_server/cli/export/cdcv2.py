"""``tailrace export cdcv2``: write an entity type's published history as a Materialize CDC stream."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tailrace.errors import InvalidRequest
from tailrace_server.cli.terminal.output import note
from tailrace_server.cli.terminal.signals import in_thread
from tailrace_server.cli.terminal.typer_options import LogRoot
from tailrace_server.units import parse_seconds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tailrace_server.export.cdcv2 import ExportProgress, ExportSettings
    from tailrace_server.wal.state.commit_log import CommitLog
    from tailrace_server.wal.state.tailer import Tailer

_STREAM = "What the stream says"
_RUNNING = "How it runs"

app: Final = typer.Typer()


@app.command("cdcv2")
def cdcv2(
    log: LogRoot,
    catalog: Annotated[str, typer.Option("--catalog", metavar="NAME", help="Catalog to read.")],
    entity_type: Annotated[
        str, typer.Option("--entity-type", metavar="TYPE", help="Entity type to export.")
    ],
    output: Annotated[
        Path,
        typer.Option("--output", metavar="DIR", help="Folder of the stream; made if absent."),
    ],
    since: Annotated[
        int | None,
        typer.Option(
            "--since",
            metavar="VERSION",
            min=1,
            help="Begin with all rows as of this version, folded from the log.",
            rich_help_panel=_STREAM,
        ),
    ] = None,
    like: Annotated[
        Path | None,
        typer.Option(
            "--like",
            metavar="DIR",
            help="Take the columns of the export in this folder, so that both can be merged.",
            rich_help_panel=_STREAM,
        ),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow/--once",
            help="Go on with versions as they are published, or end with those that are.",
            rich_help_panel=_RUNNING,
        ),
    ] = False,
    every: Annotated[
        str,
        typer.Option(
            "--every",
            metavar="SECONDS",
            help="Following, begin a file at most this often.",
            rich_help_panel=_RUNNING,
        ),
    ] = "1s",
) -> int:
    """Write an entity type's published history as a Materialize CDC stream (CDCv2).

    Time is the version. Run it again, after a kill too, and it continues where the folder ends. Several may
    write to one folder at once.
    """
    from tailrace_server.cli.terminal.signals import run
    from tailrace_server.export.cdcv2 import ExportSettings

    try:
        every_s = parse_seconds(every)
    except ValueError as error:
        raise InvalidRequest(f"--every {every!r}: {error}") from error
    settings = ExportSettings(
        log=log.absolute(),
        catalog=catalog,
        entity_type=entity_type,
        output=output.absolute(),
        since=since,
        like=like,
    )
    return run(_export(settings, follow=follow, every_s=every_s))


async def _export(settings: ExportSettings, *, follow: bool, every_s: float) -> int:
    from tailrace_server.export.cdcv2 import Cdcv2Export
    from tailrace_server.wal.state.tailer import Tailer

    stopping = Event()
    begin = partial(Cdcv2Export.begin, settings, stopping)
    with await in_thread(begin, stopping.set) as exporting:
        advance = partial(in_thread, exporting.advance, stopping.set)
        written = await advance()
        _tell(written)
        if follow:
            note(f"following {settings.catalog} into {settings.output}; Ctrl-C ends")
            async with Tailer(exporting.log) as views:
                await _follow(exporting.log, views, written, advance, every_s)
    return 0


async def _follow(
    log: CommitLog,
    views: Tailer,
    written: ExportProgress,
    advance: Callable[[], Awaitable[ExportProgress]],
    every_s: float,
) -> None:
    """Write what is published until it is cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        if log.view.published < written.frontier:
            await anext(views)
            continue
        begun = loop.time()
        written = await advance()
        _tell(written)
        await asyncio.sleep(max(0.0, begun + every_s - loop.time()))


def _tell(written: ExportProgress) -> None:
    note(
        f"{written.updates:,} updates in {written.files} files; the stream is complete "
        f"below {written.frontier}"
    )
