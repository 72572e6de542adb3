"""The open connections of a process, and a check for one forked from it.

A fork copies gRPC in the midst of its work, without the threads that do it. Whatever the child then begins
hangs or crashes: so it did in 22 of 22. So it is refused at once.
"""

from __future__ import annotations

import os
import weakref
from typing import Final

from tailrace.errors import InvalidRequest


class OpenChannels:
    """Whatever of gRPC's is open in this process; what is forgotten is open no longer."""

    def __init__(self) -> None:
        """Watch this process for forks."""
        self._open: weakref.WeakSet[object] = weakref.WeakSet()
        self._inherited = False
        """Whether something was open when this process was forked."""
        os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        self._inherited = self._inherited or len(self._open) > 0

    def add(self, channel: object) -> None:
        """Note a channel that is about to be opened.

        Raises:
            InvalidRequest: The process was forked while another was open.
        """
        if self._inherited:
            raise InvalidRequest(
                "this process was forked while a client was open, so gRPC would hang in it: start processes "
                'with "spawn" (multiprocessing.get_context), or fork while no client is open'
            )
        self._open.add(channel)

    def discard(self, channel: object) -> None:
        """Note that a channel was closed."""
        self._open.discard(channel)


OPEN_CHANNELS: Final = OpenChannels()
"""Those of this process."""
