"""Notes of commits that outlive their entries: the last batches of writers, and updates without before-image.

After a restart a writer repeats its last batch. The log recognises that batch by the writer's last commits,
``KnownCommits``, even if their entries have been deleted.

With its default replica identity, PostgreSQL sends updates without the before-image. Such a record names every
column of ``after`` as changed; the columns that really changed are unknown. The writer notes this among the
source positions of the commit, and notes it again when before-images are sent. For each entity type only the
newest note is valid::

    before:orders  missing        before:orders  sent
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace_server.wal.files.documents import KnownCommit

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from tailrace_server.wal.files.documents import CommitEntry

_BEFORE: Final = "before:"
_MISSING: Final = "missing"
_SENT: Final = "sent"


def unknown_changes_after(
    known: tuple[str, ...], source_positions: Mapping[str, int | str]
) -> tuple[str, ...]:
    """Return the entity types, sorted, whose newest updates had no before-image, as of a commit.

    Args:
        known: The result as of the commit before; returned unchanged if the commit has no such note.
        source_positions: The source positions in the commit. Or those of the whole log, with ``known`` empty.
    """
    notes = {
        name.removeprefix(_BEFORE): state
        for name, state in source_positions.items()
        if name.startswith(_BEFORE)
    }
    if not notes:
        return known
    missing = {name for name, state in notes.items() if state == _MISSING}
    return tuple(sorted(missing.union(known).difference(notes.keys() - missing)))


def notes_after(updates: Mapping[str, bool], known: Collection[str]) -> dict[str, int | str]:
    """Return the notes that a commit has to write, as source positions: those that its updates change.

    Args:
        updates: Entity types with updates in the commit; True if any of the updates has no ``before``.
        known: The entity types whose newest updates before the commit had no ``before``.
    """
    return {
        f"{_BEFORE}{entity_type}": _MISSING if missing else _SENT
        for entity_type, missing in updates.items()
        if missing != (entity_type in known)
    }


BATCH_NOTES: Final = "batch:"
"""Prefix of source positions that hold a source's batch number; see source_batches.py."""
_FLUSHES_MAX: Final = 64
"""The most flushes of one batch that are remembered; the oldest are forgotten first."""

KnownCommits = dict[str, tuple[KnownCommit, ...]]
"""Maps a writer to the commits of its last batch, and a ``batch:`` note to the commit that wrote it last."""


def note_commit(known: KnownCommits, entry: CommitEntry) -> None:
    """Remember a commit as the newest one of its writer, and of each source whose batch number it notes."""
    commit = KnownCommit(
        entry.batch_id,
        entry.k,
        entry.number,
        entry.first_version,
        entry.last_version,
        entry.timestamp,
    )
    before = known.get(entry.writer, ())
    if before and before[-1].batch_id != entry.batch_id:
        before = ()
    # The first commit of a batch stays, however many flushes follow: a restart repeats the batch from there.
    known[entry.writer] = (*before[:1], *before[1:][-_FLUSHES_MAX:], commit)
    for note in entry.source_positions:
        if note.startswith(BATCH_NOTES):
            known[note] = (commit,)
