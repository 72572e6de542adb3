"""The commits by which a repeated batch is recognised, after the entries themselves have been deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace_server.wal.files.documents import KnownCommit

if TYPE_CHECKING:
    from tailrace_server.wal.files.documents import CommitEntry

BATCH_NOTES: Final = "batch:"
"""Begins the source positions that number the batches of a source; see source_batches.py."""
_FLUSHES_MAX: Final = 64
"""Flushes of one batch that are remembered, the newest."""

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
