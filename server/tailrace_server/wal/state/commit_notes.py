"""Notes of commits that outlive their entries: repeated batches, and updates without the row before.

A batch that is repeated after a restart is recognised by the last commits of its writer, ``KnownCommits``, even
if their entries have been deleted.

With its default replica identity, PostgreSQL sends updates without the row before. Such a record names every
column of ``after`` as changed; the columns that did change are unknown. The writer notes this among the source
positions of the commit, and again when the row before is sent. Only an entity type's newest note is valid::

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
    """Return the entity types, sorted, whose newest updates came without the row before, as of a commit.

    Args:
        known: These entity types before the commit; returned if the commit has no such note.
        source_positions: What the commit advances; or all of a log, with ``known`` empty.
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
    """Return the source positions by which the updates of a commit change the notes.

    Args:
        updates: Entity types with updates; True if any of them came without ``before``.
        known: The entity types whose newest updates came without ``before``.
    """
    return {
        f"{_BEFORE}{entity_type}": _MISSING if missing else _SENT
        for entity_type, missing in updates.items()
        if missing != (entity_type in known)
    }


BATCH_NOTES: Final = "batch:"
"""Prefix of the source positions that number the batches of a source; see source_batches.py."""
_FLUSHES_MAX: Final = 64
"""The number of flushes of one batch that are remembered, the newest ones."""

KnownCommits = dict[str, tuple[KnownCommit, ...]]
"""Writer → the commits of its last batch id; note of a source's batches → the commit that wrote it last."""


def note_commit(known: KnownCommits, entry: CommitEntry) -> None:
    """Remember a commit as the newest of its writer and of the sources whose batches it notes."""
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
    # The batch itself is repeated after a restart, even if flushes came after it, so it stays in front.
    known[entry.writer] = (*before[:1], *before[1:][-_FLUSHES_MAX:], commit)
    for note in entry.source_positions:
        if note.startswith(BATCH_NOTES):
            known[note] = (commit,)
