"""Time to live: finds the rows whose time is over, and removes them by records of operation EXPIRE.

A row and its due time follow from the log alone: from its last committed change. So no state is kept across
runs, and a row that an earlier run removed is gone from the state that is read::

    look     new records of the log ─▶ when their rows are due (at the first look from all rows)
    due      the rows that are due, as base and log have them now ─▶ when they are really due
    expire   the due ones ─▶ a version of EXPIRE records ─▶ entry

Before a row is removed it is looked up once more. The catalog has one writer, which does nothing else
meanwhile. So a change that is in the log before counts, and a later change creates the row again.

The clock is the writer's, which also stamps the commits. Each look reads it. If the clock steps back, rows
expire late; rows that were removed before stay removed.

**Commit times.** A trimmed log forgets the commits of the versions that it gives up, though rows of these may
live on in its base. An age after the last change needs these times for as long as the age. So commits of the
writer note, among the source positions, how far the log was at a time, 32 times within an age::

    ttl:604800     1200:1732600000000000,1310:1732618900000000

Versions 1201 to 1310 were committed by the second time. If a version's own time is forgotten, the time of the
next mark counts, or of the oldest commit that is known: it may be later than the commit, never earlier.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from tailrace.criteria import Area, Operation
from tailrace_server.pipeline.catalog.committed_reads import read_committed
from tailrace_server.pipeline.catalog.due_times import (
    NEVER,
    DueRows,
    DueTimes,
    UnreadTimes,
    check_times,
    time_column,
)
from tailrace_server.pipeline.catalog.record_table import record_table
from tailrace_server.wal.base.overlay import images_of
from tailrace_server.wal.base.reading import last_known
from tailrace_server.wal.base.winners import FoldBounds, Wanted
from tailrace_server.wal.record.columns import lead_text
from tailrace_server.wal.segment.writer import SegmentWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from tailrace.schema import Schema
    from tailrace_server.pipeline.catalog.last_images import LastImages
    from tailrace_server.pipeline.catalog.record_table import Row
    from tailrace_server.pipeline.run.progress import IngestCounters
    from tailrace_server.pipeline.transactions.settings import IngestSettings
    from tailrace_server.wal.base.reading import TableState
    from tailrace_server.wal.base.state_rows import StateRows
    from tailrace_server.wal.catalog_writer import CatalogWriter
    from tailrace_server.wal.schema.mapping import SchemaMapping, TimeToLive
    from tailrace_server.wal.segment.reader import BatchReader
    from tailrace_server.wal.segment.writer import SegmentReceipt
    from tailrace_server.wal.state.view import LogView

    Write = Callable[[Path], SegmentReceipt]
    """Writes a version of expired rows to a segment of this path."""

_STEPS: Final = 32
"""Marks within an age."""
_MARKS_MAX: Final = 2 * _STEPS
_SECOND_US: Final = 1_000_000


def marks_after(
    positions: Mapping[str, int | str], ages_s: Iterable[int], version: int, timestamp: int
) -> dict[str, int | str]:
    """Return as source positions the marks that a commit adds.

    Args:
        positions: Those before the commit.
        ages_s: The ages that are needed, in seconds.
        version: The last version before the commit.
        timestamp: When it was committed, or later, µs.
    """
    added: dict[str, int | str] = {}
    for age_s in ages_s if version else ():
        marks = _marks_in(positions, age_s)
        if not marks or timestamp - marks[-1][1] >= age_s * _SECOND_US // _STEPS:
            marks = [*marks, (version, timestamp)][-_MARKS_MAX:]
            added[f"ttl:{age_s}"] = ",".join(f"{place}:{at}" for place, at in marks)
    return added


def commit_times(
    view: LogView, versions: npt.NDArray[np.int64], positions: Mapping[str, int | str], age_s: int
) -> npt.NDArray[np.int64]:
    """Return when versions were committed, µs, at the latest; shape (n,).

    Args:
        view: The log.
        versions: In any order, shape (n,).
        positions: Source positions, with the marks of the age.
        age_s: The age, in seconds.
    """
    times = view.known_timestamps_of(versions)
    forgotten = np.flatnonzero(times == 0)
    if len(forgotten):
        oldest = int(view.timestamps_of(np.array([view.oldest.version], np.int64))[0]) or NEVER
        marks = np.array([*_marks_in(positions, age_s), (NEVER, NEVER)], np.int64)
        places = np.searchsorted(marks[:, 0], versions[forgotten], "left")
        times[forgotten] = np.minimum(marks[places, 1], oldest)
    return np.minimum(times, NEVER - age_s * _SECOND_US)


def _marks_in(positions: Mapping[str, int | str], age_s: int) -> list[tuple[int, int]]:
    """Return pairs of version and time, rising."""
    text = str(positions.get(f"ttl:{age_s}", ""))
    pairs = (mark.partition(":") for mark in text.split(",") if mark)
    return [(int(version), int(at)) for version, _, at in pairs]


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


_LOOK_EVERY_S: Final = 1.0
"""While the ingest follows its source."""


class Expiry:
    """Lets the rows of a catalog expire, for its writer. Not thread-safe; the driver's lock guards it."""

    def __init__(
        self,
        writer: CatalogWriter,
        settings: IngestSettings,
        images: LastImages,
        counters: IngestCounters,
        schema: Schema,
    ) -> None:
        """Begin; nothing is read yet.

        Args:
            writer: The catalog's.
            settings: Say which rows expire.
            images: They receive the expired rows.
            counters: Of the ingest.
            schema: The newest one of the catalog.

        Raises:
            InvalidRequest: A column that is to say when rows are due is not there, or says no moments.
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
        """When the next look is due, by the monotonic clock."""

    def run(self, commit: Callable[[Write], None], *, whole: bool) -> None:
        """Remove rows that are due now, in the order of the tables, each in one version.

        Args:
            commit: Makes a version durable. An error in it ends this; nothing is lost, and nothing done twice.
            whole: All that are due, now. Otherwise once a second, and 65,536 rows of each table at most: then
                the rest is removed with the next calls, and batches come in between.

        Raises:
            InvalidRequest: The column that says when rows are due is not there, or says no moments.
            LogCorrupted: A part of base or log that is read is damaged.
            SegmentMissing: Upkeep replaces files more quickly than they can be read.
        """
        at = time.monotonic()
        if not whole and at < self._look_at:
            return
        now = self._writer.now()
        left = False
        for table in self._tables:
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
        """Return as source positions what the next commit has to note (head of the module)."""
        ages_s = {table.age_s for table in self._tables if table.age_s is not None}
        state = self._writer.state
        return marks_after(state.source_positions, ages_s, state.last_version, state.last_timestamp)

    def _expire_some(self, table: ExpiringTable, now: int, commit: Callable[[Write], None]) -> bool:
        """Remove up to 65,536 rows of a table; return whether more may be due."""

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
        commit(partial(_write, name, known, now))
        self._images.have_expired(name, [key for key, _ in known])
        self._counters.expired += len(known)


def _write(
    entity_type: str, rows: Sequence[tuple[str, bytes | None]], now: int, path: Path
) -> SegmentReceipt:
    """Write a version of expired rows, each a key and its last image."""
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
