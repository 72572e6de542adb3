"""The description of a catalog and its writer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uuid import UUID

    from tailrace.position import Position
    from tailrace_server.wal.state.commit_log import CommitLog


@dataclass(frozen=True, slots=True)
class WriterInfo:
    """One writer that a log names."""

    name: str
    host: str
    """The host of the newest writer; empty for an earlier one, as its host is not stored."""
    is_newest: bool
    """True if it has the newest epoch: no other one can commit."""
    batch: int
    """Its last batch, by its own count; -1 for none."""
    entry: int
    """The log entry of that batch; 0 for none."""


@dataclass(frozen=True, slots=True)
class CatalogInfo:
    """One catalog as it is now."""

    name: str
    uuid: UUID
    oldest: Position
    published: int
    """Highest version that subscribers may see; 0 for none."""
    committed: int
    """Highest durable version; those above ``published`` wait for their publication."""
    newest_timestamp: int
    """Commit timestamp of the newest published version, µs; 0 for none."""
    writers: tuple[WriterInfo, ...]
    """The newest first."""


def writers_of(log: CommitLog) -> tuple[WriterInfo, ...]:
    """Return the writers of a log that may be read further at the same time by another thread."""
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
