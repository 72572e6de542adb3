"""The demo's final check: each subscriber must have received exactly the captures that match in the log.

The check is a simple model that does not use the engine. It tests each record of the log, in order, against
each subscriber's criteria. The subscribers must have printed the same list of captures, and the log must equal
the source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from tailrace.criteria import COLUMN_TYPES, Area, Operation
from tailrace_server.sample_shop.topics import net_changes
from tailrace_server.wal.segment.reader import BatchReader
from tailrace_server.wal.state.commit_log import CommitLog

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tailrace.criteria import Criteria
    from tailrace_server.demo.watchers import Watcher
    from tailrace_server.sample_shop.topics import Feed


@dataclass(frozen=True, slots=True)
class LogRow:
    """A record of the log."""

    version: int
    index: int
    area: Area
    operation: Operation
    entity_type: str | None
    primary_key: str | None
    changed: list[str] | None
    before: bytes | None
    after: bytes | None
    ordinals: dict[str, int]
    """Column of the entity type → its ordinal, in the schema of the record's version."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of comparing one subscriber with the log."""

    expected: int
    received: int
    missing: int
    repeated: int
    in_order: bool
    exact: bool
    """True if the subscriber received the expected captures, with the same images and in the same order."""


@dataclass(frozen=True, slots=True)
class LogFacts:
    """The contents of the log at the end of the demo."""

    rows: list[LogRow]
    published: int
    committed: int
    entries: int


def read_log(catalog: Path) -> LogFacts:
    """Return every published record of a catalog, and its versions."""
    view = CommitLog.open(catalog).view
    rows: list[LogRow] = []
    with BatchReader(catalog) as reader:
        for place in range(len(view)):
            ref = view.batch(place)
            head = reader.head(ref)
            bodies = reader.body(ref, ("before", "after"))
            names = head.entity_types
            columns = zip(
                *(head.versions.tolist(), head.indexes.tolist(), head.areas.tolist()),
                *(head.operations.tolist(), head.type_codes.tolist()),
                *(head.primary_keys.to_pylist(), head.changed.to_pylist()),
                *(bodies["before"].to_pylist(), bodies["after"].to_pylist()),
                strict=True,
            )
            for version, index, area, operation, code, key, changed, before, after in columns:
                entity_type = names[code] if code >= 0 else None
                ordinals = view.schema_of(version).ordinals(entity_type or "")
                rows.append(
                    LogRow(
                        *(version, index, Area(area), Operation(operation), entity_type, key),
                        *(changed, before, after, ordinals),
                    )
                )
    return LogFacts(rows, view.published, view.committed, view.entry)


def judge(watcher: Watcher, rows: Sequence[LogRow]) -> Verdict:
    """Compare the captures that a subscriber received with the filtered log."""
    expected = [
        ((row.version, row.index, ordinal), hash(row.after))
        for row in rows
        for ordinal in _matches(row, watcher.criteria)
    ]
    places = [place for place, _ in expected]
    received = watcher.received
    distinct = set(received)
    # Images are compared only for captures of whole entities, which have ordinal 0.
    images_equal = all(
        place[2] or image == found
        for (place, image), found in zip(expected, watcher.images, strict=False)
    )
    return Verdict(
        expected=len(places),
        received=len(received),
        missing=len(set(places) - distinct),
        repeated=len(received) - len(distinct),
        in_order=received == sorted(received),
        exact=received == places and images_equal,
    )


def differs_from_source(feed: Feed, facts: LogFacts) -> str | None:
    """Return a text about the first difference between the log and the source; None if they are equal."""
    if facts.published != len(feed.transactions):
        return f"{facts.published:,} versions for {len(feed.transactions):,} transactions"
    versions: dict[int, list[tuple[str | None, str | None, bytes | None, bytes | None]]] = {}
    for row in facts.rows:
        if row.area is Area.DATA:
            change = (row.entity_type, row.primary_key, row.before, row.after)
            versions.setdefault(row.version, []).append(change)
    for version, transaction in enumerate(feed.transactions, 1):
        wanted = [
            (each.entity_type, each.primary_key, _bytes(each.before), _bytes(each.after))
            for each in net_changes(transaction)
        ]
        found = versions.get(version, [])
        if sorted(map(repr, wanted)) != sorted(map(repr, found)):
            return f"version {version:,} holds other changes than its transaction"
    return None


def _matches(row: LogRow, criteria: tuple[Criteria, ...]) -> Iterator[int]:
    """Yield the ordinals of a record's captures for some criteria, in ascending order, each once."""
    if not criteria:
        yield 0
        return
    yield from sorted({ordinal for each in criteria for ordinal in _ordinals(row, each)})


def _ordinals(row: LogRow, wish: Criteria) -> Iterator[int]:
    if (
        (wish.area is not None and row.area is not wish.area)
        or (wish.operation and row.operation not in wish.operation)
        or (wish.entity_type and row.entity_type not in wish.entity_type)
        or (wish.primary_key and row.primary_key not in (None, *wish.primary_key))
    ):
        return
    if wish.wants_entities:
        yield 0
    if wish.wants_columns and row.area is Area.DATA and row.operation is Operation.UPSERT:
        # The demo's feeds declare no roles, so all columns are attributes, and every requested role matches.
        assert not COLUMN_TYPES.intersection(wish.container_type)
        touched = row.changed if row.changed is not None else _columns(row.after)
        for name in touched:
            if not wish.container_name or name in wish.container_name:
                yield row.ordinals[name]


def _columns(image: bytes | None) -> list[str]:
    return [] if image is None else list(msgspec.json.decode(image, type=dict[str, msgspec.Raw]))


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
