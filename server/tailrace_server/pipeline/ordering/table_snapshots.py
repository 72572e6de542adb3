"""The last snapshot of each table, followed from its first row to its last, and kept among source positions.

A source that was not followed for a while is read anew, by a snapshot. No message says which rows were removed
meanwhile: they are those that a whole snapshot lacks (`missing_rows`)::

    version    …  811     812     813     814     815
                  orders  read    read    update  read
                          first                   last
                  ◀─────▶ rows whose last change is here are not in the snapshot

    snapshot:orders   {"log": "postgresql:shop", "position": "00…", "begun": 812, "marks": 11, …}
    snapshot:         the same of the snapshot of all tables

The rows of a snapshot have one log and position, which tell it from an earlier one that was interrupted. It is
whole when the first and the last row of the table have come: the connector marks both. A table of one row has
the mark of its last row alone. Incremental snapshots have no position of their own, so they are not followed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from tailrace_server.pipeline.changes import READ, file_of, partition_of
from tailrace_server.pipeline.ordering.newest_positions import ENDED, FIRST, LAST, MORE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tailrace_server.pipeline.changes import Change
    from tailrace_server.pipeline.ordering.newest_positions import NewestPositions, PositionSpan
    from tailrace_server.pipeline.transactions.grouping import Plan
    from tailrace_server.pipeline.transactions.tally import Tally

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
