"""The records of a segment, made from released transactions.

Versions in a segment are relative: its first transaction is version 0. The entry assigns the final versions, so
tasks write their segments independently of each other.

**Altered columns.** A version has one schema, and its images are compared with each other. PostgreSQL can
alter a table within a transaction. Then the rows before the alteration are encoded differently from those after
it, by another *listing* of the columns::

    rows         u 1    u 1    │ alter │    u 1    c 2
    listing       A                          B             A: price in decimal.bytes(2), B: in decimal.bytes(4)
    restated      B      B                   B      B      exact, or the value counts as not sent

A row has its listing only if the listing differs from that of the previous row in the same file
(`column_listing`). The rows are restated in the last listing. If a value has no exact form in it, a ``before``
image gets the placeholder of a value that was not sent; if the value is in ``after``, the row goes to
quarantine.

**The lead record** is record 0 of a version, with operation TRANSACTION. Its ``after`` describes the
transaction by these members, in this order; those in brackets only if they apply:

=====================  ================================================================================
transaction_id         as the source writes it; null for a single line and for snapshot rows
mutation_count         number of records that follow, after consolidation
counts                 entity type → number of its records
source_count           number of rows that the source sent
source                 connector and its name
source_timestamp       the latest timestamp of its rows, µs; null if the source gives none
[source_log,           name of the source's log, and the highest position of the transaction's rows in that
source_position]       log, in hex (`catalog.newest_positions`)
[late, of]             true, and the version of the transaction's earlier rows
[snapshot]             true
[expected_count]       rows that the source announced, if other than ``source_count``
[without_end]          true: its BEGIN arrived, but no END with a count before it was closed
[quarantined]          number of rows that could not be used
[incomplete_images]    number of records whose image should be whole, but could not be filled
=====================  ================================================================================

A reader that has ``mutation_count`` records of a version has all of them (promise 8). The transaction is known
to be incomplete if it has ``expected_count``, ``without_end`` or ``quarantined``.
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
from tailrace_server.pipeline.run.set_aside import SetAside
from tailrace_server.pipeline.transactions.consolidate import consolidate
from tailrace_server.pipeline.transactions.source_order import rows_in_order
from tailrace_server.wal.record.columns import lead_text
from tailrace_server.wal.record.images import hidden, members
from tailrace_server.wal.schema.column_types import joined
from tailrace_server.wal.schema.restating import restated_image

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

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
    """The changes of a transaction, restated in the last listing of their entity types."""

    changes: list[Change]
    refused: list[tuple[Change, str]]
    """The rows that have no exact form in the last listing, each with the reason."""


def altered_types(changes: Sequence[Change]) -> Mapping[str, str]:
    """Return entity type → last listing, for the entity types with several listings; usually empty."""
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
    """Return the changes of a transaction; restate those of altered entity types in the last listing.

    Args:
        changes: The changes, in source order.
        last: The result of `altered_types`.
        declared: Entity type → columns whose type the mapping declares; these are not restated.
        unavailable: Recognizes placeholders for values that the source did not send.
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
        # A transaction has few listings, but may have many rows, so the conversions are cached by listing.
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
    """Return the listing of each row: its own, or else that of the previous row in its split."""
    found: list[str | None] = [None] * len(changes)
    # Only a row whose listing differs from the previous one carries it, in the order of arrival within a split.
    # So go through the rows in that order, not in the order of the transaction.
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
    """Return the columns that two listings encode differently, each with both encodings."""
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
        # A lost value in ``before`` is harmless: readers see it as unknown. In ``after`` it would lose data.
        before = hidden(image, inexact)
    if after is not None:
        after, inexact = restated_image(after, conversions, unavailable)
        for name in inexact:
            value = bytes(members(after)[name])[:40].decode(errors="replace")
            (one, encoding), (other, other_encoding) = conversions[name]
            raise _Inexact(
                f"column {name}: {value} was written as {one} in {encoding}, and later rows of "
                f"its transaction as {other} in {other_encoding}, which has no exact form of this "
                "value"
            )
    return change._replace(before=before, after=after)


def lead(released: Released, counts: Mapping[str, int], incomplete_images: int = 0) -> bytes:
    """Return the ``after`` of a version's lead record (record 0), as described at the head of this module.

    ``counts`` has the number of records of each entity type, in the order of their first ones.
    """
    tally = released.tally
    late = released.late_of is not None
    # Late rows are only a rest of their transaction, so counts of the whole transaction do not apply to them.
    without_end = not late and tally.mark is not None and tally.expected is None
    incomplete = not late and tally.expected is not None and tally.expected != tally.rows
    return lead_text(
        transaction_id=tally.transaction_id,
        counts=counts,
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
    """The files that the rows of a plan were written to, and what writing found in the rows."""

    segments: list[SegmentReceipt]
    sightings: list[Sighting]
    """New columns and listings, with versions relative to the commit."""
    pending: list[PendingSegment]
    """New files with the rows that stay open."""
    counting: Counting | None = None
    """The new counts of rows of tables without a key; None if there is no such table."""
    set_aside: SetAside = SetAside()
    """Summary of the rows that go to quarantine at this late step, such as rows that their version's schema
    cannot hold."""
    lines: Sequence[Change] = ()
    """These rows, for the driver to write; empty if tasks wrote them."""
    parts: Sequence[Path] = ()
    """The files to which tasks wrote all lines of the batch's quarantine."""
    updates: Mapping[str, bool] = {}
    """The commit's `RecordBuilder.updates`."""
    removals: Mapping[str, bool] = {}
    """The commit's `RecordBuilder.removals`."""
    filling: Filling | None = None
    """The values that images were filled with; None if no image is filled."""


class RecordBuilder:
    """Builds the records of consecutive transactions; `take` returns them as a table.

    The builder holds all records in memory until `take`. Call it whenever `rows` exceeds a few thousand.
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
            columns: Collects the columns of the images.
            source: The source; it converts quarantined rows back to lines.
            mapping: The declared columns.
            counting: Counts the rows of tables without a key; None if the source has no such table.
            filling: Fills values that the source left out of images; None leaves images as they were sent.
            older: Finds changes that are older than the log's change of the row; None accepts them.
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
        """The rows that go to quarantine, as QUARANTINED changes."""
        self.updates: dict[str, bool] = {}
        """Entity types with updates → True if the changed columns of any of these updates are unknown."""
        self.removals: dict[str, bool] = {}
        """Entity types with removed rows → True if the image of any of these rows lacks values."""
        self._rows: list[Row] = []
        self.version = 0
        """The version of the next transaction."""

    @property
    def rows(self) -> int:
        """The number of records that the next `take` returns."""
        return len(self._rows)

    def add(self, released: Released, changes: Iterable[Change]) -> None:
        """Add a transaction: its lead record and the net effects of its changes, given in any order."""
        ordered = rows_in_order(changes)
        version = self.version
        self.version += 1
        late = released.late_of is not None
        # 1. Set aside rows that must not count. Do it first: their listings and images must have no effect.
        if self._older is not None:
            released, ordered = self._without_older(self._older, released, ordered)
        if self._counting is not None:
            released, ordered = self._countable(self._counting, released, ordered)
        # 2. Report the source's listings, also those of rows that step 3 sends to quarantine.
        for change in ordered:
            if change.columns is not None:
                self._columns.announce(version, change.entity_type or "", change.columns, late=late)
        # 3. Restate all rows in one listing before images are filled or compared with each other.
        unavailable = self._unavailable
        if altered := altered_types(ordered):
            found = in_last_listing(ordered, altered, self._declared, unavailable)
            ordered = found.changes
            released = self._without(released, found.refused)
        if self._filling is not None:
            ordered = self._filling.fill(ordered, late=late)
        # 4. Reduce the changes to one effect for each row. Counted rows become records by their counts.
        if self._counting is None:
            effects = consolidate(ordered, unavailable)
        else:
            effects = [
                self._counting.settle(effect) if self._source.counts(effect.entity_type) else effect
                for effect in consolidate(ordered, unavailable, self._source.counts)
            ]
        # 5. The lead record needs the number of effects, so it is made last, but it comes first.
        counts = Counter(effect.entity_type for effect in effects)
        incomplete = 0 if self._filling is None else self._filling.count_incomplete(effects)
        self._rows.append(_lead_row(version, lead(released, counts, incomplete)))
        for index, effect in enumerate(effects, 1):
            self._rows.append(_effect_row(version, index, effect))
            self._observe(version, effect)

    def take(self) -> pa.Table:
        """Return the records added since the last `take`, as a table of `ROW_SCHEMA`."""
        rows, self._rows = self._rows, []
        return record_table(rows)

    def _without_older(
        self, older: OlderRows, released: Released, changes: list[Change]
    ) -> tuple[Released, list[Change]]:
        """Send changes that are older than the log's to quarantine, except those of counted rows.

        Changes of counted rows can be added in any order.
        """
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
        """Send rows of counted tables that would make counts wrong to quarantine, and drop repeated rows.

        A restarted connector repeats rows with the same place in the transaction.
        """
        seen: set[tuple[object, ...]] = set()
        kept: list[Change] = []
        refused: list[tuple[Change, str]] = []
        for change in changes:
            if not self._source.counts(change.entity_type or ""):
                kept.append(change)
                continue
            # Rows without a number, and snapshot rows, cannot be recognized as repeated: equal rows are legal.
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
        """Send rows to quarantine, and return the transaction with a tally that counts them as quarantined.

        Args:
            released: The transaction.
            refused: The rows, each with the reason.
            incompatible: True if ``--on-incompatible stop`` stops the ingest at these rows.
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
        """Return a row as a QUARANTINED change. The source makes a new line: the original may be gone."""
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
        # 1. Report the columns of the image, and also those that ``changed`` names: they need not be in it.
        image = effect.after if effect.after is not None else effect.before
        self._columns.observe(version, effect.entity_type, image, effect.changed or ())
        # 2. Record if updates have unknown changes, and if removed rows lack values; the commit notes both.
        lacks = effect.before is None
        holds_marks = effect.before is not None and self._unavailable.may_be_in(effect.before)
        if effect.operation is Operation.UPSERT and effect.changed is not None:
            # If a value of ``before`` is unknown, the column may not have changed although it is listed.
            lacks |= holds_marks and not self._hidden(effect.before).isdisjoint(effect.changed)
            self.updates[effect.entity_type] = self.updates.get(effect.entity_type, False) or lacks
        if effect.operation is Operation.REMOVE and effect.primary_key is not None:
            lacks |= holds_marks and bool(self._hidden(effect.before))
            self.removals[effect.entity_type] = (
                self.removals.get(effect.entity_type, False) or lacks
            )

    def _hidden(self, image: bytes | None) -> set[str]:
        """Return the columns of an image whose values were not sent."""
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
