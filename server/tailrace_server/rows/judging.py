"""Which rows of a batch the conditions of one predicate match, and how each change moves its row.

Alternatives with conditions are one condition together, joined by OR: a row that leaves one and enters another
stays in. Matches of an alternative without a condition are not evaluated.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    """A set of names of columns."""

    def shows(self, name: str) -> bool:
        """Return True if a column is in the set."""


class Right(Protocol):
    """A right to some rows of a table, and to some of their columns."""

    @property
    def columns(self) -> ColumnSet:
        """The columns, by the names that each version has for them."""

    @property
    def bodies(self) -> bool:
        """True if images may be read."""

    @property
    def keys(self) -> object | None:
        """The keys of the rows; None: all."""

    @property
    def rows(self) -> Condition | None:
        """The condition that the rows meet; None: all rows do."""

    def takes(self, key: str | None) -> bool:
        """Return True if the right is for rows of a key; None, as of a truncate, is a part of every set."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Rows that one alternative matches, but for its condition."""

    condition: RowCondition
    rows: NDArray[np.int32]
    """Of one entity type, area DATA, with keys; rising, at least one."""


@dataclass(frozen=True, slots=True, eq=False)
class JudgedRows:
    """The results of conditions for the records of a batch."""

    codes: NDArray[np.uint8]
    """By record, the code of `transitions`; 0 where none of the conditions matches it."""
    matched: Sequence[NDArray[np.int32]]
    """For each of the candidates, in their order, the rows that its own condition matches."""
    expired: NDArray[np.int32]
    """Rows that cannot be evaluated any more, as their images have expired."""
    open: NDArray[np.int32]
    """Rows whose grant is unknown. To tell the key may tell of a row that is not, and
    not to tell it may leave one in that has gone. No code, and matched by none."""


def judged(
    head: BatchHead,
    images: Images,
    asked: Sequence[Candidates],
    rights_of: RightsOf | None,
    decoded: DecodedBatch | None = None,
) -> JudgedRows:
    """Return what conditions say.

    Args:
        head: The head of a batch.
        images: Its images.
        asked: The conditions to evaluate.
        rights_of: Returns the caller's rights to rows of an entity type; None: all columns are granted.
        decoded: The same images, decoded for others as well; None: those of the candidates are decoded.

    Raises:
        ConditionRefused: One of them cannot be evaluated with the schema of the batch.
    """
    # 1. Whose images are gone is for the reader to know.
    expired = np.empty(0, np.int32)
    if images.gone is not None:
        rows = np.unique(np.concatenate([each.rows for each in asked]))
        expired = rows[images.gone[rows]]
    # 2. One condition after the other, in the rows that come into question for it.
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
    # 3. A row that is given by the conditions of grants alone is veiled: its reader sees nothing of it outside
    #    of them, and nothing at all if it is unknown whether it was in. A row that another alternative takes is
    #    visible whole, inside and outside. Each row is decided by itself, whatever else its batch has.
    codes = np.zeros(len(bits), np.uint8)
    is_veiled = np.zeros(len(bits), np.bool_)
    for each in asked:
        if each.condition.is_granted:
            is_veiled[each.rows] = True
    for each in asked:
        if not each.condition.is_granted:
            is_veiled[each.rows] = False
    for rows in matched:
        codes[rows] = codes_of(bits[rows])  # of few rows of a batch, as a rule
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
    """Return the images by entity type, decoded together for all conditions of it; of those that have rows."""
    by_type: dict[int, list[Candidates]] = {}
    for each in asked:
        by_type.setdefault(int(head.type_codes[each.rows[0]]), []).append(each)
    found = {}
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
    """Return those of some rows that an index has found for a condition; all, if it was not asked."""
    found = decoded.found.get(code)
    places = None if found is None else found.places(condition)
    if found is None or places is None:
        return rows
    wanted: NDArray[np.int32] = found.typed.rows[places]
    if len(rows) == len(found.typed.rows) or not len(wanted):
        return wanted
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
    """Return the answers of a condition for some rows; a row that hides a column of it is out."""
    places = None if len(rows) == len(typed.rows) else np.searchsorted(typed.rows, rows)
    verdict = typed.verdict(typed.fitted(condition), places=places)
    if rights_of is None or not condition.asked:
        return verdict
    which = typed.which if places is None else typed.which[places]

    def keys() -> list[str | None]:
        found = head.keys.values(rows.tolist())
        return [None if key is None else key.decode() for key in found]

    rights = rights_of(typed.entity_type)
    return verdict.only(shows_columns(rights, keys, condition.asked, typed.written, which))


def shows_columns(
    rights: Sequence[Right],
    keys: Callable[[], Sequence[str | None]],
    columns: Iterable[Column],
    written: Sequence[Sequence[Column]],
    which: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Return the rows that show some columns, each under the name that it has in the row's version.

    A row that hides a column of its reader's condition is out of the condition, whatever its values: else the
    result would reveal them.

    Args:
        rights: The reader's, to rows of the table.
        keys: Returns the key of each row.
        columns: The columns, followed by their ids.
        written: The table's columns, in each schema that rows were written with.
        which: The place of each row's schema in ``written``.
    """
    ids = {column.id for column in columns}
    names = [{each.name for each in one if each.id in ids} for one in written]
    if all_show(rights, set().union(*names)):
        return np.ones(len(which), np.bool_)
    found = []
    for key, place in zip(keys(), which.tolist(), strict=True):
        mine = [right for right in rights if right.bodies and right.takes(key)]
        found.append(all(any(right.columns.shows(name) for right in mine) for name in names[place]))
    return np.array(found, np.bool_)


def all_show(rights: Sequence[Right], names: Iterable[str]) -> bool:
    """Return True if every row shows columns of some names."""
    return all(
        right.keys is None and right.bodies and all(map(right.columns.shows, names))
        for right in rights
    )


def not_judged(head: BatchHead, row: int) -> ChangeNotJudged:
    """Return the error of a record if it is unknown whether its row was granted."""
    name, version = head.entity_types[int(head.type_codes[row])], int(head.versions[row])
    return ChangeNotJudged(
        f"where: rows of {name!r} are granted by a condition, and version {version} has a change without the "
        "image before, or one that may lack what the condition asks for, so nobody can say whether its row "
        "was granted: have the ingest keep whole images (--images full), and begin behind that version"
    )
