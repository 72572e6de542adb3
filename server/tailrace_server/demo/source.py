"""The demo's source: files of Debezium's JSON that appear in a folder as a connector would write them."""

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
"""Between two parts, if Spark keeps up."""
_AHEAD_MAX: Final = 5
"""Parts written since Spark last published: on a slow machine more of them would become one large commit."""


@dataclass(slots=True)
class DemoSource:
    """Input in parts, and how many have been written."""

    title: str
    lines: int
    write: Callable[[Path], Iterator[object]]
    """Writes one part into a folder at each step."""
    feed: Feed | None = None
    """The expected contents of the log, if the demo made the source."""
    ring_captures: int = 200
    """How small the server's rings are made."""
    behind: int = 250
    """Versions that the slow subscriber lets pass; each gives it one capture at least, its lead."""
    parts: int = PARTS
    parts_written: int = field(default=0)

    async def flow(self, inbox: Path, rise: asyncio.Event) -> None:
        """Write part after part, at a pace that Spark can follow.

        Args:
            inbox: Folder for the files; made if absent.
            rise: Set when more versions have been published.
        """
        ahead = 0
        parts = self.write(inbox)
        while await asyncio.to_thread(next, parts, None) is not None:
            self.parts_written += 1
            ahead += 1
            await asyncio.sleep(PAUSE_S)
            if ahead >= _AHEAD_MAX:
                await rise.wait()
            if rise.is_set():
                rise.clear()
                ahead = 0


def made_up_shop(transactions: int, seed: int) -> DemoSource:
    """Return the bundled shop."""
    feed = make_feed(seed, transactions)
    topics = len({message.topic for message in feed.messages})
    return DemoSource(
        title=f"a shop: {len(feed.transactions):,} transactions, "
        f"{len(feed.messages):,} messages in {topics} topics",
        lines=len(feed.messages),
        write=lambda inbox: write_feed(feed, inbox, PARTS),
        feed=feed,
        # Its versions have nearly six records each.
        ring_captures=1_500,
        behind=450,
    )


def files_of(folder: Path) -> DemoSource:
    """Return the files of a folder, each cut into as many parts at line ends, which appear side by side.

    A transaction whose lines lie at different places of their files comes in several parts. END records say
    that it is one; without them rows after the idle time are a separate version, marked late.

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
    # Bytes: text would be cut at every line end of Unicode's, and JSON may hold some of them.
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
