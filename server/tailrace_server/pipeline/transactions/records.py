"""From released transactions to the records of a segment.

Versions are relative: the first transaction of a segment is 0. Their final codes are assigned with the entry,
so a task needs to know nothing of the others.

**Altered columns.** A version has one schema, and its images are compared with each other. PostgreSQL can
alter a table within a transaction, so that rows before the change are written otherwise than those after it::

    rows         u 1    u 1    │ alter │    u 1    c 2
    listing       A                          B             A: price in decimal.bytes(2), B: in decimal.bytes(4)
    restated      B      B                   B      B      exact, or the value counts as not sent

Rows say their listing where it is not that of the row before, in the same file (`column_listing`). A value
without an exact form in the last listing counts in ``before`` as not sent. In ``after`` it refuses the row.

**The lead** is record 0 of a version. Its ``after`` describes the transaction by these members, in this order;
those in brackets only where they apply:

=====================  ================================================================================
transaction_id         as the source writes it; null for a line alone and for snapshot rows
mutation_count         records that follow, after consolidation
counts                 entity type → records of it
source_count           rows that came from the source
source                 connector and its name
source_timestamp       the latest of its rows, µs; null where the source gives none
[source_log,           log of the source that the position counts in, and the highest position of the
source_position]       transaction's rows in it, in hex (`catalog.newest_positions`)
[late, of]             true, and the version that its earlier rows became
[snapshot]             true
[expected_count]       rows that the source announced, where other than ``source_count``
[without_end]          true: its BEGIN came, and no END with a count by when it was closed
[quarantined]          rows that could not be read
[incomplete_images]    records with an image that should be whole, and that nothing could fill
=====================  ================================================================================

A reader that has ``mutation_count`` records of a version has all of them (promise 8). The transaction is known
to be incomplete if there is ``expected_count``, ``without_end`` or ``quarantined``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from tailrace.criteria import Area, Operation
from tailrace_server.pipeline.catalog.record_table import record_table
from tailrace_server.pipeline.input.change import (
    QUARANTINED,
    READ,
    UNORDERED,
    Change,
    arrival,
    line_of,
    position_bytes,
)
from tailrace_server.pipeline.input.column_listing import announced
from tailrace_server.pipeline.input.images import hidden, members
from tailrace_server.pipeline.transactions.consolidate import consolidate
from tailrace_server.pipeline.transactions.source_order import rows_in_order
from tailrace_server.wal.record.columns import lead_text
from tailrace_server.wal.schema.column_types import joined
from tailrace_server.wal.schema.restating import restated_image

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    import pyarrow as pa

    from tailrace_server.pipeline.catalog.columns import ColumnInference, Sighting
    from tailrace_server.pipeline.catalog.older_rows import OlderRows
    from tailrace_server.pipeline.catalog.record_table import Row
    from tailrace_server.pipeline.catalog.whole_images import Filling
    from tailrace_server.pipeline.input.source import Source
    from tailrace_server.pipeline.transactions.consolidate import Effect
    from tailrace_server.pipeline.transactions.grouping import Released
    from tailrace_server.pipeline.transactions.row_counts import Counting
    from tailrace_server.wal.files.documents import PendingSegment
    from tailrace_server.wal.record.unavailable import Unavailable
    from tailrace_server.wal.schema.mapping import SchemaMapping
    from tailrace_server.wal.schema.restating import Conversions
    from tailrace_server.wal.segment.writer import SegmentReceipt


class InLastListing(NamedTuple):
    """Rows in the last listing of their entity type."""

    changes: list[Change]
    refused: list[tuple[Change, str]]
    """Rows that have no exact form in it, each with the reason."""


def altered_types(changes: Sequence[Change]) -> Mapping[str, str]:
    """Return the entity types that come with several listings, each with the last one; mostly none."""
    last: dict[str, str] = {}
    altered = set()
    for change in changes:
        if change.columns is not None:
            entity_type = change.entity_type or ""
            if last.get(entity_type, change.columns) != change.columns:
                altered.add(entity_type)
            last[entity_type] = change.columns
    return {entity_type: last[entity_type] for entity_type in altered}


def in_last_listing(
    changes: Sequence[Change],
    last: Mapping[str, str],
    declared: Mapping[str, Collection[str]],
    unavailable: Unavailable,
) -> InLastListing:
    """Return the changes of a transaction, those of altered entity types in their last listing.

    Args:
        changes: In source order.
        last: As `altered_types` gives it.
        declared: Entity type → columns whose type the mapping declares, whatever the source lists.
        unavailable: Tells values that the source did not send.
    """
    listings = _listings(changes)
    conversions: dict[tuple[str, str], Conversions] = {}
    kept: list[Change] = []
    refused: list[tuple[Change, str]] = []
    for place, change in enumerate(changes):
        entity_type = change.entity_type or ""
        listing = listings[place]
        if listing is None or last.get(entity_type, listing) == listing:
            kept.append(change)
            continue
        pair = (entity_type, listing)
        if pair not in conversions:
            excluded = declared.get(entity_type, ())
            conversions[pair] = _conversions(listing, last[entity_type], excluded)
        try:
            kept.append(_restated(change, conversions[pair], unavailable))
        except _Inexact as error:
            refused.append((change, str(error)))
    return InLastListing(kept, refused)


def _listings(changes: Sequence[Change]) -> list[str | None]:
    """Return the listing of each row: its own, else that of the row before it in its split."""
    found: list[str | None] = [None] * len(changes)
    current: dict[tuple[str | None, str, int], str] = {}
    for place in sorted(range(len(changes)), key=lambda place: arrival(changes[place].place)):
        change = changes[place]
        file, block, _ = line_of(change.place)
        key = change.entity_type, file, block
        if change.columns is not None:
            current[key] = change.columns
        found[place] = current.get(key)
    return found


def _conversions(written: str, wanted: str, excluded: Collection[str]) -> Conversions:
    """Return the columns whose values one listing writes otherwise than another."""
    before = {name: (kind, encoding) for name, kind, encoding, _ in announced(written).columns}
    after = {name: (kind, encoding) for name, kind, encoding, _ in announced(wanted).columns}
    return {
        name: (before[name], after[name])
        for name in before
        if name in after and name not in excluded and joined(before[name], after[name]) is None
    }


class _Inexact(Exception):
    """A value of ``after`` has no exact form in the last listing."""


def _restated(change: Change, conversions: Conversions, unavailable: Unavailable) -> Change:
    before, after = change.before, change.after
    if before is not None:
        image, inexact = restated_image(before, conversions, unavailable)
        before = hidden(image, inexact)
    if after is not None:
        after, inexact = restated_image(after, conversions, unavailable)
        for name in inexact:
            value = bytes(members(after)[name])[:40].decode(errors="replace")
            (one, encoding), (other, other_encoding) = conversions[name]
            raise _Inexact(
                f"column {name}: {value} was written as {one} in {encoding}, and later rows of its "
                f"transaction as {other} in {other_encoding}, which has no exact form of it"
            )
    return change._replace(before=before, after=after)


def lead(released: Released, effects: Iterable[Effect], incomplete_images: int = 0) -> bytes:
    """Return the ``after`` of a version's lead record."""
    tally = released.tally
    late = released.late_of is not None
    without_end = not late and tally.mark is not None and tally.expected is None
    incomplete = not late and tally.expected is not None and tally.expected != tally.rows
    return lead_text(
        transaction_id=tally.transaction_id,
        counts=Counter(effect.entity_type for effect in effects),
        source_count=tally.rows,
        source=tally.source,
        source_timestamp=tally.timestamp,
        source_log=tally.log,
        source_position=tally.highest.hex() if tally.log is not None else None,
        late=True if late else None,
        of=released.late_of,
        snapshot=True if released.snapshot else None,
        expected_count=tally.expected if incomplete else None,
        without_end=True if without_end else None,
        quarantined=tally.quarantined or None,
        incomplete_images=incomplete_images or None,
    )


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
