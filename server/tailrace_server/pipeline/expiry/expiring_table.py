"""An entity type whose rows expire: which of them are due, as base and log have them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from tailrace_server.pipeline.expiry.due_rows import NEVER, DueRows
from tailrace_server.pipeline.expiry.due_times import DueTimes, UnreadTimes, time_column
from tailrace_server.pipeline.expiry.known_commits import commit_times
from tailrace_server.wal.base.overlay import images_of
from tailrace_server.wal.base.winners import FoldBounds, Wanted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt

    from tailrace_server.pipeline.transactions.settings import IngestSettings
    from tailrace_server.wal.base.reading import TableState
    from tailrace_server.wal.base.state_rows import StateRows
    from tailrace_server.wal.schema.mapping import SchemaMapping, TimeToLive

_LOOKED_UP_MAX: Final = 1 << 16
"""Rows that are looked up at once before they are removed."""
_BOUNDS: Final = FoldBounds()


class ExpiringTable:
    """One entity type. Not thread-safe."""

    def __init__(
        self, mapping: SchemaMapping, entity_type: str, ttl: TimeToLive, settings: IngestSettings
    ) -> None:
        self.entity_type = entity_type
        self.age_s = ttl.age_s
        self._column = ttl.column
        self._mapping = mapping
        self._unavailable = settings.source.unavailable
        self._rows: DueRows | None = None
        """None before all rows were read."""
        self._version = 0
        """The version up to which it has the log."""
        self.unread = UnreadTimes()

    @property
    def first_due(self) -> int:
        """When the first row is due, µs; NEVER where none is."""
        if self._rows is None:
            return NEVER
        return min(self._rows.first, self._rows.horizon)

    def due(
        self, state: TableState, positions: Mapping[str, int | str], now: int
    ) -> npt.NDArray[np.uint64]:
        """Return the hashes of some rows that are due, as far as is known without a look-up.

        Args:
            state: The rows as of the newest commit.
            positions: Source positions as of then.
            now: The time, µs.
        """
        rows = self._rows
        # What was trimmed since the last look is not in the log any more, but in the state.
        if rows is not None and state.log_table.view.oldest.version <= self._version + 1:
            self._follow(rows, state, positions)
            due = rows.until(now)
            if len(due) or now < rows.horizon:
                return due[:_LOOKED_UP_MAX]
        self._rows = self._read_all(state, positions)
        return self._rows.until(now)[:_LOOKED_UP_MAX]

    def found(
        self,
        state: TableState,
        positions: Mapping[str, int | str],
        due: npt.NDArray[np.uint64],
        now: int,
    ) -> Iterator[StateRows]:
        """Yield those rows of some hashes that are due, as base and log have them, each part a version.

        Each part counts as removed once the next is asked for. Arguments as ``due``.
        """
        assert self._rows is not None
        left = due
        for window in state.windows(Wanted(chosen=due)):
            for part in window.parts(_BOUNDS.part_rows, _BOUNDS.part_bytes):
                times = self._times(state, positions, part.versions, part.images)
                is_due = times <= now
                if is_due.any():
                    yield part.taken(np.flatnonzero(is_due))
                # Rows that are not due have changed since, or two keys have one hash.
                self._rows.say(part.key_hashes, np.where(is_due, NEVER, times))
                left = left[~np.isin(left, part.key_hashes)]
        self._rows.say(left, np.full(len(left), NEVER))  # those that are not there any more

    def _read_all(self, state: TableState, positions: Mapping[str, int | str]) -> DueRows:
        rows = DueRows()
        self.unread = UnreadTimes()
        for window in state.windows(Wanted()):
            for part in window.parts(_BOUNDS.part_rows, _BOUNDS.part_bytes):
                times = self._times(state, positions, part.versions, part.images)
                rows.say(part.key_hashes, times)
        self._version = state.version
        return rows

    def _follow(self, rows: DueRows, state: TableState, positions: Mapping[str, int | str]) -> None:
        """Take over what the log says of rows since the last look."""
        table, after = state.log_table, self._version
        for place, ref in table.batches(after, state.version):
            records, truncated = table.records(place, ref, after, state.version, Wanted())
            if truncated:
                rows.clear()
            times = np.full(len(records), NEVER)
            lives = np.flatnonzero(records.lives)
            while len(lives):
                some, images = lives, None
                if self._column is not None:
                    images = images_of(table, records.places[lives], _BOUNDS)
                    some = lives[: len(images)]  # as many as fit memory
                times[some] = self._times(state, positions, records.versions[some], images)
                lives = lives[len(some) :]
            rows.say(records.hashes, times)
        self._version = state.version

    def _times(
        self,
        state: TableState,
        positions: Mapping[str, int | str],
        versions: npt.NDArray[np.int64],
        images: pa.BinaryArray | None,
    ) -> npt.NDArray[np.int64]:
        """Return when rows are due, µs, by the versions of their last changes and their images."""
        view = state.log_table.view
        if self.age_s is not None:
            return commit_times(view, versions, positions, self.age_s) + self.age_s * 1_000_000
        assert self._column is not None
        assert images is not None
        newest = state.names.columns_in(view.schema_of(state.version))
        column = time_column(self._mapping, self.entity_type, newest, self._column)
        due = np.full(len(versions), NEVER, np.int64)
        if column is None:
            return due
        reader = DueTimes(column, self._unavailable, self.unread)
        schemas, which = view.schemas_of(versions)
        for number, schema in enumerate(schemas):
            rows = np.flatnonzero(which == number)
            due[rows] = reader.of(images.take(pa.array(rows)), state.names.columns_in(schema))
        return due
