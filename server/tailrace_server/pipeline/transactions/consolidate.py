"""The net effect of a transaction on each row.

A transaction may touch a row often; readers get one record of it. For each row only this counts::

                        exists after            does not
    existed before      update, or nothing      REMOVE, before from the first
                        if both are equal
    did not             insert: only after      nothing

The record takes the place of the row's last change, ``before`` comes from the first, ``after`` from
the last, and ``changed`` is the difference of the two. A change of the key is the removal of the
old row and the insertion of the new one at one place. A truncate ends all rows of its entity type:
what the transaction did to them before is gone, what it does after is new; it is one REMOVE without
a key.

An update may carry a marker in place of a large value that it did not touch. The value is then taken from the
row's last image in the transaction. Else the marker would hide what an earlier change wrote.

Rows of a table without a key are counted: of each only the sum of what came and went stays.

A source may send the first change without ``before``; then ``before`` is unknown and null. An update then names
every column of ``after`` as changed, since any of them may be. An insert names none, so the two differ, and a
reader sees that the earlier values are unknown.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.criteria import Operation
from tailrace_server.pipeline.input.change import DELETE, INSERT, READ, TRUNCATE, UPDATE, Change
from tailrace_server.pipeline.input.images import completed, difference, members, projection
from tailrace_server.wal.record.unavailable import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tailrace_server.wal.record.unavailable import Unavailable

TRUNCATED: Final = b'{"truncate": true}'
"""`change` of the record that says that every row of an entity type is gone."""


class Effect(NamedTuple):
    """One record of a transaction, without its place."""

    entity_type: str
    primary_key: str | None
    operation: Operation
    changed: list[str] | None = None
    change: bytes | None = None
    before: bytes | None = None
    after: bytes | None = None
    diff: int | None = None
    """How many equal rows came or went, of a table whose rows are counted; then ``after`` is the row, and
    what the record says follows from its count (`row_counts`)."""


class _Row:
    """The known values of a row so far."""

    __slots__ = ("after", "before", "existed", "exists", "is_anew")

    def __init__(self, existed: bool, before: bytes | None) -> None:
        self.existed = existed
        self.before = before
        self.exists = False
        self.after: bytes | None = None
        self.is_anew = False
        """The row was removed and made again: what is not sent of it is not what it was before."""


class _CountedRow:
    """How many equal rows have come so far."""

    __slots__ = ("diff", "image")

    def __init__(self, image: bytes) -> None:
        self.diff = 0
        self.image = image

    def effect(self, entity_type: str, primary_key: str | None) -> Effect | None:
        """Return what the transaction did to the row's count; None if nothing."""
        if not self.diff:
            return None
        effect = Effect(entity_type, primary_key, Operation.UPSERT, after=self.image)
        return effect._replace(diff=self.diff)


def consolidate(
    changes: Iterable[Change],
    unavailable: Unavailable = DEFAULT,
    counted: Callable[[str], bool] = lambda _: False,
) -> list[Effect]:
    """Return the net effects of the changes of one transaction, given in source order.

    Their order is the index order of the version's records, from 1.

    Args:
        changes: The changes.
        unavailable: Tells values that the source did not send.
        counted: Tells the entity types whose rows are counted, as their key is the whole row.
    """
    # `rows` has every row that was touched, in the order of their last changes. A truncate stands in it
    # as a row without a key.
    rows: dict[tuple[str, str | None], _Row | _CountedRow] = {}
    touch = partial(_touch, rows, unavailable)
    gone: tuple[str, bytes | None] | None = None  # the row that the change before has removed
    for change in changes:
        entity_type = change.entity_type
        assert entity_type is not None
        moved_from, gone = gone, None
        if change.operation == TRUNCATE:
            # What came before is forgotten, not removed row by row: the rows that the transaction did not
            # touch are gone as well, and nobody knows their keys.
            for key in [key for key in rows if key[0] == entity_type]:
                del rows[key]
            rows[entity_type, None] = _Row(existed=True, before=None)
        elif counted(entity_type):
            _count(rows, entity_type, change, unavailable)
        elif change.old_key is not None:
            # The image must be completed before the old row is touched, which takes its image away.
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
                # Connectors send a change of the key as a removal and an insert, without the large values
                # that it did not touch. An insert lacks none otherwise.
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
    """Count a change of a row that is its own key."""
    gone = change.primary_key if change.operation == DELETE else change.old_key
    came = None if change.operation == DELETE else change.primary_key
    if change.operation == UPDATE and gone is None:
        return  # it is the row that it was
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
    key = (entity_type, primary_key)
    row = rows.pop(key, None)  # popped and put back: a dict keeps the order of last changes
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
