"""The router: one pass over a batch finds the rows of all publishers.

Three kinds of publisher, by their alternatives:

* *broad* ones name no key and no column: decided per class. Which publishers take a class is
  remembered, so a batch
  costs (classes present x publishers that take them), and publishers with equal classes share one
  array.
* *keyed* ones name keys: a boolean table indexed by the key hash's top bits leaves few candidates,
  a dict of hashes
  finds their publishers, and the key itself is compared. Flat from 1 to 100,000 keys.
* the rest (columns, or a mixture) run their predicate's own ``select``.

The law: ``router.route(batch)[p]`` equals ``p.predicate.select(batch)``; a test says so for
generated criteria.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace_server.capture.matching.record_classes import RecordClass
from tailrace_server.capture.matching.run import BatchSelection, whole_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tailrace_server.capture.matching.predicate import Alternative, Images, Predicate
    from tailrace_server.capture.matching.record_classes import GroupedHead

_TABLE_BITS_MIN: Final = 12
_TABLE_BITS_MAX: Final = 22
_SLOTS_PER_KEY: Final = 16


class Router:
    """Predicates registered under integer ids, and the tables that find their matches."""

    def __init__(self) -> None:
        """Make a router without predicates."""
        self._predicates: dict[int, Predicate] = {}
        self._broad: dict[int, Predicate] = {}
        self._special: dict[int, Predicate] = {}
        self._takers: dict[RecordClass, tuple[int, ...]] = {}
        self._keys = _KeyTable()

    def __len__(self) -> int:
        """Return the number of predicates."""
        return len(self._predicates)

    @property
    def needs_images(self) -> bool:
        """Whether routing reads row images, not heads alone."""
        return any(predicate.needs_images for predicate in self._special.values())

    def add(self, id: int, predicate: Predicate) -> None:
        """Register a predicate; the next batch is routed to it."""
        assert id not in self._predicates
        self._predicates[id] = predicate
        if predicate.needs_images:
            self._special[id] = predicate
        elif all(alternative.keys for alternative in predicate.alternatives):
            self._keys.add(id, predicate)
        elif predicate.has_keys:
            self._special[id] = predicate
        else:
            self._broad[id] = predicate
            self._takers.clear()

    def remove(self, id: int) -> None:
        """Forget a predicate."""
        predicate = self._predicates.pop(id)
        if self._broad.pop(id, None) is not None:
            self._takers.clear()
        elif self._special.pop(id, None) is None:
            self._keys.remove(id, predicate)

    def route(
        self, grouped: GroupedHead, images: Images
    ) -> Iterator[tuple[int, BatchSelection | Exception]]:
        """Yield (id, what it matches) for every predicate that matches something in a batch.

        What a predicate raises takes the place of its matches, and is nobody else's trouble. Predicates may
        be added and removed while it is iterated; whether it finds those is open.
        """
        if self._broad:
            yield from self._route_broad(grouped)
        yield from self._keys.route(grouped)
        for id, predicate in tuple(self._special.items()):
            try:
                selection = predicate.select(grouped, images)
            except Exception as error:
                yield id, error
                continue
            if len(selection):
                yield id, selection

    def _route_broad(self, grouped: GroupedHead) -> Iterator[tuple[int, BatchSelection]]:
        groups = grouped.groups
        takers = [self._takers_of(key) for key, _ in groups]
        batch_rows = len(grouped.head.versions)
        if len(groups) == 1:
            for id in takers[0]:
                yield id, whole_batch(batch_rows)
            return
        taken: dict[int, list[int]] = {}
        for place, ids in enumerate(takers):
            for id in ids:
                taken.setdefault(id, []).append(place)
        joined: dict[tuple[int, ...], BatchSelection] = {}
        for id, places in taken.items():
            if id not in self._broad:
                continue
            selection = joined.get(classes := tuple(places))
            if selection is None:
                selection = self._broad[id].merge(
                    batch_rows, [groups[place][1] for place in places], set()
                )
                joined[classes] = selection
            yield id, selection

    def _takers_of(self, record_class: RecordClass) -> tuple[int, ...]:
        ids = self._takers.get(record_class)
        if ids is None:
            ids = tuple(
                id
                for id, predicate in self._broad.items()
                if any(alternative.takes(record_class) for alternative in predicate.alternatives)
            )
            self._takers[record_class] = ids
        return ids


class _KeyTable:
    """Alternatives with keys, found by hash."""

    def __init__(self) -> None:
        self._owners: dict[int, tuple[tuple[int, Alternative], ...]] = {}
        self._predicates: dict[int, Predicate] = {}
        self._typeless: dict[int, Predicate] = {}
        self._entity_types: set[str] = set()
        self._bits = _TABLE_BITS_MIN
        self._table: NDArray[np.bool_] = np.zeros(1 << self._bits, np.bool_)

    def add(self, id: int, predicate: Predicate) -> None:
        self._predicates[id] = predicate
        if any(not alternative.criteria.entity_type for alternative in predicate.alternatives):
            self._typeless[id] = predicate
        self._enter(id, predicate, self._entity_types)

    def remove(self, id: int, predicate: Predicate) -> None:
        """Forget a predicate; its slots stay set in the table and cost a look-up until it is rebuilt."""
        del self._predicates[id]
        self._typeless.pop(id, None)
        for alternative in predicate.alternatives:
            for hash in alternative.hashes(self._entity_types):
                owners = tuple(owner for owner in self._owners.get(hash, ()) if owner[0] != id)
                if owners:
                    self._owners[hash] = owners
                else:
                    self._owners.pop(hash, None)

    def route(self, grouped: GroupedHead) -> Iterator[tuple[int, BatchSelection]]:
        if not self._predicates:
            return
        head = grouped.head
        if self._typeless and not self._entity_types.issuperset(head.entity_types):
            self._learn(set(head.entity_types) - self._entity_types)
        hashes = head.key_hashes
        candidates = np.flatnonzero(self._table[hashes >> np.uint64(64 - self._bits)])
        found: dict[int, list[int]] = {}
        owners_of = self._owners
        for row, hash in zip(candidates.tolist(), hashes[candidates].tolist(), strict=True):
            owners = owners_of.get(hash)
            if owners is None:
                continue
            record_class = _class_of(grouped, row)
            for id, alternative in owners:
                if alternative.takes(record_class) and alternative.has_key(head, row):
                    found.setdefault(id, []).append(row)
        self._add_truncates(grouped, found)
        for id, rows in found.items():
            if id in self._predicates:
                offsets = np.array(sorted(set(rows)), np.int32)
                yield id, self._predicates[id].merge(len(hashes), [offsets], set())

    def _add_truncates(self, grouped: GroupedHead, found: dict[int, list[int]]) -> None:
        """Give truncates (null key) to every key of their entity type."""
        head = grouped.head
        for row in np.flatnonzero((head.key_hashes == 0) & (head.type_codes >= 0)).tolist():
            record_class = _class_of(grouped, row)
            for id, predicate in self._predicates.items():
                if any(alternative.takes(record_class) for alternative in predicate.alternatives):
                    found.setdefault(id, []).append(row)

    def _learn(self, entity_types: set[str]) -> None:
        self._entity_types |= entity_types
        for id, predicate in self._typeless.items():
            self._enter(id, predicate, entity_types)

    def _enter(self, id: int, predicate: Predicate, entity_types: set[str]) -> None:
        entered: list[int] = []
        for alternative in predicate.alternatives:
            for hash in alternative.hashes(entity_types):
                owner = (id, alternative)
                owners = self._owners.get(hash, ())
                if owner not in owners:
                    self._owners[hash] = (*owners, owner)
                    entered.append(hash)
        if len(self._owners) * _SLOTS_PER_KEY > len(self._table) and self._bits < _TABLE_BITS_MAX:
            self._rebuild()
        elif entered:
            self._table[np.array(entered, np.uint64) >> np.uint64(64 - self._bits)] = True

    def _rebuild(self) -> None:
        while self._bits < _TABLE_BITS_MAX and len(self._owners) * _SLOTS_PER_KEY > 1 << self._bits:
            self._bits += 2
        self._table = np.zeros(1 << self._bits, np.bool_)
        hashes = np.fromiter(self._owners, np.uint64, len(self._owners))
        self._table[hashes >> np.uint64(64 - self._bits)] = True


def _class_of(grouped: GroupedHead, row: int) -> RecordClass:
    head = grouped.head
    code = int(head.type_codes[row])
    name = head.entity_types[code] if code >= 0 else None
    return RecordClass(int(head.areas[row]), int(head.operations[row]), name)
