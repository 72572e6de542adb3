"""The description of a catalog and of its writers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uuid import UUID

    from tailrace.position import Position
    from tailrace_server.wal.state.commit_log import CommitLog


@dataclass(frozen=True, slots=True)
class WriterInfo:
    """A writer that has committed to a log."""

    name: str
    host: str
    """The host of the newest writer; empty for earlier writers, whose hosts are not stored."""
    is_newest: bool
    """True if the writer has the newest epoch: only this writer can commit."""
    batch: int
    """The writer's own number of its last batch; -1 if it has none."""
    entry: int
    """The log entry of that batch; 0 if it has none."""


@dataclass(frozen=True, slots=True)
class CatalogInfo:
    """The current positions and writers of a catalog."""

    name: str
    uuid: UUID
    oldest: Position
    published: int
    """Highest published version; 0 for none."""
    committed: int
    """Highest durable version; versions above ``published`` are not visible yet."""
    newest_timestamp: int
    """Commit timestamp of the newest published version, in microseconds; 0 for none."""
    writers: tuple[WriterInfo, ...]
    """All writers, the newest first."""


def writers_of(log: CommitLog) -> tuple[WriterInfo, ...]:
    """Return the writers of a log, newest first; another thread may update the log at the same time."""
    holder = log.state.holder
    found = [
        WriterInfo(
            name,
            holder.host if name == holder.writer else "",
            name == holder.writer,
            key.batch_id,
            key.entry,
        )
        for name, key in tuple(log.state.writers.items())
    ]
    return tuple(sorted(found, key=lambda each: (not each.is_newest, -each.entry)))
