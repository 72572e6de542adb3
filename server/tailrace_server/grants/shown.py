"""The visible part of the records that narrowed criteria match: columns, images and counts.

Keys are left out where they decide nothing. So ten thousand principals with a key each and the same columns
have the same `Visibility`, and share frames as ten thousand keyed criteria of one principal do.
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
    """Columns and images of some rows of an entity type."""

    keys: Keys
    """None: of all rows."""
    columns: Columns
    bodies: bool
    rows: Condition | None = None
    """A condition that the rows meet; None: all do."""

    def takes(self, key: str | None) -> bool:
        """Return whether it is for rows of a key; None, as of truncates, is a part of every set of keys."""
        return self.keys is None or key is None or key in self.keys


_ALL: Final = (Rule(None, ALL_COLUMNS, True),)
NO_COLUMNS: Final = Columns(listed=True)


@dataclass(frozen=True)
class Visibility:
    """Rules by entity type, and the entity types whose number of records a lead may tell."""

    by_type: tuple[tuple[str, tuple[Rule, ...]], ...]
    """Sorted by name."""
    others: tuple[Rule, ...]
    """Of entity types that are not named."""
    counted: frozenset[str] | None
    """Entity types whose counts leads show; None: all of them."""
    counted_are_all: bool
    """True if all that is granted is counted, so that the counts have a sum."""

    @cached_property
    def identity(self) -> bytes:
        """Digest that equal values share."""
        counted = None if self.counted is None else sorted(self.counted)
        rules = [(name, [*map(_text, rules)]) for name, rules in (*self.by_type, ("", self.others))]
        text = repr((rules, counted, self.counted_are_all))
        return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()

    @property
    def follows_schema(self) -> bool:
        """True if the schema of a record says what is shown of it, beside names."""
        return False

    def moves_shown(
        self, head: BatchHead, rows: NDArray[np.int32], codes: NDArray[np.uint8]
    ) -> NDArray[np.bool_]:
        """Return which of some rows enter or leave, and are shown though hidden columns alone changed.

        Args:
            head: The head of a batch.
            rows: Some of its rows, in any order, each as often as it is asked for.
            codes: Of each of the rows, as of ``transitions``.
        """
        return is_veiled_move(codes)

    def check(self, head: BatchHead) -> None:
        """Refuse a batch whose visible part is unknown; here it is always known."""

    @cached_property
    def _by_name(self) -> dict[str, tuple[Rule, ...]]:
        return dict(self.by_type)

    def rules_of(self, entity_type: str) -> tuple[Rule, ...]:
        """Return the rules of an entity type."""
        return self._by_name.get(entity_type, self.others)

    def rules_for(self, entity_type: str, key: str | None) -> tuple[Rule, ...]:
        """Return the rules of one row."""
        rules = self.rules_of(entity_type)
        if len(rules) == 1 and rules[0].keys is None:
            return rules
        return tuple(rule for rule in rules if rule.takes(key))

    def has_conditions(self, entity_type: str) -> bool:
        """Return whether a row has to be looked at to know whether it is shown."""
        return any(rule.rows is not None for rule in self.rules_of(entity_type))

    def filters(self, entity_type: str) -> bool:
        """Return whether records of an entity type may be left out, by their key or by what they changed."""
        return not any(map(gives_all, self.rules_of(entity_type)))

    def shows(self, entity_type: str, key: str | None, changed: Sequence[str] | None) -> bool:
        """Return whether a record is shown: one of rows that are, unless it changed hidden columns only."""
        rules = self.rules_for(entity_type, key)
        if not rules:
            return False
        if not changed:
            return True
        columns = columns_of(rules)
        return any(map(columns.shows, changed))

    def kept(self, head: BatchHead, rows: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return those of some rows of a batch that are shown."""
        # 1. Most batches have no entity type with hidden columns.
        codes = [code for code, name in enumerate(head.entity_types) if self.filters(name)]
        if not codes or not len(rows):
            return rows
        # 2. A few rows are asked for one by one. Of many those of simple rules are found by column codes.
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
        """Return whether a record of a batch is shown."""
        code = head.type_codes.item(row)
        if code < 0:
            return True
        name = head.entity_types[code]
        if not self.filters(name):
            return True
        (changed,) = head.names.values((row,))
        return self.shows(name, key_of(head, row), changed)

    def shows_column(self, head: BatchHead, row: int, column: str) -> bool:
        """Return whether a column of a record of a batch is shown."""
        rules = self.rules_for(head.entity_types[head.type_codes.item(row)], key_of(head, row))
        return columns_of(rules).shows(column)


def key_of(head: BatchHead, row: int) -> str | None:
    """Return the key of a record."""
    (key,) = head.keys.values((row,))
    return None if key is None else key.decode()


def columns_of(rules: Sequence[Rule]) -> Columns:
    """Return the columns that rules show together."""
    if len(rules) == 1:
        return rules[0].columns
    columns = NO_COLUMNS
    for rule in rules:
        columns |= rule.columns
    return columns


def image_columns_of(rules: Sequence[Rule]) -> Columns | None:
    """Return the columns that rules show together in images; None: no images."""
    with_bodies = [rule for rule in rules if rule.bodies]
    return columns_of(with_bodies) if with_bodies else None


def changes_shown(head: BatchHead, columns: Columns) -> NDArray[np.bool_]:
    """Return which records of a batch have not changed hidden columns only."""
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
    """Return what is shown of what narrowed criteria match; None if that is all of it.

    Args:
        allowances: What is granted.
        criteria: What was asked for, narrowed to it.
        with_rows: Whether rules have the conditions of allowances; else the criteria have them.
    """
    rules_of = _rules if with_rows else _rules_without_rows
    # 1. Only entity types that can come count: criteria of one type know nothing of rules for others.
    #    A record of the schema may tell the name that its entity type has from now on, which may be any.
    of_records = [each for each in criteria if not _is_lead(each)]
    of_schema = any(map(_takes_schema_records, of_records))
    open_types = of_schema or any(not each.entity_type for each in of_records)
    asked = {name for each in of_records for name in each.entity_type}
    named = {name for each in allowances for name in each.entity_types or ()}
    every_type = [each for each in allowances if each.entity_types is None]
    others = rules_of(every_type) if open_types else ()
    by_type = {}
    for name in asked | (named if open_types else set()):
        rules = rules_of(each for each in allowances if each.takes_type(name))
        if rules != others:
            by_type[name] = rules
    # 2. Counts of entity types of which all is granted are shown as they are.
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
    cuts_nothing = all(rules == _ALL for rules in (*by_type.values(), others or _ALL))
    if cuts_nothing and counted is None and (every_type or not of_schema):
        return None
    return Visibility(tuple(sorted(by_type.items())), others, counted, counted_are_all)


def refuse_mixed(entity_type: str, rules: Sequence[Rule]) -> None:
    """Refuse rules with different visible columns if one of them has a condition.

    Raises:
        NotPermitted: They are such.
    """
    parts = {(rule.columns, rule.bodies) for rule in rules}
    if len(parts) > 1 and any(rule.rows is not None for rule in rules):
        raise NotPermitted(
            f"the grants of {entity_type!r} show other columns of some rows than of others, and choose rows by "
            "a condition: that is not served; have the policy grant the same columns of all of them"
        )


def gives_all(rule: Rule) -> bool:
    """Return whether a rule leaves out no record of its entity type."""
    return rule.keys is None and rule.rows is None and rule.columns.are_all


def gives_every_record(allowance: Allowance) -> bool:
    """Return True if all records of its entity types are visible, so that their number may be sent."""
    return allowance.primary_keys is None and allowance.rows is None and allowance.columns.are_all


def columns_shown(entity_type: str, columns: Columns) -> Visibility:
    """Return that of one entity type some columns are shown, of every row."""
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
    """Return whether criteria take transaction leads."""
    if criteria.area not in (None, Area.INFRASTRUCTURE) or criteria.container_type:
        return False
    if criteria.operation and Operation.TRANSACTION not in criteria.operation:
        return False
    return not (criteria.entity_type or criteria.primary_key or criteria.container_name)


def _rules(allowances: Iterable[Allowance]) -> tuple[Rule, ...]:
    """Return the rules of one entity type, in a fixed order, without keys where they decide nothing."""
    keys_by_part: dict[tuple[Columns, bool, Condition | None], list[Keys]] = {}
    for each in allowances:
        part = each.columns, each.bodies, each.rows
        keys_by_part.setdefault(part, []).append(each.primary_keys)
    patterns = any(isinstance(keys, KeyPatterns) for each in keys_by_part.values() for keys in each)
    # 1. What is shown of all rows alike needs no keys: the criteria have left no others.
    if len(keys_by_part) == 1 and not patterns:
        (part,) = keys_by_part
        return (Rule(None, *part),)
    rules = [
        Rule(keys, *part) for part, listed in keys_by_part.items() for keys in _joined_keys(listed)
    ]
    # 2. A rule of all rows that shows everything makes the others needless.
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
