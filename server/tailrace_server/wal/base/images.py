"""The images of winners, gathered for as many rows as memory allows.

The last records of neighbouring keys lie all over the log. So images are gathered for many keys at once, batch
by batch: each batch's images are read once for the whole window, however many of its rows are in it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tailrace_server.wal.base.winners import batch_and_row

if TYPE_CHECKING:
    import numpy.typing as npt

    from tailrace_server.wal.base.winners import FoldBounds, LogTable


def images_of(table: LogTable, places: npt.NDArray[np.int64], bounds: FoldBounds) -> pa.BinaryArray:
    """Return the images after of the first of some records, at least one, as many as the bounds allow.

    Args:
        table: Where they lie.
        places: Of the records, at least one, shape (n,).
        bounds: What may be gathered. A single image may be larger.

    Raises:
        BodiesExpired: One of them is gone, as no base reaches far enough.
    """
    count = min(len(places), bounds.image_rows)
    order = np.argsort(places[:count], kind="stable")
    batches, rows = batch_and_row(places[:count][order])
    borders = [0, *(np.flatnonzero(np.diff(batches)) + 1).tolist(), count]
    parts: list[tuple[npt.NDArray[np.int64], pa.BinaryArray]] = []
    gathered = 0
    for start, stop in pairwise(borders):
        ref = table.view.batch(int(batches[start]))
        mine = order[start:stop]
        within = mine < count
        if not within.any():
            continue
        table.refuse_expired(ref, rows[start:stop][within])
        found = table.reader.body(ref, ("after",))["after"].take(pa.array(rows[start:stop][within]))
        parts.append((mine[within], found))
        gathered += found.nbytes
        # Too much: the upper half of the rows is left for the next window, with what was gathered of it.
        while gathered > bounds.image_bytes and count > 1:
            count //= 2
            parts = [
                (each[each < count], images.filter(pa.array(each < count)))
                for each, images in parts
            ]
            gathered = sum(images.nbytes for _, images in parts)
    back = np.empty(count, np.int64)
    back[np.concatenate([each for each, _ in parts])] = np.arange(count)
    return pa.concat_arrays([images for _, images in parts]).take(pa.array(back))
