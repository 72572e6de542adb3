"""Rows of a transaction that spans a change of the schema, as the last listing of their columns writes them.

A version has one schema, and its images are compared with each other. PostgreSQL can alter a table within a
transaction, so that rows before the change are written otherwise than those after it::

    rows         u 1    u 1    │ alter │    u 1    c 2
    listing       A                          B             A: price in decimal.bytes(2), B: in decimal.bytes(4)
    restated      B      B                   B      B      exact, or the value counts as not sent

Rows say their listing where it is not that of the row before, in the same file (`column_listing`). A value
without an exact form in the last listing counts in ``before`` as not sent. In ``after`` it refuses the row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tailrace_server.pipeline.changes import arrival, line_of
from tailrace_server.pipeline.column_listing import announced
from tailrace_server.pipeline.images import hidden, members
from tailrace_server.wal.schema.column_types import joined
from tailrace_server.wal.schema.restating import restated_image

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from tailrace_server.pipeline.changes import Change
    from tailrace_server.wal.record.unavailable import Unavailable
    from tailrace_server.wal.schema.restating import Conversions


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
