"""Deletion of entries, publications and checkpoints that a later checkpoint covers.

A checkpoint is the state of the log after its last entry. A process that opens the log reads nothing before it.
Readers and writers that opened it earlier have ``delete_grace`` to read on; after that they continue from the
newest checkpoint (state/last_objects.py). The objects go in the order of their numbers, and the last one that
the checkpoint covers stays: by these two rules a paused writer notices that its number was used before.

An entry stays, with all that follow it, while the log names the records that it carries. So that one such
entry does not keep all later ones, a compaction moves its records into a segment of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace_server.failpoints import reach
from tailrace_server.wal.files.documents import CHECKPOINTS, ENTRIES, PUBLICATIONS
from tailrace_server.wal.files.numbered import numbered_path
from tailrace_server.wal.files.sealed import object_number, object_numbers
from tailrace_server.wal.state.checkpoint_files import read_header

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace_server.wal.state.commit_log import CommitLog

DELETE_OBJECTS: Final = 65_536
"""Most objects that one run of a writer's upkeep deletes of a sequence; it takes about a second."""
DUE_OBJECTS: Final = 256
"""Objects of a sequence that make a deletion due."""
_CHECKPOINTS_KEPT: Final = 2
"""Newest checkpoints that stay whatever their age."""


class FirstNumbers(NamedTuple):
    """The lowest number that stays of each sequence; what is below may be deleted."""

    entries: int
    publications: int
    checkpoints: int

    def by_folder(self) -> Iterable[tuple[str, int]]:
        """Yield each sequence's folder and number, in the order in which they are deleted."""
        return zip((ENTRIES, PUBLICATIONS, CHECKPOINTS), self, strict=True)


def first_numbers(log: CommitLog, before: int) -> FirstNumbers | None:
    """Return what stays of each sequence; None where no checkpoint is old enough.

    Args:
        log: The log; it has read which files wait for their deletion.
        before: Time, µs, up to which a checkpoint has had its grace.

    Raises:
        LogCorrupted: A checkpoint's header is damaged.
    """
    state, number = log.state, log.state.checkpoint - _CHECKPOINTS_KEPT + 1
    header = read_header(log.store, number) if number > 0 else None
    while header is not None and header.timestamp > before:
        number -= 1
        header = read_header(log.store, number) if number > 0 else None
    if header is None:
        return None
    # 1. Records in entries: those that the log names, and those that it stopped to name a moment ago.
    waiting = [path for path, since in state.removed.items() if since > before]
    needed = _entries_in([*state.batches.segments.paths(), *waiting])
    # 2. A writer's last commit, where the checkpoints do not say yet what it came to.
    needed += [
        key.entry
        for writer, key in state.writers.items()
        if key.entry and writer not in state.known_commits
    ]
    entries = min([header.last_entry, *needed])
    return FirstNumbers(entries, header.last_publication, number)


def deletion_of_objects_is_due(log: CommitLog, before: int) -> bool:
    """Return True if DUE_OBJECTS of a sequence may be deleted; looks at one name of each."""
    numbers = first_numbers(log, before)
    return numbers is not None and any(
        first > DUE_OBJECTS and log.store.exists(numbered_path(folder, first - DUE_OBJECTS))
        for folder, first in numbers.by_folder()
    )


def delete_old_objects(log: CommitLog, before: int, objects_max: int | None = None) -> list[str]:
    """Delete what ``first_numbers`` does not keep, and return the paths.

    Args:
        log: As of ``first_numbers``.
        before: As of ``first_numbers``.
        objects_max: How many to delete of a sequence, the lowest numbers first; None: all.

    Raises:
        LogError: The device failed; what is left goes the next time.
    """
    numbers = first_numbers(log, before)
    deleted: list[str] = []
    for folder, first in numbers.by_folder() if numbers is not None else ():
        # The order matters: a process that was killed here must have left no hole.
        old = [each for each in object_numbers(log.store.names(folder)) if each < first]
        for number in old[:objects_max]:
            path = numbered_path(folder, number)
            if log.store.delete(path):
                deleted.append(path)
            reach("objects.deleted")
    return deleted


def first_in(log: CommitLog, folder: str, last: int) -> int:
    """Return the lowest number of a sequence that is left; ``last`` + 1 for none up to ``last``."""
    return min(object_numbers(log.store.names(folder)), default=last + 1)


def _entries_in(paths: Iterable[str]) -> list[int]:
    """Return the numbers of the entries among some paths."""
    beginning = f"{ENTRIES}/"
    found = (object_number(path[len(beginning) :]) for path in paths if path.startswith(beginning))
    return [number for number in found if number is not None]
