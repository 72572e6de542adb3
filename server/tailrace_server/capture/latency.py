"""When a version was committed, by the clock of this process, to tell how soon it is handed over."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tailrace_server.wal.state.view import LogView

NEVER: Final = float("-inf")
"""A commit before everything."""


def committed_at(view: LogView, version: int) -> float:
    """Return when a version was committed, in seconds of ``time.monotonic``; `NEVER` where it is forgotten.

    The writer's clock may be ahead of ours: then it is now.
    """
    timestamp = view.known_timestamp_of(version)
    if not timestamp:
        return NEVER
    return time.monotonic() - max(0.0, time.time() - timestamp / 1e6)
