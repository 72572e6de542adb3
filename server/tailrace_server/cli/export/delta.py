"""``tailrace export delta``: keep Delta tables of a catalog's newest state; publication may wait for them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final

import typer

from tailrace.errors import InvalidRequest
from tailrace_server.cli.terminal.output import note, printable
from tailrace_server.cli.terminal.signals import in_thread
from tailrace_server.cli.terminal.typer_options import LogRoot, with_options
from tailrace_server.option_fields import (
    FLAG,
    RUNNING,
    SECONDS,
    OptionForm,
    option,
    text,
    texts,
    whole,
)
from tailrace_server.units import counted

if TYPE_CHECKING:
    from tailrace_server.export.delta.export import DeltaProgress, DeltaSettings

_TABLES = "What the tables are"
_TELL_S: Final = 1.0
_EVERY_S: Final = 1.0

app: Final = typer.Typer()


def _hours(flag: str, given: str) -> int:
    hours, rest = divmod(SECONDS.parse(flag, given), 3_600)
    if rest:
        raise InvalidRequest(f"{flag} {given!r}: write a number of whole hours, such as 48h or 7d")
    return int(hours)


@dataclass(frozen=True, kw_only=True)
class DeltaExportOptions:
    """The exported entity types, the folder of their tables, and how the tables are written."""

    catalog: str = option("--catalog", "Catalog to read.", text("NAME"))
    target: Path = option(
        "--to",
        "Folder for the tables, one folder each; created if absent.",
        OptionForm(kind=Path, parse=lambda _, folder: folder.resolve(), metavar="DIR"),
    )
    entity_types: tuple[str, ...] = option(
        "--type",
        "Entity type to export; repeat for more. Default: all entity types, also those that are "
        "added later.",
        texts("TYPE"),
        factory=tuple,
    )
    misfits: str = option(
        "--misfits",
        "For a value that its column's type cannot hold: refuse stops the export, null writes "
        "NULL.",
        text("refuse,null"),
        "refuse",
        panel=_TABLES,
    )
    tidy_every: int = option(
        "--tidy-every",
        "Number of commits of a table after which small files are joined and old ones deleted; "
        "0: never.",
        whole(0, "COMMITS"),
        100,
        panel=_TABLES,
    )
    keep_hours: int = option(
        "--keep",
        "Age up to which the files of old table versions are retained for readers, in whole hours.",
        OptionForm(kind=str, parse=_hours, show=lambda hours: f"{hours // 24}d", metavar="TIME"),
        7 * 24,
        panel=_TABLES,
    )
    follow: bool = option(
        "--follow/--once",
        "Keep running and write versions as they are published, or write the published versions "
        "and exit.",
        FLAG,
        False,
        panel=RUNNING,
    )
    gate: bool = option(
        "--gate",
        "Publish a version only after it is in the tables; applies until the gate is removed.",
        FLAG,
        False,
        panel=RUNNING,
    )
    every_s: float | None = option(
        "--every",
        "With --follow, shortest time between two commits of the tables. [default: 1s; not with "
        "--gate]",
        SECONDS,
        None,
        panel=RUNNING,
    )


@app.command("delta")
@with_options
def delta(log: LogRoot, export: DeltaExportOptions) -> int:
    """Maintain Delta tables of the newest state, one for each entity type, with exactly-once writes.

    The transaction of each table stores the version that it shows. Run the
    command again, even after a kill, and it continues from there. With
    --gate, a version is in the tables before any subscriber receives it.
    """
    from tailrace_server.cli.terminal.signals import run
    from tailrace_server.export.delta.export import DeltaSettings
    from tailrace_server.typed.misfits import OnMisfit

    if export.gate and not export.follow:
        raise InvalidRequest(
            "--gate delays publication until an export writes the tables: add --follow"
        )
    if export.gate and export.every_s is not None:
        raise InvalidRequest(
            "--every: with --gate the tables are updated at each commit; leave --every out"
        )
    settings = DeltaSettings(
        log=log.absolute(),
        catalog=export.catalog,
        target=export.target,
        entity_types=tuple(dict.fromkeys(export.entity_types)),
        gate=export.gate,
        on_misfit=OnMisfit.named(export.misfits),
        tidy_every=export.tidy_every,
        keep_hours=export.keep_hours,
    )
    every_s = _EVERY_S if export.every_s is None else export.every_s
    return run(_export(settings, follow=export.follow, every_s=every_s))


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
                "from now on, versions are published only after they are in these tables, also "
                "while this export does not run; to remove the gate: tailrace catalog gate "
                f"{settings.catalog} --log {settings.log} --remove"
            )
        # The export works in a thread; this task prints its progress on the event loop meanwhile.
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
    """Collector of the export's progress, which comes from a thread; prints it in summary lines."""

    def __init__(self, settings: DeltaSettings) -> None:
        self._settings = settings
        self._lock = Lock()
        self._gathered: list[DeltaProgress] = []
        self.version = 0

    def add(self, progress: DeltaProgress) -> None:
        """Add a report of progress; called in the export's thread."""
        with self._lock:
            self._gathered.append(progress)
            self.version = max(self.version, progress.version)

    async def show_all(self) -> None:
        """Print new progress every second, until cancelled."""
        while True:
            self.show()
            await asyncio.sleep(_TELL_S)

    def show(self) -> None:
        """Print the progress since the last call, if anything was written or published."""
        # Take the reports under the lock, format them outside: the thread of the export must not wait for that.
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
                    f"{printable(step.entity_type)}: NULL in place of a value; {printable(misfit)}"
                )
