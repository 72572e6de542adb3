"""The last snapshot of each table, tracked from its first row to its last, and the rows that it lacks.

If no connector followed a source for a while, the connector reads the tables again, by a snapshot. No message
reports the rows that were removed in between: they are the rows that the complete snapshot lacks
(`MissingRows`)::

    version    …  811     812     813     814     815
                  orders  read    read    update  read
                          first                   last
                  ◀─────▶ rows whose last change is here are not in the snapshot

    snapshot:orders   {"log": "postgresql:shop", "position": "00…", "begun": 812, "marks": 11, …}
    snapshot:         the same for the snapshot of all tables

This state is stored in the source positions. All rows of a snapshot have the same log and position, which
distinguish it from an earlier, interrupted snapshot. A snapshot of a table is complete when the first and the
last row of the table have arrived; the connector marks both. The only row of a table has only the mark of a
last row. Incremental snapshots have no position of their own, so they are not tracked.

Every row of a snapshot becomes a record. So a row is missing if its last change is before the snapshot's first
version. The state is read in parts of bounded size, and keys are not kept in memory. A missing row was removed
from the source while no connector followed it, or the snapshot was filtered, for example by
``snapshot.select.statement.overrides``. No message distinguishes the two cases, so rows are removed only if an
option says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from tailrace_server.pipeline.catalog.newest_positions import ENDED, FIRST, LAST, MORE
from tailrace_server.pipeline.input.change import (
    CHANGE,
    DELETE,
    Change,
    FileSplit,
    file_of,
    partition_of,
    position_in,
)
from tailrace_server.pipeline.run.progress import LackingSnapshot
from tailrace_server.wal.base.reading import last_known
from tailrace_server.wal.committed_reads import read_committed
from tailrace_server.wal.state.entity_names import EntityNames

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from tailrace_server.pipeline.catalog.newest_positions import NewestPositions, PositionSpan
    from tailrace_server.pipeline.run.progress import IngestCounters
    from tailrace_server.pipeline.transactions.grouping import Plan
    from tailrace_server.pipeline.transactions.settings import IngestSettings
    from tailrace_server.pipeline.transactions.tally import Tally
    from tailrace_server.wal.base.state_rows import StateRows
    from tailrace_server.wal.catalog_writer import CatalogWriter
    from tailrace_server.wal.segment.reader import BatchReader
    from tailrace_server.wal.state.view import LogView

    StatedNow = Callable[[LogView, str, StateRows], list[tuple[str, bytes | None]]]
    """A function that returns the keys and images of rows, the images converted to the newest columns."""

_SNAPSHOT: Final = "snapshot:"
_ALL: Final = ""
"""The name of the snapshot of all tables, in place of an entity type."""


class TableSnapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a table's last snapshot."""

    log: str = ""
    position: str = ""
    """Source position of the snapshot, in hex."""
    begun: int = 0
    """First version with a row of the snapshot."""
    marks: int = 0
    """The marks of all rows that have arrived, joined by OR (`newest_positions.FIRST` and others)."""
    time: int | None = None
    """Time at which the newest row was read from the source, in microseconds."""
    partition: str = ""
    """Topic partition that the rows came from; empty if the file names have none."""
    fault: str = ""
    """Reason why the missing rows cannot be determined; empty if they can."""
    reported: bool = False
    """True if the missing rows have been reported."""
    settled: bool = False
    """True if nothing is left to report or remove."""

    @property
    def is_whole(self) -> bool:
        """True if the first and the last row of the table have arrived."""
        return bool(self.marks & LAST) and (bool(self.marks & FIRST) or not self.marks & MORE)

    def is_of(self, span: PositionSpan) -> bool:
        """Return True if the rows of a span belong to this snapshot."""
        return (self.log, self.position) == (span.log, span.highest.hex())

    def is_behind(self, span: PositionSpan) -> bool:
        """Return True if the rows of a span belong to an earlier snapshot of the same log."""
        return self.log == span.log and self.position > span.highest.hex()


class TableSnapshots:
    """The last snapshots of the tables of one catalog. Immutable; a commit makes a new object."""

    def __init__(self, tables: Mapping[str, TableSnapshot]) -> None:
        """Store the snapshots by entity type."""
        self._tables = tables

    @classmethod
    def read(cls, source_positions: Mapping[str, int | str]) -> TableSnapshots:
        """Return the snapshots that are stored in the source positions of a log."""
        return cls(
            {
                name.removeprefix(_SNAPSHOT): msgspec.json.decode(str(text), type=TableSnapshot)
                for name, text in source_positions.items()
                if name.startswith(_SNAPSHOT)
            }
        )

    def positions_after(self, before: TableSnapshots) -> dict[str, int | str]:
        """Return the source positions of the snapshots that differ from those in ``before``."""
        return {
            f"{_SNAPSHOT}{name}": msgspec.json.encode(snapshot).decode()
            for name, snapshot in self._tables.items()
            if before._tables.get(name) != snapshot
        }

    def after(
        self,
        plan: Plan,
        first_version: int,
        newest: NewestPositions,
        refused: Collection[str | None],
    ) -> TableSnapshots:
        """Return the snapshots after a commit.

        Args:
            plan: The plan of the commit.
            first_version: The version of the first released transaction.
            newest: The newest positions before the commit.
            refused: Entity types of the lines and rows that the commit quarantines; None if one is unknown.
        """
        # 1. Track the released snapshot rows, version by version.
        tables = dict(self._tables)
        marked = {span.entity_type for each in plan.released for span in _marked(each.tally)}
        if marked:
            passed: list[PositionSpan] = []
            for version, released in enumerate(plan.released, first_version):
                for span in _marked(released.tally):
                    known = tables.get(span.entity_type)
                    # The first row of a new snapshot. `newest` is moved up to this version only now, because
                    # the check for lateness needs it at this point, and it is costly.
                    if known is None or not known.is_of(span):
                        newest, passed = newest.after(passed)[0], []
                        is_late = newest.is_late(span)
                        if known is not None and is_late and known.is_behind(span):
                            continue  # late rows of an earlier, interrupted snapshot
                        known = _begun(span, version, known, is_late=is_late)
                    tables[span.entity_type] = _followed(known, span, released.tally)
                    if span.marks & ENDED and not known.fault:
                        tables[_ALL] = _begun(span, min(known.begun, version), None, is_late=False)
                passed += released.tally.spans
        # 2. Mark snapshots with quarantined rows as faulty: the source has such a row, but the log may lack it.
        #    An unusable line may belong to any running snapshot, so it affects all of them.
        if refused:
            waiting = {span.entity_type for tally in plan.open.values() for span in _marked(tally)}
            going_on = {name for name, each in tables.items() if name and not each.is_whole}
            for name in marked | waiting | going_on:
                if None in refused or name in refused:
                    known = tables.get(name, TableSnapshot())
                    tables[name] = msgspec.structs.replace(known, fault=known.fault or _SET_ASIDE)
        return self if tables == self._tables else TableSnapshots(tables)

    def whole(self, *, removes: bool) -> Iterator[tuple[str, TableSnapshot]]:
        """Yield entity type and snapshot for the complete snapshots that are still to be compared with the log.

        Args:
            removes: True if missing rows are to be removed. Then snapshots whose rows were only reported are
                yielded again.
        """
        for name, snapshot in self._tables.items():
            is_open = removes or not snapshot.reported
            if name and snapshot.is_whole and not snapshot.settled and is_open:
                yield name, snapshot

    def missing_tables(
        self, entity_types: Iterable[str], newest: NewestPositions
    ) -> Iterator[tuple[str, TableSnapshot]]:
        """Yield the tables that have no row, or only their first row, in the last snapshot of all tables.

        If the snapshot has less than half of the tables, it was probably requested for chosen tables, by a
        signal. Then tables without a row are not yielded.

        Args:
            entity_types: The entity types of the catalog.
            newest: The newest positions of the catalog.
        """
        ended = self._tables[_ALL]
        # A table belongs to this snapshot if it has its position. Other tables count as absent only if their
        # rows come from the same log, so that the snapshot could have had them.
        there, absent = [], []
        for name in entity_types:
            known = self._tables.get(name)
            if known is not None and (known.log, known.position) == (ended.log, ended.position):
                there.append((name, known))
            elif newest.counts_in(name, ended.log):
                absent.append((name, ended))
        if len(absent) <= len(there):
            yield from absent
        yield from ((name, known) for name, known in there if known.marks == FIRST)

    def noted(self, name: str = _ALL, *, settled: bool = True) -> TableSnapshots:
        """Return the snapshots after the report of one entity type's missing rows.

        Args:
            name: The entity type; empty for the snapshot of all tables.
            settled: True if nothing is left to report or remove for it.
        """
        known = msgspec.structs.replace(self._tables[name], reported=True, settled=settled)
        return TableSnapshots({**self._tables, name: known})

    @property
    def has_ended(self) -> bool:
        """True if a snapshot of all tables has ended, and the tables it lacks have not been reported yet."""
        return _ALL in self._tables and not self._tables[_ALL].settled


_SET_ASIDE: Final = "some of its rows were set aside"
_LATE: Final = "it is older than the log's last change of the table"
_PARTITIONS: Final = (
    "its rows come from several partitions of a topic, and only one has the last row"
)


def _marked(tally: Tally) -> Iterator[PositionSpan]:
    return (span for span in tally.spans if span.marks)


def _begun(
    span: PositionSpan, version: int, known: TableSnapshot | None, *, is_late: bool
) -> TableSnapshot:
    """Return a new snapshot without rows.

    It keeps the fault of rows that were quarantined before its first row arrived.
    """
    fault = known.fault if known is not None and not known.log else ""
    return TableSnapshot(
        span.log, span.highest.hex(), version, fault=fault or (_LATE if is_late else "")
    )


def _followed(known: TableSnapshot, span: PositionSpan, tally: Tally) -> TableSnapshot:
    """Return a snapshot with the rows of a span added."""
    partitions = {
        partition_of(file_of(arrived)).decode()
        for entity_type, arrived in tally.first_rows
        if entity_type == span.entity_type
    }
    partition = max(partitions, default="")
    is_parted = len(partitions | ({known.partition} if known.marks else set())) > 1
    return msgspec.structs.replace(
        known,
        marks=known.marks | span.marks,
        time=span.latest,
        partition=partition,
        fault=known.fault or (_PARTITIONS if is_parted else ""),
    )


_NAMED: Final = 5
"""Maximum number of keys in a report."""


class MissingRows:
    """The search for rows that snapshots lack, run by the catalog's writer.

    Not thread-safe; the driver's lock guards it.
    """

    def __init__(
        self, writer: CatalogWriter, settings: IngestSettings, counters: IngestCounters
    ) -> None:
        """Store the parts; no row is read yet."""
        self._writer = writer
        self._settings = settings
        self._counters = counters
        self._ended_at: float | None = None
        """Time of the idle clock at which the end of a snapshot of all tables was noticed, in seconds."""

    def has_waited(self, now: float) -> bool:
        """Return True if the idle time has passed since the end of a snapshot of all tables was noticed."""
        self._ended_at = now if self._ended_at is None else self._ended_at
        return now - self._ended_at >= self._settings.rules.idle_s

    def compared(
        self,
        snapshots: TableSnapshots,
        stated_now: StatedNow,
        remove: Callable[[list[Change]], None],
    ) -> TableSnapshots:
        """Compare the complete snapshots with the log, and report or remove the rows that they lack.

        Args:
            snapshots: The snapshots of the catalog after the newest commit.
            stated_now: Returns the before-images of removals.
            remove: Commits removals as one version.

        Returns:
            The snapshots, marked as reported or settled.

        Raises:
            LogCorrupted: A batch that is read is damaged.
            SegmentMissing: Upkeep replaced the segments in each of several attempts.
        """
        removes = self._settings.removes_missing
        for name, snapshot in [*snapshots.whole(removes=removes)]:
            found = LackingSnapshot(fault=snapshot.fault)
            # Counted tables are excluded, because a second snapshot of them is quarantined. So are initial
            # snapshots: the log cannot have rows that such a snapshot lacks.
            if not self._settings.source.counts(name) and self._had_rows(name, snapshot):
                if removes and not snapshot.fault:
                    found.removed = self._removed(name, snapshot, stated_now, remove)
                elif not snapshot.fault:
                    found.count, found.keys = self._counted(name, snapshot)
                self._counters.note_lacking(name, found)
            snapshots = snapshots.noted(name, settled=not found.count)
        return snapshots

    def without_tables(
        self, snapshots: TableSnapshots, entity_types: Iterable[str], newest: NewestPositions
    ) -> TableSnapshots:
        """Report the tables whose last row is not in a snapshot of all tables; return it marked as settled."""
        self._ended_at = None
        for name, ended in [*snapshots.missing_tables(entity_types, newest)]:
            if not self._settings.source.counts(name):
                count, keys = self._counted(name, ended)
                self._counters.note_lacking(name, LackingSnapshot(count, keys, is_absent=True))
        return snapshots.noted()

    def _had_rows(self, name: str, snapshot: TableSnapshot) -> bool:
        """Return True if the log had the table before its snapshot; False for an initial snapshot."""

        def read(view: LogView, reader: BatchReader, known: str) -> bool:
            names = EntityNames(view.schema_of(view.published), known)
            return snapshot.begun > 1 and bool(names.name_in(view.schema_of(snapshot.begun - 1)))

        return read_committed(self._writer, self._settings.mapping, name, read, False)

    def _counted(self, name: str, snapshot: TableSnapshot) -> tuple[int, list[str]]:
        """Return the number of missing rows, and the keys of the first ones."""

        def read(view: LogView, reader: BatchReader, known: str) -> tuple[int, list[str]]:
            count, keys = 0, list[str]()
            for rows in _missing(view, reader, known, snapshot):
                keys += rows.primary_keys[: _NAMED - len(keys)].to_pylist()
                count += len(rows)
            return count, keys

        nothing: tuple[int, list[str]] = 0, []
        return read_committed(self._writer, self._settings.mapping, name, read, nothing)

    def _removed(
        self,
        name: str,
        snapshot: TableSnapshot,
        stated_now: StatedNow,
        remove: Callable[[list[Change]], None],
    ) -> int:
        """Remove the missing rows, in versions of bounded size; return the number of removed rows."""
        count = 0
        # Give the removals the position of the snapshot. So changes before the snapshot count as older than the
        # removals, and changes after it as newer.
        place = FileSplit("").place(0, position_in(bytes.fromhex(snapshot.position) + bytes(8)))

        def read(view: LogView, reader: BatchReader, known: str) -> None:
            nonlocal count
            # This view stays as it was at the start of the read. If the read is repeated, the new view includes
            # the removals committed so far, so no row is removed twice.
            for rows in _missing(view, reader, known, snapshot):
                removals = [
                    Change(
                        CHANGE,
                        place,
                        total_order=order,
                        entity_type=name,
                        operation=DELETE,
                        primary_key=key,
                        before=image,
                        timestamp=snapshot.time,
                        log=snapshot.log,
                    )
                    for order, (key, image) in enumerate(stated_now(view, known, rows))
                ]
                remove(removals)
                count += len(removals)

        read_committed(self._writer, self._settings.mapping, name, read, None)
        return count


def _missing(
    view: LogView, reader: BatchReader, name: str, snapshot: TableSnapshot
) -> Iterator[StateRows]:
    """Yield the rows of a table whose last change is before the first version of its snapshot."""
    for part in last_known(view, reader, name).parts():
        rows = np.flatnonzero(part.versions < snapshot.begun)
        if len(rows):
            yield part.taken(rows)
