"""A plain model of rights and requests: the changes and rows of one table that a caller sees.

Columns are known by number, as names and types differ from version to version. A value is a text, a number,
None for NULL, or UNSENT where the source left it out. No reader of the product is used here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tailrace.criteria import Operation

UNSENT: Final = "__debezium_unavailable_value"
Image = dict[int, Any]
Tree = tuple[Any, ...]
"""("and" | "or", tree, tree), ("not", tree), ("null", column), ("=" | "<", column, value)"""


@dataclass(frozen=True)
class Form:
    """The table in one schema."""

    table: str
    names: dict[int, str]
    number_max: int
    """The largest number that its columns of numbers can hold."""


@dataclass(frozen=True)
class Record:
    """One change, as the log has it."""

    version: int
    form: Form
    key: str | None
    operation: Operation
    before: Image | None = None
    after: Image | None = None
    changed: tuple[int, ...] | None = None
    is_whole: bool = True
    """False if NULL in the image of a removed row may be a value that was left out."""


@dataclass(frozen=True)
class Right:
    """A part of the table that a caller may see."""

    keys: frozenset[str] | None = None
    hidden: frozenset[str] = frozenset()
    """Names of columns, as each version has them."""
    rows: Tree | None = None


@dataclass(frozen=True)
class Asked:
    """A request: rows that meet a condition, and columns; None: all."""

    where: Tree | None = None
    columns: frozenset[int] | None = None


@dataclass(frozen=True)
class Seen:
    """A change as its reader sees it."""

    record: Record
    move: str
    """ENTER, UPDATE, LEAVE, UNKNOWN; empty without a condition; STOP if nobody knows whether it may be seen."""
    before: Image | None
    after: Image | None
    changed: tuple[int, ...] | None
    is_sure: bool = True
    """False if the row may have been in, or not."""


def columns_in(tree: Tree) -> set[int]:
    if tree[0] in ("and", "or", "not"):
        return set().union(*map(columns_in, tree[1:]))
    return {tree[1]}


def answer(
    tree: Tree | None, image: Image, number_max: int, *, nulls: bool = True
) -> tuple[int, int]:
    """Return the lowest and the highest answer that there may be: 0 is false, 1 is NULL, 2 is true."""
    if tree is None:
        return 2, 2
    if tree[0] in ("and", "or", "not"):
        parts = [answer(each, image, number_max, nulls=nulls) for each in tree[1:]]
        low, high = zip(*parts, strict=True)
        if tree[0] == "not":
            return 2 - high[0], 2 - low[0]
        pick = min if tree[0] == "and" else max
        return pick(low), pick(high)
    value = image.get(tree[1])
    if value == UNSENT or (value is None and not nulls):
        return 0, 2
    if isinstance(value, int) and value > number_max:
        return (0, 0) if tree[0] == "null" else (0, 2)
    if tree[0] == "null":
        return (2, 2) if value is None else (0, 0)
    if value is None:
        return 1, 1
    return (2, 2) if (value == tree[2] if tree[0] == "=" else value < tree[2]) else (0, 0)


def both(one: Tree | None, other: Tree | None) -> Tree | None:
    return one if other is None else other if one is None else ("and", one, other)


def shown(
    record: Record, rights: list[Right], asked: Asked
) -> tuple[list[Right], set[int], set[int]]:
    """Return the rights to a record, the columns that they show, and those of them that are asked for."""
    mine = [
        each
        for each in rights
        if each.keys is None or record.key is None or record.key in each.keys
    ]
    names = record.form.names
    granted = {id for id in names for each in mine if names[id] not in each.hidden}
    return mine, granted, granted if asked.columns is None else granted & asked.columns


def cut(image: Image | None, columns: set[int]) -> Image | None:
    return None if image is None else {id: value for id, value in image.items() if id in columns}


def seen(record: Record, rights: list[Right], asked: Asked, number_max: int) -> Seen | None:
    """Return a change as a caller sees it; None: not at all."""
    mine, granted, columns = shown(record, rights, asked)
    if not mine:
        return None
    before, after, changed, move, is_sure = record.before, record.after, record.changed, "", True
    is_veiled = all(each.rows is not None for each in mine)
    if record.key is not None and (is_veiled or asked.where is not None):
        # 1. Whether the row was in, and is, by each of the rights. What hides a column asked for is out.
        was = may_have_been = is_in = may_be = False
        if asked.where is not None and not columns_in(asked.where) <= granted:
            return None
        there = (
            before is not None or changed is not None or record.operation is not Operation.UPSERT
        )
        nulls = record.is_whole or record.operation is not Operation.REMOVE
        for each in mine:
            tree = both(each.rows, asked.where)
            low, high = (
                (0, 2 * there) if before is None else answer(tree, before, number_max, nulls=nulls)
            )
            was, may_have_been = was or low == 2, may_have_been or low < 2 == high
            if after is not None:
                low, high = answer(tree, after, number_max)
                is_in = is_in or low == 2
                may_be = may_be or (
                    low < 2 == high and answer(each.rows, after, number_max)[0] == 2
                )
        if not (was or may_have_been or is_in or may_be):
            return None
        # 2. What that is to the reader.
        is_sure = was or not may_have_been if is_in or not may_be else was
        move = ("UPDATE" if was else "ENTER") if is_in else "UNKNOWN" if may_be else "LEAVE"
        if is_veiled and not (was or is_in or may_be):
            return Seen(record, "STOP", None, None, None)
        before = None if move == "ENTER" or not is_sure else before
        after = None if move == "LEAVE" else after
    # 3. A change of hidden columns alone is none, unless the row moves by it.
    is_hidden_move = is_veiled and move not in ("", "UPDATE")
    if changed and not is_hidden_move:
        of_view = asked.columns is not None and move not in ("", "UPDATE")
        if not granted.intersection(changed) or not (of_view or columns.intersection(changed)):
            return None
    changed = (
        None
        if changed is None or is_hidden_move
        else tuple(each for each in changed if each in columns)
    )
    return Seen(record, move, cut(before, columns), cut(after, columns), changed, is_sure)


def rows(
    records: list[Record], rights: list[Right], asked: Asked, newest: int, at: int
) -> dict[str, tuple[Record, Image, bool]]:
    """Return the visible rows that some records leave, their last change, and whether each is certainly in.

    Args:
        records: All up to a version.
        rights: The caller's.
        asked: What is asked for.
        newest: The largest number by the newest schema, for rights.
        at: The largest number at the version, for the request.
    """
    left: dict[str, Record] = {}
    for each in records:
        if each.key is None:
            left.clear()
        elif each.after is None:
            left.pop(each.key, None)
        else:
            left[each.key] = each
    found = {}
    for key, each in left.items():
        image = each.after or {}
        mine, granted, columns = shown(each, rights, asked)
        if not any(answer(right.rows, image, newest)[0] == 2 for right in mine):
            continue
        if asked.where is not None and not columns_in(asked.where) <= granted:
            continue
        low, high = answer(asked.where, image, at)
        if high == 2:
            found[key] = each, {id: value for id, value in image.items() if id in columns}, low == 2
    return found
