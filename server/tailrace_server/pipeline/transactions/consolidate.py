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

A source may send the first change without ``before``; then ``before`` is unknown and null. An update then names
every column of ``after`` as changed, since any of them may be. An insert names none, so the two are told apart,
and a reader sees that the earlier values are not known.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.criteria import Operation
from tailrace_server.pipeline.changes import DELETE, INSERT, READ, TRUNCATE, Change
from tailrace_server.pipeline.images import completed, difference, members, projection
from tailrace_server.wal.record.unavailable import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Iterable

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


class _Row:
    """What is known of a row so far."""

    __slots__ = ("after", "before", "existed", "exists")

    def __init__(self, existed: bool, before: bytes | None) -> None:
        self.existed = existed
        self.before = before
        self.exists = False
        self.after: bytes | None = None


def consolidate(changes: Iterable[Change], unavailable: Unavailable = DEFAULT) -> list[Effect]:
    """Return the net effects of the changes of one transaction, given in source order.

    Their order is the index order of the version's records, from 1.

    Args:
        changes: The changes.
        unavailable: Tells values that the source did not send.
    """
    # `rows` has every row that was touched, in the order of their last changes. A truncate stands in it
    # as a row without a key.
    rows: dict[tuple[str, str | None], _Row] = {}
    touch = partial(_touch, rows, unavailable)
    for change in changes:
        entity_type = change.entity_type
        assert entity_type is not None
        if change.operation == TRUNCATE:
            # What came before is forgotten, not removed row by row: the rows that the transaction did not
            # touch are gone as well, and nobody knows their keys.
            for key in [key for key in rows if key[0] == entity_type]:
                del rows[key]
            rows[entity_type, None] = _Row(existed=True, before=None)
        elif change.old_key is not None:
            # The image must be completed before the old row is touched, which takes its image away.
            moved, after = rows.get((entity_type, change.old_key)), change.after
            if after is not None:
                earlier = change.before if moved is None else moved.after
                after = completed(after, earlier, unavailable)
            touch(entity_type, change.old_key, True, change.before, exists=False, after=None)
            touch(entity_type, change.primary_key, False, None, exists=True, after=after)
        else:
            touch(
                entity_type,
                change.primary_key,
                change.operation not in (INSERT, READ),
                change.before,
                exists=change.operation != DELETE,
                after=change.after if change.operation != DELETE else None,
            )
    effects = (_effect(key, row, unavailable) for key, row in rows.items())
    return [effect for effect in effects if effect is not None]


def _touch(
    rows: dict[tuple[str, str | None], _Row],
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
    if row is None:
        row = _Row(existed, before if existed else None)
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
    if row.before is None:
        changed = difference({}, members(row.after), unavailable) if row.existed else None
        return Effect(entity_type, primary_key, Operation.UPSERT, changed, after=row.after)
    if row.before == row.after:
        return None
    after = members(row.after)
    changed = difference(members(row.before), after, unavailable)
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
