"""The compiled loops. `test_cutting` compares `cut` with its plain twin, `test_updates` the others."""

from __future__ import annotations

import numpy as np

from tailrace_server.machine_code.loader import BYTE, LONG, address, loops_made


def test_gather_copies_pieces_one_behind_the_other_also_empty_and_overlapping_ones() -> None:
    data = np.frombuffer(b"abcdef", np.uint8)
    starts, lengths = np.array([4, 0, 3, 2]), np.array([2, 3, 0, 2])
    out, offsets = np.empty(7, np.uint8), np.empty(5, np.int64)
    loops_made().gather(
        *(address(data, BYTE), len(starts), address(starts, LONG), address(lengths, LONG)),
        *(address(out, BYTE), address(offsets, LONG)),
    )
    assert out.tobytes() == b"efabccd"
    assert offsets.tolist() == [0, 2, 5, 5, 7]
