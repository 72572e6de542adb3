"""Evaluation of a predicate's conditions on the rows of a batch.

The results are the rows that match each condition, and the transition (enter, update, leave) of each change.

Alternatives with conditions count as one condition, joined by OR: a row that leaves one alternative and enters
another one stays in. Rows that match an alternative without a condition need no evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tailrace_server.filters.tree import ChangeNotJudged
from tailrace_server.rows.transitions import MAY_HAVE_BEEN, NONE, VEILED, codes_of
from tailrace_server.rows.typed_images import TypedImages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from tailrace.schema import Column
    from tailrace_server.filters.tree import Condition
    from tailrace_server.live.decoded_batch import DecodedBatch
    from tailrace_server.rows.batch_images import Images
    from tailrace_server.rows.row_condition import RowCondition
    from tailrace_server.rows.transitions import ImageVerdict
    from tailrace_server.wal.segment.reader import BatchHead

    RightsOf = Callable[[str], Sequence["Right"]]


class ColumnSet(Protocol):
    """A set of column names."""

    def shows(self, name: str) -> bool:
        """Return True if the set has a column."""


class Right(Protocol):
    """Interface of a right to some rows of a table and to some of their columns; grants implement it."""

    @property
    def columns(self) -> ColumnSet:
        """The granted columns, as names: a column is granted in a version if the set has its name there."""

    @property
    def bodies(self) -> bool:
        """True if the caller may read images, not only headers."""

    @property
    def keys(self) -> object | None:
        """The keys of the granted rows; None: all keys."""

    @property
    def rows(self) -> Condition | None:
        """The condition that granted rows meet; None: no condition."""

    def takes(self, key: str | None) -> bool:
        """Return True if the right covers rows with a key; always True for None, the key of a truncate."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Rows that match one alternative so far; only its condition is not evaluated yet."""

    condition: RowCondition
    rows: NDArray[np.int32]
    """Offsets in the batch, rising, at least one; DATA records with keys, all of one entity type."""


@dataclass(frozen=True, slots=True, eq=False)
class JudgedRows:
    """The result of evaluating conditions on the records of a batch."""

    codes: NDArray[np.uint8]
    """Code of ``transitions`` for each record of the batch; 0 if no condition matches the record."""
    matched: Sequence[NDArray[np.int32]]
    """For each of the given candidates, in the same order, the rows that match its condition."""
    expired: NDArray[np.int32]
    """Rows that can no longer be evaluated, as their images are no longer retained."""
    open: NDArray[np.int32]
    """Rows for which it is unknown whether the grant covers them.

    Sending the key may reveal a row that is not granted. Leaving it out may keep a row that has left. So these
    rows have code 0 and are in no ``matched``; the caller ends the read or subscription at them.
    """


def judged(
    head: BatchHead,
    images: Images,
    asked: Sequence[Candidates],
    rights_of: RightsOf | None,
    decoded: DecodedBatch | None = None,
) -> JudgedRows:
    """Evaluate conditions on the rows of a batch.

    Args:
        head: The head of a batch.
        images: The images of the batch.
        asked: The conditions to evaluate, each with its candidate rows.
        rights_of: Function that returns the caller's rights to rows of an entity type; None: all columns are
            granted.
        decoded: The images, already decoded for the conditions of several predicates; None: this call decodes
            the images of the candidates.

    Raises:
        ConditionRefused: One of the conditions cannot be evaluated with the schema of the batch.
    """
    # 1. Separate the rows whose images are no longer retained: their reader ends with an error there.
    expired = np.empty(0, np.int32)
    if images.gone is not None:
        rows = np.unique(np.concatenate([each.rows for each in asked]))
        expired = rows[images.gone[rows]]
    # 2. Evaluate one condition after the other, each on its
    #    candidates, or on the rows that an index found for it.
    bits = np.zeros(len(head.versions), np.uint8)
    matched: list[NDArray[np.int32]] = []
    types = _typed(head, images, asked, expired, decoded)
    for each in asked:
        rows = each.rows if not len(expired) else each.rows[~np.isin(each.rows, expired)]
        code = int(head.type_codes[each.rows[0]])
        if len(rows) and decoded is not None:
            rows = _in_question(decoded, code, each.condition, rows)
        if len(rows):
            verdict = _verdict(head, types[code], each.condition, rows, rights_of)
            bits[rows] |= verdict.bits
            rows = rows[verdict.is_match]
        matched.append(rows)
    # 3. A row that is granted only by conditions is veiled: its reader sees no image that does not meet them,
    #    and nothing at all if it is unknown whether the row met them before. A row that another alternative
    #    takes without a grant's condition is visible whole. The result for a row must not depend on the other
    #    rows of its batch.
    codes = np.zeros(len(bits), np.uint8)
    is_veiled = np.zeros(len(bits), np.bool_)
    for each in asked:
        if each.condition.is_granted:
            is_veiled[each.rows] = True
    for each in asked:
        if not each.condition.is_granted:
            is_veiled[each.rows] = False
    for rows in matched:
        # Compute codes only for matches, which usually are few rows of the batch.
        codes[rows] = codes_of(bits[rows])
        codes[rows] |= np.where(is_veiled[rows], np.uint8(VEILED), np.uint8(0))
    is_open = is_veiled & (bits == MAY_HAVE_BEEN)
    open_rows = np.flatnonzero(is_open).astype(np.int32)
    if len(open_rows):
        codes[open_rows] = NONE
        matched = [rows[~is_open[rows]] for rows in matched]
    return JudgedRows(codes, matched, expired, open_rows)


def _typed(
    head: BatchHead,
    images: Images,
    asked: Sequence[Candidates],
    expired: NDArray[np.int32],
    decoded: DecodedBatch | None,
) -> dict[int, TypedImages]:
    """Return entity type code → its images, decoded once for all conditions on the entity type.

    Entity types without rows to evaluate are left out.
    """
    by_type: dict[int, list[Candidates]] = {}
    for each in asked:
        by_type.setdefault(int(head.type_codes[each.rows[0]]), []).append(each)
    found = {}
    # Decode each entity type once, for the rows and columns of all of its conditions together.
    for code, candidates in by_type.items():
        if decoded is not None:
            if decoded.has_rows(code):
                found[code] = decoded.of(code)
            continue
        parts = [each.rows for each in candidates]
        rows = parts[0] if len(parts) == 1 else np.unique(np.concatenate(parts))
        if len(expired):
            rows = rows[~np.isin(rows, expired)]
        if len(rows):
            typed = found[code] = TypedImages(head, images, head.entity_types[code], rows)
            typed.decode(
                column for each in candidates for column in typed.fitted(each.condition).columns
            )
    return found


def _in_question(
    decoded: DecodedBatch, code: int, condition: RowCondition, rows: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Return those rows that an index has found for a condition; all rows if no index was used for it."""
    found = decoded.found.get(code)
    places = None if found is None else found.places(condition)
    if found is None or places is None:
        return rows
    wanted: NDArray[np.int32] = found.typed.rows[places]
    if len(rows) == len(found.typed.rows) or not len(wanted):
        return wanted
    # Both arrays are rising and distinct: intersect them by binary search.
    at = np.minimum(np.searchsorted(rows, wanted), len(rows) - 1)
    wanted = wanted[rows[at] == wanted]
    return wanted


def _verdict(
    head: BatchHead,
    typed: TypedImages,
    condition: RowCondition,
    rows: NDArray[np.int32],
    rights_of: RightsOf | None,
) -> ImageVerdict:
    """Evaluate a condition on some rows; a row that hides one of the condition's columns does not match."""
    places = None if len(rows) == len(typed.rows) else np.searchsorted(typed.rows, rows)
    verdict = typed.verdict(typed.fitted(condition), places=places)
    # Only columns that the reader itself has named can reveal values; a grant may use hidden ones.
    if rights_of is None or not condition.asked:
        return verdict
    which = typed.which if places is None else typed.which[places]
    rights, keys = rights_of(typed.entity_type), partial(head.keys.strings, rows.tolist())
    return verdict.only(shows_columns(rights, keys, condition.asked, typed.written, which))


def shows_columns(
    rights: Sequence[Right],
    keys: Callable[[], Sequence[str | None]],
    columns: Iterable[Column],
    written: Sequence[Sequence[Column]],
    which: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Return a mask of the rows in which the reader may see all of some columns.

    A row that hides a column of the reader's condition never meets the condition: otherwise the result would
    reveal the hidden value. Each column is looked up by its id, under its name in the row's own version.

    Args:
        rights: The reader's rights to rows of the table.
        keys: Function that returns the key of each row.
        columns: The columns that the reader must be able to see.
        written: The table's columns, once for each schema that rows were written with.
        which: For each row, the index of its schema in ``written``.
    """
    # A column may have another name in each version, and names are what a right lists.
    ids = {column.id for column in columns}
    names = [{each.name for each in one if each.id in ids} for one in written]
    if all_show(rights, set().union(*names)):
        return np.ones(len(which), np.bool_)
    # The rights of a row depend on its key, so decide row by row.
    found = []
    for key, place in zip(keys(), which.tolist(), strict=True):
        mine = [right for right in rights if right.bodies and right.takes(key)]
        found.append(all(any(right.columns.shows(name) for right in mine) for name in names[place]))
    return np.array(found, np.bool_)


def all_show(rights: Sequence[Right], names: Iterable[str]) -> bool:
    """Return True if the rights show some columns, given by name, in every row."""
    return all(
        right.keys is None and right.bodies and all(map(right.columns.shows, names))
        for right in rights
    )


def not_judged(head: BatchHead, row: int) -> ChangeNotJudged:
    """Return the error for a record if it is unknown whether its row was granted."""
    name, version = head.entity_types[int(head.type_codes[row])], int(head.versions[row])
    return ChangeNotJudged(
        f"where: rows of {name!r} are granted by a condition, and version {version} has a change without the "
        "image before, or one that may lack what the condition asks for, so it is unknown whether its "
        "row was granted: have the ingest keep whole images (--images full), and begin behind that version"
    )
