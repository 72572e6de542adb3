"""The shapes of a whole column of images, found by a compiled loop.

The shape of an image is its column names in their order, with the kind of each value; a hash identifies it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from tailrace_server.machine_code.loader import LONG, WORD, address
from tailrace_server.wal.record.columns import decode_members
from tailrace_server.wal.record.row_rules import repeated_member
from tailrace_server.wal.record.text_columns import addresses_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from tailrace_server.machine_code.loader import Loops


class Shapes(NamedTuple):
    """The shapes of a column of images, as `find_shapes` computes them."""

    names: npt.NDArray[np.uint64]
    shapes: npt.NDArray[np.uint64]
    members: npt.NDArray[np.int64]

    def to_examine(self, valid: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return a mask of images to check in Python: one per sequence of names, and all undecided images."""
        marks: npt.NDArray[np.bool_] = valid & (self.names == 0)
        if marks.sum() == valid.sum():
            return marks
        # Neighbours mostly have the same names, so only a few rows have to be sorted.
        begins = np.flatnonzero(self.names != np.roll(self.names, 1))
        begins = begins if len(begins) else np.zeros(1, np.int64)
        first = begins[np.unique(self.names[begins], return_index=True)[1]]
        marks[first] |= valid[first]
        return marks


def shapes_of(loops: Loops, images: pa.BinaryArray, groups: npt.NDArray[np.int64]) -> Shapes:
    """Return the shapes of images; 0 for nulls, and for images that Python must check."""
    rows = len(images)
    # The loop does not check UTF-8 inside values; if a value is invalid, Python has to find its row.
    if images.null_count == rows or not _is_utf8(images):
        zeros = np.zeros(rows, np.uint64)
        return Shapes(zeros, zeros, np.zeros(rows, np.int64))
    found = Shapes(np.empty(rows, np.uint64), np.empty(rows, np.uint64), np.empty(rows, np.int64))
    loops.find_shapes(
        *(*addresses_of(images), images.offset, rows, address(groups, LONG)),
        *(address(found.names, WORD), address(found.shapes, WORD), address(found.members, LONG)),
    )
    return found


def first_repeated_member(loops: Loops | None, images: pa.BinaryArray) -> tuple[int, str] | None:
    """Return the row and the name of a member that occurs twice in its image; None if there is none.

    Args:
        loops: The compiled loops; None: parse every image.
        images: UTF-8 JSON objects.
    """
    if images.null_count == len(images):
        return None
    valid = images.is_valid().to_numpy(zero_copy_only=False)
    # Images with equal sequences of names repeat the same members, so one image of each is enough.
    if loops is not None:
        valid = shapes_of(loops, images, np.zeros(len(images), np.int64)).to_examine(valid)
    for row in np.flatnonzero(valid).tolist():
        image = images[row].as_py()
        name = repeated_member(image, decode_members(image))
        if name is not None:
            return row, name
    return None


def _is_utf8(bodies: pa.BinaryArray) -> bool:
    try:
        bodies.cast(pa.utf8())
    except pa.ArrowInvalid:
        return False
    return True
