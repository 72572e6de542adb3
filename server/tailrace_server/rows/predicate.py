"""Predicates: criteria compiled to find their captures in a batch. Pure; any thread may call them.

Each alternative (one ``Criteria``) is decided in four steps, from cheap to expensive: by class (area,
operation, entity type), by key, by its condition on rows, by column. Only the last two need bodies: a condition
those before and after, a column those of inserts, which change every column. Criteria of many keys are compiled
off the event loop.
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
"""Level of an area's captures at entity level; a lead has none."""
_HASHES_KEPT_MAX: Final = 1 << 20
"""Hashes that an alternative keeps, of 8 bytes; of more entity types the keys are compared one by one."""


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
        """Compile criteria, which their constructor has validated."""
        self.criteria = criteria
        self.keys = frozenset(criteria.primary_key)
        self.condition = condition_of(criteria)
        """The condition that its rows have to meet; None: it takes all rows."""
        self._areas = frozenset({criteria.area} if criteria.area else ())
        self._entity_types = frozenset(criteria.entity_type)
        self._operations = frozenset(criteria.operation)
        self._container_types = frozenset(criteria.container_type)
        self._hashes: dict[str, NDArray[np.uint64]] = {}
        """Hashes of the keys, sorted, by entity type; kept as long as there are few enough."""

    def takes(self, record_class: RecordClass) -> bool:
        """Return whether records of a class can match at all, whatever their keys and columns."""
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
        """Hash the keys for the entity types that it names, in whatever thread this is called."""
        if self.keys:
            for name in self._entity_types:
                self.hashes(name)

    def hashed_types(self, entity_types: Iterable[str]) -> Iterable[str]:
        """Return the entity types that its keys are of: its own or, if it names none, those given."""
        return self._entity_types or entity_types

    def hashes(self, entity_type: str) -> NDArray[np.uint64]:
        """Return the hashes of its keys for an entity type, sorted; equal ones are not made one."""
        found = self._hashes.get(entity_type)
        if found is None:
            found = _hashes_of(entity_type, self.criteria.primary_key)
            if self._keeps_more_hashes():
                self._hashes[entity_type] = found
        return found

    def _keeps_more_hashes(self) -> bool:
        """Return whether the hashes of one more entity type may be kept."""
        return (len(self._hashes) + 1) * len(self.keys) <= _HASHES_KEPT_MAX

    def filter_keys(self, head: BatchHead, rows: NDArray[np.int32]) -> NDArray[np.int32]:
        """Keep the rows with one of its keys, and truncates, which concern every key.

        Args:
            head: The head of a batch.
            rows: Offsets of rows of one class, at least one.
        """
        # 1. Find candidates by hash, which covers type and key together. The hashes are made once for all
        # batches. A few rows, or keys whose hashes are not kept, are compared at once.
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
        """Return whether a record's key is one of its keys, or null, which concerns every key."""
        key = head.primary_keys[row].as_py()
        return key is None or key in self.keys

    def captures_of(
        self, head: BatchHead, row: int, images: Images, moved: int = NONE
    ) -> list[tuple[int, str]]:
        """Return (ordinal, column name) of a record's captures; ordinal 0 has the name "".

        A row that enters the granted rows is an insert to the reader, and a row that leaves them is a removal:
        the columns that differ from the hidden image are not named. ``moved`` is a code of ``transitions``.

        A column that the version's schema does not have is no match: a record must not end subscriptions.
        """
        # 1. Records without columns: schema records and leads have one capture, and a removal touches no
        # column, so only entity-level captures are left.
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
        # 3. Where only the image says what the record touched, and is gone, its reader must be told there.
        is_new = not self._has_changed(head, row) or is_veiled(moved, Transition.ENTER)
        if is_new and images.is_expired(row):
            return [*captures, (1, EXPIRED)]
        # 4. Names that the record touched, in its order. `merge` sorts captures by ordinal.
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
    """The matches of one publisher: records of any of its alternatives, as far as they are visible."""

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
            shown: The visible part of the records; a record without one is no match. None: all.
        """
        self.criteria = tuple(criteria)
        self.shown = shown
        digest = blake2b(repr(self.criteria).encode(), digest_size=16)
        if shown is not None:
            digest.update(shown.identity)
        self.identity = digest.digest()
        """Digest of the criteria, for keys of the cache: bytes keep their hash, a tuple computes it anew."""
        self.alternatives = tuple(Alternative(each) for each in criteria)
        self.has_conditions = any(each.condition is not None for each in self.alternatives)
        """True if an alternative judges rows by their values."""
        self.is_condition = _is_condition(self.alternatives)
        """True if one condition says all of the rows that it takes, of what is shown."""
        wants_columns = any(each.criteria.wants_columns for each in self.alternatives)
        self.images: tuple[str, ...] = ("after",) if wants_columns else ()
        """The images that selecting reads; empty: it reads the head alone."""
        if self.has_conditions:
            self.images = ("before", "after")
        self.has_keys = any(each.keys for each in self.alternatives)
        """True if an alternative names keys; the router finds those faster than ``select``."""
        names_all = all(each.keys for each in self.alternatives)
        self.keys_named = sum(len(each.keys) for each in self.alternatives) if names_all else 0
        """The number of keys if each match has one of them; 0: a match may have any key."""

    @property
    def needs_images(self) -> bool:
        """True if selecting reads row images, not the head alone."""
        return bool(self.images)

    def select(
        self, grouped: GroupedHead, images: Images, decoded: DecodedBatch | None = None
    ) -> BatchSelection:
        """Return its captures in a batch; uses ``images`` only if ``needs_images``.

        Args:
            grouped: The head of the batch.
            images: Its images.
            decoded: These, decoded for the conditions of others as well; None: of no others.

        Raises:
            ConditionRefused: A condition cannot be evaluated with the schema of the batch.
            InvalidRequest: A view needs a column that the schema of the batch no longer has.
        """
        # Each alternative takes whole classes, then drops rows by key, then looks at columns: every step
        # sees only what the cheaper ones before it have left.
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
        """Add what an alternative takes of records that it matches; ``codes`` are of the batch's records."""
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
        """Add what meets the conditions, and return the code of each record of the batch."""
        rights_of = None if self.shown is None else self.shown.rules_of
        found = judged(head, images, [each for _, each in judging], rights_of, decoded)
        # What an alternative without a condition has taken is shown as it is.
        for taken in rows:
            found.codes[taken] = NONE
        if captures:
            found.codes[[row for row, _, _ in captures]] = NONE
        for (alternative, _), matched in zip(judging, found.matched, strict=True):
            self._take(head, images, alternative, (matched,), rows, captures, found.codes)
        if len(found.open):
            # Who asks for columns alone is told nothing of what leaves, so he need not know whether it did.
            asked = (each.rows for one, each in judging if one.criteria.wants_entities)
            wanted = {row for each in asked for row in each.tolist()}
            wanted.difference_update(row for each in rows for row in each.tolist())
            captures.update((row, 0, UNJUDGED) for row in found.open.tolist() if row in wanted)
        for row in found.expired.tolist():
            if self._shows(head, row, ""):
                captures.add((row, 0, EXPIRED))
        return found.codes

    def _shows(self, head: BatchHead, row: int, name: str) -> bool:
        """Return whether a capture is shown: of a column, or of a whole record by the name ""."""
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
        """Join what the alternatives found, each capture once, in order; ``codes`` are of records."""
        # 1. With column-level captures all become triples, so that sorting puts those of one record
        # together by ordinal, and the set drops what two alternatives found.
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
        # 2. Else rows are enough. A selection of the whole batch must be `whole_batch`, whose identity all
        # publishers share: only so are its frames encoded once for all of them.
        present = [found for found in rows if len(found)]
        if not present:
            return NO_MATCH
        joined = present[0] if len(present) == 1 else _union(present, batch_rows)
        transitions = _of_some(codes, joined)
        if len(joined) == batch_rows and transitions is None:
            return whole_batch(batch_rows)
        return BatchSelection(self.identity, joined, transitions=transitions)


def _is_condition(alternatives: Sequence[Alternative]) -> bool:
    """Return whether nothing but a condition chooses among the rows of an entity type."""
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
    """Return what a condition says nothing of, as truncates and records of the schema, and what it judges."""
    others, candidates = [], []
    for rows in row_groups:
        if len(rows) and decoded is not None and decoded.are_rows(head.type_codes.item(rows[0])):
            candidates.append(Candidates(condition, rows))
            continue
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
    """Return those of some rows that are shown; also what enters or leaves by a change of hidden columns."""
    kept = shown.kept(head, rows)
    if codes is None or len(kept) == len(rows):
        return kept
    return rows[np.isin(rows, kept) | shown.moves_shown(head, rows, codes[rows])]


def _of_some(codes: NDArray[np.uint8] | None, rows: NDArray[np.int32]) -> NDArray[np.uint8] | None:
    """Return the codes of some records; None if no condition was evaluated on them."""
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
"""Keys that are compiled on the event loop, in about a millisecond."""


async def compiled(criteria: Sequence[Criteria], shown: Visibility | None = None) -> Predicate:
    """Return the predicate of canonical criteria, and of what is shown.

    The keys are hashed by then: 100,000 of them take a thread 50 ms, and the event loop runs on.
    """
    if sum(len(each.primary_key) for each in criteria) <= _KEYS_AT_ONCE:
        return Predicate(criteria, shown)
    return await asyncio.to_thread(_compile, criteria, shown)


def _compile(criteria: Sequence[Criteria], shown: Visibility | None) -> Predicate:
    predicate = Predicate(criteria, shown)
    for alternative in predicate.alternatives:
        alternative.hash_own_types()
    return predicate
