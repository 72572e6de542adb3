"""Which processes a process has started, as Linux lists them: by the thread that started each."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def children_of(pid: int) -> list[int]:
    """Return the children of a process; none where it is gone, or the system does not list them.

    A thread may end between two looks. Its children are another thread's then, maybe of one that was read
    already: who needs all of them looks again, as long as `has_children` says so.
    """
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):  # this thread has ended: the others still count
                found += map(int, (task / "children").read_text().split())
    return found


def descendants_of(pid: int) -> list[int]:
    """Return the children of a process, theirs, and so on."""
    pids = [pid]
    for each in pids:  # which grows by the children of each
        pids += children_of(each)
    return pids[1:]


def has_children() -> bool:
    """Return whether this process has a child, an ended one that nobody has waited for among them."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
