"""Whose child a process is, while threads begin and end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Final

from tailrace_server.child_processes import children_of, descendants_of, has_children

FOREVER: Final = [sys.executable, "-c", "import signal; signal.pause()"]
LOOKS: Final = 200


def test_threads_that_end_meanwhile_hide_no_child() -> None:
    ending = threading.Event()

    def threads() -> None:
        while not ending.is_set():
            thread = threading.Thread(target=int)
            thread.start()
            thread.join()

    several = [threading.Thread(target=threads) for _ in range(4)]
    with subprocess.Popen(FOREVER) as child:
        for each in several:
            each.start()
        try:
            assert all(child.pid in children_of(os.getpid()) for _ in range(LOOKS))
            assert child.pid in descendants_of(os.getpid())
            assert has_children()
        finally:
            ending.set()
            for each in several:
                each.join()
            child.kill()


def test_who_is_gone_has_no_children() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    assert children_of(child.pid) == []
