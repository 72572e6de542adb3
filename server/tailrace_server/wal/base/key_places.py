"""Which batches a key may lie in: the sorted key hashes of batches that keys were looked up in.

Without it each look-up of a key would read the heads of all records behind the base again. With it a batch
costs a binary search. Batches never change, so what is kept is true for as long as it is kept; what was used
longest ago goes when there is too much.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.criteria import Area

if TYPE_CHECKING:
    from collections.abc import Hashable

    import numpy.typing as npt

    from tailrace_server.wal.segment.reader import BatchReader
    from tailrace_server.wal.segment.refs import BatchRef

_KEYS_MAX: Final = 1 << 21
"""Hashes that are kept in a process: 16 MiB, which hold two million records behind bases."""
FEW_KEYS: Final = 256
"""Up to so many keys are looked up batch by batch; for more a pass over the heads is as good."""


class KeyPlaces:
    """Sorted key hashes by batch. Any thread may call it."""

    def __init__(self) -> None:
        """Begin with none."""
        self._lock = threading.Lock()
        self._hashes: OrderedDict[Hashable, npt.NDArray[np.uint64]] = OrderedDict()
        self._count = 0

    def may_hold(
        self, log: Hashable, reader: BatchReader, ref: BatchRef, chosen: npt.NDArray[np.uint64]
    ) -> bool:
        """Return whether a batch may have records of some keys, or one that removes all rows.

        Args:
            log: What tells the log from others.
            reader: Reads the batch's head if its hashes are not kept.
            ref: The batch.
            chosen: Hashes of the keys, as the batch has them.

        Raises:
            LogCorrupted: As ``BatchReader.head``; so SegmentMissing.
        """
        if len(chosen) > FEW_KEYS:
            return True
        # A log that was restored from a copy may have another batch in the place of one that was read.
        key = (log, ref.key, ref.crc_head)
        with self._lock:
            hashes = self._hashes.get(key)
            if hashes is not None:
                self._hashes.move_to_end(key)
        if hashes is None:
            head = reader.head(ref)
            hashes = np.unique(head.key_hashes[head.areas == Area.DATA])
            self._keep(key, hashes)
        if not len(hashes):
            return False
        if hashes[0] == 0:
            return True  # a truncate has no key
        places = np.minimum(np.searchsorted(hashes, chosen), len(hashes) - 1)
        return bool((hashes[places] == chosen).any())

    def _keep(self, key: Hashable, hashes: npt.NDArray[np.uint64]) -> None:
        with self._lock:
            if key in self._hashes:
                return
            self._hashes[key] = hashes
            self._count += len(hashes)
            while self._count > _KEYS_MAX and len(self._hashes) > 1:
                self._count -= len(self._hashes.popitem(last=False)[1])


KEY_PLACES: Final = KeyPlaces()
"""Those of the process."""
