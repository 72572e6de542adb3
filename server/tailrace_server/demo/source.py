"""The demo's source: files of Debezium's JSON, written to a folder one after the other as by a connector."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tailrace.errors import InvalidRequest
from tailrace_server.sample_shop.topics import make_feed, write_feed, write_part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tailrace_server.sample_shop.topics import Feed

PARTS: Final = 60
PAUSE_S: Final = 0.4
"""Pause between two parts, in seconds, if Spark keeps up."""
_AHEAD_MAX: Final = 5
"""Maximum number of parts written since Spark last published; on a slow machine, more parts would become one
large commit."""


@dataclass(slots=True)
class DemoSource:
    """The input of the demo, written part by part."""

    title: str
    lines: int
    write: Callable[[Path], Iterator[object]]
    """Returns an iterator that writes one part to a folder at each step."""
    feed: Feed | None = None
    """The expected contents of the log; None if the input is not made by the demo."""
    ring_captures: int = 200
    """Size of the server's rings, in captures; small enough that the slow subscriber is overtaken."""
    behind: int = 250
    """Number of versions that the slow subscriber lets pass; each is at least one capture, the lead record."""
    parts: int = PARTS
    parts_written: int = field(default=0)

    async def flow(self, inbox: Path, rise: asyncio.Event) -> None:
        """Write all parts, at a rate that Spark can follow.

        Args:
            inbox: Folder for the files; created if absent.
            rise: Event that is set whenever more versions have been published; this method clears it.
        """
        ahead = 0
        parts = self.write(inbox)
        while await asyncio.to_thread(next, parts, None) is not None:
            self.parts_written += 1
            ahead += 1
            await asyncio.sleep(PAUSE_S)
            # Back-pressure: wait for a publication once enough parts are unpublished.
            if ahead >= _AHEAD_MAX:
                await rise.wait()
            if rise.is_set():
                rise.clear()
                ahead = 0


def made_up_shop(transactions: int, seed: int) -> DemoSource:
    """Return a source with transactions of the made-up shop."""
    feed = make_feed(seed, transactions)
    topics = len({message.topic for message in feed.messages})
    return DemoSource(
        title=f"a shop: {len(feed.transactions):,} transactions, "
        f"{len(feed.messages):,} messages in {topics} topics",
        lines=len(feed.messages),
        write=lambda inbox: write_feed(feed, inbox, PARTS),
        feed=feed,
        # A version of the shop has nearly six records.
        ring_captures=1_500,
        behind=450,
    )


def files_of(folder: Path) -> DemoSource:
    """Return a source with the files of a folder; each file is cut at line ends, and its parts appear in turn.

    The lines of a transaction may be in several parts. END records keep it together; without them, rows that
    arrive after the idle time become a separate version, marked late.

    Raises:
        InvalidRequest: There is no such folder, or no file in it.
    """
    if not folder.is_dir():
        raise InvalidRequest(f"--input {folder}: no such folder")
    files = sorted(
        each for each in folder.iterdir() if each.is_file() and not each.name.startswith(".")
    )
    if not files:
        raise InvalidRequest(f"--input {folder}: no file in it")
    # Split bytes, not text: text is also split at Unicode's line separators, which JSON strings may contain.
    lines = {file: file.read_bytes().splitlines() for file in files}
    total = sum(map(len, lines.values()))
    sizes = {file: -(-len(each) // PARTS) or 1 for file, each in lines.items()}
    parts = max(-(-len(each) // sizes[file]) for file, each in lines.items())

    def write(inbox: Path) -> Iterator[object]:
        inbox.mkdir(parents=True, exist_ok=True)
        for part in range(parts):
            for file, size in sizes.items():
                piece = lines[file][part * size : (part + 1) * size]
                if piece:
                    write_part(inbox, f"{file.stem}-{part:05}{file.suffix}", piece)
            yield part

    return DemoSource(
        title=f"{len(files)} files of {folder}, {total:,} lines, which appear in {parts} parts",
        lines=total,
        write=write,
        parts=parts,
    )
