"""The filling of images with the values that the source left out, for a commit, in the order of its versions.

Sources may leave out the before-image of an update, all columns but the key of a removed row, and large values
that an update did not change. The missing values are taken from the last image of the row: the last one that
the commit itself wrote, or else the one in base and log::

    log         1: {"id":1,"price":5,"text":"long"}
    line        u  before: null                after: {"id":1,"price":6,"text":"__debezium_unavailable_value"}
    filled      u  before: the log's image     after: {"id":1,"price":6,"text":"long"}
    line        d  before: {"id":1,"price":null,"text":null}           in `Change.before`: two placeholders
    filled      d  before: {"id":1,"price":6,"text":"long"}

============================  ===============================================================================
part to fill                  filled with
============================  ===============================================================================
``before`` of an update       the last image, if the source sent none
``before`` of a removal       the last image, even if the source sent one
values that were not sent     the values of ``before``, else of the last image
members that are missing      the same values, for columns in the source's listing, except in late rows
============================  ===============================================================================

An update of an expired row becomes an insert; a removal of an expired row makes no record.

Inserts and snapshot rows are complete, and stay as they are, with one exception: connectors send a change of
the key as a removal and an insert, and that insert may lack large values. They are taken from the row that was
removed just before. Changes are filled before they are consolidated, so ``changed`` and ``change`` are the same
as if the source had sent every value.

A filled value has the text that the source sent last. A value that no image has stays as it was sent, and the
record is counted as incomplete.

The last image is converted to the columns of the version that is written (`Restating`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.criteria import Operation
from tailrace.schema import Origin
from tailrace_server.pipeline.input.change import DELETE, INSERT, TRUNCATE, UPDATE
from tailrace_server.wal.last_images import KnownImage
from tailrace_server.wal.record.images import completed, extended, members

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tailrace_server.pipeline.catalog.columns import Columns, CurrentColumns
    from tailrace_server.pipeline.input.change import Change
    from tailrace_server.pipeline.transactions.consolidate import Effect
    from tailrace_server.pipeline.transactions.settings import IngestSettings
    from tailrace_server.wal.last_images import Restating, RowName


EXPIRED: Final = KnownImage(b"", ())
"""Sentinel in place of an image: the row has expired, so it does not exist in the log."""


class Filling:
    """The filling of one commit's changes, transaction by transaction. Discarded if the commit fails."""

    def __init__(
        self,
        settings: IngestSettings,
        before: Callable[[RowName], KnownImage | None],
        columns: CurrentColumns,
        restating: Restating,
        look_up: Callable[[Iterable[Change]], None],
    ) -> None:
        """Begin with the first transaction of a commit.

        Args:
            settings: The settings of the ingest: the entity types whose images are filled, those whose rows
                expire, and the maximum size of a record. A change stays as it was sent if its filled images
                would exceed that size.
            before: Returns the last image of a row before the commit; None if none is known, EXPIRED if the row
                has expired.
            columns: The columns at the present point of the commit.
            restating: Converts images to later columns.
            look_up: Reads at once the images that ``before`` will return for the rows of some changes.
        """
        self.look_up = look_up
        """Reads the images that the next transactions need, given all of their changes."""
        self._record_bytes_max = settings.max_record_bytes
        self._makes_whole = settings.makes_whole
        self._expires = settings.time_to_live
        self._before = before
        self._columns = columns
        self._restating = restating
        self._unavailable = settings.source.unavailable
        self._unknown: set[RowName] = set()
        """Removed rows of the transaction whose image is unknown."""
        self._gone: tuple[str, bytes | None] | None = None
        """Entity type and image of the row that the previous change removed; None if it was no removal."""
        self.incomplete = 0
        """Number of records so far with an incomplete image."""
        self.rows: dict[RowName, KnownImage | None] = {}
        """The last image of each row that the commit has changed so far; None for a removed row."""
        self.truncated: set[str] = set()
        """Entity types whose rows were all removed by a truncate of the commit."""

    def fill(self, changes: Sequence[Change], *, late: bool) -> list[Change]:
        """Return the changes of the next transaction with filled images.

        Args:
            changes: The changes, in source order.
            late: True for late rows. Members that they lack are not filled: the table may not have had these
                columns then.
        """
        self._unknown.clear()
        self._gone = None
        filled = (
            self._filled(change, late) if self._makes_whole(change.entity_type or "") else change
            for change in changes
        )
        return [change for change in filled if change is not None]

    def count_incomplete(self, effects: Iterable[Effect]) -> int:
        """Return the number of the transaction's records with an incomplete image, and add it to the total."""
        count = sum(
            self._makes_whole(effect.entity_type) and self._is_incomplete(effect)
            for effect in effects
        )
        self.incomplete += count
        return count

    def _filled(self, change: Change, late: bool) -> Change | None:
        """Return a change with filled images; None if it removes an expired row."""
        entity_type = change.entity_type or ""
        gone, self._gone = self._gone, None
        if change.operation == TRUNCATE:
            # Forget the rows of the commit; `truncated` hides those of the log.
            self.rows = {row: known for row, known in self.rows.items() if row[0] != entity_type}
            self.truncated.add(entity_type)
            return change
        assert change.primary_key is not None
        row = (entity_type, change.primary_key)
        if change.operation in (UPDATE, DELETE) and self._has_expired(
            (entity_type, change.old_key or change.primary_key)
        ):
            # The expiry has removed the row already. So a removal has no effect, and an update is an insert.
            if change.operation == DELETE:
                return None
            change = change._replace(operation=INSERT, old_key=None, before=None)
        before = change.before
        if change.operation == DELETE:
            removed = change._replace(before=self._removed(row, before))
            self.rows[row] = None
            self._gone = entity_type, removed.before
            return removed
        after = change.after
        assert after is not None
        names = members(after)
        current = self._columns.of(entity_type, names)
        if change.operation == UPDATE:
            # 1. The before-image: of the key that the row had before this change.
            old = row if change.old_key is None else (entity_type, change.old_key)
            if change.old_key is not None:
                before = self._removed(old, before)
                self.rows[old] = None
            elif before is None:
                before = self._earlier(old, current, names)
            elif self._unavailable.may_be_in(before):
                before = completed(before, self._earlier(old, current, names), self._unavailable)
            # 2. The after-image, from the before-image, which step 1 has completed from the last image.
            if self._unavailable.may_be_in(after):
                after = completed(after, before, self._unavailable)
            if not late and before is not None:
                listed = (c.name for c in current if c.origin is Origin.DEBEZIUM and not c.dropped)
                after = extended(after, before, [name for name in listed if name not in names])
            # 3. A filled record must not become too large for readers; then leave it as it was sent.
            if len(before or b"") + len(after) > self._record_bytes_max:
                before, after = change.before, change.after or after
        # An insert directly after a removal may be the second half of a change of the key.
        elif gone is not None and gone[0] == entity_type and self._unavailable.may_be_in(after):
            moved = completed(after, gone[1], self._unavailable)
            after = moved if len(moved) <= self._record_bytes_max else after
        self.rows[row] = KnownImage(after, current)
        return change._replace(before=before, after=after)

    def _removed(self, row: RowName, sent: bytes | None) -> bytes | None:
        """Return the image of a removed row: its last image, or the sent image if the last one is unknown."""
        earlier = self._earlier(row, self._columns.of(row[0], ()), ())
        if earlier is None:
            if sent is None:
                self._unknown.add(row)
            return sent
        self._unknown.discard(row)
        # The last image has precedence, because the sent image may have only the key. The sent image is used
        # only if the last image itself lacks values.
        if sent is None or not self._has_holes(earlier):
            return earlier
        return completed(sent, earlier, self._unavailable)

    def _earlier(self, row: RowName, columns: Columns, kept: Iterable[str]) -> bytes | None:
        """Return the last image of a row, converted to ``columns``; None if it is unknown."""
        known = self._last(row)
        if known is None or known is EXPIRED:
            return None
        return self._restating.now(known, columns, [*kept])

    def _has_expired(self, row: RowName) -> bool:
        return self._expires(row[0]) is not None and self._last(row) is EXPIRED

    def _last(self, row: RowName) -> KnownImage | None:
        if row in self.rows or row[0] in self.truncated:
            return self.rows.get(row)
        return self._before(row)

    def _is_incomplete(self, effect: Effect) -> bool:
        if effect.primary_key is None:
            return False
        if effect.operation is Operation.REMOVE:
            missing = (effect.entity_type, effect.primary_key) in self._unknown
        else:
            missing = effect.changed is not None and effect.before is None
        return missing or any(
            image is not None and self._has_holes(image) for image in (effect.before, effect.after)
        )

    def _has_holes(self, image: bytes) -> bool:
        unavailable = self._unavailable
        return unavailable.may_be_in(image) and any(
            unavailable.is_one(bytes(value)) for value in members(image).values()
        )
