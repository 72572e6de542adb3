"""Removal of hidden members from a column of JSON objects, with a compiled loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tailrace_server.machine_code.loader import BYTE, INT, LONG, address, loops
from tailrace_server.machine_code.loops.codes import MEMBERS_AT_ONCE
from tailrace_server.wal.record.text_columns import Texts, packed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from tailrace_server.grants.grant import Columns
    from tailrace_server.machine_code.loader import Loops


def cutter_for(rows: int) -> MemberCutter | None:
    """Return a cutter for a number of rows; None if there are no compiled loops for it."""
    found = loops(rows)
    return None if found is None else MemberCutter(found)


class MemberCutter:
    """The compiled cutter; any thread may call it."""

    def __init__(self, loops: Loops) -> None:
        """Use some compiled loops."""
        self._cut = loops.cut_members

    def cut(
        self,
        texts: Texts,
        rules: NDArray[np.int32],
        sets: Sequence[Columns],
        parse: Callable[[int, bytes], bytes | None],
    ) -> Texts:
        """Return a column of JSON objects without hidden members.

        Args:
            texts: The column.
            rules: Instruction for each row: -1 leaves it to ``parse``, 0 keeps it, and n > 0 cuts it to the set
                ``sets[n-1]``.
            sets: Sets of visible members.
            parse: Function that cuts a row that the loop cannot, given its index and its text.
        """
        # 1. Gather the arrays that the loop reads and writes. It gets addresses only, so these locals have to
        #    keep the memory alive until it returns.
        count = len(rules)
        names = [[each.encode("utf-8", "surrogatepass") for each in one.names] for one in sets]
        name_offsets, name_bytes = packed([name for each in names for name in each])
        ends = np.cumsum([len(each) for each in names]).tolist()
        of_sets = np.array(
            [
                (each.listed, end - len(found), end)
                for each, found, end in zip(sets, names, ends, strict=True)
            ],
            np.int64,
        ).reshape(-1)
        whole = texts.array
        data = whole.buffers()[2]
        offsets = np.empty(count + 1, np.int32)
        values = np.empty(max(1, 0 if data is None else data.size), np.uint8)
        doubts = np.zeros(count, np.uint8)
        seen = np.empty(2 * MEMBERS_AT_ONCE, np.int64)
        # 2. Cut. The output needs at most the size of the input, as members are only removed.
        doubtful = self._cut(
            *(count, *texts.addresses, address(rules, INT), address(of_sets, LONG)),
            *(address(name_offsets, INT), address(name_bytes, BYTE)),
            *(address(offsets, INT), address(values, BYTE)),
            *(address(doubts, BYTE), address(seen, LONG)),
        )
        validity = whole.buffers()[0] if whole.null_count else None
        size = int(offsets[-1])
        buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(values[:size].tobytes())]
        found = pa.Array.from_buffers(whole.type, count, buffers)
        # 3. Parse the rows that the loop could not cut safely; usually there are none.
        if doubtful:
            images = found.to_pylist()
            for row in np.flatnonzero(doubts).tolist():
                images[row] = parse(row, _bytes(whole[row].as_py()))
            found = pa.array(images, whole.type)
        return Texts.of(found)


def _bytes(text: bytes | str) -> bytes:
    return text.encode() if isinstance(text, str) else text
