"""The net effect of a transaction on each row.

A transaction may change a row several times; readers get one record for it. The record depends only on whether
the row exists before and after the transaction::

                        exists after            does not
    existed before      update, or nothing      REMOVE, before from the first
                        if both are equal
    did not             insert: only after      nothing

The record takes the place of the row's last change. Its ``before`` is that of the first change, its ``after``
that of the last, and ``changed`` lists the columns that differ between the two. A change of the key counts as
the removal of the old row and the insertion of the new row, at the same place. A truncate removes all rows of
its entity type by one REMOVE without a key. It discards the transaction's earlier changes of these rows; later
changes are insertions into an empty table.

An update may have a placeholder instead of a large value that it did not change. The value is then taken from
the row's last image in the transaction. Otherwise the placeholder would hide what an earlier change wrote.

Rows of a table without a key are counted: each distinct row has one effect, its insertions minus its removals.

A source may send the first change without ``before``. Then ``before`` is null, because it is unknown. An update
then lists every column of ``after`` as changed, because each of them may have changed. An insert lists no
column. So a reader can distinguish an update with unknown earlier values from an insert.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.criteria import Operation
from tailrace_server.pipeline.input.change import DELETE, INSERT, READ, TRUNCATE, UPDATE, Change
from tailrace_server.wal.record.images import completed, difference, members, projection
from tailrace_server.wal.record.unavailable import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tailrace_server.wal.record.unavailable import Unavailable

TRUNCATED: Final = b'{"truncate": true}'
"""The ``change`` of the record that removes every row of an entity type."""


class Effect(NamedTuple):
    """One record of a transaction, without its index."""

    entity_type: str
    primary_key: str | None
    operation: Operation
    changed: list[str] | None = None
    change: bytes | None = None
    before: bytes | None = None
    after: bytes | None = None
    diff: int | None = None
    """Insertions minus removals of equal rows, for a table whose rows are counted; else None. ``after`` is then
    the row itself, and `row_counts` derives the final record from the row's count."""


class _Row:
    """The state of one row during a transaction."""

    __slots__ = ("after", "before", "existed", "exists", "is_anew")

    def __init__(self, existed: bool, before: bytes | None) -> None:
        self.existed = existed
        self.before = before
        self.exists = False
        self.after: bytes | None = None
        self.is_anew = False
        """True if the row was removed and inserted again; a value that was not sent is then unknown."""


class _CountedRow:
    """The insertions minus removals of equal rows during a transaction."""

    __slots__ = ("diff", "image")

    def __init__(self, image: bytes) -> None:
        self.diff = 0
        self.image = image

    def effect(self, entity_type: str, primary_key: str | None) -> Effect | None:
        """Return the transaction's effect on the row's count; None if the count is unchanged."""
        if not self.diff:
            return None
        effect = Effect(entity_type, primary_key, Operation.UPSERT, after=self.image)
        return effect._replace(diff=self.diff)


def consolidate(
    changes: Iterable[Change],
    unavailable: Unavailable = DEFAULT,
    counted: Callable[[str], bool] = lambda _: False,
) -> list[Effect]:
    """Return the net effects of one transaction, in the order of the version's records from index 1.

    Args:
        changes: The changes of the transaction, in source order.
        unavailable: Recognizes placeholders for values that the source did not send.
        counted: Returns True for entity types whose rows are counted because they have no key.
    """
    # Invariant: `rows` has every changed row, in the order of the last changes. A truncate is in it as a row
    # without a key.
    rows: dict[tuple[str, str | None], _Row | _CountedRow] = {}
    touch = partial(_touch, rows, unavailable)
    gone: tuple[str, bytes | None] | None = None  # the row that the previous change removed
    for change in changes:
        entity_type = change.entity_type
        assert entity_type is not None
        moved_from, gone = gone, None
        if change.operation == TRUNCATE:
            # Discard earlier changes instead of removing row by row: the truncate also removes rows that this
            # transaction did not change, and their keys are unknown.
            for key in [key for key in rows if key[0] == entity_type]:
                del rows[key]
            rows[entity_type, None] = _Row(existed=True, before=None)
        elif counted(entity_type):
            _count(rows, entity_type, change, unavailable)
        elif change.old_key is not None:
            # Complete the image before the old row is removed, because the removal drops the old row's image.
            moved, after = rows.get((entity_type, change.old_key)), change.after
            assert not isinstance(moved, _CountedRow)
            if after is not None:
                earlier = change.before if moved is None else moved.after
                after = completed(after, earlier, unavailable)
            touch(entity_type, change.old_key, True, change.before, exists=False, after=None)
            touch(entity_type, change.primary_key, False, None, exists=True, after=after)
        elif change.operation == DELETE:
            row = rows.get((entity_type, change.primary_key))
            known = row.after if isinstance(row, _Row) else None
            gone = entity_type, change.before if known is None else known
            touch(entity_type, change.primary_key, True, change.before, exists=False, after=None)
        else:
            new, after = change.operation in (INSERT, READ), change.after
            if (
                new
                and after is not None
                and moved_from is not None
                and moved_from[0] == entity_type
            ):
                # Connectors send a change of the key as a removal followed by an insert, and the insert lacks
                # the large values that did not change. Only such an insert can lack values.
                after = completed(after, moved_from[1], unavailable)
            touch(entity_type, change.primary_key, not new, change.before, exists=True, after=after)
    effects = (
        _effect(key, row, unavailable) if isinstance(row, _Row) else row.effect(*key)
        for key, row in rows.items()
    )
    return [effect for effect in effects if effect is not None]


def _count(
    rows: dict[tuple[str, str | None], _Row | _CountedRow],
    entity_type: str,
    change: Change,
    unavailable: Unavailable,
) -> None:
    """Add a change to the counts of a table without a key; the whole row is the key."""
    gone = change.primary_key if change.operation == DELETE else change.old_key
    came = None if change.operation == DELETE else change.primary_key
    if change.operation == UPDATE and gone is None:
        return  # an update that leaves the row as it was
    after = (
        change.after
        if change.after is None
        else completed(change.after, change.before, unavailable)
    )
    for key, image, diff in ((gone, change.before, -1), (came, after, 1)):
        if key is None:
            continue
        assert image is not None
        row = rows.pop((entity_type, key), None)
        if not isinstance(row, _CountedRow):
            row = _CountedRow(image)
        row.diff += diff
        rows[entity_type, key] = row


def _touch(
    rows: dict[tuple[str, str | None], _Row | _CountedRow],
    unavailable: Unavailable,
    entity_type: str,
    primary_key: str | None,
    existed: bool,
    before: bytes | None,
    *,
    exists: bool,
    after: bytes | None,
) -> None:
    """Record that a change makes the row exist, with image ``after``, or removes it.

    ``existed`` and ``before`` count only at the first change of the row.
    """
    key = (entity_type, primary_key)
    row = rows.pop(key, None)  # popped and put back: so the dict is in the order of last changes
    # Only the first change of a row tells if the row existed before the transaction, and its image then.
    if not isinstance(row, _Row):
        row = _Row(existed, before if existed else None)
    elif not row.exists:
        row.is_anew = True
    elif after is not None:
        after = completed(after, row.after, unavailable)
    row.exists = exists
    row.after = after
    rows[key] = row


def _effect(key: tuple[str, str | None], row: _Row, unavailable: Unavailable) -> Effect | None:
    entity_type, primary_key = key
    if primary_key is None:
        return Effect(entity_type, None, Operation.REMOVE, change=TRUNCATED)
    if not row.exists:
        if not row.existed:
            return None
        return Effect(entity_type, primary_key, Operation.REMOVE, before=row.before)
    if row.after is None:
        return Effect(entity_type, primary_key, Operation.UPSERT)
    after = members(row.after)
    # Unknown earlier values: an update lists every column that was sent, an insert lists none.
    if row.before is None:
        differing = difference({}, after, unavailable, anew=row.is_anew)
        changed = differing if row.existed else None
        return Effect(entity_type, primary_key, Operation.UPSERT, changed, after=row.after)
    changed = difference(members(row.before), after, unavailable, anew=row.is_anew)
    if not changed:
        return None
    return Effect(
        entity_type,
        primary_key,
        Operation.UPSERT,
        changed=changed,
        change=projection(after, changed),
        before=row.before,
        after=row.after,
    )
