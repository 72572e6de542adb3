"""``tailrace export delta``: keep Delta tables of a catalog's newest state; publication may wait for them."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tailrace.errors import InvalidRequest
from tailrace_server.cli.terminal.output import note, printable
from tailrace_server.cli.terminal.signals import in_thread
from tailrace_server.cli.terminal.typer_options import LogRoot
from tailrace_server.units import counted, parse_seconds

if TYPE_CHECKING:
    from tailrace_server.export.delta.export import DeltaProgress, DeltaSettings

_TABLES = "What the tables are"
_RUNNING = "How it runs"
_TELL_S: Final = 1.0
_EVERY_S: Final = 1.0

app: Final = typer.Typer()


@app.command("delta")
def delta(
    log: LogRoot,
    catalog: Annotated[str, typer.Option("--catalog", metavar="NAME", help="Catalog to read.")],
    target: Annotated[
        Path,
        typer.Option(
            "--to", metavar="DIR", help="Folder of the tables, one folder each; made if absent."
        ),
    ],
    entity_types: Annotated[
        list[str] | None,
        typer.Option(
            "--type",
            metavar="TYPE",
            help="Entity type to export; again for more. Without it all, later ones too.",
        ),
    ] = None,
    misfits: Annotated[
        str,
        typer.Option(
            "--misfits",
            metavar="refuse,null",
            help="What becomes of a value that its column's type cannot hold.",
            rich_help_panel=_TABLES,
        ),
    ] = "refuse",
    tidy_every: Annotated[
        int,
        typer.Option(
            "--tidy-every",
            metavar="COMMITS",
            min=0,
            help="Join small files and delete old ones after so many commits of a table; 0: never.",
            rich_help_panel=_TABLES,
        ),
    ] = 100,
    keep: Annotated[
        str,
        typer.Option(
            "--keep",
            metavar="TIME",
            help="Keep the files of table versions so old, in whole hours, for those who read them.",
            rich_help_panel=_TABLES,
        ),
    ] = "7d",
    follow: Annotated[
        bool,
        typer.Option(
            "--follow/--once",
            help="Go on with versions as they come, or end with those that are published.",
            rich_help_panel=_RUNNING,
        ),
    ] = False,
    gate: Annotated[
        bool,
        typer.Option(
            "--gate",
            help="Have publication wait for the tables, until the gate is taken away.",
            rich_help_panel=_RUNNING,
        ),
    ] = False,
    every: Annotated[
        str | None,
        typer.Option(
            "--every",
            metavar="SECONDS",
            help="Following, commit to the tables at most this often; 1s unless with --gate.",
            rich_help_panel=_RUNNING,
        ),
    ] = None,
) -> int:
    """Keep Delta tables of the newest state, one an entity type, exactly once.

    Each table's own transaction says which version it shows. Run it again, after a kill too, and it continues
    from there. With --gate a subscriber that receives a version finds it in the tables.
    """
    from tailrace_server.cli.terminal.signals import run
    from tailrace_server.export.delta.export import DeltaSettings
    from tailrace_server.typed.misfits import OnMisfit

    if gate and not follow:
        raise InvalidRequest("--gate holds publication up unless somebody follows: add --follow")
    if gate and every is not None:
        raise InvalidRequest("--every: with --gate tables are brought up to date at once")
    settings = DeltaSettings(
        log=log.absolute(),
        catalog=catalog,
        target=target.resolve(),
        entity_types=tuple(dict.fromkeys(entity_types or ())),
        gate=gate,
        on_misfit=OnMisfit.named(misfits),
        tidy_every=tidy_every,
        keep_hours=_hours(keep),
    )
    every_s = _EVERY_S if every is None else _seconds("--every", every)
    return run(_export(settings, follow=follow, every_s=every_s))


async def _export(settings: DeltaSettings, *, follow: bool, every_s: float) -> int:
    from tailrace_server.export.delta.export import DeltaExport

    begin = partial(DeltaExport.begin, settings)
    with await in_thread(begin, lambda: None) as exporting:
        told = _ToldSteps(settings)
        if not follow:
            done = await in_thread(partial(exporting.advance, told.add), exporting.stop)
            told.show()
            note(f"the tables in {settings.target} are at version {done.version:,}")
            return 0
        note(f"following {settings.catalog} into {settings.target}; Ctrl-C ends")
        if settings.gate:
            note(
                "publication waits for these tables from now on, also when this has ended; take the gate away "
                f"with tailrace catalog gate {settings.catalog} --log {settings.log} --remove"
            )
        showing = asyncio.create_task(told.show_all())
        try:
            follow_on = partial(exporting.follow, told.add, every_s)
            await in_thread(follow_on, exporting.stop)
        finally:
            showing.cancel()
            await asyncio.wait([showing])
            told.show()
    return 0


class _ToldSteps:
    """Gathers the reports of the export's thread, and shows them a line at a time."""

    def __init__(self, settings: DeltaSettings) -> None:
        self._settings = settings
        self._lock = Lock()
        self._gathered: list[DeltaProgress] = []
        self.version = 0

    def add(self, progress: DeltaProgress) -> None:
        """Take a step; called in the export's thread."""
        with self._lock:
            self._gathered.append(progress)
            self.version = max(self.version, progress.version)

    async def show_all(self) -> None:
        """Show what has come, every second, until cancelled."""
        while True:
            self.show()
            await asyncio.sleep(_TELL_S)

    def show(self) -> None:
        """Show what has come since the last time, if anything was written or published."""
        with self._lock:
            gathered, self._gathered = self._gathered, []
        steps = [step for progress in gathered for step in progress.steps]
        published = any(progress.published for progress in gathered)
        if not steps and not published:
            return
        state = (
            "in the tables and published" if self._settings.gate and published else "in the tables"
        )
        parts = []
        for name in dict.fromkeys(step.entity_type for step in steps):
            mine = [step for step in steps if step.entity_type == name]
            rows, removed = sum(step.rows for step in mine), sum(step.removed for step in mine)
            part = f"{printable(name)} {counted(rows, 'row')}"
            part += f", {removed:,} removed" if removed else ""
            parts.append(f"{part} (Delta version {mine[-1].delta_version:,})")
        note(f"version {self.version:,} is {state}: {'; '.join(parts) or 'no table has changed'}")
        for step in steps:
            if step.how == "rewritten":
                note(f"{printable(step.entity_type)} was rewritten: {printable(step.why)}")
            for misfit in step.nulls:
                note(
                    f"{printable(step.entity_type)}: null in place of a value; {printable(misfit)}"
                )


def _seconds(option: str, text: str) -> float:
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise InvalidRequest(f"{option} {text!r}: {error}") from error


def _hours(text: str) -> int:
    hours, rest = divmod(_seconds("--keep", text), 3_600)
    if rest:
        raise InvalidRequest(f"--keep {text!r}: it is a number of whole hours")
    return int(hours)
