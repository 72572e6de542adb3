"""Which rows of a batch the conditions of one predicate match, and how each change moves its row.

Alternatives with conditions are one condition together, joined by OR: a row that leaves one and enters another
stays in. What an alternative without a condition matches is not judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tailrace_server.capture.matching.transitions import NONE, VEILED, ImageVerdict
from tailrace_server.capture.matching.typed_images import TypedImages
from tailrace_server.filters.errors import ChangeNotJudged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tailrace_server.capture.granting.shown import Visibility
    from tailrace_server.capture.matching.batch_images import Images
    from tailrace_server.capture.matching.row_condition import RowCondition
    from tailrace_server.capture.matching.typed_images import DecodedBatch
    from tailrace_server.wal.segment.reader import BatchHead


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Rows that one alternative matches, but for its condition."""

    condition: RowCondition
    rows: NDArray[np.int32]
    """Of one entity type, area DATA, with keys; rising, at least one."""


@dataclass(frozen=True, slots=True, eq=False)
class JudgedRows:
    """What conditions say of the records of a batch."""

    codes: NDArray[np.uint8]
    """By record, the code of `transitions`; 0 where none of the conditions matches it."""
    matched: Sequence[NDArray[np.int32]]
    """For each of the candidates, in their order, the rows that its own condition matches."""
    expired: NDArray[np.int32]
    """Rows that nobody can judge any more, as their images are gone."""
    open: NDArray[np.int32]
    """Rows that nobody can say of whether they were granted. To tell the key may tell of a row that is not, and
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
        asked: What is to be judged.
        shown: What is granted of the rows; None: all.
        decoded: The same images, decoded for others as well; None: those of the candidates are decoded.

    Raises:
        ConditionRefused: One of them cannot be judged by the schema of the batch.
    """
    # 1. Whose images are gone is for the reader to know.
    expired = np.empty(0, np.int32)
    if images.gone is not None:
        rows = np.unique(np.concatenate([each.rows for each in asked]))
        expired = rows[images.gone[rows]]
    # 2. One entity type after the other.
    codes = np.zeros(len(head.versions), np.uint8)
    open_rows = [np.empty(0, np.int32)]
    matched: dict[int, NDArray[np.int32]] = {}
    by_type: dict[int, list[int]] = {}
    for number, each in enumerate(asked):
        by_type.setdefault(int(head.type_codes[each.rows[0]]), []).append(number)
    for code, numbers in by_type.items():
        parts = [asked[number].rows for number in numbers]
        together = parts[0] if len(parts) == 1 else np.unique(np.concatenate(parts))
        if len(expired):
            together = together[~np.isin(together, expired)]
        if not len(together):
            matched.update((number, together) for number in numbers)
            continue
        if decoded is None:
            typed = TypedImages(head, images, head.entity_types[code], together)
            conditions = [asked[number].condition for number in numbers]
            typed.decode(column for each in conditions for column in typed.fitted(each).columns)
        else:
            typed = decoded.of(code)
        verdicts = [_verdict(head, typed, asked[number], together, shown) for number in numbers]
        joined = _together(verdicts)
        found = joined.codes
        is_open = np.zeros(len(together), np.bool_)
        if any(asked[number].condition.is_granted for number in numbers):
            # What an alternative without a grant's condition takes is shown by that one.
            is_open = joined.is_open
            for number, verdict in zip(numbers, verdicts, strict=True):
                if not asked[number].condition.is_granted:
                    is_open &= ~verdict.is_match
            open_rows.append(together[is_open])
            found[is_open] = NONE
            found[found != NONE] |= VEILED
        for number, verdict in zip(numbers, verdicts, strict=True):
            matched[number] = together[verdict.is_match & ~is_open]
        codes[together] = found
    listed = [matched[number] for number in range(len(asked))]
    return JudgedRows(codes, listed, expired, np.concatenate(open_rows))


def _verdict(
    head: BatchHead,
    typed: TypedImages,
    candidates: Candidates,
    rows: NDArray[np.int32],
    shown: Visibility | None,
) -> ImageVerdict:
    """Return what the condition of candidates says of some rows, others than them included."""
    condition = candidates.condition
    verdict = typed.verdict(typed.fitted(condition), asks_null=condition.asks_null)
    if len(rows) < len(typed.rows):
        verdict = verdict.at(np.searchsorted(typed.rows, rows))
    if len(candidates.rows) < len(rows):
        verdict = verdict.only(np.isin(rows, candidates.rows))
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
    entity_type = typed.entity_type
    names = typed.names_of(condition.asked)
    rules = shown.rules_of(entity_type)
    if all(
        rule.keys is None and rule.bodies and all(map(rule.columns.shows, names)) for rule in rules
    ):
        return np.ones(len(rows), np.bool_)
    keys = head.keys.values(rows.tolist())
    found = []
    for key in keys:
        mine = shown.rules_for(entity_type, None if key is None else key.decode())
        found.append(
            all(any(rule.bodies and rule.columns.shows(name) for rule in mine) for name in names)
        )
    return np.array(found, np.bool_)


def _together(verdicts: Sequence[ImageVerdict]) -> ImageVerdict:
    """Return what conditions joined by OR say."""
    if len(verdicts) == 1:
        return verdicts[0]
    return ImageVerdict(
        np.logical_or.reduce([each.was_in for each in verdicts]),
        np.logical_or.reduce([each.may_have_been for each in verdicts]),
        np.logical_or.reduce([each.is_in for each in verdicts]),
    )


def not_judged(head: BatchHead, row: int) -> ChangeNotJudged:
    """Return the error of a record of a batch of which nobody can say whether its row was granted."""
    name, version = head.entity_types[int(head.type_codes[row])], int(head.versions[row])
    return ChangeNotJudged(
        f"where: rows of {name!r} are granted by a condition, and version {version} has a change without the "
        "image before, or one that may lack what the condition asks for, so nobody can say whether its row "
        "was granted: have the ingest keep whole images (--images full), and begin behind that version"
    )
