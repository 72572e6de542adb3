"""Snapshot rows cut into versions, as their source does not group them into transactions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace_server.pipeline.changes import SNAPSHOT, UNPLACED, file_of
from tailrace_server.pipeline.ordering.newest_positions import ENDED, LAST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tailrace_server.pipeline.transactions.tally import Tally

CUT: Final = "\0cut"
"""Head of the transaction key of a cut; the batch and the number of the version in it follow."""


class Cut(NamedTuple):
    """Rows ``start`` … ``stop`` - 1 of a run of snapshot rows belong to transaction ``key``.

    ``offset`` added to a row's number in the run gives its number in the snapshot.
    """

    run_key: str
    start: int
    stop: int
    offset: int
    key: str


def cut_snapshots(
    tallies: Mapping[str, Tally], rows_per_version: int, batch: str
) -> tuple[dict[str, Tally], list[Cut]]:
    """Replace the tallies of snapshot rows, one for each run, by those of the versions they form.

    A *run* is what a split has of snapshot rows with no other change between them. Rows are numbered in the
    order of their arrival over all runs and cut every ``rows_per_version``. Runs share a version only if they
    come before all other changes of their files and entity types: a row that was read after a change must not
    get a version before it. They share none with rows of another position, which are of another snapshot.

    Args:
        tallies: Of a batch.
        rows_per_version: How many rows a version takes, above 0.
        batch: Names the batch, so that cuts of different batches have different keys.

    Returns:
        The tallies after it, and where each row belongs.
    """
    runs = [t for key, t in tallies.items() if key.startswith(SNAPSHOT)]
    if not runs:
        return dict(tallies), []
    runs.sort(key=lambda t: t.first_arrival or b"")
    after = {key: t for key, t in tallies.items() if not key.startswith(SNAPSHOT)}
    leading = _leading(after.values())
    cuts: list[Cut] = []
    # `version` has `filled` rows so far. `offset` counts the rows of the runs before, so the rows of a cut
    # number ``offset + start`` onwards.
    version = filled = offset = 0
    joinable = True
    position = UNPLACED
    for run in runs:
        joined, joinable = joinable, leading(run)
        before, position = position, run.highest
        if filled and not (joined and joinable and before == position):
            version, filled = version + 1, 0
        start = 0
        while start < run.rows:
            stop = min(run.rows, start + rows_per_version - filled)
            key = f"{CUT}{batch}\0{version:020}"
            part = replace(run, key=key, rows=stop - start)
            if stop < run.rows:  # the last row is in a later part
                spans = (s._replace(marks=s.marks & ~(LAST | ENDED)) for s in run.spans)
                part = replace(part, spans=tuple(spans))
            after[key] = after[key].plus(part) if key in after else part
            cuts.append(Cut(run.key, start, stop, offset, key))
            filled += stop - start
            if filled == rows_per_version:
                version, filled = version + 1, 0
            start = stop
        offset += run.rows
    return after, cuts


def _leading(tallies: Iterable[Tally]) -> Callable[[Tally], bool]:
    """Return a test of whether a run comes before all changes of its files and of its entity types."""
    changed: dict[str | bytes, bytes] = {}
    for t in tallies:
        for entity_type, arrived in t.first_rows:
            for sequence in (entity_type, file_of(arrived)):
                changed[sequence] = min(arrived, changed.get(sequence, arrived))

    def leading(run: Tally) -> bool:
        return all(
            arrived < changed.get(sequence, arrived + b"\0")
            for entity_type, arrived in run.first_rows
            for sequence in (entity_type, file_of(arrived))
        )

    return leading
