"""Named places where a test may kill, stop or fail a process.

Nothing happens unless the environment says so when the process starts::

    TAILRACE_FAILPOINTS="entry.after_link=kill,segment.before_rename=enospc@3"

Each item is ``name=action`` or ``name=action@n``, which acts the n-th time the place is reached only. Actions:

    kill              SIGKILL to this process
    enospc            raise OSError(ENOSPC), as a full disk would
    error             raise OSError(EIO)
    pause:PATH        create PATH.paused, then wait until PATH exists

Production code calls ``reach(name)``; unarmed, that is one test of an empty dictionary.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from pathlib import Path
from typing import Final

VARIABLE: Final = "TAILRACE_FAILPOINTS"

_PAUSE_POLL_S: Final = 0.005


class _Failpoint:
    """One armed place."""

    def __init__(self, name: str, action: str) -> None:
        self._name = name
        self._action, _, at = action.partition("@")
        self._at = int(at or 0)
        self._reached = 0
        self._lock = threading.Lock()

    def reach(self) -> None:
        with self._lock:
            self._reached += 1
            if self._at not in (0, self._reached):
                return
        match self._action.partition(":"):
            case ("kill", _, _):
                os.kill(os.getpid(), signal.SIGKILL)
            case ("enospc", _, _):
                raise OSError(errno.ENOSPC, f"failpoint {self._name}")
            case ("error", _, _):
                raise OSError(errno.EIO, f"failpoint {self._name}")
            case ("pause", _, path):
                Path(f"{path}.paused").touch()
                while not Path(path).exists():
                    time.sleep(_PAUSE_POLL_S)
            case _:
                raise ValueError(f"{VARIABLE}: no action {self._action!r} for {self._name}")


def _parse(text: str) -> dict[str, _Failpoint]:
    items = (item.strip().partition("=") for item in text.split(",") if item.strip())
    return {name: _Failpoint(name, action) for name, _, action in items}


_armed = _parse(os.environ.get(VARIABLE, ""))


def arm(text: str) -> None:
    """Replace what is armed in this process, for tests that run in it; an empty text disarms."""
    global _armed
    _armed = _parse(text)


def reach(name: str) -> None:
    """Act if ``name`` is armed."""
    if _armed and (failpoint := _armed.get(name)) is not None:
        failpoint.reach()
