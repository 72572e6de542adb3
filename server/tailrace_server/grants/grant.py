"""The rights of a principal to a catalog: a grant, which is a union of allowances.

An allowance is a rectangle: some rows (by entity type and key) and some columns of each of these rows. The
allowances of a grant add up row by row::

    allowance 1     orders        key 7      all columns
    allowance 2     orders        all keys   id, status
    together        orders 7: all columns    other orders: id, status

A condition narrows an allowance to the rows that meet it in the version at hand. Two allowances never add up to
a cell that neither of them gives. This module has values only; the other modules of the folder apply them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace_server.filters.tree import Condition


class Action(StrEnum):
    """The actions that a grant allows."""

    SUBSCRIBE = "subscribe"
    HISTORY = "history"
    """Read closed ranges of the log."""
    SCHEMA = "schema"
    """Read entity types and columns, without their changes."""
    STATISTICS = "statistics"
    """Read figures of a catalog and of its readers, with the criteria of each reader."""
    NAMED = "named"
    """Create named subscriptions; read, move and delete those that the caller has created."""
    OPERATE = "operate"
    """End the subscriptions of other callers, and use their named subscriptions."""


READING: Final = frozenset({Action.SUBSCRIBE, Action.HISTORY, Action.SCHEMA})
"""The default actions of an allowance."""


@dataclass(frozen=True, slots=True)
class Columns:
    """A set of column names: the listed ones, or all except the listed ones. Names are case-sensitive."""

    names: frozenset[str] = frozenset()
    """The listed names."""
    listed: bool = False
    """True: the set has exactly the listed names. False: the set has all other names."""

    def shows(self, name: str) -> bool:
        """Return True if a column is in the set."""
        return (name in self.names) == self.listed

    @property
    def are_all(self) -> bool:
        """True if the set has every column."""
        return not self.listed and not self.names

    def __or__(self, other: Columns) -> Columns:
        """Return the union of two sets."""
        match self.listed, other.listed:
            case True, True:
                return Columns(self.names | other.names, listed=True)
            case True, False:
                return Columns(other.names - self.names)
            case False, True:
                return Columns(self.names - other.names)
            case _:
                return Columns(self.names & other.names)

    def cover(self, other: Columns) -> bool:
        """Return True if this set has every column of the other set."""
        return self | other == self


ALL_COLUMNS: Final = Columns()


@dataclass(frozen=True, slots=True)
class KeyPatterns:
    """A set of keys, given by shell patterns such as ``shop-*``; case-sensitive.

    Only allowances for the system log have patterns: its keys are names of catalogs.
    """

    patterns: tuple[str, ...]

    def __contains__(self, key: str) -> bool:
        """Return True if a pattern matches a key."""
        return any(fnmatchcase(key, pattern) for pattern in self.patterns)


Keys = frozenset[str] | KeyPatterns | None
"""A set of primary keys; None: all keys, and records without key."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """The right to some rows of a catalog and some of their columns, for some actions."""

    entity_types: frozenset[str] | None = None
    """The granted entity types; None: all of them, also those that are created later."""
    primary_keys: Keys = None
    """The keys of the granted rows."""
    columns: Columns = ALL_COLUMNS
    """The granted columns, the same for each entity type. A row's key is always visible with the row."""
    bodies: bool = True
    """True if captures of rows may carry images."""
    actions: frozenset[Action] = READING
    """The actions that the right is for."""
    rows: Condition | None = None
    """A condition that granted rows meet; it may be on columns that are not granted. None: every row."""

    def takes_type(self, entity_type: str) -> bool:
        """Return True if the allowance covers an entity type."""
        return self.entity_types is None or entity_type in self.entity_types

    @property
    def is_whole(self) -> bool:
        """True if the allowance covers every row and column, with images."""
        return (
            self.entity_types is None
            and self.primary_keys is None
            and self.rows is None
            and self.columns.are_all
            and self.bodies
        )

    def covers(self, entity_type: str | None, key: str | None) -> bool:
        """Return True if the allowance covers a key of an entity type; None means all of them.

        Conditions are not evaluated here.
        """
        if self.entity_types is not None and (
            entity_type is None or entity_type not in self.entity_types
        ):
            return False
        return self.primary_keys is None or (key is not None and key in self.primary_keys)


@dataclass(frozen=True, slots=True)
class Grant:
    """The rights of a principal to one catalog."""

    allowances: tuple[Allowance, ...]

    def may(self, action: Action) -> bool:
        """Return True if an action is granted for any part of the catalog."""
        return any(action in each.actions for each in self.allowances)

    def of(self, action: Action) -> tuple[Allowance, ...]:
        """Return the allowances that are for an action."""
        return tuple(each for each in self.allowances if action in each.actions)


def cover(wide: Iterable[Allowance], narrow: Iterable[Allowance]) -> bool:
    """Return True if the allowances ``wide`` together give all that ``narrow`` gives; actions are ignored."""
    given = tuple(wide)
    return all(_covers(given, each) for each in narrow)


def _covers(given: tuple[Allowance, ...], wanted: Allowance) -> bool:
    keys = wanted.primary_keys
    # No attempt is made to find out if one condition implies another: an allowance with a condition covers
    # only allowances with the same condition.
    given = tuple(each for each in given if each.rows in (None, wanted.rows))
    # The keys of patterns cannot be enumerated: they are covered by all keys, or by a superset of the patterns.
    if isinstance(keys, KeyPatterns):
        given = tuple(each for each in given if _has_patterns(each.primary_keys, keys))
        given = tuple(
            Allowance(each.entity_types, None, each.columns, each.bodies) for each in given
        )
        keys = None
    types = (None,) if wanted.entity_types is None else wanted.entity_types
    # Try all keys at once before single keys: usually one allowance covers them, and there may be 100,000.
    for entity_type in types:
        of_type = [each for each in given if each.covers(entity_type, None)]
        if _give(of_type, wanted):
            continue
        if keys is None:
            return False
        of_keys = [
            each
            for each in given
            if each.entity_types is None
            or (entity_type is not None and each.takes_type(entity_type))
        ]
        for key in keys:
            if not _give([each for each in of_keys if each.covers(entity_type, key)], wanted):
                return False
    return True


def _has_patterns(given: Keys, wanted: KeyPatterns) -> bool:
    if isinstance(given, KeyPatterns):
        return {*wanted.patterns} <= {*given.patterns}
    return given is None


def _give(allowances: list[Allowance], wanted: Allowance) -> bool:
    """Return True if allowances together show all columns, and all columns of images, that ``wanted`` shows.

    All of the allowances must cover the same rows.
    """
    named = Columns(listed=True)
    imaged = Columns(listed=True)
    for each in allowances:
        named |= each.columns
        if each.bodies:
            imaged |= each.columns
    return bool(allowances) and (imaged if wanted.bodies else named).cover(wanted.columns)


EVERYTHING: Final = Grant((Allowance(actions=frozenset(Action)),))
"""The grant of a whole catalog for every action."""
READ_ALL: Final = Grant((Allowance(actions=frozenset(Action) - {Action.OPERATE}),))
"""The grant of a whole catalog for every action except OPERATE."""
