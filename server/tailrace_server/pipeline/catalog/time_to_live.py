"""Time to live: finds the rows whose lifetime is over, and removes them by records of operation EXPIRE.

A row's due time follows from its last committed change in the log. So no state is stored between runs: a row
that an earlier run removed is simply absent from the state::

    look     new records of the log ─▶ due times of their rows (the first look reads all rows)
    due      the due rows, as they are in base and log now ─▶ their present due times
    expire   the rows that are still due ─▶ a version of EXPIRE records ─▶ entry

A row is looked up again immediately before it is removed. The catalog has one writer, and it makes no other
commit in between. So every change that is in the log before the removal is respected, and a later change
creates the row again.

The clock is that of the writer, which also sets the commit times. If the clock steps back, rows expire later
than they should; removed rows stay removed.

**Commit times.** A time to live after the last change needs the commit time of each row's version. A trimmed
log loses the commit times of old versions, although their rows may still be in its base. So the writer stores
marks in the source positions, pairs of version and time, about 32 within each time to live::

    ttl:604800     1200:1732600000000000,1310:1732618900000000

The second mark says that versions 1201 to 1310 were committed at or before its time. If the commit time of a
version is lost, the time of the next mark is used, or the oldest known commit time. It may be later than the
real commit time, but never earlier.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from tailrace.criteria import Area, Operation
from tailrace_server.pipeline.catalog.due_times import (
    NEVER,
    DueRows,
    DueTimes,
    UnreadTimes,
    check_times,
    time_column,
)
from tailrace_server.pipeline.catalog.record_table import record_table
from tailrace_server.pipeline.catalog.whole_images import EXPIRED
from tailrace_server.wal.base.overlay import images_of
from tailrace_server.wal.base.reading import last_known
from tailrace_server.wal.base.winners import FoldBounds, Wanted
from tailrace_server.wal.committed_reads import read_committed
from tailrace_server.wal.record.columns import lead_text
from tailrace_server.wal.segment.writer import SegmentWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from tailrace.schema import Schema
    from tailrace_server.pipeline.catalog.record_table import Row
    from tailrace_server.pipeline.run.progress import IngestCounters
    from tailrace_server.pipeline.transactions.settings import IngestSettings
    from tailrace_server.wal.base.reading import TableState
    from tailrace_server.wal.base.state_rows import StateRows
    from tailrace_server.wal.catalog_writer import CatalogWriter
    from tailrace_server.wal.last_images import LastImages
    from tailrace_server.wal.schema.mapping import SchemaMapping, TimeToLive
    from tailrace_server.wal.segment.reader import BatchReader
    from tailrace_server.wal.segment.writer import SegmentReceipt
    from tailrace_server.wal.state.view import LogView

    Write = Callable[[Path], SegmentReceipt]
    """A function that writes a version of expired rows to a segment at a path."""

_STEPS: Final = 32
"""Number of marks within a time to live."""
_MARKS_MAX: Final = 2 * _STEPS
_SECOND_US: Final = 1_000_000


def marks_after(
    positions: Mapping[str, int | str], ages_s: Iterable[int], version: int, timestamp: int
) -> dict[str, int | str]:
    """Return the source positions of the marks that a commit adds.

    Args:
        positions: The source positions before the commit.
        ages_s: The times to live after the last change that are in use, in seconds.
        version: The last version before the commit.
        timestamp: The commit time of that version, or a later time, in microseconds.
    """
    added: dict[str, int | str] = {}
    for age_s in ages_s if version else ():
        marks = _marks_in(positions, age_s)
        # A new mark after each 1/32 of the age. Twice as many are kept, so they reach back at least one age.
        if not marks or timestamp - marks[-1][1] >= age_s * _SECOND_US // _STEPS:
            marks = [*marks, (version, timestamp)][-_MARKS_MAX:]
            added[f"ttl:{age_s}"] = ",".join(f"{place}:{at}" for place, at in marks)
    return added


def commit_times(
    view: LogView, versions: npt.NDArray[np.int64], positions: Mapping[str, int | str], age_s: int
) -> npt.NDArray[np.int64]:
    """Return the commit times of versions in microseconds, shape (n,); if a time is lost, an upper bound of it.

    Args:
        view: A view of the log.
        versions: The versions in any order, shape (n,).
        positions: The source positions, with the marks.
        age_s: The time to live whose marks are used, in seconds.
    """
    times = view.known_timestamps_of(versions)
    forgotten = np.flatnonzero(times == 0)
    if len(forgotten):
        oldest = int(view.timestamps_of(np.array([view.oldest.version], np.int64))[0]) or NEVER
        # A forgotten version is at or before the next mark, and before the oldest version with a known time.
        marks = np.array([*_marks_in(positions, age_s), (NEVER, NEVER)], np.int64)
        places = np.searchsorted(marks[:, 0], versions[forgotten], "left")
        times[forgotten] = np.minimum(marks[places, 1], oldest)
    return np.minimum(times, NEVER - age_s * _SECOND_US)  # so that adding the age does not overflow


def _marks_in(positions: Mapping[str, int | str], age_s: int) -> list[tuple[int, int]]:
    """Return the marks of a time to live: pairs of version and time in microseconds, in ascending order."""
    text = str(positions.get(f"ttl:{age_s}", ""))
    pairs = (mark.partition(":") for mark in text.split(",") if mark)
    return [(int(version), int(at)) for version, _, at in pairs]


_LOOKED_UP_MAX: Final = 1 << 16
"""Maximum number of rows of a table that are looked up and removed at once."""
_BOUNDS: Final = FoldBounds()


class ExpiringTable:
    """An entity type whose rows expire, with the due times of its rows. Not thread-safe."""

    def __init__(
        self, mapping: SchemaMapping, entity_type: str, ttl: TimeToLive, settings: IngestSettings
    ) -> None:
        self.entity_type = entity_type
        self.age_s = ttl.age_s
        self._column = ttl.column
        self._mapping = mapping
        self._unavailable = settings.source.unavailable
        self._rows: DueRows | None = None
        """The due times of the rows; None until all rows have been read once."""
        self._version = 0
        """The version up to which `_rows` has followed the log."""
        self.unread = UnreadTimes()

    @property
    def first_due(self) -> int:
        """The earliest due time of a row, or the horizon if it is earlier, in microseconds; NEVER for none."""
        if self._rows is None:
            return NEVER
        return min(self._rows.first, self._rows.horizon)

    def due(
        self, state: TableState, positions: Mapping[str, int | str], now: int
    ) -> npt.NDArray[np.uint64]:
        """Return the hashes of some rows that may be due; `found` looks them up.

        Args:
            state: The table's state as of the newest commit.
            positions: The source positions as of the same commit.
            now: The current time, in microseconds.
        """
        rows = self._rows
        # If versions since the last look have been trimmed, the log lacks them, so all rows are read again.
        if rows is not None and state.log_table.view.oldest.version <= self._version + 1:
            self._follow(rows, state, positions)
            due = rows.until(now)
            # From the horizon on the list is incomplete. If it has no due row left, all rows are read again.
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
        """Yield the rows with the given hashes that are really due, in parts; each part becomes one version.

        The caller must have removed the rows of a part before it requests the next part.

        Args:
            state: The table's state as of the newest commit.
            positions: The source positions as of the same commit.
            due: Key hashes of the rows, from `due`.
            now: The current time, in microseconds.
        """
        assert self._rows is not None
        left = due
        for window in state.windows(Wanted(chosen=due)):
            for part in window.parts(_BOUNDS.part_rows, _BOUNDS.part_bytes):
                times = self._times(state, positions, part.versions, part.images)
                is_due = times <= now
                if is_due.any():
                    yield part.taken(np.flatnonzero(is_due))
                # A row that is not due has changed since the last look, or shares its hash with a due row.
                self._rows.say(part.key_hashes, np.where(is_due, NEVER, times))
                left = left[~np.isin(left, part.key_hashes)]
        self._rows.say(left, np.full(len(left), NEVER))  # rows that no longer exist

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
        """Update the due times from the records of the log since the last look."""
        table, after = state.log_table, self._version
        for place, ref in table.batches(after, state.version):
            records, truncated = table.records(place, ref, after, state.version, Wanted())
            if truncated:
                rows.clear()
            # A removed row is never due; the due times of the others are computed in parts that fit memory.
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
        """Return the due times of rows in microseconds, from the versions of their last changes or images."""
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


_LOOK_EVERY_S: Final = 1.0
"""Time between two looks while the ingest follows its source."""


class Expiry:
    """The expiry of a catalog's rows, run by its writer. Not thread-safe; the driver's lock guards it."""

    def __init__(
        self,
        writer: CatalogWriter,
        settings: IngestSettings,
        images: LastImages,
        counters: IngestCounters,
        schema: Schema,
    ) -> None:
        """Check the time-to-live columns; no row is read yet.

        Args:
            writer: The catalog's writer.
            settings: The settings of the ingest, with the mapping that declares times to live.
            images: The cache of last images; it is updated when rows expire.
            counters: The counters of the ingest.
            schema: The newest schema of the catalog.

        Raises:
            InvalidRequest: A time-to-live column does not exist, or its values are not times.
        """
        self._writer = writer
        self._images = images
        self._counters = counters
        mapping = self._mapping = settings.mapping
        declared = {} if mapping is None else mapping.entity_types
        self._tables = [
            ExpiringTable(mapping, name, each.time_to_live, settings)
            for name, each in declared.items()
            if mapping is not None and each.time_to_live is not None
        ]
        for table in self._tables:
            check_times(mapping, schema, table.entity_type)
        self._look_at = 0.0
        """Time of the next look, by the monotonic clock."""

    def run(self, commit: Callable[[Write], None], *, whole: bool) -> None:
        """Remove the rows that are due now, table by table, in one or more versions each.

        Args:
            commit: Makes a version durable. If it raises, this call ends; a later call removes the remaining
                rows, each once.
            whole: True removes all due rows. False looks at most once a second, and removes at most 65,536 rows
                of each table; the next calls remove the rest, so that batches can run in between.

        Raises:
            InvalidRequest: A time-to-live column does not exist, or its values are not times.
            LogCorrupted: A part of base or log that is read is damaged.
            SegmentMissing: Upkeep replaced the segments in each of several attempts.
        """
        at = time.monotonic()
        if not whole and at < self._look_at:
            return
        now = self._writer.now()
        left = False
        for table in self._tables:
            # Without `whole`, one portion of each table per call: the lock must soon be free for batches.
            while self._expire_some(table, now, commit):
                left = not whole
                if left:
                    break
        self._look_at = at if left else at + _LOOK_EVERY_S
        self._counters.first_due_us = min(table.first_due for table in self._tables)
        self._counters.unread_times = {
            table.entity_type: table.unread for table in self._tables if table.unread.count
        }

    def marks(self) -> dict[str, int | str]:
        """Return the source positions of the marks that the next commit has to store (head of this module)."""
        ages_s = {table.age_s for table in self._tables if table.age_s is not None}
        state = self._writer.state
        return marks_after(state.source_positions, ages_s, state.last_version, state.last_timestamp)

    def _expire_some(self, table: ExpiringTable, now: int, commit: Callable[[Write], None]) -> bool:
        """Remove up to 65,536 rows of a table; return True if more rows may be due."""

        def expire(view: LogView, reader: BatchReader, name: str) -> bool:
            state = last_known(view, reader, name)
            positions = self._writer.state.source_positions
            due = table.due(state, positions, now)
            if not len(due):
                return False
            for rows in table.found(state, positions, due, now):
                self._expire(view, name, rows, now, commit)
            return True

        return read_committed(self._writer, self._mapping, table.entity_type, expire, False)

    def _expire(
        self, view: LogView, name: str, rows: StateRows, now: int, commit: Callable[[Write], None]
    ) -> None:
        known = self._images.stated_now(view, name, rows)
        # Commit first: the cache may say "expired" only when the log does.
        commit(partial(_write, name, known, now))
        self._images.keep(((name, key), EXPIRED) for key, _ in known)
        self._counters.expired += len(known)


def _write(
    entity_type: str, rows: Sequence[tuple[str, bytes | None]], now: int, path: Path
) -> SegmentReceipt:
    """Write a version of expired rows to a segment, given the key and the last image of each row."""
    lead = lead_text(
        transaction_id=None, counts={entity_type: len(rows)}, source_count=0, expired_at=now
    )
    kind = int(Area.INFRASTRUCTURE), int(Operation.TRANSACTION)
    records: list[Row] = [(0, 0, *kind, None, None, None, None, None, lead)]
    expire = int(Area.DATA), int(Operation.EXPIRE)
    for index, (key, before) in enumerate(rows, 1):
        records.append((0, index, *expire, entity_type, key, None, None, before, None))
    with SegmentWriter(path) as segment:
        segment.write(record_table(records))
        return segment.close()
