"""How the kernel schedules the server's threads: as one workload, not as rivals.

By default a thread that wakes interrupts the one that runs. On a busy server the one that runs is nearly always
of the same process and holds Python's lock, which the one that wakes needs next: it finds that out, sleeps
again, and has cost two switches and what lay in the caches. With ``SCHED_BATCH`` it waits for its turn; an idle
processor it gets as soon as ever (docs/adr/0035).
"""

from __future__ import annotations

import os
from typing import Literal

import structlog

Scheduling = Literal["batch", "normal"]

_log = structlog.get_logger("tailrace.server")


def schedule(scheduling: Scheduling) -> None:
    """Set the policy of this thread and of all that it starts from now on.

    Does nothing where the kernel has no such policy, nor where whoever started the process has set another
    than the default. A refusal is logged: the server is slower then, not wrong.
    """
    if scheduling == "normal" or not hasattr(os, "SCHED_BATCH"):
        return
    try:
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except OSError as error:
        _log.warning("scheduling stays normal", reason=error.strerror)
