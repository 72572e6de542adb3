"""The router: one pass over a batch finds the matching rows of all publishers.

The router matches an alternative of a publisher's criteria in one of two ways:

* *by class*, if the alternative names no key. The router remembers which publishers match a class, so a batch
  costs (its classes x publishers that match them). Publishers that match the same classes share one array.
* *by key*, if the alternative names keys. A table of booleans, by the top bits of key hashes, leaves few
  candidates. A dict of hashes has their publishers. Then the key itself is compared. The cost does not grow
  from 1 to 100,000 keys.

A publisher may have alternatives of both kinds, for instance if a grant of one key narrows a request without
keys; it receives the matches of both. A publisher whose criteria need images (columns, conditions) runs the
``select`` of its predicate, or uses the index of conditions.

For each publisher the router finds exactly what ``select`` of its predicate returns; a test compares both for
generated criteria.
"""

from __future__ import annotations

from contextlib import suppress
from time import thread_time_ns
from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace_server.live.decoded_batch import DecodedBatch
from tailrace_server.live.index.condition_index import ConditionIndex
from tailrace_server.live.index.grouped_matches import GroupedMatches
from tailrace_server.live.routing_cost import EvaluationCost, SharedCost
from tailrace_server.rows.judging import all_show
from tailrace_server.rows.record_classes import RecordClass
from tailrace_server.rows.run import BatchSelection, whole_batch

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from numpy.typing import NDArray

    from tailrace_server.live.index.condition_index import Hits
    from tailrace_server.live.index.lookup_terms import ConditionKind
    from tailrace_server.rows.batch_images import Images
    from tailrace_server.rows.predicate import Alternative, Predicate
    from tailrace_server.rows.record_classes import GroupedHead
    from tailrace_server.rows.row_condition import RowCondition

    _Alike = tuple[Hits, ConditionKind, bytes | None]
    """Key of a group: conditions of one kind in one lookup, for readers with the same visible columns."""

_TABLE_BITS_MIN: Final = 12
_TABLE_BITS_MAX: Final = 22
_SLOTS_PER_KEY: Final = 16


class Router:
    """All predicates by integer id, and the tables that find their matches."""

    def __init__(self) -> None:
        """Make a router without predicates."""
        self._predicates: dict[int, Predicate] = {}
        self._broad: dict[int, tuple[Alternative, ...]] = {}
        """The alternatives without keys, by predicate; a predicate may have alternatives with keys too."""
        self._selecting: dict[int, Predicate] = {}
        """The predicates that need images."""
        self._always: dict[int, None] = {}
        """The predicates of ``_selecting`` with an alternative without a condition; the index cannot rule them
        out."""
        self._conditions: dict[str, ConditionIndex] = {}
        """The index of the conditions of all predicates, by entity type."""
        self._shared: dict[str, SharedCost] = {}
        """The cost that the conditions of an entity type share, by entity type."""
        self._costs: dict[int, EvaluationCost] = {}
        """The cost of each predicate that has conditions."""
        self._ids_by_class: dict[RecordClass, tuple[int, ...]] = {}
        self._keys = _KeyTable()

    def __len__(self) -> int:
        """Return the number of predicates."""
        return len(self._predicates)

    @property
    def images(self) -> tuple[str, ...]:
        """The kinds of images that some predicate needs; empty if none needs images."""
        return max(
            (predicate.images for predicate in self._selecting.values()), key=len, default=()
        )

    def add(self, id: int, predicate: Predicate) -> EvaluationCost:
        """Register a predicate for the next batches, and return the account of its conditions' cost."""
        # A predicate that needs images cannot use the tables, which know classes and key hashes only.
        assert id not in self._predicates
        self._predicates[id] = predicate
        if predicate.needs_images:
            self._selecting[id] = predicate
            return self._add_conditions(id, predicate)
        if predicate.has_keys:
            self._keys.add(id, predicate)
        broad = tuple(each for each in predicate.alternatives if not each.keys)
        if broad:
            self._broad[id] = broad
            self._ids_by_class.clear()
        return EvaluationCost()

    def remove(self, id: int) -> None:
        """Forget a predicate."""
        predicate = self._predicates.pop(id)
        if self._selecting.pop(id, None) is not None:
            self._remove_conditions(id, predicate)
            return
        if self._broad.pop(id, None) is not None:
            self._ids_by_class.clear()
        if predicate.has_keys:
            self._keys.remove(id, predicate)

    def _add_conditions(self, id: int, predicate: Predicate) -> EvaluationCost:
        asked = _conditions_of(predicate)
        for name, condition in asked:
            self._conditions.setdefault(name, ConditionIndex()).add(condition, id)
        if len(asked) < len(predicate.alternatives):
            self._always[id] = None
        names = dict.fromkeys(name for name, _ in asked)
        cost = EvaluationCost(self._shared.setdefault(name, SharedCost()) for name in names)
        if cost:
            self._costs[id] = cost
        return cost

    def _remove_conditions(self, id: int, predicate: Predicate) -> None:
        self._always.pop(id, None)
        if (cost := self._costs.pop(id, None)) is not None:
            cost.end()
        for name, condition in _conditions_of(predicate):
            index = self._conditions.get(name)
            if index is not None:
                index.remove(condition, id)
                if not len(index):
                    del self._conditions[name], self._shared[name]

    def decoded(self, grouped: GroupedHead, images: Images) -> DecodedBatch | None:
        """Return the images that conditions need, not decoded yet; None if there is no condition.

        Any thread may decode them.
        """
        if not self._conditions:
            return None
        columns = {name: index.columns for name, index in self._conditions.items()}
        return DecodedBatch(grouped.head, images, columns)

    def route(
        self, grouped: GroupedHead, images: Images, decoded: DecodedBatch | None = None
    ) -> Iterator[tuple[int, BatchSelection | Exception]]:
        """Yield (id, captures) for every predicate that matches something in a batch.

        ``decoded`` are the images that conditions need, if they are decoded already. A predicate that had to
        read images is also yielded without captures: that was work, after which the caller may yield to other
        tasks.

        An exception of a predicate is yielded in place of its captures, and the others continue. Predicates may
        be added and removed during the iteration, which may yield these or not.
        """
        # 1. The cheap kinds come first, so that their publishers are served before any image is parsed. A
        #    predicate with matches by key and alternatives by class is yielded once, after those by class.
        by_key = self._keys.rows(grouped)
        both: dict[int, list[NDArray[np.int32]]] = {}
        if self._broad:
            yield from self._route_broad(grouped, by_key, both)
        batch_rows = len(grouped.head.versions)
        for id, rows in by_key.items():
            predicate = self._predicates.get(id)
            if predicate is not None:  # else removed during the iteration
                found = [np.array(sorted(set(rows)), np.int32), *both.get(id, ())]
                if predicate.shown is not None:
                    found = [predicate.shown.kept(grouped.head, each) for each in found]
                selection = predicate.merge(batch_rows, found, set())
                if len(selection):
                    yield id, selection
        # 2. Predicates with conditions. Where the index has the answer, no condition is evaluated.
        looking = dict(self._always)
        if self._conditions:
            decoded = decoded or DecodedBatch(
                grouped.head,
                images,
                {name: index.columns for name, index in self._conditions.items()},
            )
            decoded.decode()  # before the lookups, so that its cost is shared by all conditions
            for code in self._find(grouped, decoded):
                yield from self._route_found(decoded, code, looking)
        # 3. Predicates with columns, and those whose conditions have to be evaluated on rows.
        for id in looking:
            predicate = self._selecting.get(id)
            if predicate is None:
                continue  # removed during the iteration
            cost = self._costs.get(id)
            begun = 0 if cost is None else thread_time_ns()
            outcome: BatchSelection | Exception
            try:
                outcome = predicate.select(grouped, images, decoded)
            except Exception as error:
                outcome = error
            if cost is not None:
                cost.own_ns += thread_time_ns() - begun
            yield id, outcome

    def _find(self, grouped: GroupedHead, decoded: DecodedBatch) -> list[int]:
        """Look up the batch in the indexes, and return the codes of the entity types that have an index."""
        codes = []
        for code, name in enumerate(grouped.head.entity_types):
            index = self._conditions.get(name)
            if index is None or not decoded.has(code):
                continue
            codes.append(code)
            if decoded.has_rows(code):
                typed = decoded.of(code)
                begun = thread_time_ns()
                decoded.found[code] = index.find(typed)
                decoding_ns, image_bytes = decoded.cost(code)
                self._shared[name].add(decoding_ns + thread_time_ns() - begun, image_bytes)
        return codes

    def _route_found(
        self, decoded: DecodedBatch, code: int, looking: dict[int, None]
    ) -> Iterator[tuple[int, BatchSelection | Exception]]:
        """Yield the matches that the index of an entity type has found.

        Predicates that must be evaluated on rows are added to ``looking``.
        """
        # 1. The index does not decide for truncates, nor for changes whose images have expired. If the batch
        # has
        #    any of the type, evaluate all its predicates.
        found = decoded.found.get(code)
        if found is None or not decoded.are_rows(code):
            looking.update(dict.fromkeys(self._conditions[decoded.entity_type(code)].ids))
            return
        for one in found.whole:
            looking.update(one.ids)
        # 2. For a predicate that is only the condition, the rows of the index are the matches. Any other
        #    predicate must be evaluated. Group the former by lookup, kind and visible columns.
        groups: dict[_Alike, list[tuple[int, Predicate, Sequence[int]]]] = {}
        for one, hits in found:
            for id in one.ids:
                predicate = self._selecting[id]
                if hits is None or one.kind is None or not predicate.is_condition:
                    looking[id] = None
                    continue
                shown = predicate.shown
                alike = hits, one.kind, None if shown is None else shown.identity
                groups.setdefault(alike, []).append((id, predicate, hits.numbers[one]))
        for (hits, kind, _), asking in groups.items():
            matches = self._grouped_matches(decoded, code, hits, kind, asking)
            if matches is None:
                looking.update(dict.fromkeys(id for id, _, _ in asking))
                continue
            for id, predicate, numbers in asking:
                cost = None if matches.is_shared else self._costs.get(id)
                begun = 0 if cost is None else thread_time_ns()
                try:
                    rows, codes = matches.of(numbers)
                except Exception as error:
                    yield id, error
                    continue
                if cost is not None:
                    cost.own_ns += thread_time_ns() - begun
                if len(rows):
                    yield id, BatchSelection(predicate.identity, rows, transitions=codes)

    def _grouped_matches(
        self,
        decoded: DecodedBatch,
        code: int,
        hits: Hits,
        kind: ConditionKind,
        asking: Sequence[tuple[int, Predicate, Sequence[int]]],
    ) -> GroupedMatches | None:
        """Return the matches of predicates that differ only in a value; None if they must be evaluated."""
        begun = thread_time_ns()
        typed, shown = decoded.of(code), asking[0][1].shown
        matches: GroupedMatches | None = None
        rights = () if shown is None else shown.rules_of(typed.entity_type)
        if not kind.asked or all_show(rights, typed.names_of(kind.asked)):
            with suppress(Exception):  # each predicate raises the error when it is evaluated alone
                matches = GroupedMatches(decoded.head, typed, hits, kind, shown, len(asking))
        shared = self._shared.get(decoded.entity_type(code))
        if shared is not None:  # else all its predicates were removed during the iteration
            shared.add(thread_time_ns() - begun, 0)
        return matches

    def _route_broad(
        self,
        grouped: GroupedHead,
        by_key: Container[int],
        both: dict[int, list[NDArray[np.int32]]],
    ) -> Iterator[tuple[int, BatchSelection]]:
        """Yield the matches by class; those of publishers that are also in ``by_key`` go into ``both``."""
        groups = grouped.groups
        ids_by_group = [self._ids_taking(key) for key, _ in groups]
        batch_rows = len(grouped.head.versions)
        # 1. Turn (ids by class) into (classes by id), as places in `groups`.
        groups_by_id: dict[int, tuple[int, ...]]
        if len(groups) == 1:
            groups_by_id = dict.fromkeys(ids_by_group[0], (0,))
        else:
            places_by_id: dict[int, list[int]] = {}
            for place, ids in enumerate(ids_by_group):
                for id in ids:
                    places_by_id.setdefault(id, []).append(place)
            groups_by_id = {id: tuple(places) for id, places in places_by_id.items()}
        # 2. Join the rows of each combination of classes once: a thousand publishers whose criteria are equal
        #    for this batch share one selection, with the first publisher's identity and so the same frames.
        #    Publishers that may see only part of the records have a selection of their own.
        joined: dict[tuple[tuple[int, ...], bytes | None], BatchSelection] = {}
        for id, places in groups_by_id.items():
            predicate = self._predicates.get(id)
            if predicate is None:
                continue  # removed during the iteration
            if id in by_key:
                both[id] = [groups[place][1] for place in places]
                continue
            shown = predicate.shown
            kind = places, None if shown is None else shown.identity
            selection = joined.get(kind)
            if selection is None:
                selection = joined[kind] = _joined(grouped, places, predicate, batch_rows)
            if len(selection):
                yield id, selection

    def _ids_taking(self, record_class: RecordClass) -> tuple[int, ...]:
        # Cached until a predicate with alternatives by class is added or removed.
        ids = self._ids_by_class.get(record_class)
        if ids is None:
            ids = tuple(
                id
                for id, alternatives in self._broad.items()
                if any(alternative.takes(record_class) for alternative in alternatives)
            )
            self._ids_by_class[record_class] = ids
        return ids


def _conditions_of(predicate: Predicate) -> tuple[tuple[str, RowCondition], ...]:
    """Return the entity type and condition of each alternative that has a condition."""
    return tuple(
        (each.criteria.entity_type[0], each.condition)
        for each in predicate.alternatives
        if each.condition is not None
    )


def _joined(
    grouped: GroupedHead, places: tuple[int, ...], predicate: Predicate, batch_rows: int
) -> BatchSelection:
    """Return the matches of a predicate in some classes of a batch."""
    if predicate.shown is None and len(places) == len(grouped.groups) == 1:
        return whole_batch(batch_rows)  # no array is made
    rows = [grouped.groups[place][1] for place in places]
    if predicate.shown is not None:
        rows = [predicate.shown.kept(grouped.head, each) for each in rows]
    return predicate.merge(batch_rows, rows, set())


class _KeyTable:
    """Predicates with keys, looked up by key hash."""

    def __init__(self) -> None:
        self._owners: dict[int, tuple[tuple[int, Alternative], ...]] = {}
        """The ids and alternatives that name a key, by the key's hash."""
        self._predicates: dict[int, Predicate] = {}
        self._typeless: dict[int, Predicate] = {}
        """The predicates that name keys without an entity type."""
        self._entity_types: set[str] = set()
        """The entity types of all batches so far; keys of typeless predicates are hashed for each type."""
        self._bits = _TABLE_BITS_MIN
        self._table: NDArray[np.bool_] = np.zeros(1 << self._bits, np.bool_)
        """True at the top bits of each hash in ``_owners``; removed hashes may still be True."""

    def add(self, id: int, predicate: Predicate) -> None:
        self._predicates[id] = predicate
        if any(not each.criteria.entity_type for each in _keyed(predicate)):
            self._typeless[id] = predicate
        self._add_hashes(id, predicate, self._entity_types)

    def remove(self, id: int, predicate: Predicate) -> None:
        """Remove a predicate; its places remain True and cost needless look-ups until the table is rebuilt."""
        del self._predicates[id]
        self._typeless.pop(id, None)
        for alternative in _keyed(predicate):
            for name in alternative.hashed_types(self._entity_types):
                self._remove_hashes(id, alternative.hashes(name))

    def _remove_hashes(self, id: int, hashes: NDArray[np.uint64]) -> None:
        for hash in hashes.tolist():
            owners = self._owners.get(hash, ())
            if len(owners) > 1:
                owners = tuple(owner for owner in owners if owner[0] != id)
            elif owners and owners[0][0] == id:
                owners = ()
            if owners:
                self._owners[hash] = owners
            else:
                self._owners.pop(hash, None)

    def rows(self, grouped: GroupedHead) -> dict[int, list[int]]:
        """Return the rows of a batch that match the keys of each predicate; a row may be repeated."""
        if not self._predicates:
            return {}
        # 1. Hashes cover type and key. So the keys must be hashed for a new entity type before the batch is
        #    searched; otherwise the first batch with the type would lack matches.
        head = grouped.head
        if self._typeless and not self._entity_types.issuperset(head.entity_types):
            self._add_entity_types(set(head.entity_types) - self._entity_types)
        # 2. One indexed read for all rows selects the candidates; most batches have none.
        hashes = head.key_hashes
        candidates = np.flatnonzero(self._table[hashes >> np.uint64(64 - self._bits)])
        # 3. For each candidate, look up the owners of its hash, then check the class, then compare the key
        # itself.
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
        # 4. Truncates have no key, so no hash finds them. They are added out of order; the caller sorts the
        # rows.
        self._add_truncates(grouped, found)
        return found

    def _add_truncates(self, grouped: GroupedHead, found: dict[int, list[int]]) -> None:
        """Add each truncate (a null key) for all predicates that take its class."""
        head = grouped.head
        for row in np.flatnonzero((head.key_hashes == 0) & (head.type_codes >= 0)).tolist():
            record_class = _class_of(grouped, row)
            for id, predicate in self._predicates.items():
                if any(alternative.takes(record_class) for alternative in _keyed(predicate)):
                    found.setdefault(id, []).append(row)

    def _add_entity_types(self, entity_types: set[str]) -> None:
        self._entity_types |= entity_types
        for id, predicate in self._typeless.items():
            self._add_hashes(id, predicate, entity_types)

    def _add_hashes(self, id: int, predicate: Predicate, entity_types: set[str]) -> None:
        added: list[NDArray[np.uint64]] = []
        for alternative in _keyed(predicate):
            owner = (id, alternative)
            for name in alternative.hashed_types(entity_types):
                hashes = alternative.hashes(name)
                # Whole dicts at once: a request may have 100,000 keys, and the event loop waits.
                alone: tuple[tuple[int, Alternative], ...] = (owner,)
                owners = dict.fromkeys(hashes.tolist(), alone)
                for hash in self._owners.keys() & owners.keys():
                    before = self._owners[hash]
                    # An alternative that names types is here again whenever types are added.
                    owners[hash] = before if owner in before else (*before, owner)
                self._owners.update(owners)
                added.append(hashes)
        # At most 1/16 of the table is True, so that few rows pass by chance. The largest table may become
        # denser; then more rows pass, and the dict of owners rejects them.
        if len(self._owners) * _SLOTS_PER_KEY > len(self._table) and self._bits < _TABLE_BITS_MAX:
            self._rebuild()
        elif added:
            self._table[np.concatenate(added) >> np.uint64(64 - self._bits)] = True

    def _rebuild(self) -> None:
        while self._bits < _TABLE_BITS_MAX and len(self._owners) * _SLOTS_PER_KEY > 1 << self._bits:
            self._bits += 2
        self._table = np.zeros(1 << self._bits, np.bool_)
        hashes = np.fromiter(self._owners, np.uint64, len(self._owners))
        self._table[hashes >> np.uint64(64 - self._bits)] = True


def _keyed(predicate: Predicate) -> Iterator[Alternative]:
    """Yield the alternatives that name keys."""
    return (each for each in predicate.alternatives if each.keys)


def _class_of(grouped: GroupedHead, row: int) -> RecordClass:
    head = grouped.head
    code = int(head.type_codes[row])
    name = head.entity_types[code] if code >= 0 else None
    return RecordClass(int(head.areas[row]), int(head.operations[row]), name)
