"""Criteria compiled to what the engine asks of a batch. Plain functions of values; any thread may call them.

Each alternative (one ``Criteria``) is decided in three steps, from cheap to dear: by class (area,
operation, entity type), by key, by column. Only the last needs the bodies, and only of inserted
rows, whose every column counts.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
import numpy as np

from tailrace.criteria import COLUMN_TYPES, Area, ContainerType, Criteria, Operation
from tailrace_server.capture.matching.run import NO_MATCH, BatchSelection, whole_batch
from tailrace_server.wal.record.key_hash import key_hash, type_seed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from tailrace.schema import Schema
    from tailrace_server.capture.matching.record_classes import GroupedHead, RecordClass
    from tailrace_server.wal.segment.reader import BatchHead

_LEVELS: Final[Mapping[int, ContainerType]] = {
    Area.SCHEMA: ContainerType.CATALOG,
    Area.DATA: ContainerType.ENTITY,
}
"""What the entity-level captures of an area speak of; a lead speaks of none."""
_column_names = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Images(Protocol):
    """Where a predicate finds what the head does not hold: row images and schemas."""

    def after(self) -> pa.BinaryArray:
        """Return the batch's ``after`` images."""

    def schema_of(self, version: int) -> Schema:
        """Return the schema that a version was written with."""


class _NoImages:
    """For predicates that read heads only."""

    def after(self) -> pa.BinaryArray:
        raise AssertionError("no predicate asked for images")

    def schema_of(self, version: int) -> Schema:
        raise AssertionError("no predicate asked for a schema")


NO_IMAGES: Final = _NoImages()
"""For predicates that do not need them."""


class Alternative:
    """One compiled ``Criteria``."""

    __slots__ = ("_areas", "_entity_types", "_kinds", "_operations", "criteria", "keys")

    def __init__(self, criteria: Criteria) -> None:
        """Compile; the criteria have been validated by their own constructor."""
        self.criteria = criteria
        self.keys = frozenset(criteria.primary_key)
        self._areas = frozenset({criteria.area} if criteria.area else ())
        self._entity_types = frozenset(criteria.entity_type)
        self._operations = frozenset(criteria.operation)
        self._kinds = frozenset(criteria.container_type)

    def takes(self, record_class: RecordClass) -> bool:
        """Decide all records of a class at once, before keys and columns."""
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
            return area == Area.SCHEMA and ContainerType.CATALOG in self._kinds
        if self._kinds:
            return _LEVELS.get(area) in self._kinds
        return True

    def hashes(self, entity_types: Iterable[str]) -> dict[int, str]:
        """Return the key hashes that it looks for, given the entity types that exist."""
        types = self._entity_types or entity_types
        return {key_hash(type_seed(name), key): key for name in types for key in self.keys}

    def filter_keys(self, head: BatchHead, rows: NDArray[np.int32]) -> NDArray[np.int32]:
        """Keep the rows whose key is wanted, and truncates, which stand for every key."""
        names = {
            head.entity_types[code]
            for code in np.unique(head.type_codes[rows]).tolist()
            if code >= 0
        }
        wanted = np.array([0, *self.hashes(names)], np.uint64)
        found = rows[np.isin(head.key_hashes[rows], wanted)]
        keep = [self.has_key(head, row) for row in found.tolist()]
        return found[np.array(keep, bool)] if keep else found

    def has_key(self, head: BatchHead, row: int) -> bool:
        """Compare the key itself: hashes only make candidates."""
        key = head.primary_keys[row].as_py()
        return key is None or key in self.keys

    def expand(self, head: BatchHead, row: int, images: Images) -> list[tuple[int, str]]:
        """Return (ordinal, column name) of a record's captures; ordinal 0 has the name "".

        A column that the version's schema does not have is no match: a record must not end subscriptions.
        """
        if head.areas[row] != Area.DATA:
            return [(0, "")]
        captures = [(0, "")] if self.criteria.wants_entities else []
        code = int(head.type_codes[row])
        if head.operations[row] != Operation.UPSERT:
            return captures
        schema = images.schema_of(int(head.versions[row]))
        columns = {
            column.name: (ordinal, column.role)
            for ordinal, column in enumerate(
                schema.entity_types.get(head.entity_types[code], ()), 1
            )
        }
        for name in self._touched(head, row, images):
            if name not in columns:
                continue  # it has no ordinal, so no capture; `verify` tells of it
            ordinal, role = columns[name]
            if self._takes_column(name, role):
                captures.append((ordinal, name))
        return captures

    def _touched(self, head: BatchHead, row: int, images: Images) -> Sequence[str]:
        (changed,) = head.names.values((row,))
        if changed is not None:
            return changed
        image = images.after()[row].as_py()
        return () if image is None else list(_column_names.decode(image))

    def _takes_column(self, name: str, role: ContainerType) -> bool:
        names, roles = self.criteria.container_name, self.criteria.column_types
        return (not names or name in names) and (not roles or role in roles)


class Predicate:
    """What one publisher matches: its alternatives, OR."""

    __slots__ = ("alternatives", "criteria", "has_keys", "identity", "needs_images")

    def __init__(self, criteria: Sequence[Criteria]) -> None:
        """Compile canonical criteria (``tailrace.criteria.canonical``)."""
        self.criteria = tuple(criteria)
        self.identity = blake2b(repr(self.criteria).encode(), digest_size=16).digest()
        """Stands for the criteria in keys of the cache: equal for equal ones, and its hash is kept."""
        self.alternatives = tuple(Alternative(each) for each in criteria)
        self.needs_images = any(each.criteria.wants_columns for each in self.alternatives)
        """Whether selecting reads row images, not the head alone."""
        self.has_keys = any(each.keys for each in self.alternatives)
        """Whether selecting hashes keys, all that it names: the router is quicker for those."""

    def select(self, grouped: GroupedHead, images: Images) -> BatchSelection:
        """Return what it matches in a batch; reads ``images`` only if ``needs_images``."""
        head = grouped.head
        rows: list[NDArray[np.int32]] = []
        captures: set[tuple[int, int, str]] = set()
        for alternative in self.alternatives:
            taken = [found for key, found in grouped.groups if alternative.takes(key)]
            if alternative.keys:
                taken = [alternative.filter_keys(head, found) for found in taken]
            if alternative.criteria.wants_columns:
                captures.update(
                    (row, ordinal, name)
                    for found in taken
                    for row in found.tolist()
                    for ordinal, name in alternative.expand(head, row, images)
                )
            else:
                rows.extend(taken)
        return self.merge(len(head.versions), rows, captures)

    def merge(
        self,
        batch_rows: int,
        rows: Sequence[NDArray[np.int32]],
        captures: set[tuple[int, int, str]],
    ) -> BatchSelection:
        """Join what the alternatives found, each capture once, in order."""
        if captures:
            captures.update((row, 0, "") for found in rows for row in found.tolist())
            ordered = sorted(captures)
            return BatchSelection(
                self.identity,
                np.array([row for row, _, _ in ordered], np.int32),
                np.array([ordinal for _, ordinal, _ in ordered], np.int32),
                tuple(name for _, _, name in ordered),
            )
        present = [found for found in rows if len(found)]
        if not present:
            return NO_MATCH
        joined = present[0] if len(present) == 1 else _union(present, batch_rows)
        return (
            whole_batch(batch_rows)
            if len(joined) == batch_rows
            else BatchSelection(self.identity, joined)
        )


def _union(parts: Sequence[NDArray[np.int32]], batch_rows: int) -> NDArray[np.int32]:
    taken = np.zeros(batch_rows, np.bool_)
    for part in parts:
        taken[part] = True
    return np.flatnonzero(taken).astype(np.int32)


assert COLUMN_TYPES.isdisjoint({ContainerType.CATALOG, ContainerType.ENTITY})
