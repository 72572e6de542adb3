"""Cuts members out of a column of JSON objects by compiled code, which `compiled_cut.py` has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from tailrace_server.codecs.cut_table import MEMBERS_AT_ONCE, TABLE_LENGTH
from tailrace_server.machine_code.object_code import CompiledModule
from tailrace_server.wal.record.text_columns import Texts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from tailrace_server.grants.grant import Columns

CUT_LOOPS: Final = CompiledModule(
    "tailrace_server.codecs.compiled_cut",
    ("cut",),
    (
        "tailrace_server.codecs.cut_table",
        "tailrace_server.numba_tools",
        "tailrace_server.wal.record.json_check_compiled",
    ),
)
"""The loop, and what its code depends on."""


class MemberCutter:
    """The compiled cutter; any thread may call it."""

    def __init__(self, loops: Mapping[str, Callable[[int], int]]) -> None:
        """Take the loop of ``CUT_LOOPS``."""
        self._cut = loops["cut"]

    def cut(
        self,
        texts: Texts,
        rules: NDArray[np.int32],
        sets: Sequence[Columns],
        parse: Callable[[int, bytes], bytes | None],
    ) -> Texts:
        """Return a column of JSON objects without the members that are not shown.

        Args:
            texts: The column.
            rules: One a row: -1 leaves it to ``parse``, 0 leaves it as it is, n cuts it to the set n - 1.
            sets: Of members that are shown.
            parse: Cuts a row that the loop is in doubt about, given its place and its text.
        """
        # 1. Gather what the loop reads and writes. The locals here keep the memory alive meanwhile.
        count = len(rules)
        names = [[*map(_encoded, each.names)] for each in sets]
        lengths = [len(name) for each in names for name in each]
        name_offsets = np.zeros(len(lengths) + 1, np.int32)
        np.cumsum(lengths, out=name_offsets[1:])
        name_bytes = np.frombuffer(b"".join(b"".join(each) for each in names) or b"\0", np.uint8)
        ends = np.cumsum([len(each) for each in names]).tolist()
        listed = [
            (each.listed, end - len(found), end)
            for each, found, end in zip(sets, names, ends, strict=True)
        ]
        of_sets = np.array(listed, np.int64).reshape(-1)
        whole = texts.array
        data = whole.buffers()[2]
        offsets = np.empty(count + 1, np.int32)
        values = np.empty(max(1, 0 if data is None else data.size), np.uint8)
        doubts = np.zeros(count, np.uint8)
        places = np.empty(2 * MEMBERS_AT_ONCE, np.int64)
        arrays: tuple[NDArray[Any], ...] = (
            rules,
            of_sets,
            name_offsets,
            name_bytes,
            offsets,
            values,
            doubts,
            places,
        )
        table = np.empty(TABLE_LENGTH, np.int64)
        table[:] = (count, *texts.addresses, *(_address(each) for each in arrays))
        # 2. Cut. What is written is nowhere longer than what was read.
        doubtful = self._cut(_address(table))
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


def _encoded(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


def _bytes(text: bytes | str) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _address(array: NDArray[Any]) -> int:
    return int(pa.py_buffer(array).address)
