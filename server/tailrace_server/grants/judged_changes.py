"""The changes of a table as they concern whoever is shown some of its rows, by their values.

A row that enters is an insert to him and a row that leaves is removed, as in a subscription; without hidden
images and the names of columns that changed on the way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tailrace_server.grants.granted_conditions import granted_condition
from tailrace_server.rows.batch_images import BatchImages
from tailrace_server.rows.hidden_images import batch_without_hidden
from tailrace_server.rows.judging import Candidates, judged, not_judged
from tailrace_server.rows.transitions import NONE, is_veiled_move
from tailrace_server.sql.shown import ChangesShown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from tailrace_server.grants.shown import Rule
    from tailrace_server.wal.segment.reader import BatchHead
    from tailrace_server.wal.state.view import LogView


class JudgedChanges:
    """Applies the rules of one table, some of them with conditions, to its changes. Any thread may call it."""

    def __init__(
        self,
        rules: Sequence[Rule],
        view: LogView,
        entity_type: str,
        version: int,
    ) -> None:
        """Bind the conditions to the columns of the table.

        Args:
            rules: Those of the table; they show the same columns.
            view: The log.
            entity_type: The table.
            version: Of its schema, where none of its columns are there in the newest.

        Raises:
            NotPermitted: A condition does not fit the columns. The error has no details; the log has them.
        """
        self._view = view
        (self._columns,) = {rule.columns for rule in rules}
        self._rules = [
            (
                rule,
                None
                if rule.rows is None
                else granted_condition(rule.rows, view, entity_type, version),
            )
            for rule in rules
        ]

    def of(
        self, head: BatchHead, rows: NDArray[np.int64], bodies: Mapping[str, pa.BinaryArray]
    ) -> ChangesShown:
        """Return the visible part of some records of a batch; as of ``ShownRows.judged``.

        Raises:
            ChangeNotJudged: It is unknown whether the row of one of them was granted.
        """
        # 1. Records of all rows come as they are; those of a rule without a condition as well.
        keep = np.zeros(len(head.versions), np.bool_)
        keyed = rows[head.key_hashes[rows] != 0].astype(np.int32)
        keep[rows[head.key_hashes[rows] == 0]] = True
        asked: list[Candidates] = []
        for rule, condition in self._rules:
            mine = keyed if rule.keys is None else keyed[self._takes(rule, head, keyed)]
            if condition is None:
                keep[mine] = True
            else:
                asked += (Candidates(condition, each) for each in _by_type(head, mine))
        # 2. The others, by the row before and after.
        codes = np.zeros(len(head.versions), np.uint8)
        if asked:
            found = judged(head, BatchImages(bodies.__getitem__, self._view), asked, None)
            open_rows = found.open[~keep[found.open]]
            if len(open_rows):
                raise not_judged(head, int(open_rows.min()))
            codes = np.where(keep, NONE, found.codes).astype(np.uint8)
        # 3. What changed hidden columns alone is no change, unless the row entered or left by it.
        chosen = rows[keep[rows] | (codes[rows] != NONE)]
        told = is_veiled_move(codes)
        changed = head.names.values(tuple(chosen.tolist()))
        chosen = chosen[
            [
                bool(told[row]) or not names or any(map(self._columns.shows, names))
                for row, names in zip(chosen.tolist(), changed, strict=True)
            ]
        ]
        return ChangesShown(*batch_without_hidden(head, bodies, codes), chosen)

    @staticmethod
    def _takes(rule: Rule, head: BatchHead, rows: NDArray[np.int32]) -> NDArray[np.bool_]:
        keys = head.keys.values(rows.tolist())
        return np.array(
            [rule.takes(None if key is None else key.decode()) for key in keys], np.bool_
        )


def _by_type(head: BatchHead, rows: NDArray[np.int32]) -> Iterator[NDArray[np.int32]]:
    """Yield rows by the name that their entity type has there; none is empty."""
    codes = head.type_codes[rows]
    for code in np.unique(codes):
        yield rows[codes == code]
