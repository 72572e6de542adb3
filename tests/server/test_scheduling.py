"""The policy that the server's threads are scheduled by, read back from the kernel."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_POLICY_OF_A_NEW_THREAD = """
import os, sys, threading
from tailrace_server.scheduling import schedule

os.sched_setscheduler(0, int(sys.argv[2]), os.sched_param(0))
schedule(sys.argv[1])
thread = threading.Thread(target=lambda: print(os.sched_getscheduler(0)))
thread.start()
thread.join()
"""


def _policy(scheduling: str, started_with: int = os.SCHED_OTHER) -> int:
    """Return the policy of a thread that a process starts after it has set its own."""
    done = subprocess.run(
        [sys.executable, "-c", _POLICY_OF_A_NEW_THREAD, scheduling, str(started_with)],
        stdout=subprocess.PIPE,
        timeout=30,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.parametrize(
    ("scheduling", "policy"), [("batch", os.SCHED_BATCH), ("normal", os.SCHED_OTHER)]
)
def test_threads_inherit_the_policy(scheduling: str, policy: int) -> None:
    assert _policy(scheduling) == policy


def test_what_the_process_was_started_with_stands() -> None:
    assert _policy("batch", started_with=os.SCHED_IDLE) == os.SCHED_IDLE
