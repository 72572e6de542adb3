"""One budget over all rings: when it is spent, the ring that was least recently appended to gives way first."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace_server.capture.ring import Ring


class RingBudget:
    """Bytes that all rings of an engine hold together, and who pays when they are too many."""

    __slots__ = ("_bytes_max", "_holders", "bytes")

    def __init__(self, bytes_max: int) -> None:
        """Make a budget that nobody has drawn on."""
        self._bytes_max = bytes_max
        self._holders: OrderedDict[Ring, None] = OrderedDict()
        self.bytes = 0

    def charge(self, ring: Ring, nbytes: int) -> None:
        """Charge a ring for a run that it has just taken in, and evict elsewhere if that is too much."""
        self.bytes += nbytes
        self._holders[ring] = None
        self._holders.move_to_end(ring)
        while self.bytes > self._bytes_max:
            next(iter(self._holders)).evict()

    def release(self, ring: Ring, nbytes: int) -> None:
        """Take back the charge for a run that a ring has dropped."""
        self.bytes -= nbytes
        if not len(ring):
            self._holders.pop(ring, None)
