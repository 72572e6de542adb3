"""The model that judges the engine: a list of records and a filter, written as plainly as the contract."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from tailrace.criteria import COLUMN_TYPES, Area, ContainerType, Criteria, Operation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Coordinates = tuple[int, int, int]
"""Version, index and ordinal of a capture."""

ENTITY_TYPES = ("product", "order", "customer")
COLUMNS = ("id", "name", "price")
KNOWN = {
    "product": ("id", "name", "price", "text", "big"),
    "order": ("id", "total"),
    "customer": ("id", "name"),
}
"""What most tests take for given, so that their transactions hold no records of the schema."""

Columns = dict[str, dict[str, str | None]]
"""Entity type → column → kind of its values; "fixed" where any will do."""


@dataclass(frozen=True, slots=True)
class ModelMutation:
    """One change of one row, as a test makes it up."""

    entity_type: str
    primary_key: str | None
    operation: Operation
    before: dict[str, object] | None
    after: dict[str, object] | None

    def image(self, name: str) -> bytes | None:
        """Return ``before`` or ``after`` as JSON text."""
        value = getattr(self, name)
        return None if value is None else json.dumps(value).encode()

    @property
    def changed(self) -> list[str] | None:
        """The columns that an update changed."""
        if self.before is None or self.after is None:
            return None
        names = [*self.before, *(name for name in self.after if name not in self.before)]
        return [name for name in names if self.before.get(name) != self.after.get(name)]


@dataclass(slots=True)
class ModelLog:
    """Published transactions, and the columns seen, in first-seen order."""

    transactions: list[list[ModelMutation]] = field(default_factory=list)
    known: Mapping[str, Sequence[str]] = field(default_factory=lambda: KNOWN)
    """Columns that the catalog's schema has from the beginning, of any type."""

    def expected(self, criteria: Sequence[Criteria], first: int = 1) -> list[Coordinates]:
        """Return the captures that ``criteria`` match from a version on, in order, once each."""
        found: list[Coordinates] = []
        columns: Columns = {
            entity_type: dict.fromkeys(names, "fixed") for entity_type, names in self.known.items()
        }
        for version, mutations in enumerate(self.transactions, 1):
            changed = _learn(columns, mutations)
            captures = [(0, 0)] if _lead_matches(criteria) else []
            captures.extend(
                (index, 0)
                for index, entity_type in enumerate(changed, 1)
                if any(_schema_matches(each, entity_type) for each in criteria or [Criteria()])
            )
            for index, mutation in enumerate(mutations, 1 + len(changed)):
                ordinals = {
                    ordinal
                    for each in criteria or [Criteria()]
                    for ordinal in _ordinals(each, mutation, list(columns[mutation.entity_type]))
                }
                captures.extend((index, ordinal) for ordinal in sorted(ordinals))
            if version >= first:
                found.extend((version, *capture) for capture in captures)
        return found


def _learn(columns: Columns, mutations: Sequence[ModelMutation]) -> list[str]:
    """Take what mutations show into the columns; return the entity types that changed, in order."""
    before = {entity_type: dict(types) for entity_type, types in columns.items()}
    for mutation in mutations:
        types = columns.setdefault(mutation.entity_type, {})
        for image in (mutation.after, mutation.before):
            for name, value in (image or {}).items():
                kind = None if value is None else type(value).__name__
                known = types.get(name)
                if known is None or kind is None:
                    types[name] = known or kind
                elif known not in ("fixed", kind):
                    types[name] = "mixed"
    return [name for name, types in columns.items() if before.get(name) != types]


def _schema_matches(criteria: Criteria, entity_type: str) -> bool:
    return (
        criteria.area in (None, Area.SCHEMA)
        and (not criteria.operation or Operation.UPSERT in criteria.operation)
        and (not criteria.entity_type or entity_type in criteria.entity_type)
        and not criteria.primary_key
        and (
            not (criteria.container_type or criteria.container_name)
            or ContainerType.CATALOG in criteria.container_type
        )
    )


def _lead_matches(criteria: Sequence[Criteria]) -> bool:
    return any(
        each.area in (None, Area.INFRASTRUCTURE)
        and (not each.operation or Operation.TRANSACTION in each.operation)
        and not (each.entity_type or each.primary_key or each.container_type or each.container_name)
        for each in criteria or [Criteria()]
    )


def _ordinals(criteria: Criteria, mutation: ModelMutation, columns: list[str]) -> set[int]:
    if criteria.area not in (None, Area.DATA):
        return set()
    if criteria.operation and mutation.operation not in criteria.operation:
        return set()
    if criteria.entity_type and mutation.entity_type not in criteria.entity_type:
        return set()
    if criteria.primary_key and mutation.primary_key not in (None, *criteria.primary_key):
        return set()
    kinds = set(criteria.container_type)
    by_column = bool(criteria.container_name or kinds & COLUMN_TYPES)
    if not by_column:
        return {0} if not kinds or ContainerType.ENTITY in kinds else set()
    ordinals = {0} if ContainerType.ENTITY in kinds else set()
    if mutation.operation is Operation.UPSERT:
        touched = mutation.changed if mutation.changed is not None else list(mutation.after or {})
        ordinals |= {
            1 + columns.index(name)
            for name in touched
            if (not criteria.container_name or name in criteria.container_name)
            and (not kinds & COLUMN_TYPES or ContainerType.ATTRIBUTE in kinds)
        }
    return ordinals


@st.composite
def mutations(draw: st.DrawFn) -> ModelMutation:
    """Any mutation over few entity types, keys and columns."""
    entity_type = draw(st.sampled_from(ENTITY_TYPES))
    operation = draw(
        st.sampled_from([Operation.UPSERT, Operation.UPSERT, Operation.REMOVE, Operation.EXPIRE])
    )
    key = draw(st.sampled_from(["1", "2", "3", "7", "ключ"]))
    if draw(st.integers(0, 19)) == 0:
        return ModelMutation(entity_type, None, Operation.REMOVE, None, None)
    image = st.fixed_dictionaries(
        {"id": st.just(key)},
        optional={"name": st.text(max_size=5), "price": st.integers(0, 9)},
    )
    before = draw(st.none() | image) if operation is Operation.UPSERT else draw(image)
    after = draw(image) if operation is Operation.UPSERT else None
    return ModelMutation(entity_type, key, operation, before, after)


transactions = st.lists(mutations(), max_size=6)


@st.composite
def _criteria(draw: st.DrawFn) -> Criteria:
    kind = draw(st.sampled_from(["any", "area", "lead", "simple", "keyed", "column"]))
    if kind == "any":
        return Criteria()
    if kind == "area":
        return Criteria(area=draw(st.sampled_from([Area.DATA, Area.INFRASTRUCTURE, Area.SCHEMA])))
    if kind == "lead":
        return Criteria(operation=(Operation.TRANSACTION,))
    names = st.lists(st.sampled_from([*ENTITY_TYPES, "orders"]), max_size=2).map(tuple)
    operations = st.lists(
        st.sampled_from([Operation.UPSERT, Operation.REMOVE, Operation.EXPIRE]), max_size=2
    ).map(tuple)
    keys = st.lists(st.sampled_from(["1", "2", "ключ", "none"]), min_size=1, max_size=3).map(tuple)
    columns = st.lists(st.sampled_from([*COLUMNS, "pric"]), min_size=1, max_size=2).map(tuple)
    kinds = st.sampled_from([(), (ContainerType.ENTITY, ContainerType.ATTRIBUTE)])
    operation, container_type = draw(operations), draw(kinds) if kind == "column" else ()
    if kind == "column" and not container_type and operation:
        operation = (*operation, Operation.UPSERT)  # the only one that has captures of columns
    return Criteria(
        entity_type=draw(names),
        operation=operation,
        primary_key=draw(keys) if kind == "keyed" or draw(st.booleans()) else (),
        container_name=draw(columns) if kind == "column" else (),
        container_type=container_type,
    )


criteria_lists = st.lists(_criteria(), max_size=3).map(tuple)
