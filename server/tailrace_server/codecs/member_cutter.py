"""Cuts members out of a column of JSON objects by a compiled loop."""

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
    """Return a cutter for so many rows; None where there are no compiled loops."""
    found = loops(rows)
    return None if found is None else MemberCutter(found)


class MemberCutter:
    """The compiled cutter; any thread may call it."""

    def __init__(self, loops: Loops) -> None:
        """Take the loops."""
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
            rules: One a row: -1 leaves it to ``parse``, 0 leaves it as it is, n cuts it to the set n - 1.
            sets: The visible members of each rule.
            parse: Cuts a row that the loop is in doubt about, given its place and its text.
        """
        # 1. Gather what the loop reads and writes. The locals here keep the memory alive meanwhile.
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
        # 2. Cut. The output is never longer than the input.
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
        # 3. Few rows are in doubt, most often none.
        if doubtful:
            images = found.to_pylist()
            for row in np.flatnonzero(doubts).tolist():
                images[row] = parse(row, _bytes(whole[row].as_py()))
            found = pa.array(images, whole.type)
        return Texts.of(found)


def _bytes(text: bytes | str) -> bytes:
    return text.encode() if isinstance(text, str) else text
