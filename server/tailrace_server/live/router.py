"""The router: one pass over a batch finds the rows of all publishers.

An alternative of a publisher's criteria is found in one of two ways:

* *by class*, if it names no key: the router remembers which publishers take a class, so a batch costs (its
  classes x publishers that take them), and publishers that take equal classes share one array.
* *by key*, if it names keys: a table of booleans by the top bits of key hashes leaves few candidates, a dict of
  hashes finds their publishers, and the key itself is compared. The cost does not grow from 1 to 100,000 keys.

A publisher with alternatives of both kinds, as a grant of one key makes them of an open request, gets what both
find. One that asks for columns runs its predicate's own ``select``.

For each publisher the router finds exactly what its predicate's ``select`` returns; a test compares both for
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
    """The rows that conditions of one kind match, for readers with the same visible columns."""

_TABLE_BITS_MIN: Final = 12
_TABLE_BITS_MAX: Final = 22
_SLOTS_PER_KEY: Final = 16


class Router:
    """Predicates by integer id, and the tables that find their matches."""

    def __init__(self) -> None:
        """Make a router without predicates."""
        self._predicates: dict[int, Predicate] = {}
        self._broad: dict[int, tuple[Alternative, ...]] = {}
        """Alternatives without keys; of a predicate that has keys too, these are a part."""
        self._selecting: dict[int, Predicate] = {}
        self._always: dict[int, None] = {}
        """Those of ``_selecting`` that may match what no condition has found."""
        self._conditions: dict[str, ConditionIndex] = {}
        """By entity type, the conditions of all predicates."""
        self._shared: dict[str, SharedCost] = {}
        """The same, of what is done once for all of them."""
        self._costs: dict[int, EvaluationCost] = {}
        """The costs of predicates that have conditions, by id."""
        self._ids_by_class: dict[RecordClass, tuple[int, ...]] = {}
        self._keys = _KeyTable()

    def __len__(self) -> int:
        """Return the number of predicates."""
        return len(self._predicates)

    @property
    def images(self) -> tuple[str, ...]:
        """The images that its predicates need together; empty: none needs any."""
        return max(
            (predicate.images for predicate in self._selecting.values()), key=len, default=()
        )

    def add(self, id: int, predicate: Predicate) -> EvaluationCost:
        """Register a predicate; the next batch is routed to it. Return what its conditions will cost."""
        # A predicate with columns needs images, and the tables have none.
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
        """Return the images that conditions need, decodable in any thread; None: there is no condition."""
        if not self._conditions:
            return None
        columns = {name: index.columns for name, index in self._conditions.items()}
        return DecodedBatch(grouped.head, images, columns)

    def route(
        self, grouped: GroupedHead, images: Images, decoded: DecodedBatch | None = None
    ) -> Iterator[tuple[int, BatchSelection | Exception]]:
        """Yield (id, its captures) for every predicate that matches something in a batch.

        The images that conditions need may be ``decoded`` already. Who looks at images is yielded without
        captures, too, where it finds none: to find that may be work, after which the caller may give way.

        An exception that a predicate raises is yielded in place of its captures, and the others continue.
        Predicates may be added and removed during the iteration; it may yield those or not.
        """
        # 1. The cheap kinds come first, so that their publishers are served before any image is parsed. Who
        #    was found by a key and has alternatives by class as well is left for the end.
        by_key = self._keys.rows(grouped)
        both: dict[int, list[NDArray[np.int32]]] = {}
        if self._broad:
            yield from self._route_broad(grouped, by_key, both)
        batch_rows = len(grouped.head.versions)
        for id, rows in by_key.items():
            predicate = self._predicates.get(id)
            if predicate is not None:  # else removed while this was iterated
                found = [np.array(sorted(set(rows)), np.int32), *both.get(id, ())]
                if predicate.shown is not None:
                    found = [predicate.shown.kept(grouped.head, each) for each in found]
                selection = predicate.merge(batch_rows, found, set())
                if len(selection):
                    yield id, selection
        # 2. Those that are found by conditions; what the index tells of them need not be judged.
        looking = dict(self._always)
        if self._conditions:
            decoded = decoded or DecodedBatch(
                grouped.head,
                images,
                {name: index.columns for name, index in self._conditions.items()},
            )
            decoded.decode()  # its cost is shared, and no one's own
            for code in self._find(grouped, decoded):
                yield from self._route_found(decoded, code, looking)
        # 3. Those that look at columns, or whose conditions have to be judged.
        for id in looking:
            predicate = self._selecting.get(id)
            if predicate is None:
                continue  # removed while this was iterated
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
        """Ask the indexes, and return the entity types of a batch that have one."""
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
        """Yield the matches in the index of an entity type; predicates without one are put into ``looking``."""
        # 1. Of records that are no rows a condition says nothing: they are for each of its readers.
        found = decoded.found.get(code)
        if found is None or not decoded.are_rows(code):
            looking.update(dict.fromkeys(self._conditions[decoded.entity_type(code)].ids))
            return
        for one in found.whole:
            looking.update(one.ids)
        # 2. Who has the condition and nothing else is matches of its rows; others choose among them.
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
        """Return the matches of predicates that differ only in a value; None: they have to evaluate rows."""
        begun = thread_time_ns()
        typed, shown = decoded.of(code), asking[0][1].shown
        matches: GroupedMatches | None = None
        rights = () if shown is None else shown.rules_of(typed.entity_type)
        if not kind.asked or all_show(rights, typed.names_of(kind.asked)):
            with suppress(Exception):  # each of them meets the error by itself
                matches = GroupedMatches(decoded.head, typed, hits, kind, shown, len(asking))
        shared = self._shared.get(decoded.entity_type(code))
        if shared is not None:  # else all of them were removed while this was iterated
            shared.add(thread_time_ns() - begun, 0)
        return matches

    def _route_broad(
        self,
        grouped: GroupedHead,
        by_key: Container[int],
        both: dict[int, list[NDArray[np.int32]]],
    ) -> Iterator[tuple[int, BatchSelection]]:
        """Yield what is found by class; of the publishers that are in ``by_key``, put it into ``both``."""
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
        # 2. Join the rows of each combination of classes once: a thousand publishers with equal criteria
        # for this batch share one selection. Its identity is the first one's, and so are its frames. Who is
        # shown less of the records is served apart.
        joined: dict[tuple[tuple[int, ...], bytes | None], BatchSelection] = {}
        for id, places in groups_by_id.items():
            predicate = self._predicates.get(id)
            if predicate is None:
                continue  # removed while this was iterated
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
    """Return entity type and condition of the alternatives that have one."""
    return tuple(
        (each.criteria.entity_type[0], each.condition)
        for each in predicate.alternatives
        if each.condition is not None
    )


def _joined(
    grouped: GroupedHead, places: tuple[int, ...], predicate: Predicate, batch_rows: int
) -> BatchSelection:
    """Return what a predicate takes of some classes of a batch."""
    if predicate.shown is None and len(places) == len(grouped.groups) == 1:
        return whole_batch(batch_rows)  # no array is made
    rows = [grouped.groups[place][1] for place in places]
    if predicate.shown is not None:
        rows = [predicate.shown.kept(grouped.head, each) for each in rows]
    return predicate.merge(batch_rows, rows, set())


class _KeyTable:
    """Predicates with keys, found by hash."""

    def __init__(self) -> None:
        self._owners: dict[int, tuple[tuple[int, Alternative], ...]] = {}
        """Ids and alternatives that name a key, by its hash."""
        self._predicates: dict[int, Predicate] = {}
        self._typeless: dict[int, Predicate] = {}
        """Predicates with an alternative for keys of every entity type."""
        self._entity_types: set[str] = set()
        """Entity types that batches had so far; keys of typeless predicates are hashed for each."""
        self._bits = _TABLE_BITS_MIN
        self._table: NDArray[np.bool_] = np.zeros(1 << self._bits, np.bool_)
        """True at the top bits of each hash in ``_owners``, and at places of removed ones."""

    def add(self, id: int, predicate: Predicate) -> None:
        self._predicates[id] = predicate
        if any(not each.criteria.entity_type for each in _keyed(predicate)):
            self._typeless[id] = predicate
        self._add_hashes(id, predicate, self._entity_types)

    def remove(self, id: int, predicate: Predicate) -> None:
        """Remove a predicate; its places stay True and cost look-ups until the table is rebuilt."""
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
        """Return the rows of a batch that each predicate finds by its keys; one may be there twice."""
        if not self._predicates:
            return {}
        # 1. Hashes cover type and key, so an entity type that is new must be hashed before the batch is
        # searched, or its first batch would lack matches.
        head = grouped.head
        if self._typeless and not self._entity_types.issuperset(head.entity_types):
            self._add_entity_types(set(head.entity_types) - self._entity_types)
        # 2. One indexed read for all rows leaves the candidates; most batches have none.
        hashes = head.key_hashes
        candidates = np.flatnonzero(self._table[hashes >> np.uint64(64 - self._bits)])
        # 3. Of each candidate the owners of its hash, then the alternative itself, then the very key.
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
        # 4. Truncates have no key, so no hash finds them. They come last, and the rows are sorted then.
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
                    # An alternative with types of its own is met again whenever types are added.
                    owners[hash] = before if owner in before else (*before, owner)
                self._owners.update(owners)
                added.append(hashes)
        # At most a sixteenth of the table is True, so that few rows pass by chance. Beyond the largest table
        # more do, and the dict behind it still decides.
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
