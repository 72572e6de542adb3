"""A run: what one predicate matched in one record batch. It holds references, not bytes.

The engine's inner coordinate is the *row*: the running number of a record in its catalog, dense
from 0 and untouched by compaction. A *mark* is (row, ordinal), a place between captures; a
subscription's next capture is the first at or after its mark.

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
"""Sentinel: the changed columns are unknown because the image is gone. No frame is made of it, and a reader
that reaches it ends with that error."""
UNJUDGED: Final = "\0nobody knows whether the row was granted"
"""Sentinel: it is unknown whether a change matches. It ends only the readers that reach it."""


class Mark(NamedTuple):
    """A place between captures: the next capture has at least this row and ordinal."""

    row: int
    ordinal: int = 0


class SafePoint(NamedTuple):
    """A point of the log: nothing that matches at or before it is still to come."""

    rows: int
    """Records of the log at or before it."""
    version: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which no caller needs here
    ordinal: int = END


@dataclass(frozen=True, slots=True, eq=False)
class BatchSelection:
    """The captures of one batch that a predicate matches, in order."""

    identity: Hashable
    """Equal for equal selections of one batch; None for the whole batch at entity level."""
    rows: NDArray[np.int32]
    """Offset in the batch of each capture's record, not falling."""
    ordinals: NDArray[np.int32] | None = None
    """Ordinal of each capture; None if all are 0."""
    names: tuple[str, ...] | None = None
    """Column name of each capture, "" at entity level, ``EXPIRED`` or ``UNJUDGED``; None if all are "".
    """
    transitions: NDArray[np.uint8] | None = None
    """Code of each capture, as of ``transitions``; None if no condition was evaluated on them."""

    def __len__(self) -> int:
        """Return the number of captures."""
        return len(self.rows)

    @property
    def is_plain(self) -> bool:
        """True if each capture is its whole record: at entity level, and without a condition."""
        return self.names is None and self.transitions is None

    def first_at_or_after(self, offset: int, ordinal: int) -> int:
        """Return the place of the first capture at or after a record's offset and an ordinal.

        The selection must not be empty.
        """
        # 1. Most callers ask from before the first capture, and get by without numpy.
        first = self.rows.item(0)
        if offset < first or (offset == first and not ordinal):
            return 0
        # 2. The first capture of the record or behind it; then step over captures of lower ordinals.
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
        """Return the captures from one place to another, exclusive; all captures of a record, or none."""
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
        """Cut it where the first and the last of its records lie whose bodies are gone, if any are.

        So whoever asks for bodies gets all that come before the first, in either direction. Other readers get
        all captures before the first one whose match is unknown. Changes whose match is unknown are apart from
        all others.

        Args:
            gone: Of each record of the batch; None: all have their bodies.
        """
        ends = {0, len(self.rows), *self._borders_of_unjudged()}
        for found in () if gone is None else (np.flatnonzero(gone[self.rows]), self.untold()):
            if len(found):
                ends |= {int(found[0]), int(found[-1]) + 1}
        return (self.part(start, stop) for start, stop in pairwise(sorted(ends)))

    def untold(self) -> NDArray[np.int64]:
        """Return the places of captures whose changed columns are unknown because the images have expired."""
        names = self.names or ()
        return np.array([place for place, name in enumerate(names) if name is EXPIRED], np.int64)

    @property
    def is_unjudged(self) -> bool:
        """True if its changes cannot be evaluated."""
        return self.names is not None and self.names[0] is UNJUDGED

    def _borders_of_unjudged(self) -> Iterator[int]:
        """Yield the begins of parts whose changes have an unknown match, and of the parts behind them."""
        before = False
        for place, name in enumerate(self.names or ()):
            if (name is UNJUDGED) != before:
                before = not before
                yield place

    def records(self, start: int, stop: int) -> int:
        """Count the distinct records among captures ``start`` to ``stop``, exclusive."""
        if self.ordinals is None or stop - start < 2:
            return stop - start
        rows = self.rows[start:stop]
        return 1 + int(np.count_nonzero(rows[1:] != rows[:-1]))


_RUN_BYTES: Final = 200
"""Measured bytes of a run without its selection."""
_SELECTION_BYTES: Final = 230
"""Measured bytes of a selection without its rows."""

NO_MATCH: Final = BatchSelection((), np.empty(0, np.int32))

_OFFSETS: Final = np.arange(1 << 16, dtype=np.int32)
"""Rows of all whole-batch selections, shared, so that such a selection has no rows of its own."""

_WHOLE_SMALL: Final = tuple(
    BatchSelection(None, _OFFSETS[:rows]) for rows in range(SMALL_LENGTH + 1)
)


_NARROW_CAPTURES_MAX: Final = 16
"""Captures of a batch that one of a crowd may take."""


def is_narrow(selection: BatchSelection) -> bool:
    """Return whether it has few captures, all at entity level, of a batch that has more.

    Its frames can be made together with those of others. Those of a whole batch are shared as they are.
    """
    few = len(selection.rows) <= _NARROW_CAPTURES_MAX
    return few and selection.is_plain and selection.identity is not None


def whole_batch(rows: int) -> BatchSelection:
    """Return the selection of every record of a batch, entity level."""
    if rows <= SMALL_LENGTH:
        return _WHOLE_SMALL[rows]
    offsets = _OFFSETS[:rows] if rows <= len(_OFFSETS) else np.arange(rows, dtype=np.int32)
    return BatchSelection(None, offsets)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Run:
    """A selection and the batch that it refers to. Never empty."""

    batch: BatchRef
    selection: BatchSelection
    first: Position
    """Position of the record of the first capture."""
    crowded: bool = False
    """True if the publishers match so much of the batch together that it is encoded whole, once."""
    committed_at: float = NEVER
    """When the batch's last version was committed, by `latency.committed_at`."""
    kind: CaptureKind = CaptureKind.CHANGE
    """The kind of its captures. One of another kind than CHANGE has frames of its own."""

    def __len__(self) -> int:
        """Return the number of captures."""
        return len(self.selection.rows)

    @property
    def nbytes(self) -> int:
        """Bytes that the run holds; few for a whole batch, whose rows are shared."""
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
        """Return the mark of the capture at a place."""
        selection = self.selection
        ordinal = 0 if selection.ordinals is None else selection.ordinals.item(place)
        return Mark(self.batch.first_row + selection.rows.item(place), ordinal)

    def place_of(self, mark: Mark) -> int:
        """Return the place of the first capture at or after a mark, ``len(self)`` if there is none."""
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
    """Yield the runs of what a predicate matches in a batch: one, unless parts of it have to be apart.

    Args:
        head: The batch's head.
        ref: The batch.
        selection: Not empty.
        gone: As of ``BatchSelection.apart``.
        crowded: As of `Run`, …
        at: … as is this.
    """
    for part in selection.apart(gone):
        row = part.rows.item(0)
        first = Position(head.versions.item(row), head.indexes.item(row))
        yield Run(ref, part, first, crowded, at)
