"""The child processes of a process, as Linux lists them: by the thread that started each child."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def children_of(pid: int) -> list[int]:
    """Return the children of a process; none if the process has ended, or the system does not list children.

    A thread may end while the lists are read. Its children then move to another thread, maybe one whose list
    was read already. A caller that needs all children must call again, as long as `has_children` returns True.
    """
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):  # this thread has ended; continue with the others
                found += map(int, (task / "children").read_text().split())
    return found


def descendants_of(pid: int) -> list[int]:
    """Return the children of a process, their children, and so on."""
    pids = [pid]
    for each in pids:  # the list grows while it is iterated
        pids += children_of(each)
    return pids[1:]


def has_children() -> bool:
    """Return True if this process has a child, including ended children that were not waited for."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
