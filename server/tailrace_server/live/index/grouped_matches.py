"""The matched rows that conditions get from the index, without an evaluation of each condition.

Conditions of one kind, whose readers are shown the same columns, differ in the value alone that they are found
by. So the rows of all of them are looked at together, once, and each is handed its part::

    found by value     t1: 0 4   t2: 1   t3: 2 3 5         of 10,000 conditions `tenant = ? AND price > 4`
    price > 4          yes  no   yes     no yes yes        worked out once
    told               t1: 0     t2: 1   t3: 3 5
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
"""So many conditions of a kind look at their own rows alone."""


class MatchedRows(NamedTuple):
    """Rows of a batch, rising, each with its code of ``transitions``."""

    rows: NDArray[np.int32]
    codes: NDArray[np.uint8]


class GroupedMatches:
    """The matches of the conditions of one kind in a batch; their readers see the same columns."""

    def __init__(
        self,
        head: BatchHead,
        typed: TypedImages,
        hits: Hits,
        kind: ConditionKind,
        shown: Visibility | None,
        count: int,
    ) -> None:
        """Work out what is the same for all of them.

        Args:
            head: The head of the batch.
            typed: The images of one of its entity types.
            hits: What is found of them in one column.
            kind: The kind of the conditions.
            shown: What their readers are shown; None: all.
            count: How many conditions there are.
        """
        self._head = head
        self._typed = typed
        self._hits = hits
        self._kind = kind
        self._shown = shown
        self._allowed: NDArray[np.uint8] | None = None
        """By row, which of its images meet the rest; None: it is asked of few rows at a time."""
        self._is_visible: NDArray[np.bool_] | None = None
        """By row, whether it has changed something that is shown; None: the same."""
        self._all_matches: MatchedRows | None = None
        """The matched rows of all numbers of the table, and …"""
        self._bounds: list[int] = []
        """… the begin of each one's rows, and the end of the last one's."""
        self.is_shared = count > _FEW
        """True if all of them were matched as a group; else each evaluates its own rows."""
        if self.is_shared:
            self._match_all()

    def of(self, numbers: Sequence[int]) -> MatchedRows:
        """Return the matches of a condition that was found by some numbers of the table; may be empty."""
        if self._all_matches is not None and len(numbers) == 1:
            (rows, codes), bounds = self._all_matches, self._bounds
            part = slice(bounds[numbers[0]], bounds[numbers[0] + 1])
            return MatchedRows(rows[part], codes[part])
        found, is_match = self._match(self._hits.rows(len(self._typed.rows), numbers))
        return (
            found if is_match is None else MatchedRows(found.rows[is_match], found.codes[is_match])
        )

    def _match_all(self) -> None:
        # 1. What is asked of a row is the same for every condition.
        typed, shown = self._typed, self._shown
        if self._kind.rest:
            self._allowed = typed.bits(self._kind.rest, self._kind.columns, None)
        if shown is not None:
            shown.check(self._head)
            kept = shown.kept(self._head, typed.rows)
            is_visible = np.zeros(len(self._head.versions), np.bool_)
            is_visible[kept] = True
            self._is_visible = is_visible[typed.rows]
        # 2. Rows that are grouped by values are looked at all at once. What is left of a group lies together.
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
        """Return the codes of some rows, and the rows that match; None: all."""
        places, bits = found
        is_match: NDArray[np.bool_] | None = None
        rows = self._typed.rows[places]
        if self._kind.rest:
            bits = bits & (
                self._allowed_at(places) | np.uint8(MAY_HAVE_BEEN)
            )  # all values are known here
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
