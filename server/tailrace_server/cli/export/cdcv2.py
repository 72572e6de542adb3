"""``tailrace export cdcv2``: write an entity type's published history as a Materialize CDC stream."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Final

import typer

from tailrace_server.cli.terminal.output import note
from tailrace_server.cli.terminal.signals import in_thread
from tailrace_server.cli.terminal.typer_options import LogRoot, with_options
from tailrace_server.option_fields import FLAG, FOLDER, RUNNING, SECONDS, option, text, whole

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tailrace_server.export.cdcv2 import ExportProgress, ExportSettings
    from tailrace_server.wal.state.commit_log import CommitLog
    from tailrace_server.wal.state.tailer import Tailer

_STREAM = "What the stream says"

app: Final = typer.Typer()


@dataclass(frozen=True, kw_only=True)
class Cdcv2ExportOptions:
    """The exported entity type, the folder of the stream, its columns and its pace."""

    catalog: str = option("--catalog", "Catalog to read.", text("NAME"))
    entity_type: str = option("--entity-type", "Entity type to export.", text("TYPE"))
    output: Path = option("--output", "Folder of the stream; created if absent.", FOLDER)
    since: int | None = option(
        "--since",
        "Begin with all rows as of this version; default: begin with the first version of the log.",
        whole(1, "VERSION"),
        None,
        panel=_STREAM,
    )
    like: Path | None = option(
        "--like",
        "Use the columns of the export in this folder, so that both exports can be merged.",
        FOLDER,
        None,
        panel=_STREAM,
    )
    follow: bool = option(
        "--follow/--once",
        "Keep running and write versions as they are published, or write the published versions "
        "and exit.",
        FLAG,
        False,
        panel=RUNNING,
    )
    every_s: float = option(
        "--every", "With --follow, shortest time between two files.", SECONDS, 1.0, panel=RUNNING
    )


@app.command("cdcv2")
@with_options
def cdcv2(log: LogRoot, export: Cdcv2ExportOptions) -> int:
    """Write an entity type's published history as a Materialize CDC stream (CDCv2).

    The time of an update is its version. Run the command again, even after a
    kill, and it continues where the folder ends. Several commands may write
    to one folder at the same time.
    """
    from tailrace_server.cli.terminal.signals import run
    from tailrace_server.export.cdcv2 import ExportSettings

    settings = ExportSettings(
        log=log.absolute(),
        catalog=export.catalog,
        entity_type=export.entity_type,
        output=export.output,
        since=export.since,
        like=export.like,
    )
    return run(_export(settings, follow=export.follow, every_s=export.every_s))


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
    """Write versions as they are published, until the task is cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        # The frontier is the first version that is not written yet: wait until it is published.
        if log.view.published < written.frontier:
            await anext(views)
            continue
        begun = loop.time()
        written = await advance()
        _tell(written)
        await asyncio.sleep(max(0.0, begun + every_s - loop.time()))


def _tell(written: ExportProgress) -> None:
    note(
        f"{written.updates:,} updates in {written.files} files; complete below version {written.frontier}"
    )
