"""Which rows the log itself has let expire, so that the source may still have them.

A source may later change or remove such a row, which no longer exists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.criteria import Operation
from tailrace_server.wal.base.reading import last_known
from tailrace_server.wal.base.winners import FoldBounds, Wanted, batch_and_row, fold
from tailrace_server.wal.record.keys import key_hash, type_seed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace_server.wal.segment.reader import BatchReader
    from tailrace_server.wal.state.view import LogView

_BOUNDS: Final = FoldBounds()


def expired_keys(
    view: LogView, reader: BatchReader, entity_type: str, keys: Sequence[str]
) -> set[str]:
    """Return those of some keys whose last record, as far as the log has it, is an EXPIRE.

    Args:
        view: The log, with all of its schemas.
        reader: Reads its batches.
        entity_type: Its name in the newest schema of the view.
        keys: At most as many as a fold keeps at once.

    Raises:
        LogCorrupted: What is read is damaged.
        SegmentMissing: A file is gone.
    """
    if not keys:
        return set()
    state = last_known(view, reader, entity_type)
    table, seed = state.log_table, type_seed(state.hashed_as)
    hashes = np.unique(np.array([key_hash(seed, key) for key in keys], np.uint64))
    # Not from the base on: a base has no row for what was removed.
    found = fold(table, 0, state.version, Wanted(chosen=hashes), _BOUNDS, whole=False).winners
    ours = pc.is_in(found.keys, pa.array(keys, found.keys.type)).to_numpy(zero_copy_only=False)
    last = found.taken(np.flatnonzero(ours & ~found.lives))
    batches, rows = batch_and_row(last.places)
    return {
        key
        for key, batch, row in zip(last.keys.to_pylist(), batches.tolist(), rows, strict=True)
        if reader.head(view.batch(batch)).operations[row] == Operation.EXPIRE
    }
