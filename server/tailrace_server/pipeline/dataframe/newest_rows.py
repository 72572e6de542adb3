"""The newest rows of an entity type in the log, read beside sorted changes: for old images and snapshots.

Both are sorted by (key hash, key), so each is read once, in parts of bounded size. The rows of a few keys are
looked up instead. Images are converted to the columns of the version that is written (`wal.last_images`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tailrace_server.wal.base.overlay import places_in
from tailrace_server.wal.base.reading import last_known, table_state
from tailrace_server.wal.base.state_rows import NO_ROWS, StatePlace, StateRows, joined_rows
from tailrace_server.wal.last_images import Restating, restated_images
from tailrace_server.wal.record.unavailable import DEFAULT
from tailrace_server.wal.schema.restating import first_stated
from tailrace_server.wal.segment.reader import BatchReader, SegmentMissing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt
    import pyarrow as pa

    from tailrace.schema import Column
    from tailrace_server.wal.catalog_writer import CatalogWriter
    from tailrace_server.wal.state.view import LogView


class NewestRows:
    """The rows of one entity type after the newest commit, published or not; each row is returned once."""

    def __init__(
        self,
        writer: CatalogWriter,
        entity_type: str,
        columns: tuple[Column, ...],
        keys: Sequence[str] | None = None,
        *,
        whole: bool,
    ) -> None:
        """Begin with the first row.

        Args:
            writer: The catalog's writer.
            entity_type: The entity type; if the log does not have it, there are no rows.
            columns: The columns to return images in.
            keys: The keys of the rows to return; None: all rows.
            whole: True if no row may be missing; False: of a log that was trimmed without a base, only the rows
                that changed since are returned.
        """
        self._writer, self._entity_type, self._columns = writer, entity_type, columns
        self._keys, self._whole = keys, whole
        self._parts = self._read()
        self._left = NO_ROWS
        self._done = False

    def until(self, place: StatePlace | None) -> StateRows:
        """Return the next rows up to a place, inclusive; None: all that remain.

        Raises:
            PositionCompacted: The log was trimmed and has no base, so whole rows are unknown.
            BodiesExpired: The images have expired.
            LogCorrupted: A part of the log that is read is damaged.
        """
        found = []
        while True:
            if not len(self._left):
                following = next(self._parts, None)
                if following is None:
                    break
                self._left = following
            count = len(self._left) if place is None else self._left.count_up_to(place)
            found.append(self._left.slice(0, count))
            self._left = self._left.slice(count, len(self._left))
            if len(self._left) or place is None:
                break
        return joined_rows([part for part in found if len(part)])

    def rest(self) -> Iterator[StateRows]:
        """Yield the rows that remain, in parts. Raises the errors of `until`."""
        while len(rows := self.until(None)):
            yield rows

    def _read(self) -> Iterator[StateRows]:
        behind: StatePlace | None = None
        while True:
            view = self._writer.log.committed_view()
            if self._entity_type not in view.schema_of(view.published).entity_types:
                return
            restating = Restating(partial(_stated, view), DEFAULT)
            try:
                with BatchReader(self._writer.path) as reader:
                    named = (view, reader, self._entity_type)
                    state = (
                        table_state(*named, view.published) if self._whole else last_known(*named)
                    )
                    parts = (
                        state.parts(behind) if self._keys is None else (state.rows_of(self._keys),)
                    )
                    for rows in parts:
                        if not len(rows):
                            continue
                        behind = rows.place(-1)
                        images = restated_images(
                            view, self._entity_type, rows, self._columns, restating
                        )
                        yield replace(rows, images=images)
                return
            except SegmentMissing:
                # Upkeep has replaced a segment: continue from a newer view, which has the same rows.
                self._writer.log.follow_checkpoints()


def old_rows(
    rows: StateRows, hashes: npt.NDArray[np.uint64], keys: pa.StringArray
) -> npt.NDArray[np.int64]:
    """Return, for each sorted key, the place of its row in sorted rows; -1 without one."""
    found = np.full(len(hashes), -1, np.int64)
    places = places_in(rows, hashes, keys)
    known = np.flatnonzero(places >= 0)
    found[places[known]] = known
    return found


def _stated(view: LogView) -> Mapping[int, Column]:
    return first_stated(view.schemas())
