"""The rights of a principal to a catalog: a grant, which is a union of allowances.

An allowance is a rectangle: some rows (by entity type and key) and some columns of each of them. Several
allowances add up row by row::

    allowance 1     orders        key 7      all columns
    allowance 2     orders        all keys   id, status
    together        orders 7: all columns    other orders: id, status

A condition on rows narrows an allowance further: it is for the rows that meet it, as they are at each moment.
So two allowances never join to more than either of them gives. Values only; granting/ applies them.
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
    """Closed ranges of the log."""
    SCHEMA = "schema"
    """Entity types and columns, asked for apart from any change."""
    STATISTICS = "statistics"
    """Figures of a catalog and of whoever reads it, their criteria among them."""
    NAMED = "named"
    """Named subscriptions: to create them, and to read, move and delete one's own."""
    OPERATE = "operate"
    """To end the subscriptions of others, and to use named ones of others."""


READING: Final = frozenset({Action.SUBSCRIBE, Action.HISTORY, Action.SCHEMA})
"""The default scope of an allowance."""


@dataclass(frozen=True, slots=True)
class Columns:
    """A set of column names: those listed, or all but those listed. Names are matched whole, as written."""

    names: frozenset[str] = frozenset()
    listed: bool = False
    """True: the names and no others. False: all others."""

    def shows(self, name: str) -> bool:
        """Return whether a column is in the set."""
        return (name in self.names) == self.listed

    @property
    def are_all(self) -> bool:
        """True if every column is in the set."""
        return not self.listed and not self.names

    def __or__(self, other: Columns) -> Columns:
        """Return the columns that are in either."""
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
        """Return whether every column of the other is in this one."""
        return self | other == self


ALL_COLUMNS: Final = Columns()


@dataclass(frozen=True, slots=True)
class KeyPatterns:
    """A set of keys by shell patterns, case and all: ``shop-*``. Of the system log, whose keys are catalogs."""

    patterns: tuple[str, ...]

    def __contains__(self, key: str) -> bool:
        """Return whether a pattern matches a key."""
        return any(fnmatchcase(key, pattern) for pattern in self.patterns)


Keys = frozenset[str] | KeyPatterns | None
"""Primary keys; None is all of them, and records that have none."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """Some rows of a catalog, some of their columns, and what may be done with them."""

    entity_types: frozenset[str] | None = None
    """None: all of them, and those to come."""
    primary_keys: Keys = None
    columns: Columns = ALL_COLUMNS
    """Of every entity type that it is for. The key of a row is shown with the row, whatever they are."""
    bodies: bool = True
    """True if captures of rows may carry images."""
    actions: frozenset[Action] = READING
    rows: Condition | None = None
    """A condition that a row has to meet; it may ask for columns that are not shown. None: every row."""

    def takes_type(self, entity_type: str) -> bool:
        """Return whether it is for an entity type."""
        return self.entity_types is None or entity_type in self.entity_types

    @property
    def is_whole(self) -> bool:
        """True if it is for every row and column, with images."""
        return (
            self.entity_types is None
            and self.primary_keys is None
            and self.rows is None
            and self.columns.are_all
            and self.bodies
        )

    def covers(self, entity_type: str | None, key: str | None) -> bool:
        """Return whether it is for a cell of the table; None means every possible one."""
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
        """Return whether an action is granted for anything of the catalog."""
        return any(action in each.actions for each in self.allowances)

    def of(self, action: Action) -> tuple[Allowance, ...]:
        """Return the allowances that an action is granted for."""
        return tuple(each for each in self.allowances if action in each.actions)


def cover(wide: Iterable[Allowance], narrow: Iterable[Allowance]) -> bool:
    """Return whether allowances give all that others give, whatever their actions."""
    given = tuple(wide)
    return all(_covers(given, each) for each in narrow)


def _covers(given: tuple[Allowance, ...], wanted: Allowance) -> bool:
    # A set of patterns has no elements to go through: only one that has the same, or all keys, covers it.
    keys = wanted.primary_keys
    # Whether one condition follows from another is not looked at: what has rows covers the same rows.
    given = tuple(each for each in given if each.rows in (None, wanted.rows))
    if isinstance(keys, KeyPatterns):
        given = tuple(each for each in given if _has_patterns(each.primary_keys, keys))
        given = tuple(
            Allowance(each.entity_types, None, each.columns, each.bodies) for each in given
        )
        keys = None
    types = (None,) if wanted.entity_types is None else wanted.entity_types
    # Most are covered for all their keys by one allowance: 100,000 keys are not gone through then.
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
    """Return whether allowances of one cell show together what another shows of it."""
    named = Columns(listed=True)
    imaged = Columns(listed=True)
    for each in allowances:
        named |= each.columns
        if each.bodies:
            imaged |= each.columns
    return bool(allowances) and (imaged if wanted.bodies else named).cover(wanted.columns)


EVERYTHING: Final = Grant((Allowance(actions=frozenset(Action)),))
"""All of a catalog, and every action."""
READ_ALL: Final = Grant((Allowance(actions=frozenset(Action) - {Action.OPERATE}),))
"""All of a catalog, to read."""
