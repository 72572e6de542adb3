"""From released transactions to the records of a segment.

Versions are relative: the first transaction of a segment is 0. Their final codes are assigned with the entry,
so a task needs to know nothing of the others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from tailrace.criteria import Area, Operation
from tailrace_server.pipeline.changes import (
    QUARANTINED,
    READ,
    UNORDERED,
    Change,
    line_of,
    position_bytes,
)
from tailrace_server.pipeline.images import members
from tailrace_server.pipeline.record_table import record_table
from tailrace_server.pipeline.transactions.consolidate import consolidate
from tailrace_server.pipeline.transactions.last_listing import altered_types, in_last_listing
from tailrace_server.pipeline.transactions.lead_record import lead
from tailrace_server.pipeline.transactions.source_order import rows_in_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from tailrace_server.pipeline.columns import ColumnInference, Sighting
    from tailrace_server.pipeline.filling.filling import Filling
    from tailrace_server.pipeline.ordering.older_rows import OlderRows
    from tailrace_server.pipeline.record_table import Row
    from tailrace_server.pipeline.sources.source import Source
    from tailrace_server.pipeline.transactions.consolidate import Effect
    from tailrace_server.pipeline.transactions.grouping import Released
    from tailrace_server.pipeline.transactions.row_counts import Counting
    from tailrace_server.wal.files.documents import PendingSegment
    from tailrace_server.wal.schema.mapping import SchemaMapping
    from tailrace_server.wal.segment.writer import SegmentReceipt


class WrittenPlan(NamedTuple):
    """The segments that the transactions of a plan were written to."""

    segments: list[SegmentReceipt]
    sightings: list[Sighting]
    """Columns seen, by version relative to the commit."""
    pending: list[PendingSegment]
    """Rows files that the batch adds."""
    counting: Counting | None = None
    """The counts of rows of tables without a key."""
    set_aside: Sequence[Change] = ()
    """Rows that go to quarantine after all, since their version's schema cannot hold them."""
    updates: Mapping[str, bool] = {}
    """As `RecordBuilder.updates`."""
    removals: Mapping[str, bool] = {}
    """As `RecordBuilder.removals`."""
    filling: Filling | None = None
    """The values that images were filled with."""


class RecordBuilder:
    """Collects the records of consecutive transactions; `take` gives them as a table.

    Holds rows until they are taken, so take after every few thousand (`rows`).
    """

    def __init__(
        self,
        columns: ColumnInference,
        source: Source,
        mapping: SchemaMapping | None = None,
        counting: Counting | None = None,
        filling: Filling | None = None,
        older: OlderRows | None = None,
    ) -> None:
        """Begin at version 0.

        Args:
            columns: Collects the columns that the images show.
            source: Writes rows that are set aside as lines again.
            mapping: The columns that are declared.
            counting: Counts the rows of the source's tables without a key; None if it has none.
            filling: Fills what the source left out of images; None leaves them as they were sent.
            older: Finds changes that are older than what the log has; None takes them.
        """
        self._older = older
        self._filling = filling
        self._counting = counting
        self._columns = columns
        self._source = source
        self._unavailable = source.unavailable
        types = {} if mapping is None else mapping.entity_types
        self._declared = {
            entity_type: {name for name, column in declared.columns.items() if column.sql_type}
            for entity_type, declared in types.items()
        }
        self.set_aside: list[Change] = []
        """Rows that their version's schema cannot hold, as QUARANTINED changes."""
        self.updates: dict[str, bool] = {}
        """Entity types with updates; True if the changed columns of any update are not known."""
        self.removals: dict[str, bool] = {}
        """Entity types with removed rows; True if any image lacks values."""
        self._rows: list[Row] = []
        self._version = 0

    @property
    def rows(self) -> int:
        """How many records wait to be taken."""
        return len(self._rows)

    def add(self, released: Released, changes: Iterable[Change]) -> None:
        """Add a transaction: its lead and the net effects of its changes, given in any order."""
        ordered = rows_in_order(changes)
        version = self._version
        self._version += 1
        late = released.late_of is not None
        if self._older is not None:
            released, ordered = self._without_older(self._older, released, ordered)
        if self._counting is not None:
            released, ordered = self._countable(self._counting, released, ordered)
        for change in ordered:
            if change.columns is not None:
                self._columns.announce(version, change.entity_type or "", change.columns, late=late)
        unavailable = self._unavailable
        if altered := altered_types(ordered):
            found = in_last_listing(ordered, altered, self._declared, unavailable)
            ordered = found.changes
            released = self._without(released, found.refused)
        if self._filling is not None:
            ordered = self._filling.fill(ordered, late=late)
        if self._counting is None:
            effects = consolidate(ordered, unavailable)
        else:
            effects = [
                self._counting.settle(effect) if self._source.counts(effect.entity_type) else effect
                for effect in consolidate(ordered, unavailable, self._source.counts)
            ]
        incomplete = 0 if self._filling is None else self._filling.count_incomplete(effects)
        self._rows.append(_lead_row(version, lead(released, effects, incomplete)))
        for index, effect in enumerate(effects, 1):
            self._rows.append(_effect_row(version, index, effect))
            self._observe(version, effect)

    def take(self) -> pa.Table:
        """Return what was added since the last take, as a table of `ROW_SCHEMA`."""
        rows, self._rows = self._rows, []
        return record_table(rows)

    def _without_older(
        self, older: OlderRows, released: Released, changes: list[Change]
    ) -> tuple[Released, list[Change]]:
        """Set aside older changes. Those of counted rows add up in any order."""
        counted = {row.place for row in changes if self._source.counts(row.entity_type or "")}
        rows = [row for row in changes if row.place not in counted] if counted else changes
        found = older.without_older(rows)
        if len(found.changes) == len(rows):
            return released, changes
        kept = {row.place for row in found.changes} | counted
        left = [row for row in changes if row.place in kept]
        return self._without(released, found.refused, incompatible=False), left

    def _countable(
        self, counting: Counting, released: Released, changes: list[Change]
    ) -> tuple[Released, list[Change]]:
        """Set aside the rows of counted tables that would make counts wrong; leave out those sent again.

        A connector that was restarted sends rows again, with their place in the transaction.
        """
        seen: set[tuple[object, ...]] = set()
        kept: list[Change] = []
        refused: list[tuple[Change, str]] = []
        for change in changes:
            if not self._source.counts(change.entity_type or ""):
                kept.append(change)
                continue
            if change.total_order != UNORDERED and change.operation != READ:
                keys = change.primary_key, change.old_key
                place = change.total_order, position_bytes(change.place)
                row = (change.entity_type, change.operation, *keys, *place)
                if row in seen:
                    continue
                seen.add(row)
            reason = counting.fault(change, released.late_of)
            if reason is None:
                kept.append(change)
            else:
                refused.append((change, reason))
        return self._without(released, refused), kept

    def _without(
        self,
        released: Released,
        refused: list[tuple[Change, str]],
        *,
        incompatible: bool = True,
    ) -> Released:
        """Set rows aside, and return the transaction as its lead counts it without them.

        Args:
            released: The transaction.
            refused: The rows, each with the reason.
            incompatible: Whether ``--on-incompatible stop`` stops at them.
        """
        self.set_aside += [
            self._quarantined(*each)._replace(number=1 if incompatible else None)
            for each in refused
        ]
        tally, count = released.tally, len(refused)
        return released._replace(
            tally=replace(tally, rows=tally.rows - count, quarantined=tally.quarantined + count)
        )

    def _quarantined(self, change: Change, reason: str) -> Change:
        """Return a row as a line of the quarantine: the message that it came in may be long gone."""
        file, block, number = line_of(change.place)
        return Change(
            QUARANTINED,
            change.place,
            entity_type=change.entity_type,
            operation=change.operation,
            reason=reason,
            raw=self._source.restated(change),
            file=file,
            block=block,
            line=number,
        )

    def _observe(self, version: int, effect: Effect) -> None:
        image = effect.after if effect.after is not None else effect.before
        self._columns.observe(version, effect.entity_type, image, effect.changed or ())
        lacks = effect.before is None
        holds_marks = effect.before is not None and self._unavailable.may_be_in(effect.before)
        if effect.operation is Operation.UPSERT and effect.changed is not None:
            # A value before that nobody knows may be the one after, so its column may not have changed.
            lacks |= holds_marks and not self._hidden(effect.before).isdisjoint(effect.changed)
            self.updates[effect.entity_type] = self.updates.get(effect.entity_type, False) or lacks
        if effect.operation is Operation.REMOVE and effect.primary_key is not None:
            lacks |= holds_marks and bool(self._hidden(effect.before))
            self.removals[effect.entity_type] = (
                self.removals.get(effect.entity_type, False) or lacks
            )

    def _hidden(self, image: bytes | None) -> set[str]:
        """Return the columns whose values an image does not have."""
        found = members(image or b"{}").items()
        return {name for name, value in found if self._unavailable.is_one(bytes(value))}


def _lead_row(version: int, after: bytes) -> Row:
    area, operation = int(Area.INFRASTRUCTURE), int(Operation.TRANSACTION)
    return version, 0, area, operation, None, None, None, None, None, after


def _effect_row(version: int, index: int, effect: Effect) -> Row:
    return (
        version,
        index,
        int(Area.DATA),
        int(effect.operation),
        effect.entity_type,
        effect.primary_key,
        effect.changed,
        effect.change,
        effect.before,
        effect.after,
    )
