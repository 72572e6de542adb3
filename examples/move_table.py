r"""Move a live table from one log to another, without a stop.

    python examples/move_table.py --from old/log --to new/log --catalog shop \
        --entity-type product --key id --folder /var/tmp/move

An exporter follows the old log and writes the table's history as a change stream; an ingest follows the stream
and writes it to the new log. Meanwhile the old log is written to and read as ever. Once the new one is level,
readers can change over whenever they like: a version of the new log names in its lead, as ``time``, the version
of the old one that it came from. Either process may be killed: it goes on where its output ends, and what it
repeats is dropped. One that ends by itself has met what a retry does not help, and has said what: a log without
images, a damaged one, a full disk. That ends the move. So does Ctrl-C; the same command goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from tailrace_server.pipeline.cdcv2.driver import FRONTIER
from tailrace_server.wal.catalog import list_catalogs, open_catalog

STOPPED = (130, 143)
"""Exit statuses of a command that was told to stop, by SIGINT or SIGTERM; a killed one has a negative one."""

PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class Move:
    """What is moved, from where to where."""

    source: Path
    target: Path
    catalog: str
    entity_type: str
    key: str
    """Key columns, with commas."""
    folder: Path
    """Where the change stream lies in between; it can go once the move is over."""

    @property
    def stream(self) -> Path:
        """The folder of the exporter."""
        return self.folder / "stream"

    def export(self) -> list[str]:
        """Return the exporter's command line."""
        what = ["--log", str(self.source), "--catalog", self.catalog]
        what += ["--entity-type", self.entity_type, "--output", str(self.stream)]
        return ["export", "cdcv2", *what, "--every", "200ms", "--follow"]

    def ingest(self) -> list[str]:
        """Return the ingest's command line."""
        what = ["--input", str(self.stream), "--schema", str(self.stream / "_schema.avsc")]
        what += ["--entity-type", self.entity_type, "--key", self.key]
        return [
            *("ingest", "cdcv2", *what, "--log", str(self.target), "--catalog", self.catalog),
            *("--follow", "--quiet"),
        ]

    def published(self) -> int:
        """Return the old log's newest version."""
        return open_catalog(self.source, self.catalog).view.published

    def arrived(self) -> int:
        """Return the version of the old log up to which the new one has everything."""
        if not self.target.is_dir() or self.catalog not in list_catalogs(self.target):
            return 0
        frontier = open_catalog(self.target, self.catalog).state.source_positions.get(FRONTIER)
        return 0 if frontier is None else int(json.loads(str(frontier))[0]) - 1


async def move(what: Move, *, until: int | None = None) -> None:
    """Move until cancelled, or until a version has arrived.

    Raises:
        ExceptionGroup: Of a RuntimeError: one of the commands ended by itself.
    """
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(keep_running(what.export()))]
        while not (what.stream / "_schema.avsc").exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(PAUSE_S)
        running.append(tasks.create_task(keep_running(what.ingest())))
        told = -1
        while until is None or told < until:
            await asyncio.sleep(PAUSE_S)
            arrived = await asyncio.to_thread(what.arrived)
            if arrived != told:
                told = arrived
                print(f"{arrived} of {what.published()} versions have arrived", flush=True)
        for task in running:
            task.cancel()


async def keep_running(command: list[str]) -> None:
    """Run a command, again whenever it is killed; cancelling ends it.

    Raises:
        RuntimeError: It ended by itself.
    """
    while True:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tailrace_server", *command
        )
        try:
            status = await process.wait()
        except asyncio.CancelledError:
            process.terminate()
            await process.wait()
            raise
        if status >= 0 and status not in STOPPED:
            raise RuntimeError(f"tailrace {' '.join(command)} ended with status {status}")
        await asyncio.sleep(PAUSE_S)


def main() -> None:
    """Move from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="source", type=Path, required=True)
    parser.add_argument("--to", dest="target", type=Path, required=True)
    parser.add_argument("--catalog", required=True)
    parser.add_argument("--entity-type", required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--until", type=int)
    arguments = vars(parser.parse_args())
    until = arguments.pop("until")
    try:
        asyncio.run(move(Move(**arguments), until=until))
    except* KeyboardInterrupt:
        print("the same command goes on from here")
    except* RuntimeError as failed:
        sys.exit("\n".join(map(str, failed.exceptions)))


if __name__ == "__main__":
    main()
