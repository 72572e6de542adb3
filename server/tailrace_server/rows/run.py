"""A run: the captures that one predicate matched in one record batch, as references without bytes.

The engine addresses records by *row*: the running number of a record in its catalog, dense from 0 and
unchanged by compaction. A *mark* is (row, ordinal), a place between captures. The next capture of a
subscription is the first one at or after its mark.

    batch          first_row = 1000, rows 1000 … 5095
    selection.rows         [ 3, 17, 17, 40 ]      offsets in the batch, one a capture
    selection.ordinals     [ 0,  2,  5,  0 ]      None when all are 0
    run                    captures at (1003, 0) (1017, 2) (1017, 5) (1040, 0)
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tailrace.criteria import CaptureKind
from tailrace.position import END, Position
from tailrace_server.resources.statistics import NEVER
from tailrace_server.wal.record.text_columns import SMALL_LENGTH

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator

    from numpy.typing import NDArray

    from tailrace_server.wal.segment.reader import BatchHead
    from tailrace_server.wal.segment.refs import BatchRef


EXPIRED: Final = "\0the image is gone"
"""Sentinel for a column name: the changed columns are unknown because the image is no longer retained.

It is never encoded to a frame. A reader that reaches it ends with that error.
"""
UNJUDGED: Final = "\0nobody knows whether the row was granted"
"""Sentinel for a column name: it is unknown whether the row of a change was granted.

Only the readers that reach it end with an error.
"""


class Mark(NamedTuple):
    """A place between captures: the next capture has at least this row and ordinal."""

    row: int
    ordinal: int = 0


class SafePoint(NamedTuple):
    """A point of the log from which a reader can resume: no match at or before it is still to be delivered."""

    rows: int
    """Number of records of the log at or before the point."""
    version: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which no caller needs here
    ordinal: int = END


@dataclass(frozen=True, slots=True, eq=False)
class BatchSelection:
    """The captures of one batch that a predicate matches, in order."""

    identity: Hashable
    """Key that is equal for equal selections of one batch; None for all records of the batch, as a whole."""
    rows: NDArray[np.int32]
    """Offset in the batch of each capture's record, ascending; several captures of one record repeat it."""
    ordinals: NDArray[np.int32] | None = None
    """Ordinal of each capture; None if all are 0."""
    names: tuple[str, ...] | None = None
    """Column name of each capture, "" for the whole record, ``EXPIRED`` or ``UNJUDGED``; None if all are "".
    """
    transitions: NDArray[np.uint8] | None = None
    """Code of ``transitions`` for each capture; None if all codes are 0."""

    def __len__(self) -> int:
        """Return the number of captures."""
        return len(self.rows)

    @property
    def is_plain(self) -> bool:
        """True if each capture is a whole record with all of its images."""
        return self.names is None and self.transitions is None

    def first_at_or_after(self, offset: int, ordinal: int) -> int:
        """Return the index of the first capture at or after a record's offset and an ordinal.

        The selection must not be empty.
        """
        # 1. Most calls are for a place before the first capture; they need no numpy.
        first = self.rows.item(0)
        if offset < first or (offset == first and not ordinal):
            return 0
        # 2. Find the first capture of the record or after it, then step over captures of lower ordinals.
        # A selection without ordinals has one capture a record, of ordinal 0.
        place = int(np.searchsorted(self.rows, offset))
        if ordinal and self.ordinals is not None:
            while (
                place < len(self.rows)
                and self.rows[place] == offset
                and self.ordinals[place] < ordinal
            ):
                place += 1
        elif ordinal and place < len(self.rows) and self.rows[place] == offset:
            place += 1
        return place

    def part(self, start: int, stop: int) -> BatchSelection:
        """Return captures ``start`` to ``stop``, exclusive; the captures of one record must not be split."""
        if (start, stop) == (0, len(self.rows)):
            return self
        return BatchSelection(
            (self.identity, start, stop),
            self.rows[start:stop],
            None if self.ordinals is None else self.ordinals[start:stop],
            None if self.names is None else self.names[start:stop],
            None if self.transitions is None else self.transitions[start:stop],
        )

    def apart(self, gone: NDArray[np.bool_] | None) -> Iterable[BatchSelection]:
        """Split the selection into parts, so that a reader that ends with an error gets all captures before it.

        A part begins at the first record whose images are no longer retained and ends at the last one. So a
        reader of bodies gets every body before these records, when it reads forwards or backwards. The captures
        with the sentinel ``EXPIRED`` are split off in the same way, for readers without bodies. Captures with
        the sentinel ``UNJUDGED`` have parts of their own.

        Args:
            gone: Mask of the batch's records whose images are no longer retained; None: all are retained.
        """
        # Collect the borders of all parts, then yield the captures between each two neighbours.
        ends = {0, len(self.rows), *self._borders_of_unjudged()}
        for found in () if gone is None else (np.flatnonzero(gone[self.rows]), self.untold()):
            if len(found):
                ends |= {int(found[0]), int(found[-1]) + 1}
        return (self.part(start, stop) for start, stop in pairwise(sorted(ends)))

    def untold(self) -> NDArray[np.int64]:
        """Return the indexes of the captures with the sentinel ``EXPIRED``."""
        names = self.names or ()
        return np.array([place for place, name in enumerate(names) if name is EXPIRED], np.int64)

    @property
    def is_unjudged(self) -> bool:
        """True if the first capture has the sentinel ``UNJUDGED``; then all captures of a part have it."""
        return self.names is not None and self.names[0] is UNJUDGED

    def _borders_of_unjudged(self) -> Iterator[int]:
        """Yield the index of each capture at which captures with the sentinel ``UNJUDGED`` begin or end."""
        before = False
        for place, name in enumerate(self.names or ()):
            if (name is UNJUDGED) != before:
                before = not before
                yield place

    def records(self, start: int, stop: int) -> int:
        """Return the number of distinct records among captures ``start`` to ``stop``, exclusive."""
        if self.ordinals is None or stop - start < 2:
            return stop - start
        rows = self.rows[start:stop]
        return 1 + int(np.count_nonzero(rows[1:] != rows[:-1]))


_RUN_BYTES: Final = 200
"""Memory of a run without its selection, in bytes; measured."""
_SELECTION_BYTES: Final = 230
"""Memory of a selection without its rows, in bytes; measured."""

NO_MATCH: Final = BatchSelection((), np.empty(0, np.int32))

_OFFSETS: Final = np.arange(1 << 16, dtype=np.int32)
"""Offsets that all whole-batch selections share, so that such a selection needs no memory for its rows."""

_WHOLE_SMALL: Final = tuple(
    BatchSelection(None, _OFFSETS[:rows]) for rows in range(SMALL_LENGTH + 1)
)


_NARROW_CAPTURES_MAX: Final = 16
"""The most captures of a selection whose frames are encoded together with those of other selections."""


def is_narrow(selection: BatchSelection) -> bool:
    """Return True if a selection has few captures, all of whole records, and is not the whole batch.

    The frames of narrow selections can be encoded together. Frames of a whole batch are shared in any case.
    """
    few = len(selection.rows) <= _NARROW_CAPTURES_MAX
    return few and selection.is_plain and selection.identity is not None


def whole_batch(rows: int) -> BatchSelection:
    """Return the selection of every record of a batch, as a whole."""
    if rows <= SMALL_LENGTH:
        return _WHOLE_SMALL[rows]
    offsets = _OFFSETS[:rows] if rows <= len(_OFFSETS) else np.arange(rows, dtype=np.int32)
    return BatchSelection(None, offsets)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Run:
    """A selection of at least one capture, and the batch that it refers to."""

    batch: BatchRef
    selection: BatchSelection
    first: Position
    """Position of the record of the first capture."""
    crowded: bool = False
    """True if all publishers together match so much of the batch that the whole batch is encoded once."""
    committed_at: float = NEVER
    """Commit time of the batch's last version, in seconds of ``time.monotonic``; NEVER if it is unknown."""
    kind: CaptureKind = CaptureKind.CHANGE
    """The kind of the captures. Frames are shared only among runs of the same kind."""

    def __len__(self) -> int:
        """Return the number of captures."""
        return len(self.selection.rows)

    @property
    def nbytes(self) -> int:
        """Memory of the run in bytes; little for a whole batch, whose rows are shared."""
        selection = self.selection
        rows = 0 if selection.identity is None else _SELECTION_BYTES + selection.rows.nbytes
        return _RUN_BYTES + rows

    @property
    def first_row(self) -> int:
        """Running number of the record of the first capture."""
        return self.batch.first_row + self.selection.rows.item(0)

    @property
    def last_row(self) -> int:
        """Running number of the record of the last capture."""
        return self.batch.first_row + self.selection.rows.item(-1)

    def mark(self, place: int) -> Mark:
        """Return the mark of the capture with index ``place``."""
        selection = self.selection
        ordinal = 0 if selection.ordinals is None else selection.ordinals.item(place)
        return Mark(self.batch.first_row + selection.rows.item(place), ordinal)

    def place_of(self, mark: Mark) -> int:
        """Return the index of the first capture at or after a mark; ``len(self)`` if there is none."""
        return self.selection.first_at_or_after(mark.row - self.batch.first_row, mark.ordinal)


def runs_of(
    head: BatchHead,
    ref: BatchRef,
    selection: BatchSelection,
    gone: NDArray[np.bool_] | None = None,
    *,
    crowded: bool = False,
    at: float = NEVER,
) -> Iterator[Run]:
    """Yield the runs of a selection: one, or several if ``BatchSelection.apart`` splits it.

    Args:
        head: The batch's head.
        ref: The batch.
        selection: The captures of the batch that a predicate matches; not empty.
        gone: Mask of the batch's records whose images are no longer retained; None: all are retained.
        crowded: True if the whole batch is encoded once for all publishers; see ``Run``.
        at: Commit time of the batch's last version; see ``Run.committed_at``.
    """
    for part in selection.apart(gone):
        row = part.rows.item(0)
        first = Position(head.versions.item(row), head.indexes.item(row))
        yield Run(ref, part, first, crowded, at)
