"""Starts of transactions among rows, and columns of rows with the leads of transactions in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt


def starts_of(ids: pa.StringArray) -> npt.NDArray[np.int64]:
    """Return the first row of each transaction; a row without an id is a transaction by itself."""
    # A comparison with null is null, so a row without an id never continues its neighbour.
    same = pc.equal(ids.slice(1), ids.slice(0, len(ids) - 1)).fill_null(False)
    return np.concatenate([[0], np.flatnonzero(~same.to_numpy(zero_copy_only=False)) + 1])


class Interleaved:
    """Combines columns of rows and leads: each lead comes before the first row of its transaction."""

    def __init__(self, rows: int, before: npt.NDArray[np.int64]) -> None:
        """Compute the places of leads among the rows.

        Args:
            rows: Number of rows.
            before: Rows that follow a lead record directly, ascending.
        """
        self._before = before
        total = rows + len(before)
        self._lead_places = before + np.arange(len(before))
        self._is_row = np.ones(total, np.bool_)
        self._is_row[self._lead_places] = False
        self._total = total

    def numbers(self, rows: npt.NDArray[Any], leads: npt.NDArray[Any]) -> pa.Array:
        """Return a numeric column of all records, from its values for mutations and for lead records."""
        out = np.empty(self._total, rows.dtype)
        out[self._is_row] = rows
        out[self._lead_places] = leads
        return pa.array(out)

    def names(self, names: Sequence[str], rows: npt.NDArray[Any]) -> pa.DictionaryArray:
        """Return the dictionary-encoded names of rows, null for leads.

        A row is given as the place of its name in ``names``; ``len(names)`` gives null.
        """
        # ``len(names)`` is the code of a null, so leads start as nulls.
        codes = np.full(self._total, len(names), np.int32)
        codes[self._is_row] = rows
        return pa.DictionaryArray.from_arrays(
            pa.array(codes, mask=codes == len(names)), pa.array(names, pa.string())
        )

    def nulls(self, rows: pa.Array) -> pa.Array:
        """Return the values of rows, null for leads; values are shared, not copied."""
        if rows.null_count == len(rows):
            return pa.nulls(self._total, rows.type)
        validity = self._is_row.copy()
        if rows.null_count:
            validity[self._is_row] = pc.is_valid(rows).to_numpy(zero_copy_only=False)
        bitmap = pa.py_buffer(np.packbits(validity, bitorder="little"))
        _, offset_buffer, *rest = rows.buffers()
        # A null takes no bytes: each lead repeats the offset of the next row, and the values stay in place.
        offsets = np.frombuffer(offset_buffer, np.int32)[rows.offset : rows.offset + len(rows) + 1]
        spread = pa.py_buffer(np.insert(offsets, self._before, offsets[self._before]))
        if pa.types.is_list(rows.type):
            return pa.Array.from_buffers(
                rows.type, self._total, [bitmap, spread], children=[rows.values]
            )
        return pa.Array.from_buffers(rows.type, self._total, [bitmap, spread, rest[0]])

    def texts(self, rows: pa.Array, leads: pa.Array) -> pa.Array:
        """Return the texts of rows and leads, interleaved."""
        if not len(leads):
            return rows
        # One transaction: its lead comes first, and nothing has to be reordered.
        if len(leads) == 1 and not self._before[0]:
            return pa.concat_arrays([leads, rows])
        order = np.empty(self._total, np.int64)
        order[self._is_row] = np.arange(len(rows)) + len(leads)
        order[self._lead_places] = np.arange(len(leads))
        return pa.concat_arrays([leads, rows]).take(pa.array(order))
