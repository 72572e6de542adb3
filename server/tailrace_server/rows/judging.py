"""Which rows of a batch the conditions of one predicate match, and how each change moves its row.

Alternatives with conditions are one condition together, joined by OR: a row that leaves one and enters another
stays in. Matches of an alternative without a condition are not evaluated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tailrace_server.filters.errors import ChangeNotJudged
from tailrace_server.rows.transitions import MAY_HAVE_BEEN, NONE, VEILED, codes_of
from tailrace_server.rows.typed_images import TypedImages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tailrace.schema import Column
    from tailrace_server.grants.shown import Visibility
    from tailrace_server.live.decoded_batch import DecodedBatch
    from tailrace_server.rows.batch_images import Images
    from tailrace_server.rows.row_condition import RowCondition
    from tailrace_server.rows.transitions import ImageVerdict
    from tailrace_server.wal.segment.reader import BatchHead


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
    shown: Visibility | None,
    decoded: DecodedBatch | None = None,
) -> JudgedRows:
    """Return what conditions say.

    Args:
        head: The head of a batch.
        images: Its images.
        asked: The conditions to evaluate.
        shown: What is granted of the rows; None: all.
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
            verdict = _verdict(head, types[code], each.condition, rows, shown)
            bits[rows] |= verdict.bits
            rows = rows[verdict.is_match]
        matched.append(rows)
    # 3. Where a grant has part in one of them, nothing is told of what is outside of all, and nothing at all of
    #    rows of which nobody can say whether they were in. What another alternative takes is shown by that one.
    codes = np.zeros(len(bits), np.uint8)
    granted = {head.type_codes.item(each.rows[0]) for each in asked if each.condition.is_granted}
    is_open = np.zeros(len(bits), np.bool_)
    for each, rows in zip(asked, matched, strict=True):
        codes[rows] = codes_of(bits[rows])  # of few rows of a batch, as a rule
        if head.type_codes.item(each.rows[0]) in granted:
            codes[rows] |= VEILED
            is_open[rows] = bits[rows] == MAY_HAVE_BEEN
    for each, rows in zip(asked, matched, strict=True):
        if not each.condition.is_granted:
            is_open[rows] = False
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
    shown: Visibility | None,
) -> ImageVerdict:
    """Return what a condition says of some rows."""
    places = None if len(rows) == len(typed.rows) else np.searchsorted(typed.rows, rows)
    row_filter = typed.fitted(condition)
    verdict = typed.verdict(row_filter, places=places)
    if shown is not None:
        verdict = verdict.only(may_be_judged(shown, head, rows, typed, condition))
    return verdict


def may_be_judged(
    shown: Visibility,
    head: BatchHead,
    rows: NDArray[np.int32],
    typed: TypedImages,
    condition: RowCondition,
) -> NDArray[np.bool_]:
    """Return which rows show all columns that their reader asks for, under the names that they have there.

    A row that hides one is left out, whatever the condition: else it would tell what is hidden.
    """
    if all_may_be_judged(shown, typed, condition.asked):
        return np.ones(len(rows), np.bool_)
    names = typed.names_of(condition.asked)
    entity_type = typed.entity_type
    keys = head.keys.values(rows.tolist())
    found = []
    for key in keys:
        mine = shown.rules_for(entity_type, None if key is None else key.decode())
        found.append(
            all(any(rule.bodies and rule.columns.shows(name) for rule in mine) for name in names)
        )
    return np.array(found, np.bool_)


def all_may_be_judged(shown: Visibility, typed: TypedImages, asked: Sequence[Column]) -> bool:
    """Return whether every row shows the columns that a reader asks for."""
    if not asked:
        return True
    names = typed.names_of(asked)
    return all(
        rule.keys is None and rule.bodies and all(map(rule.columns.shows, names))
        for rule in shown.rules_of(typed.entity_type)
    )


def not_judged(head: BatchHead, row: int) -> ChangeNotJudged:
    """Return the error of a record if it is unknown whether its row was granted."""
    name, version = head.entity_types[int(head.type_codes[row])], int(head.versions[row])
    return ChangeNotJudged(
        f"where: rows of {name!r} are granted by a condition, and version {version} has a change without the "
        "image before, or one that may lack what the condition asks for, so nobody can say whether its row "
        "was granted: have the ingest keep whole images (--images full), and begin behind that version"
    )
