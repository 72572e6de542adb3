"""The matches of many conditions in a batch, computed from the index without evaluating each condition.

Conditions of one kind, whose readers see the same columns, differ only in the value that they are looked up by.
So the rows of all of them are evaluated together, once, and each condition gets its part of the result::

    looked up by value   t1: 0 4   t2: 1   t3: 2 3 5       for 10,000 conditions `tenant = ? AND price > 4`
    price > 4            yes  no   yes     no yes yes      evaluated once
    matches              t1: 0     t2: 1   t3: 3 5
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tailrace_server.rows.transitions import MAY_HAVE_BEEN, VEILED, codes_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tailrace_server.grants.shown import Visibility
    from tailrace_server.live.index.condition_index import Hits
    from tailrace_server.live.index.lookup_terms import ConditionKind
    from tailrace_server.rows.transitions import RowsFound
    from tailrace_server.rows.typed_images import TypedImages
    from tailrace_server.wal.segment.reader import BatchHead

_FEW: Final = 4
"""Up to this many conditions of a kind, each evaluates its own rows."""


class MatchedRows(NamedTuple):
    """Matched rows of a batch in rising order, each with its code as in ``transitions``."""

    rows: NDArray[np.int32]
    codes: NDArray[np.uint8]


class GroupedMatches:
    """The matches of the conditions of one kind in a batch, for readers that see the same columns."""

    def __init__(
        self,
        head: BatchHead,
        typed: TypedImages,
        hits: Hits,
        kind: ConditionKind,
        shown: Visibility | None,
        count: int,
    ) -> None:
        """Evaluate the common part of the conditions, if there are enough of them.

        Args:
            head: The head of the batch.
            typed: The images of one entity type of the batch.
            hits: The rows that a lookup has matched by one column.
            kind: The kind of the conditions.
            shown: The columns and rows that the readers see; None: all.
            count: Number of conditions.
        """
        self._head = head
        self._typed = typed
        self._hits = hits
        self._kind = kind
        self._shown = shown
        self._allowed: NDArray[np.uint8] | None = None
        """For each row, bits for the images that meet the rest of the condition; None: evaluated for few rows
        at a time."""
        self._is_visible: NDArray[np.bool_] | None = None
        """For each row, True if the change is visible to the readers; None: evaluated for few rows at a
        time."""
        self._all_matches: MatchedRows | None = None
        """The matched rows of all numbers of the lookup, one number after the other."""
        self._bounds: list[int] = []
        """Offsets into ``_all_matches``: the first row of each number, and the end of the last number's
        rows."""
        self.is_shared = count > _FEW
        """True if the common part is evaluated once for all conditions; else each evaluates its own rows."""
        if self.is_shared:
            self._match_all()

    def of(self, numbers: Sequence[int]) -> MatchedRows:
        """Return the matches of a condition that has some numbers of the lookup; may be empty."""
        if self._all_matches is not None and len(numbers) == 1:
            (rows, codes), bounds = self._all_matches, self._bounds
            part = slice(bounds[numbers[0]], bounds[numbers[0] + 1])
            return MatchedRows(rows[part], codes[part])
        found, is_match = self._match(self._hits.rows(len(self._typed.rows), numbers))
        return (
            found if is_match is None else MatchedRows(found.rows[is_match], found.codes[is_match])
        )

    def _match_all(self) -> None:
        # 1. Evaluate the rest and the visibility for all rows: both are the same for every condition.
        typed, shown = self._typed, self._shown
        if self._kind.rest:
            self._allowed = typed.bits(self._kind.rest, self._kind.columns, None)
        if shown is not None:
            shown.check(self._head)
            kept = shown.kept(self._head, typed.rows)
            is_visible = np.zeros(len(self._head.versions), np.bool_)
            is_visible[kept] = True
            self._is_visible = is_visible[typed.rows]
        # 2. Match rows that are grouped by value all at once. The order stays, so the matches of a group are
        #    still neighbours, and cumulative counts give the new bounds.
        grouped = self._hits.grouped
        if grouped is None:
            return
        self._all_matches, is_match = self._match(grouped.found)
        self._bounds = grouped.bounds
        if is_match is not None:
            left = np.concatenate(([0], np.cumsum(is_match)))
            self._bounds = left[grouped.bounds].tolist()
            self._all_matches = MatchedRows(
                self._all_matches.rows[is_match], self._all_matches.codes[is_match]
            )

    def _match(self, found: RowsFound) -> tuple[MatchedRows, NDArray[np.bool_] | None]:
        """Return some rows with their codes, and a mask of the rows that match; None: all match."""
        places, bits = found
        is_match: NDArray[np.bool_] | None = None
        rows = self._typed.rows[places]
        if self._kind.rest:
            bits = bits & (
                self._allowed_at(places) | np.uint8(MAY_HAVE_BEEN)
            )  # no value is unknown here; a row without a before-image keeps its bit
            is_match = bits != 0
        codes = codes_of(bits)
        if self._kind.is_granted:
            codes |= np.uint8(VEILED)
        if self._shown is not None:
            is_shown = self._visible_at(places, rows, self._shown)
            is_shown |= self._shown.moves_shown(self._head, rows, codes)
            is_match = is_shown if is_match is None else is_match & is_shown
        return MatchedRows(rows, codes), is_match

    def _allowed_at(self, places: NDArray[np.intp]) -> NDArray[np.uint8]:
        if self._allowed is not None:
            allowed: NDArray[np.uint8] = self._allowed[places]
            return allowed
        return self._typed.bits(self._kind.rest, self._kind.columns, places)

    def _visible_at(
        self, places: NDArray[np.intp], rows: NDArray[np.int32], shown: Visibility
    ) -> NDArray[np.bool_]:
        if self._is_visible is not None:
            found: NDArray[np.bool_] = self._is_visible[places]
            return found
        shown.check(self._head)
        return np.isin(rows, shown.kept(self._head, rows))
