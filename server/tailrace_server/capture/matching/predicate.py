"""Predicates: criteria compiled to find their captures in a batch. Pure; any thread may call them.

Each alternative (one ``Criteria``) is decided in three steps, from cheap to expensive: by class (area,
operation, entity type), by key, by column. Only the last step needs bodies, and only those of inserts,
which change every column.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from tailrace.criteria import COLUMN_TYPES, Area, ContainerType, Criteria, Operation
from tailrace_server.capture.matching.run import NO_MATCH, BatchSelection, whole_batch
from tailrace_server.wal.record.columns import decode_members
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
"""Level of an area's captures at entity level; a lead has none."""


class Images(Protocol):
    """Gives a predicate what the head does not hold: row images and schemas."""

    def after(self) -> pa.BinaryArray:
        """Return the batch's ``after`` images."""

    def schema_of(self, version: int) -> Schema:
        """Return the schema that a version was written with."""


class _NoImages:
    """Stands for images where no predicate may ask for them."""

    def after(self) -> pa.BinaryArray:
        raise AssertionError("the predicate reads heads only")

    def schema_of(self, version: int) -> Schema:
        raise AssertionError("the predicate reads heads only")


NO_IMAGES: Final = _NoImages()
"""For predicates that read heads only."""


class Alternative:
    """One compiled ``Criteria``."""

    __slots__ = ("_areas", "_container_types", "_entity_types", "_operations", "criteria", "keys")

    def __init__(self, criteria: Criteria) -> None:
        """Compile criteria, which their constructor has validated."""
        self.criteria = criteria
        self.keys = frozenset(criteria.primary_key)
        self._areas = frozenset({criteria.area} if criteria.area else ())
        self._entity_types = frozenset(criteria.entity_type)
        self._operations = frozenset(criteria.operation)
        self._container_types = frozenset(criteria.container_type)

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

    def hashes(self, entity_types: Iterable[str]) -> dict[int, str]:
        """Return its keys by hash, for its own entity types or, if it names none, for those given."""
        types = self._entity_types or entity_types
        return {key_hash(type_seed(name), key): key for name in types for key in self.keys}

    def filter_keys(self, head: BatchHead, rows: NDArray[np.int32]) -> NDArray[np.int32]:
        """Keep the rows with one of its keys, and truncates, which concern every key."""
        # 1. Hash the keys for each entity type that occurs: a hash covers type and key together.
        names = {
            head.entity_types[code]
            for code in np.unique(head.type_codes[rows]).tolist()
            if code >= 0
        }
        # 2. Find candidates by hash; 0 stands for no key, which is a truncate's.
        hashes = np.array([0, *self.hashes(names)], np.uint64)
        found = rows[np.isin(head.key_hashes[rows], hashes)]
        # 3. Compare the keys themselves, as two keys may have one hash. Few candidates are left here.
        keep = [self.has_key(head, row) for row in found.tolist()]
        return found[np.array(keep, bool)] if keep else found

    def has_key(self, head: BatchHead, row: int) -> bool:
        """Return whether a record's key is one of its keys, or null, which concerns every key."""
        key = head.primary_keys[row].as_py()
        return key is None or key in self.keys

    def captures_of(self, head: BatchHead, row: int, images: Images) -> list[tuple[int, str]]:
        """Return (ordinal, column name) of a record's captures; ordinal 0 has the name "".

        A column that the version's schema does not have is no match: a record must not end subscriptions.
        """
        # 1. Records without columns: schema records and leads have one capture, and a removal touches no
        # column, so only entity-level captures are left.
        if head.areas[row] != Area.DATA:
            return [(0, "")]
        captures = [(0, "")] if self.criteria.wants_entities else []
        code = int(head.type_codes[row])
        if head.operations[row] != Operation.UPSERT:
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
        # 3. Names that the record touched, in its order. `merge` sorts captures by ordinal.
        for name in self._changed_columns(head, row, images):
            if name not in columns:
                continue  # without an ordinal there is no capture; `verify` reports the name
            ordinal, role = columns[name]
            if self._takes_column(name, role):
                captures.append((ordinal, name))
        return captures

    def _changed_columns(self, head: BatchHead, row: int, images: Images) -> Sequence[str]:
        (changed,) = head.names.values((row,))
        if changed is not None:
            return changed
        image = images.after()[row].as_py()
        return () if image is None else list(decode_members(image))

    def _takes_column(self, name: str, role: ContainerType) -> bool:
        names, roles = self.criteria.container_name, self.criteria.column_types
        return (not names or name in names) and (not roles or role in roles)


class Predicate:
    """What one publisher matches: any of its alternatives."""

    __slots__ = ("alternatives", "criteria", "has_keys", "identity", "needs_images")

    def __init__(self, criteria: Sequence[Criteria]) -> None:
        """Compile canonical criteria (``tailrace.criteria.canonical``)."""
        self.criteria = tuple(criteria)
        self.identity = blake2b(repr(self.criteria).encode(), digest_size=16).digest()
        """Digest of the criteria, for keys of the cache: bytes keep their hash, a tuple computes it anew."""
        self.alternatives = tuple(Alternative(each) for each in criteria)
        self.needs_images = any(each.criteria.wants_columns for each in self.alternatives)
        """Whether selecting reads row images, not the head alone."""
        self.has_keys = any(each.keys for each in self.alternatives)
        """Whether an alternative names keys; the router finds those faster than ``select``."""

    def select(self, grouped: GroupedHead, images: Images) -> BatchSelection:
        """Return its captures in a batch; uses ``images`` only if ``needs_images``."""
        # Each alternative takes whole classes, then drops rows by key, then looks at columns: every step
        # sees only what the cheaper ones before it have left.
        head = grouped.head
        rows: list[NDArray[np.int32]] = []
        captures: set[tuple[int, int, str]] = set()
        for alternative in self.alternatives:
            row_groups = [found for key, found in grouped.groups if alternative.takes(key)]
            if alternative.keys:
                row_groups = [alternative.filter_keys(head, found) for found in row_groups]
            if alternative.criteria.wants_columns:
                captures.update(
                    (row, ordinal, name)
                    for found in row_groups
                    for row in found.tolist()
                    for ordinal, name in alternative.captures_of(head, row, images)
                )
            else:
                rows.extend(row_groups)
        return self.merge(len(head.versions), rows, captures)

    def merge(
        self,
        batch_rows: int,
        rows: Sequence[NDArray[np.int32]],
        captures: set[tuple[int, int, str]],
    ) -> BatchSelection:
        """Join what the alternatives found, each capture once, in order."""
        # 1. With column-level captures all become triples, so that sorting puts those of one record
        # together by ordinal, and the set drops what two alternatives found.
        if captures:
            captures.update((row, 0, "") for found in rows for row in found.tolist())
            ordered = sorted(captures)
            return BatchSelection(
                self.identity,
                np.array([row for row, _, _ in ordered], np.int32),
                np.array([ordinal for _, ordinal, _ in ordered], np.int32),
                tuple(name for _, _, name in ordered),
            )
        # 2. Else rows are enough. A selection of the whole batch must be `whole_batch`, whose identity all
        # publishers share: only so are its frames encoded once for all of them.
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
    row_groups = np.zeros(batch_rows, np.bool_)
    for part in parts:
        row_groups[part] = True
    return np.flatnonzero(row_groups).astype(np.int32)


assert COLUMN_TYPES.isdisjoint({ContainerType.CATALOG, ContainerType.ENTITY})
