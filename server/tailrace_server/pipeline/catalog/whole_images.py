"""Values that a source left out of the images of a commit, filled in the order of its versions.

Sources leave out the row before an update, all but the key of a row that is removed, and large values that an
update did not touch. The last image of the row has them: the one that the commit itself wrote last, else the
one that base and log have::

    log         1: {"id":1,"price":5,"text":"long"}
    line        u  before: null                after: {"id":1,"price":6,"text":"__debezium_unavailable_value"}
    filled      u  before: as the log has it   after: {"id":1,"price":6,"text":"long"}
    line        d  before: {"id":1,"price":null,"text":null}           as `Change.before`: both not sent
    filled      d  before: {"id":1,"price":6,"text":"long"}

============================  ===============================================================================
filled                        with
============================  ===============================================================================
``before`` of an update       the last image, where none was sent
``before`` of a removal       the last image, whatever was sent
values that were not sent     those of ``before``, else of the last image
members that are missing      the same, of columns that the source lists (its schema block), not in late rows
============================  ===============================================================================

An update of a row that has expired creates it again, as an insert; its removal makes no record.

An insert or a row of a snapshot is whole, and stays as it is. Only the second half of a change of the key,
which connectors send as a removal and an insert, may lack large values: they are those of the row that was
removed just before. Changes are filled before they are consolidated, so `changed`, ``change`` and updates that
change nothing follow as if all had been sent.

A value is the text that was sent last. A value that no image has stays as it was sent, and is counted.

The columns may have been renamed since the last image, altered or dropped. Both images of a record are read by
the schema of its version (docs/adr/0026), so `Restating` writes the last image in the columns of that
version::

    then    {"id":1,"cost":"AfQ=","old":7}      cost in decimal.bytes(2)
    now     {"id":1,"price":"w1A="}             price in decimal.bytes(4); old is dropped

A value that has no exact form now counts as one that was not sent. All others are the texts that were sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.criteria import Operation
from tailrace.schema import Origin
from tailrace_server.pipeline.input.change import DELETE, INSERT, TRUNCATE, UPDATE
from tailrace_server.pipeline.input.images import completed, extended, hidden, members, renamed
from tailrace_server.wal.schema.restating import conversion_of, read_as, restated_image

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from tailrace.schema import Column
    from tailrace_server.pipeline.catalog.columns import Columns, CurrentColumns
    from tailrace_server.pipeline.input.change import Change
    from tailrace_server.pipeline.transactions.consolidate import Effect
    from tailrace_server.pipeline.transactions.settings import IngestSettings
    from tailrace_server.wal.record.unavailable import Unavailable
    from tailrace_server.wal.schema.restating import Conversions


class KnownImage(NamedTuple):
    """An image, and the columns that its entity type had when it was written."""

    text: bytes
    columns: Columns


EXPIRED: Final = KnownImage(b"", ())
"""Stands for a row that the log has let expire: nothing is known of it, but that it is not there."""


class _Way(NamedTuple):
    """The steps that restate images of one set of columns in another."""

    conversions: Conversions
    names: Mapping[str, str]
    """Columns that are called otherwise now: the name then → the name now."""
    dropped: Collection[str]
    """Names of the columns that have been dropped since."""
    added_again: Collection[str]
    """Those names of ``dropped`` that another column has now: the old value is not the new column's."""


class Restating:
    """States images in later columns; remembers the way from each set of columns to another."""

    def __init__(
        self, stated: Callable[[], Mapping[int, Column]], unavailable: Unavailable
    ) -> None:
        """Begin.

        Args:
            stated: Gives each column of the log, by id, as it was first stated (`restating.first_stated`).
            unavailable: Tells values that the source did not send.
        """
        self._stated = stated
        self._unavailable = unavailable
        self._ways: dict[tuple[int, int], tuple[Columns, Columns, _Way | None]] = {}
        """By the identity of both sets, which are kept with it so that it stays theirs."""

    def now(self, image: KnownImage, columns: Columns, kept: Collection[str]) -> bytes:
        """Return the text of an image in other columns.

        Args:
            image: The image.
            columns: The columns now.
            kept: Columns that are kept even if they are dropped, since rows still come with them.
        """
        if image.columns is columns:
            return image.text
        key = (id(image.columns), id(columns))
        if key not in self._ways:
            way = None if image.columns == columns else self._way(image.columns, columns)
            self._ways[key] = image.columns, columns, way
        way = self._ways[key][2]
        text = image.text
        if way is None:
            return text
        if way.conversions:
            text, inexact = restated_image(text, way.conversions, self._unavailable)
            text = hidden(text, inexact)
        gone = [name for name in way.dropped if name not in kept or name in way.added_again]
        if way.names or any(name in members(text) for name in gone):
            text = renamed(text, way.names, without=gone)
        return text

    def _way(self, then: Columns, now: Columns) -> _Way | None:
        known = {column.id: column for column in now}
        pairs = [(column, known.get(column.id, column)) for column in then]
        # Only what was inferred is read as it was stated later; to know that takes all schemas of the log.
        later = any(column.inferred and not current.inferred for column, current in pairs)
        stated = self._stated() if later else {}
        conversions: Conversions = {}
        names: dict[str, str] = {}
        dropped = []
        for column, current in pairs:
            if current.name != column.name:
                names[column.name] = current.name
            if current.dropped and not column.dropped:
                dropped.append(column.name)
                continue
            first = stated.get(column.id)
            if first is None and not current.inferred:
                first = current  # it is stated in this commit
            read = read_as(column, first)
            conversion = conversion_of(read, (current.sql_type, current.encoding))
            if conversion is not None:
                conversions[column.name] = conversion
        living = {column.name for column in now if not column.dropped}
        again = living.intersection(dropped)
        return _Way(conversions, names, dropped, again) if conversions or names or dropped else None


RowName = tuple[str, str]
"""Entity type and key."""


class Filling:
    """Fills the changes of a commit, transaction by transaction. Dropped with the commit if that fails."""

    def __init__(
        self,
        settings: IngestSettings,
        before: Callable[[RowName], KnownImage | None],
        columns: CurrentColumns,
        restating: Restating,
    ) -> None:
        """Begin with the first transaction of a commit.

        Args:
            settings: Tell the entity types whose images are filled, and those whose rows expire. A change is
                left as it was sent where its images would be larger together than a record may be.
            before: Gives the last image of a row before the commit; None if none is known, EXPIRED if the row
                has expired.
            columns: Those that hold where the commit has come to.
            restating: States images in later columns.
        """
        self._record_bytes_max = settings.max_record_bytes
        self._makes_whole = settings.makes_whole
        self._expires = settings.time_to_live
        self._before = before
        self._columns = columns
        self._restating = restating
        self._unavailable = settings.source.unavailable
        self._unknown: set[RowName] = set()
        """Removed rows of the transaction with only a known key."""
        self._gone: tuple[str, bytes | None] | None = None
        """Entity type and image of the row that the change before has removed."""
        self.incomplete = 0
        """How many records so far have an image that is not whole."""
        self.rows: dict[RowName, KnownImage | None] = {}
        """The last image of each row that the commit has touched so far; None: there is no row."""
        self.truncated: set[str] = set()
        """Entity types whose rows the commit has all removed."""

    def fill(self, changes: Sequence[Change], *, late: bool) -> list[Change]:
        """Return the changes of the next transaction with whole images, as far as they are known.

        Args:
            changes: In source order.
            late: Its rows came late, so what they lack may be what the table did not have then.
        """
        self._unknown.clear()
        self._gone = None
        filled = (
            self._filled(change, late) if self._makes_whole(change.entity_type or "") else change
            for change in changes
        )
        return [change for change in filled if change is not None]

    def count_incomplete(self, effects: Iterable[Effect]) -> int:
        """Return how many records of the transaction have an image that is not whole, and add them up."""
        count = sum(
            self._makes_whole(effect.entity_type) and self._is_incomplete(effect)
            for effect in effects
        )
        self.incomplete += count
        return count

    def _filled(self, change: Change, late: bool) -> Change | None:
        """Return a change with whole images; None if it removes a row that has expired."""
        entity_type = change.entity_type or ""
        gone, self._gone = self._gone, None
        if change.operation == TRUNCATE:
            self.rows = {row: known for row, known in self.rows.items() if row[0] != entity_type}
            self.truncated.add(entity_type)
            return change
        assert change.primary_key is not None
        row = (entity_type, change.primary_key)
        if change.operation in (UPDATE, DELETE) and self._has_expired(
            (entity_type, change.old_key or change.primary_key)
        ):
            # The row went when it expired, and cannot go again. What it is changed to is a new one.
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
            # 1. The row before: that of the key which the row had until then.
            old = row if change.old_key is None else (entity_type, change.old_key)
            if change.old_key is not None:
                before = self._removed(old, before)
                self.rows[old] = None
            elif before is None:
                before = self._earlier(old, current, names)
            elif self._unavailable.may_be_in(before):
                before = completed(before, self._earlier(old, current, names), self._unavailable)
            # 2. The row after, from it. A row before that was sent may itself lack what the last image has.
            if self._unavailable.may_be_in(after):
                after = completed(after, before, self._unavailable)
            if not late and before is not None:
                listed = (c.name for c in current if c.origin is Origin.DEBEZIUM and not c.dropped)
                after = extended(after, before, [name for name in listed if name not in names])
            if len(before or b"") + len(after) > self._record_bytes_max:
                before, after = change.before, change.after or after
        elif gone is not None and gone[0] == entity_type and self._unavailable.may_be_in(after):
            moved = completed(after, gone[1], self._unavailable)
            after = moved if len(moved) <= self._record_bytes_max else after
        self.rows[row] = KnownImage(after, current)
        return change._replace(before=before, after=after)

    def _removed(self, row: RowName, sent: bytes | None) -> bytes | None:
        """Return the image of a row that is removed: the last one; what was sent where there is none."""
        earlier = self._earlier(row, self._columns.of(row[0], ()), ())
        if earlier is None:
            if sent is None:
                self._unknown.add(row)
            return sent
        self._unknown.discard(row)
        if sent is None or not self._has_holes(earlier):
            return earlier
        return completed(sent, earlier, self._unavailable)

    def _earlier(self, row: RowName, columns: Columns, kept: Iterable[str]) -> bytes | None:
        """Return the last image of a row in the columns of now; None if it is not known."""
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
