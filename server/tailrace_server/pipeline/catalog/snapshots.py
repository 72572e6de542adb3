"""The last snapshot of each table: followed from its first row to its last, and the rows that it lacks.

A source that was not followed for a while is read anew, by a snapshot. No message says which rows were removed
meanwhile: they are those that a whole snapshot lacks (`MissingRows`)::

    version    …  811     812     813     814     815
                  orders  read    read    update  read
                          first                   last
                  ◀─────▶ rows whose last change is here are not in the snapshot

    snapshot:orders   {"log": "postgresql:shop", "position": "00…", "begun": 812, "marks": 11, …}
    snapshot:         the same of the snapshot of all tables

These marks are kept among the source positions. The rows of a snapshot share one log and position, which
distinguish it from an earlier one that was interrupted. It is whole when the first and the last row of the
table have come: the connector marks both. A table of one row has the mark of its last row alone. Incremental
snapshots have no position of their own, so they are not followed.

Every row of a snapshot is a record. So a row is missing if its last change is below the snapshot's first
version. The state is read in parts of bounded size, and no key stays in memory. A row that is missing was
removed from the source while no connector followed it, or the snapshot was filtered, as by
``snapshot.select.statement.overrides``. No message distinguishes these, so an option says to remove rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from tailrace_server.pipeline.catalog.committed_reads import read_committed
from tailrace_server.pipeline.catalog.newest_positions import ENDED, FIRST, LAST, MORE
from tailrace_server.pipeline.input.change import (
    CHANGE,
    DELETE,
    READ,
    Change,
    FileSplit,
    file_of,
    partition_of,
    position_in,
)
from tailrace_server.pipeline.run.progress import LackingSnapshot
from tailrace_server.wal.base.reading import last_known
from tailrace_server.wal.state.entity_names import EntityNames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

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
    """Returns keys and images of rows, in the newest columns."""

_SNAPSHOT: Final = "snapshot:"
_ALL: Final = ""
"""In place of an entity type: the snapshot of all tables."""


class TableSnapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last snapshot of a table, as far as it has come."""

    log: str = ""
    position: str = ""
    """In hex."""
    begun: int = 0
    """First version with a row of it."""
    marks: int = 0
    """Marks of the rows that have come."""
    time: int | None = None
    """When its last row was read, µs."""
    partition: str = ""
    """Partition of the topic that its rows came from."""
    fault: str = ""
    """Why it says nothing about rows that it lacks; empty if it does."""
    reported: bool = False
    """The rows that it lacks were reported."""
    settled: bool = False
    """Nothing is left to report or to remove."""

    @property
    def is_whole(self) -> bool:
        """True if the first and the last row have come."""
        return bool(self.marks & LAST) and (bool(self.marks & FIRST) or not self.marks & MORE)

    def is_of(self, span: PositionSpan) -> bool:
        """Return True if rows are of this snapshot."""
        return (self.log, self.position) == (span.log, span.highest.hex())

    def is_behind(self, span: PositionSpan) -> bool:
        """Return True if rows are of an earlier snapshot of the same log."""
        return self.log == span.log and self.position > span.highest.hex()


class TableSnapshots:
    """The last snapshots of the tables of one catalog. A commit makes new ones."""

    def __init__(self, tables: Mapping[str, TableSnapshot]) -> None:
        """Take the snapshots by entity type."""
        self._tables = tables

    @classmethod
    def read(cls, source_positions: Mapping[str, int | str]) -> TableSnapshots:
        """Return the snapshots that the source positions of a log hold."""
        return cls(
            {
                name.removeprefix(_SNAPSHOT): msgspec.json.decode(str(text), type=TableSnapshot)
                for name, text in source_positions.items()
                if name.startswith(_SNAPSHOT)
            }
        )

    def positions_after(self, before: TableSnapshots) -> dict[str, int | str]:
        """Return the snapshots that differ from those before, as source positions."""
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
        refused: Iterable[Change],
    ) -> TableSnapshots:
        """Follow the versions of a commit.

        Args:
            plan: What becomes a version, and what waits.
            first_version: Version of the first one.
            newest: The newest positions before the commit.
            refused: Lines and rows that the commit sets aside.
        """
        tables = dict(self._tables)
        marked = {span.entity_type for each in plan.released for span in _marked(each.tally)}
        if marked:
            passed: list[PositionSpan] = []
            for version, released in enumerate(plan.released, first_version):
                for span in _marked(released.tally):
                    known = tables.get(span.entity_type)
                    if known is None or not known.is_of(span):
                        newest, passed = newest.after(passed)[0], []
                        is_late = newest.is_late(span)
                        if known is not None and is_late and known.is_behind(span):
                            continue  # rows of an interrupted snapshot that came late
                        known = _begun(span, version, known, is_late=is_late)
                    tables[span.entity_type] = _followed(known, span, released.tally)
                    if span.marks & ENDED and not known.fault:
                        tables[_ALL] = _begun(span, min(known.begun, version), None, is_late=False)
                passed += released.tally.spans
        # The source has a row that was set aside, though the log may lack it. A line that cannot be used does
        # not say if it belongs to the snapshot, so every such line counts.
        names = {each.entity_type for each in refused if each.operation in (0, READ)}
        if names:
            waiting = {span.entity_type for tally in plan.open.values() for span in _marked(tally)}
            going_on = {name for name, each in tables.items() if name and not each.is_whole}
            for name in marked | waiting | going_on:
                if None in names or name in names:
                    known = tables.get(name, TableSnapshot())
                    tables[name] = msgspec.structs.replace(known, fault=known.fault or _SET_ASIDE)
        return self if tables == self._tables else TableSnapshots(tables)

    def whole(self, *, removes: bool) -> Iterator[tuple[str, TableSnapshot]]:
        """Yield the whole snapshots that the log is still to be compared with, by entity type.

        Args:
            removes: Yield also those that were reported, as their rows are to be removed.
        """
        for name, snapshot in self._tables.items():
            is_open = removes or not snapshot.reported
            if name and snapshot.is_whole and not snapshot.settled and is_open:
                yield name, snapshot

    def missing_tables(
        self, entity_types: Iterable[str], newest: NewestPositions
    ) -> Iterator[tuple[str, TableSnapshot]]:
        """Yield the tables without a row in the last snapshot of all tables, or with their first row alone.

        A snapshot of less than half of the tables is taken for one of chosen tables, as a signal asks for.

        Args:
            entity_types: Those of the catalog.
            newest: Its newest positions.
        """
        ended = self._tables[_ALL]
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
        """Return the snapshots with that of an entity type noted as reported, or as settled."""
        known = msgspec.structs.replace(self._tables[name], reported=True, settled=settled)
        return TableSnapshots({**self._tables, name: known})

    @property
    def has_ended(self) -> bool:
        """True if a snapshot of all tables has ended and nothing was reported of the tables that it lacks."""
        return _ALL in self._tables and not self._tables[_ALL].settled


_SET_ASIDE: Final = "rows of it were set aside"
_LATE: Final = "it is older than what the log has of the table"
_PARTITIONS: Final = "its rows come in several partitions of a topic, and only one has the last row"


def _marked(tally: Tally) -> Iterator[PositionSpan]:
    return (span for span in tally.spans if span.marks)


def _begun(
    span: PositionSpan, version: int, known: TableSnapshot | None, *, is_late: bool
) -> TableSnapshot:
    """Return a snapshot without rows; it keeps the fault of rows that were set aside before its first row."""
    fault = known.fault if known is not None and not known.log else ""
    return TableSnapshot(
        span.log, span.highest.hex(), version, fault=fault or (_LATE if is_late else "")
    )


def _followed(known: TableSnapshot, span: PositionSpan, tally: Tally) -> TableSnapshot:
    """Return a snapshot with more of its rows."""
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
"""Keys that a report names."""


class MissingRows:
    """Compares one catalog with its snapshots, for its writer. Not thread-safe; the driver's lock guards it."""

    def __init__(
        self, writer: CatalogWriter, settings: IngestSettings, counters: IngestCounters
    ) -> None:
        """Begin; nothing is read yet."""
        self._writer = writer
        self._settings = settings
        self._counters = counters
        self._ended_at: float | None = None
        """When a snapshot of all tables was first seen to have ended, by the idle clock, seconds."""

    def has_waited(self, now: float) -> bool:
        """Return True if nothing has come for the idle time since a snapshot of all tables ended."""
        self._ended_at = now if self._ended_at is None else self._ended_at
        return now - self._ended_at >= self._settings.rules.idle_s

    def compared(
        self,
        snapshots: TableSnapshots,
        stated_now: StatedNow,
        remove: Callable[[list[Change]], None],
    ) -> TableSnapshots:
        """Compare whole snapshots with the log; return the snapshots with what was done noted.

        Args:
            snapshots: Those of the catalog, with all that is committed.
            stated_now: Returns the images that removals have as the row before.
            remove: Commits removals as one version.

        Raises:
            LogCorrupted: What is read is damaged.
            SegmentMissing: Upkeep replaces files more quickly than they can be read.
        """
        removes = self._settings.removes_missing
        for name, snapshot in [*snapshots.whole(removes=removes)]:
            found = LackingSnapshot(fault=snapshot.fault)
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
        """Report the tables that a snapshot of all tables has no last row of; return it noted as settled."""
        self._ended_at = None
        for name, ended in [*snapshots.missing_tables(entity_types, newest)]:
            if not self._settings.source.counts(name):
                count, keys = self._counted(name, ended)
                self._counters.note_lacking(name, LackingSnapshot(count, keys, is_absent=True))
        return snapshots.noted()

    def _had_rows(self, name: str, snapshot: TableSnapshot) -> bool:
        """Return False if the log had no rows of a table before its snapshot, as before an initial one."""

        def read(view: LogView, reader: BatchReader, known: str) -> bool:
            names = EntityNames(view.schema_of(view.published), known)
            return snapshot.begun > 1 and bool(names.name_in(view.schema_of(snapshot.begun - 1)))

        return read_committed(self._writer, self._settings.mapping, name, read, False)

    def _counted(self, name: str, snapshot: TableSnapshot) -> tuple[int, list[str]]:
        """Return how many rows are missing, and the keys of the first."""

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
        """Remove the rows that are missing, some in each version; return how many."""
        count = 0
        # Removals have the snapshot's position. So changes from before the snapshot are older than they are,
        # and changes from behind it are newer.
        place = FileSplit("").place(0, position_in(bytes.fromhex(snapshot.position) + bytes(8)))

        def read(view: LogView, reader: BatchReader, known: str) -> None:
            nonlocal count
            # The view is that of the beginning. If the read begins anew, the new view has the removals that
            # are committed, so no row is removed twice.
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
    """Yield the rows of a table whose last change is below its snapshot."""
    for part in last_known(view, reader, name).parts():
        rows = np.flatnonzero(part.versions < snapshot.begun)
        if len(rows):
            yield part.taken(rows)
