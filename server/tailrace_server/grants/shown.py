"""The visible part of the records that narrowed criteria match: columns, images and counts.

Rules omit keys if the criteria already select by these keys. So ten thousand principals with one key each and
the same columns have equal ``Visibility`` values, and share frames.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tailrace.criteria import Area, ContainerType, Operation
from tailrace.errors import NotPermitted
from tailrace_server.filters.tree import words_of
from tailrace_server.grants.grant import ALL_COLUMNS, Columns, KeyPatterns, Keys
from tailrace_server.rows.transitions import is_veiled_move
from tailrace_server.wal.record.text_columns import SMALL_LENGTH, int32s

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from tailrace.criteria import Criteria
    from tailrace_server.filters.tree import Condition
    from tailrace_server.grants.grant import Allowance
    from tailrace_server.wal.segment.reader import BatchHead


class Rule(NamedTuple):
    """The visible columns of some rows of an entity type."""

    keys: Keys
    """The keys of the rows; None: all rows."""
    columns: Columns
    bodies: bool
    """True if images of the rows are visible."""
    rows: Condition | None = None
    """A condition that the rows meet; None: no condition."""

    def takes(self, key: str | None) -> bool:
        """Return True if the rule covers rows with a key; always True for None, the key of a truncate."""
        return self.keys is None or key is None or key in self.keys


_ALL: Final = (Rule(None, ALL_COLUMNS, True),)
NO_COLUMNS: Final = Columns(listed=True)


@dataclass(frozen=True)
class Visibility:
    """Rules by entity type, and the entity types whose record counts are visible in TRANSACTION records."""

    by_type: tuple[tuple[str, tuple[Rule, ...]], ...]
    """Pairs of entity type and its rules, sorted by name."""
    others: tuple[Rule, ...]
    """The rules of every entity type that is not in ``by_type``."""
    counted: frozenset[str] | None
    """The entity types whose counts are visible in TRANSACTION records; None: all of them."""
    counted_are_all: bool
    """True if ``counted`` has all granted entity types, so that the sum of the counts may be sent too."""

    @cached_property
    def identity(self) -> bytes:
        """Digest of the value, for cache keys; equal values have equal digests."""
        counted = None if self.counted is None else sorted(self.counted)
        rules = [(name, [*map(_text, rules)]) for name, rules in (*self.by_type, ("", self.others))]
        text = repr((rules, counted, self.counted_are_all))
        return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()

    @property
    def follows_schema(self) -> bool:
        """True if the visible part of a record depends on its schema, not only on names."""
        return False

    def moves_shown(
        self, head: BatchHead, rows: NDArray[np.int32], codes: NDArray[np.uint8]
    ) -> NDArray[np.bool_]:
        """Return a mask of the rows that are visible because they enter or leave, whatever columns changed.

        Args:
            head: The head of a batch.
            rows: Offsets of rows, in any order; duplicates are allowed.
            codes: The code of ``transitions`` of each of these rows.
        """
        return is_veiled_move(codes)

    def check(self, head: BatchHead) -> None:
        """Raise if the visible part of a batch is unknown; here it is always known."""

    @cached_property
    def _by_name(self) -> dict[str, tuple[Rule, ...]]:
        return dict(self.by_type)

    def rules_of(self, entity_type: str) -> tuple[Rule, ...]:
        """Return the rules of an entity type."""
        return self._by_name.get(entity_type, self.others)

    def rules_for(self, entity_type: str, key: str | None) -> tuple[Rule, ...]:
        """Return the rules of an entity type that cover a key; their conditions are not evaluated here."""
        rules = self.rules_of(entity_type)
        if len(rules) == 1 and rules[0].keys is None:
            return rules
        return tuple(rule for rule in rules if rule.takes(key))

    def has_conditions(self, entity_type: str) -> bool:
        """Return True if the values of a row of an entity type decide whether it is visible."""
        return any(rule.rows is not None for rule in self.rules_of(entity_type))

    def filters(self, entity_type: str) -> bool:
        """Return True if some records of an entity type may be hidden."""
        return not any(map(gives_all, self.rules_of(entity_type)))

    def shows(self, entity_type: str, key: str | None, changed: Sequence[str] | None) -> bool:
        """Return True if a record is visible: a rule covers its key, and a visible column changed.

        ``changed`` has the names of the changed columns. Without such names, only the key decides.
        """
        rules = self.rules_for(entity_type, key)
        if not rules:
            return False
        if not changed:
            return True
        columns = columns_of(rules)
        return any(map(columns.shows, changed))

    def kept(self, head: BatchHead, rows: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the visible ones of some rows of a batch."""
        # 1. The fast path: most batches have no entity type with hidden records.
        codes = [code for code, name in enumerate(head.entity_types) if self.filters(name)]
        if not codes or not len(rows):
            return rows
        # 2. Check a few rows one by one. Of many rows, check
        #    those of one simple rule together, by column codes.
        if len(rows) <= SMALL_LENGTH:
            kept = [row for row in rows.tolist() if self.shows_row(head, row)]
            return rows if len(kept) == len(rows) else int32s(kept)
        keep = np.ones(len(head.versions), np.bool_)
        for code in codes:
            of_type = np.flatnonzero(head.type_codes == code)
            rules = self.rules_of(head.entity_types[code])
            if len(rules) == 1 and rules[0].keys is None:
                keep[of_type] = changes_shown(head, rules[0].columns)[of_type]
            else:
                keep[of_type] = [self.shows_row(head, row) for row in of_type.tolist()]
        return rows[keep[rows]]

    def shows_row(self, head: BatchHead, row: int) -> bool:
        """Return True if a record of a batch is visible."""
        code = head.type_codes.item(row)
        if code < 0:
            return True
        name = head.entity_types[code]
        if not self.filters(name):
            return True
        (changed,) = head.names.values((row,))
        return self.shows(name, head.key_of(row), changed)

    def shows_column(self, head: BatchHead, row: int, column: str) -> bool:
        """Return True if a column of a record of a batch is visible."""
        rules = self.rules_for(head.entity_types[head.type_codes.item(row)], head.key_of(row))
        return columns_of(rules).shows(column)


def columns_of(rules: Sequence[Rule]) -> Columns:
    """Return the union of the columns of some rules."""
    if len(rules) == 1:
        return rules[0].columns
    columns = NO_COLUMNS
    for rule in rules:
        columns |= rule.columns
    return columns


def image_columns_of(rules: Sequence[Rule]) -> Columns | None:
    """Return the union of the columns that some rules show in images; None: images are hidden."""
    with_bodies = [rule for rule in rules if rule.bodies]
    return columns_of(with_bodies) if with_bodies else None


def changes_shown(head: BatchHead, columns: Columns) -> NDArray[np.bool_]:
    """Return a mask of the records of a batch that changed a visible column, or name no changed columns."""
    # `names` is a list column: `offsets` has the borders of each record's list, `codes` the names as numbers.
    # A record has changed a visible column if the running count of these rises between its borders.
    array = head.names.array
    offsets = np.frombuffer(array.buffers()[1], np.int32)[: len(array) + 1]
    codes = array.values.indices.to_numpy()
    shown = np.array([*map(columns.shows, head.names.names), False])[codes]
    sums = np.concatenate(([0], np.cumsum(shown)))
    found: NDArray[np.bool_] = sums[offsets[1:]] > sums[offsets[:-1]]
    found |= offsets[1:] == offsets[:-1]
    if array.null_count:
        found |= array.is_null().to_numpy(zero_copy_only=False)
    return found


def _text(rule: Rule) -> tuple[object, ...]:
    keys = rule.keys
    listed = sorted(keys) if isinstance(keys, frozenset) else keys
    rows = None if rule.rows is None else words_of(rule.rows)
    return listed, rule.columns.listed, sorted(rule.columns.names), rule.bodies, rows


def shown_of(
    allowances: Sequence[Allowance], criteria: Sequence[Criteria], *, with_rows: bool = True
) -> Visibility | None:
    """Return the visible part of the records that narrowed criteria match; None if everything is visible.

    Args:
        allowances: The caller's allowances.
        criteria: The requested criteria, already narrowed to the allowances.
        with_rows: True if the rules get the conditions of the allowances; False if the criteria have them.
    """
    rules_of = _rules if with_rows else _rules_without_rows
    # 1. Make rules only for entity types that can be delivered, so that criteria of one type do not differ by
    #    the rules of other types. Schema records can have any name: that of an entity type after a rename.
    of_records = [each for each in criteria if not _is_lead(each)]
    of_schema = any(map(_takes_schema_records, of_records))
    open_types = of_schema or any(not each.entity_type for each in of_records)
    asked = {name for each in of_records for name in each.entity_type}
    named = {name for each in allowances for name in each.entity_types or ()}
    every_type = [each for each in allowances if each.entity_types is None]
    # Entity types with the same rules as `others` are left out of `by_type`: equal visibilities must be equal
    # values, or callers would not share frames.
    others = rules_of(every_type) if open_types else ()
    by_type = {}
    for name in asked | (named if open_types else set()):
        rules = rules_of(each for each in allowances if each.takes_type(name))
        if rules != others:
            by_type[name] = rules
    # 2. Counts are visible for entity types of which every record is visible.
    counted: frozenset[str] | None = None
    counted_are_all = True
    if any(map(takes_leads, criteria)):
        whole = [each for each in allowances if gives_every_record(each)]
        if not any(each.entity_types is None for each in whole):
            counted = frozenset(name for each in whole for name in each.entity_types or ())
            counted_are_all = all(
                each.entity_types is not None and each.entity_types <= counted
                for each in allowances
            )
    # None is the common case, for which codecs and predicates have nothing to do.
    cuts_nothing = all(rules == _ALL for rules in (*by_type.values(), others or _ALL))
    if cuts_nothing and counted is None and (every_type or not of_schema):
        return None
    return Visibility(tuple(sorted(by_type.items())), others, counted, counted_are_all)


def refuse_mixed(entity_type: str, rules: Sequence[Rule]) -> None:
    """Check that rules with conditions all show the same columns and images.

    Otherwise a row would gain and lose columns with its values.

    Raises:
        NotPermitted: A rule has a condition, and the rules show different columns or images.
    """
    parts = {(rule.columns, rule.bodies) for rule in rules}
    if len(parts) > 1 and any(rule.rows is not None for rule in rules):
        raise NotPermitted(
            f"the grants of {entity_type!r} show other columns of some rows than of others, and choose rows by "
            "a condition: that is not served; have the policy grant the same columns of all of them"
        )


def gives_all(rule: Rule) -> bool:
    """Return True if a rule makes every record of its entity type visible."""
    return rule.keys is None and rule.rows is None and rule.columns.are_all


def gives_every_record(allowance: Allowance) -> bool:
    """Return True if all records of its entity types are visible, so that their number may be sent."""
    return allowance.primary_keys is None and allowance.rows is None and allowance.columns.are_all


def columns_shown(entity_type: str, columns: Columns) -> Visibility:
    """Return the visibility of some columns of one entity type, in every row."""
    rules = (Rule(None, columns, True),)
    return Visibility(((entity_type, rules),), (), None, counted_are_all=True)


def _takes_schema_records(criteria: Criteria) -> bool:
    if criteria.area is Area.DATA or criteria.primary_key:
        return False
    kinds = criteria.container_type
    return ContainerType.CATALOG in kinds or not (kinds or criteria.container_name)


def _is_lead(criteria: Criteria) -> bool:
    return criteria.area is Area.INFRASTRUCTURE or criteria.operation == (Operation.TRANSACTION,)


def takes_leads(criteria: Criteria) -> bool:
    """Return True if criteria match TRANSACTION records."""
    if criteria.area not in (None, Area.INFRASTRUCTURE) or criteria.container_type:
        return False
    if criteria.operation and Operation.TRANSACTION not in criteria.operation:
        return False
    return not (criteria.entity_type or criteria.primary_key or criteria.container_name)


def _rules(allowances: Iterable[Allowance]) -> tuple[Rule, ...]:
    """Return the rules of one entity type in a canonical order, with keys only if they are needed."""
    keys_by_part: dict[tuple[Columns, bool, Condition | None], list[Keys]] = {}
    for each in allowances:
        part = each.columns, each.bodies, each.rows
        keys_by_part.setdefault(part, []).append(each.primary_keys)
    patterns = any(isinstance(keys, KeyPatterns) for each in keys_by_part.values() for keys in each)
    # 1. If all rows have the same visible part, keys are not needed: the criteria match only granted keys.
    if len(keys_by_part) == 1 and not patterns:
        (part,) = keys_by_part
        return (Rule(None, *part),)
    rules = [
        Rule(keys, *part) for part, listed in keys_by_part.items() for keys in _joined_keys(listed)
    ]
    # 2. A rule that shows everything of all rows makes the other rules redundant.
    if _ALL[0] in rules:
        return _ALL
    return tuple(sorted(rules, key=lambda rule: repr(_text(rule))))


def _rules_without_rows(allowances: Iterable[Allowance]) -> tuple[Rule, ...]:
    return _rules(replace(each, rows=None) for each in allowances)


def _joined_keys(listed: Sequence[Keys]) -> list[Keys]:
    if None in listed:
        return [None]
    joined: list[Keys] = [each for each in dict.fromkeys(listed) if isinstance(each, KeyPatterns)]
    keys = [each for each in listed if isinstance(each, frozenset)]
    if keys:
        joined.append(frozenset[str]().union(*keys))
    return joined
