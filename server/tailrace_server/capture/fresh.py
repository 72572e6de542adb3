"""Small batches that have just been published, read before anybody asks.

A commit of a few rows is wanted at once by everybody who is live, and to read it costs less than to
hand it to a reader thread and back, twice. So the tailer's thread reads the batch too, or takes it out
of the entry that it has just read; the loop then routes and encodes it where it stands.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tailrace_server.capture.classes import GroupedHead, group
from tailrace_server.wal.inline_segment import ROWS_MAX
from tailrace_server.wal.record import BODY_COLUMNS
from tailrace_server.wal.state import carried_batch

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from tailrace_server.wal.batch import BatchReader
    from tailrace_server.wal.documents import ReadEntry
    from tailrace_server.wal.table import BatchRef
    from tailrace_server.wal.texts import Texts
    from tailrace_server.wal.view import LogView

_BATCHES_MAX: Final = 16
"""Of one view, and kept in all."""


@dataclass(frozen=True, slots=True)
class Bodies:
    """Body columns of one batch."""

    columns: dict[str, Texts]

    @property
    def nbytes(self) -> int:
        """Bytes that they hold."""
        return sum(column.nbytes for column in self.columns.values())

    def only(self, names: Iterable[str]) -> dict[str, Texts]:
        """Return some of them."""
        return {name: self.columns[name] for name in names}


@dataclass(frozen=True, slots=True)
class FreshBatch:
    """All of one batch."""

    grouped: GroupedHead
    bodies: Bodies


class FreshBatches:
    """The last few. Filled by one thread, the tailer's; any thread may look."""

    def __init__(self, reader: BatchReader) -> None:
        """Begin with none; nothing is read before there is somebody to read it for."""
        self._reader = reader
        self._batches: dict[Hashable, FreshBatch] = {}
        self._ahead: FreshBatch | None = None
        """What an entry carries that is not there yet."""
        self.end_row = 0
        """First row of what is new; the observer sets it before the tailer begins."""
        self.wanted = False
        """Whether anybody is subscribed."""

    def get(self, ref: BatchRef) -> FreshBatch | None:
        """Return a batch if it is one of them."""
        return self._batches.get(ref.key)

    def foresee(self, read: ReadEntry) -> None:
        """Read what an entry carries that may become the next one; it is given to nobody before it has."""
        self._ahead = None
        with suppress(Exception):  # it is read again once it is there, and fails then
            ref = carried_batch(read)
            if self.wanted and ref is not None and ref.rows <= ROWS_MAX:
                self._ahead = self._load(ref, read.data)

    def _load(self, ref: BatchRef, file: bytes | None) -> FreshBatch:
        bodies = Bodies(self._reader.texts(ref, BODY_COLUMNS, file))
        return FreshBatch(group(self._reader.head(ref, file)), bodies)

    def prepare(self, view: LogView, read: ReadEntry | None) -> None:
        """Read what is new in a view, if it is little; what cannot be read fails where it is asked for.

        Args:
            view: What is about to be shown.
            read: The entry that was read last, which may carry what is new.
        """
        row, self.end_row = self.end_row, view.end_row
        if not self.wanted:
            return
        ahead, self._ahead = self._ahead, None
        try:
            for ref in _small_batches(view, row):
                if ahead is not None and ahead.grouped.head.ref == ref:
                    self._batches[ref.key] = ahead
                    continue
                file = read.data if read is not None and read.path == ref.segment.path else None
                self._batches[ref.key] = self._load(ref, file)
        except Exception:  # it is read again by who needs it, and fails there
            return
        while len(self._batches) > _BATCHES_MAX:
            del self._batches[next(iter(self._batches))]


def _small_batches(view: LogView, row: int) -> list[BatchRef]:
    """Return the batches from a row on; none at all if they are many or large."""
    refs: list[BatchRef] = []
    while row < view.end_row:
        ref = view.batch(view.find_row(row))
        if ref.rows > ROWS_MAX or len(refs) == _BATCHES_MAX:
            return []
        refs.append(ref)
        row = ref.first_row + ref.rows
    return refs
