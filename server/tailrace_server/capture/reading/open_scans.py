"""Scans of tables that pause between two parts, for a reader that continues at the same place.

To begin a scan in the middle costs a pass over the log behind the base, so it is kept until its next part is
asked for. Readers that begin together take turns with one scan. There are a few at most, and those that were
idle for a while are dropped: their readers begin a new one, and lose only time.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakSet

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from tailrace_server.wal.base.state_rows import StateRows

_SCANS_MAX: Final = 4
"""Scans that are kept; each may hold the places of a million rows."""
_IDLE_S: Final = 10.0


class _Follower(Protocol):
    def let_go_of_block(self, now: float) -> None: ...


class OpenScans:
    """The scans of one engine. Any thread may take and keep them."""

    def __init__(self) -> None:
        """Begin with none."""
        self._lock = threading.Lock()
        self._scans: OrderedDict[Hashable, tuple[Iterator[StateRows], float]] = OrderedDict()
        """By what they scan and their place, the least recently moved first."""
        self.followers: WeakSet[_Follower] = WeakSet()
        """Subscriptions that are being sent a table, and may hold a block of it."""

    def __len__(self) -> int:
        """Return the number of scans that are kept."""
        return len(self._scans)

    def take(self, place: Hashable) -> Iterator[StateRows] | None:
        """Return the scan that pauses at a place; the caller owns it from now on."""
        with self._lock:
            found = self._scans.pop(place, None)
        return None if found is None else found[0]

    def keep(self, place: Hashable, scan: Iterator[StateRows]) -> None:
        """Keep a scan that has been moved to a place."""
        with self._lock:
            self._scans[place] = scan, time.monotonic()
            while len(self._scans) > _SCANS_MAX:
                self._scans.popitem(last=False)

    def relieve(self, now: float) -> None:
        """Drop the scans that were idle for a while, and release the blocks of idle followers.

        ``now`` is the event loop's time, seconds.
        """
        self._drop_idle()
        for each in tuple(self.followers):
            each.let_go_of_block(now)

    def _drop_idle(self) -> None:
        before = time.monotonic() - _IDLE_S
        with self._lock:
            while self._scans and next(iter(self._scans.values()))[1] < before:
                self._scans.popitem(last=False)
