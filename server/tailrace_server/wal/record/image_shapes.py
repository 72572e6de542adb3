"""The shapes of whole columns of images, by compiled code once a process has seen many rows."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tailrace_server.wal.record.columns import decode_members
from tailrace_server.wal.record.row_rules import repeated_member
from tailrace_server.wal.record.text_columns import addresses_of

if TYPE_CHECKING:
    from types import ModuleType

    import numpy.typing as npt

COMPILED_FROM: Final = 100_000
"""Rows after which compiled code is loaded. Python takes about as long for them as loading, 0.5 s."""

_seen = 0
"""Rows that this process has examined so far."""


def compiled_for(rows: int) -> ModuleType | None:
    """Count rows that are about to be examined; return the compiled code, or None while there were few."""
    global _seen
    _seen += rows
    if _seen < COMPILED_FROM:
        return None
    return import_module("tailrace_server.wal.record.image_shapes_compiled")


class Shapes(NamedTuple):
    """The shapes of a column of images, as `find_shapes` fills them in."""

    names: npt.NDArray[np.uint64]
    shapes: npt.NDArray[np.uint64]
    members: npt.NDArray[np.int64]

    def to_examine(self, valid: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return one image with each sequence of names, and all that are doubtful."""
        marks: npt.NDArray[np.bool_] = valid & (self.names == 0)
        if marks.sum() == valid.sum():
            return marks
        # Neighbours mostly have the same names, so few rows are left to sort.
        begins = np.flatnonzero(self.names != np.roll(self.names, 1))
        begins = begins if len(begins) else np.zeros(1, np.int64)
        first = begins[np.unique(self.names[begins], return_index=True)[1]]
        marks[first] |= valid[first]
        return marks


def shapes_of(
    machine: ModuleType | None, images: pa.BinaryArray, groups: npt.NDArray[np.int64]
) -> Shapes:
    """Return the shapes of images; 0 for those that Python has to look at, and for nulls."""
    rows = len(images)
    if machine is None or images.null_count == rows or not _is_utf8(images):
        zeros = np.zeros(rows, np.uint64)
        return Shapes(zeros, zeros, np.zeros(rows, np.int64))
    found = Shapes(np.empty(rows, np.uint64), np.empty(rows, np.uint64), np.empty(rows, np.int64))
    machine.find_shapes(*addresses_of(images), images.offset, groups, *found)
    return found


def first_repeated_member(
    machine: ModuleType | None, images: pa.BinaryArray
) -> tuple[int, str] | None:
    """Return the row of the first image found that has a member twice, and its name; None if there is none.

    Args:
        machine: The compiled code, None if it is not loaded.
        images: UTF-8 JSON objects.
    """
    if images.null_count == len(images):
        return None
    valid = images.is_valid().to_numpy(zero_copy_only=False)
    shapes = shapes_of(machine, images, np.zeros(len(images), np.int64))
    for row in np.flatnonzero(shapes.to_examine(valid)).tolist():
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
