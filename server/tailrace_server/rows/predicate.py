"""Predicates: criteria compiled to find their captures in a batch. Pure; any thread may call them.

Each alternative (one ``Criteria``) is evaluated in four steps, from cheap to expensive: by class (area,
operation, entity type), by key, by its condition on rows, by column. Only the last two steps need bodies. A
condition needs the images before and after. A column needs the images of inserts, which change every column.
Criteria of many keys are compiled off the event loop.
"""

from __future__ import annotations

import asyncio
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from tailrace.criteria import COLUMN_TYPES, Area, ContainerType, Criteria, Operation, Transition
from tailrace_server.rows.judging import Candidates, judged
from tailrace_server.rows.row_condition import condition_of
from tailrace_server.rows.run import EXPIRED, NO_MATCH, UNJUDGED, BatchSelection, whole_batch
from tailrace_server.rows.transitions import NONE, is_veiled
from tailrace_server.wal.record.columns import decode_members
from tailrace_server.wal.record.keys import key_hash, key_hashes, type_seed
from tailrace_server.wal.record.text_columns import SMALL_LENGTH

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from tailrace_server.grants.shown import Visibility
    from tailrace_server.live.decoded_batch import DecodedBatch
    from tailrace_server.rows.batch_images import Images
    from tailrace_server.rows.record_classes import GroupedHead, RecordClass
    from tailrace_server.rows.row_condition import RowCondition
    from tailrace_server.wal.segment.reader import BatchHead

_LEVELS: Final[Mapping[int, ContainerType]] = {
    Area.SCHEMA: ContainerType.CATALOG,
    Area.DATA: ContainerType.ENTITY,
}
"""Area → container type of its captures that concern a whole record; TRANSACTION records have none."""
_HASHES_KEPT_MAX: Final = 1 << 20
"""The most key hashes, of 8 bytes each, that an alternative caches for all entity types together.

For further entity types the keys themselves are compared, one by one.
"""


class Alternative:
    """One compiled ``Criteria``."""

    __slots__ = (
        "_areas",
        "_container_types",
        "_entity_types",
        "_hashes",
        "_operations",
        "condition",
        "criteria",
        "keys",
    )

    def __init__(self, criteria: Criteria) -> None:
        """Compile criteria; the constructor of ``Criteria`` has validated them."""
        self.criteria = criteria
        self.keys = frozenset(criteria.primary_key)
        self.condition = condition_of(criteria)
        """The condition that rows have to meet; None: no condition."""
        self._areas = frozenset({criteria.area} if criteria.area else ())
        self._entity_types = frozenset(criteria.entity_type)
        self._operations = frozenset(criteria.operation)
        self._container_types = frozenset(criteria.container_type)
        self._hashes: dict[str, NDArray[np.uint64]] = {}
        """Cache: entity type → sorted hashes of the keys; at most ``_HASHES_KEPT_MAX`` hashes in all."""

    def takes(self, record_class: RecordClass) -> bool:
        """Return True if a record of a class may match; its key, its values and its columns then decide."""
        area, operation, entity_type = record_class
        if self._areas and area not in self._areas:
            return False
        if self._operations and operation not in self._operations:
            return False
        if self._entity_types and entity_type not in self._entity_types:
            return False
        if self.keys and (entity_type is None or area != Area.DATA):
            return False
        if self.criteria.wants_columns:
            if entity_type is not None and area == Area.DATA:
                return True
            return area == Area.SCHEMA and ContainerType.CATALOG in self._container_types
        if self._container_types:
            return _LEVELS.get(area) in self._container_types
        return True

    def hash_own_types(self) -> None:
        """Compute the hashes of the keys for the named entity types now, in the calling thread."""
        if self.keys:
            for name in self._entity_types:
                self.hashes(name)

    def hashed_types(self, entity_types: Iterable[str]) -> Iterable[str]:
        """Return the entity types of the keys: the named ones, or all of the given ones if none is named."""
        return self._entity_types or entity_types

    def hashes(self, entity_type: str) -> NDArray[np.uint64]:
        """Return the sorted hashes of the keys for an entity type; duplicates are possible."""
        found = self._hashes.get(entity_type)
        if found is None:
            found = _hashes_of(entity_type, self.criteria.primary_key)
            if self._keeps_more_hashes():
                self._hashes[entity_type] = found
        return found

    def _keeps_more_hashes(self) -> bool:
        """Return True if the cache has room for the hashes of one more entity type."""
        return (len(self._hashes) + 1) * len(self.keys) <= _HASHES_KEPT_MAX

    def filter_keys(self, head: BatchHead, rows: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the rows whose key is one of the alternative's keys, and truncates, which concern every key.

        Args:
            head: The head of a batch.
            rows: Offsets of rows of one class, at least one.
        """
        # 1. Find candidates by hash, which covers type and key together. The hashes are computed once for all
        # batches. This step is skipped for a few rows, and if the hashes are not cached.
        name = head.entity_types[int(head.type_codes[rows[0]])]
        if len(rows) > SMALL_LENGTH and (name in self._hashes or self._keeps_more_hashes()):
            wanted, given = self.hashes(name), head.key_hashes[rows]
            places = np.minimum(np.searchsorted(wanted, given), len(wanted) - 1)
            rows = rows[
                (wanted[places] == given) | (given == 0)
            ]  # 0 is a truncate's: it has no key
        # 2. Compare the keys themselves, as two keys may have one hash. Few candidates are left here.
        keep = [self.has_key(head, row) for row in rows.tolist()]
        return rows[np.array(keep, bool)] if keep else rows

    def has_key(self, head: BatchHead, row: int) -> bool:
        """Return True if a record has one of the alternative's keys, or a null key, which means every key."""
        key = head.primary_keys[row].as_py()
        return key is None or key in self.keys

    def captures_of(
        self, head: BatchHead, row: int, images: Images, moved: int = NONE
    ) -> list[tuple[int, str]]:
        """Return (ordinal, column name) of each capture of a record; (0, "") is that of the whole record.

        A row that enters the granted rows is an insert for the reader, and a row that leaves them is a removal.
        So the result does not depend on the columns that differ from the hidden image.

        A column that is missing from the version's schema never matches: one such record must not end
        subscriptions.

        Args:
            head: The head of the batch.
            row: The record's offset in the batch.
            images: The images of the batch.
            moved: The record's code of ``transitions``.
        """
        # 1. Records without columns: schema records and TRANSACTION records have one capture, and a removal
        # changes no column, so only captures of the whole record are possible.
        if head.areas[row] != Area.DATA:
            return [(0, "")]
        captures = [(0, "")] if self.criteria.wants_entities else []
        code = int(head.type_codes[row])
        if head.operations[row] != Operation.UPSERT or is_veiled(moved, Transition.LEAVE):
            return captures
        # 2. Ordinals and roles come from the schema of the record's own version. With the newest one,
        # a column that was added since would shift the ordinals of cursors.
        schema = images.schema_of(int(head.versions[row]))
        columns = {
            column.name: (ordinal, column.role)
            for ordinal, column in enumerate(
                schema.entity_types.get(head.entity_types[code], ()), 1
            )
        }
        # 3. If only the image has the changed columns, and it is no longer retained, add a sentinel: the reader
        # has to end with an error there, as a match may be missing.
        is_new = not self._has_changed(head, row) or is_veiled(moved, Transition.ENTER)
        if is_new and images.is_expired(row):
            return [*captures, (1, EXPIRED)]
        # 4. Add the changed columns, in the order of the record. `merge` sorts captures by ordinal.
        for name in self._changed_columns(head, row, images, is_new=is_new):
            if name not in columns:
                continue  # without an ordinal there is no capture; `verify` reports the name
            ordinal, role = columns[name]
            if self._takes_column(name, role):
                captures.append((ordinal, name))
        return captures

    def _has_changed(self, head: BatchHead, row: int) -> bool:
        return head.names.values((row,))[0] is not None

    def _changed_columns(
        self, head: BatchHead, row: int, images: Images, *, is_new: bool
    ) -> Sequence[str]:
        (changed,) = head.names.values((row,))
        if changed is not None and not is_new:
            return changed
        # An insert names no changed columns, because it changes all that its image has.
        image = images.after()[row].as_py()
        return () if image is None else list(decode_members(image))

    def _takes_column(self, name: str, role: ContainerType) -> bool:
        names, roles = self.criteria.container_name, self.criteria.column_types
        return (not names or name in names) and (not roles or role in roles)


def _hashes_of(entity_type: str, keys: Sequence[str]) -> NDArray[np.uint64]:
    seed = type_seed(entity_type)
    if len(keys) <= SMALL_LENGTH:
        return np.array(sorted(key_hash(seed, key) for key in keys), np.uint64)
    seeds = np.full(len(keys), seed, np.uint64)
    return np.sort(key_hashes(seeds, pa.array(keys, pa.string())))


class Predicate:
    """The compiled criteria of one publisher: a record matches if any alternative matches and it is visible."""

    __slots__ = (
        "alternatives",
        "criteria",
        "has_conditions",
        "has_keys",
        "identity",
        "images",
        "is_condition",
        "keys_named",
        "shown",
    )

    def __init__(self, criteria: Sequence[Criteria], shown: Visibility | None = None) -> None:
        """Compile canonical criteria (``tailrace.criteria.canonical``).

        Args:
            criteria: The alternatives.
            shown: The rows and columns that the caller may see; None: all. A record with no visible part does
                not match.
        """
        self.criteria = tuple(criteria)
        self.shown = shown
        digest = blake2b(repr(self.criteria).encode(), digest_size=16)
        if shown is not None:
            digest.update(shown.identity)
        self.identity = digest.digest()
        """Digest of criteria and visibility, for cache keys: bytes cache their hash, tuples do not."""
        self.alternatives = tuple(Alternative(each) for each in criteria)
        self.has_conditions = any(each.condition is not None for each in self.alternatives)
        """True if an alternative has a condition on the values of rows."""
        self.is_condition = _is_condition(self.alternatives)
        """True if one condition alone selects the rows, apart from their visibility."""
        wants_columns = any(each.criteria.wants_columns for each in self.alternatives)
        self.images: tuple[str, ...] = ("after",) if wants_columns else ()
        """Names of the images that ``select`` reads; empty: it reads the head alone."""
        if self.has_conditions:
            self.images = ("before", "after")
        self.has_keys = any(each.keys for each in self.alternatives)
        """True if an alternative names keys; the router looks up keys faster than ``select`` does."""
        names_all = all(each.keys for each in self.alternatives)
        self.keys_named = sum(len(each.keys) for each in self.alternatives) if names_all else 0
        """Number of named keys if every alternative names keys; 0: a match may have any key."""

    @property
    def needs_images(self) -> bool:
        """True if ``select`` reads row images in addition to the head."""
        return bool(self.images)

    def select(
        self, grouped: GroupedHead, images: Images, decoded: DecodedBatch | None = None
    ) -> BatchSelection:
        """Return the captures of a batch that match; ``images`` is used only if ``needs_images``.

        Args:
            grouped: The head of the batch, its records grouped by class.
            images: The images of the batch.
            decoded: The images, already decoded for the conditions of several predicates; None: not decoded
                yet.

        Raises:
            ConditionRefused: A condition cannot be evaluated with the schema of the batch.
            InvalidRequest: A view needs a column that the schema of the batch no longer has.
        """
        # Each alternative takes whole classes, then drops rows by key, then evaluates columns: every step
        # gets only what the cheaper steps before it have left. Conditions come after the loop, as those of
        # all alternatives together decide the transition of a row.
        head = grouped.head
        if self.shown is not None:
            self.shown.check(head)
        rows: list[NDArray[np.int32]] = []
        captures: set[tuple[int, int, str]] = set()
        judging: list[tuple[Alternative, Candidates]] = []
        for alternative in self.alternatives:
            row_groups = [found for key, found in grouped.groups if alternative.takes(key)]
            if alternative.keys:
                row_groups = [alternative.filter_keys(head, found) for found in row_groups]
            if alternative.condition is not None:
                row_groups, candidates = _candidates(
                    head, row_groups, alternative.condition, decoded
                )
                judging += ((alternative, each) for each in candidates)
            self._take(head, images, alternative, row_groups, rows, captures)
        codes = None
        if judging:
            codes = self._judge(head, images, judging, rows, captures, decoded)
        if self.shown is not None:
            rows = [_kept(self.shown, head, found, codes) for found in rows]
        return self.merge(len(head.versions), rows, captures, codes)

    def _take(
        self,
        head: BatchHead,
        images: Images,
        alternative: Alternative,
        row_groups: Sequence[NDArray[np.int32]],
        rows: list[NDArray[np.int32]],
        captures: set[tuple[int, int, str]],
        codes: NDArray[np.uint8] | None = None,
    ) -> None:
        """Add the matches in ``row_groups``: as a whole to ``rows``, or column by column to ``captures``."""
        if not alternative.criteria.wants_columns:
            rows.extend(row_groups)
            return
        captures.update(
            (row, ordinal, name)
            for found in row_groups
            for row in found.tolist()
            for ordinal, name in alternative.captures_of(
                head, row, images, NONE if codes is None else int(codes[row])
            )
            if self._shows(head, row, name)
        )

    def _judge(
        self,
        head: BatchHead,
        images: Images,
        judging: Sequence[tuple[Alternative, Candidates]],
        rows: list[NDArray[np.int32]],
        captures: set[tuple[int, int, str]],
        decoded: DecodedBatch | None,
    ) -> NDArray[np.uint8]:
        """Evaluate the conditions, add the captures of their matches, and return the code of each record."""
        rights_of = None if self.shown is None else self.shown.rules_of
        found = judged(head, images, [each for _, each in judging], rights_of, decoded)
        # A record that an alternative without a condition has matched is visible as it is, so it gets no code.
        for taken in rows:
            found.codes[taken] = NONE
        if captures:
            found.codes[[row for row, _, _ in captures]] = NONE
        for (alternative, _), matched in zip(judging, found.matched, strict=True):
            self._take(head, images, alternative, (matched,), rows, captures, found.codes)
        if len(found.open):
            # A reader of columns alone gets no capture for a row that leaves. So an unknown grant concerns only
            # readers of whole records: they get the sentinel, unless another alternative matched the record.
            asked = (each.rows for one, each in judging if one.criteria.wants_entities)
            wanted = {row for each in asked for row in each.tolist()}
            wanted.difference_update(row for each in rows for row in each.tolist())
            captures.update((row, 0, UNJUDGED) for row in found.open.tolist() if row in wanted)
        for row in found.expired.tolist():
            if self._shows(head, row, ""):
                captures.add((row, 0, EXPIRED))
        return found.codes

    def _shows(self, head: BatchHead, row: int, name: str) -> bool:
        """Return True if a capture is visible; ``name`` is its column, or "" for the whole record."""
        shown = self.shown
        if shown is None:
            return True
        if not name or name is EXPIRED:
            return shown.shows_row(head, row)
        return shown.shows_column(head, row, name)

    def merge(
        self,
        batch_rows: int,
        rows: Sequence[NDArray[np.int32]],
        captures: set[tuple[int, int, str]],
        codes: NDArray[np.uint8] | None = None,
    ) -> BatchSelection:
        """Join the matches of all alternatives to one selection, in order and without duplicates.

        ``rows`` has offsets of records that match as a whole, ``captures`` (offset, ordinal, column name) of
        other matches, ``codes`` the code of each record of the batch.
        """
        # 1. If there are captures of columns, all matches become triples. Then sorting puts the captures of one
        # record together by ordinal, and the set drops duplicates of two alternatives.
        if captures:
            captures.update((row, 0, "") for found in rows for row in found.tolist())
            ordered = sorted(captures)
            places = np.array([row for row, _, _ in ordered], np.int32)
            return BatchSelection(
                self.identity,
                places,
                np.array([ordinal for _, ordinal, _ in ordered], np.int32),
                tuple(name for _, _, name in ordered),
                _of_some(codes, places),
            )
        # 2. Otherwise rows are enough. A selection of the whole batch must be `whole_batch`, whose identity all
        # publishers share: only then are its frames encoded once for all of them.
        present = [found for found in rows if len(found)]
        if not present:
            return NO_MATCH
        joined = present[0] if len(present) == 1 else _union(present, batch_rows)
        transitions = _of_some(codes, joined)
        if len(joined) == batch_rows and transitions is None:
            return whole_batch(batch_rows)
        return BatchSelection(self.identity, joined, transitions=transitions)


def _is_condition(alternatives: Sequence[Alternative]) -> bool:
    """Return True if there is one alternative, and its condition alone selects rows of the entity type."""
    if len(alternatives) != 1 or alternatives[0].condition is None:
        return False
    asked = alternatives[0].criteria
    narrows = asked.primary_key or asked.operation or asked.container_type or asked.container_name
    return asked.area in (None, Area.DATA) and not narrows


def _candidates(
    head: BatchHead,
    row_groups: Sequence[NDArray[np.int32]],
    condition: RowCondition,
    decoded: DecodedBatch | None,
) -> tuple[list[NDArray[np.int32]], list[Candidates]]:
    """Split rows into those that match without evaluation, such as truncates, and candidates to evaluate."""
    others, candidates = [], []
    for rows in row_groups:
        # The fast path: all records of this entity type are rows with images.
        if len(rows) and decoded is not None and decoded.are_rows(head.type_codes.item(rows[0])):
            candidates.append(Candidates(condition, rows))
            continue
        # Truncates and schema records have no row to evaluate: they match as they are.
        is_row = (head.areas[rows] == Area.DATA) & (head.key_hashes[rows] != 0)
        if not is_row.all():
            others.append(rows[~is_row])
            rows = rows[is_row]
        if len(rows):
            candidates.append(Candidates(condition, rows))
    return others, candidates


def _kept(
    shown: Visibility, head: BatchHead, rows: NDArray[np.int32], codes: NDArray[np.uint8] | None
) -> NDArray[np.int32]:
    """Return the rows that are visible.

    A change of hidden columns alone is visible if the condition makes its row enter or leave.
    """
    kept = shown.kept(head, rows)
    if codes is None or len(kept) == len(rows):
        return kept
    return rows[np.isin(rows, kept) | shown.moves_shown(head, rows, codes[rows])]


def _of_some(codes: NDArray[np.uint8] | None, rows: NDArray[np.int32]) -> NDArray[np.uint8] | None:
    """Return the codes of some records; None if all are 0."""
    if codes is None:
        return None
    found = codes[rows]
    return found if found.any() else None


def _union(parts: Sequence[NDArray[np.int32]], batch_rows: int) -> NDArray[np.int32]:
    row_groups = np.zeros(batch_rows, np.bool_)
    for part in parts:
        row_groups[part] = True
    return np.flatnonzero(row_groups).astype(np.int32)


assert COLUMN_TYPES.isdisjoint({ContainerType.CATALOG, ContainerType.ENTITY})

_KEYS_AT_ONCE: Final = 2_000
"""The most keys that are compiled on the event loop; they take about a millisecond."""


async def compiled(criteria: Sequence[Criteria], shown: Visibility | None = None) -> Predicate:
    """Compile canonical criteria for a caller who may see ``shown``.

    Many keys are compiled in a thread, which also hashes them: 100,000 keys take 50 ms, too long for the event
    loop.
    """
    if sum(len(each.primary_key) for each in criteria) <= _KEYS_AT_ONCE:
        return Predicate(criteria, shown)
    return await asyncio.to_thread(_compile, criteria, shown)


def _compile(criteria: Sequence[Criteria], shown: Visibility | None) -> Predicate:
    predicate = Predicate(criteria, shown)
    for alternative in predicate.alternatives:
        alternative.hash_own_types()
    return predicate
