"""The C allocator, glibc's: a server's threads share one arena."""

from __future__ import annotations

import os
import subprocess
import sys

_COUNT_ARENAS = """
import ctypes, os, threading
from tailrace_server.allocator import share_one_arena

share_one_arena()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
together = threading.Barrier(8)

def allocate():
    together.wait()
    libc.malloc(100_000)  # without Python's lock
    together.wait()

threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc.fdopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, file)
libc.fflush(file)
"""


def _arenas(**environment: str) -> int:
    """Return how many arenas a process has after eight threads have allocated at the same time."""
    done = subprocess.run(
        [sys.executable, "-c", _COUNT_ARENAS],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        timeout=30,
        check=True,
    )
    return done.stdout.count(b"<heap ")


def test_threads_share_one_arena() -> None:
    assert _arenas() == 1


def test_what_the_environment_sets_stands() -> None:
    assert _arenas(MALLOC_ARENA_MAX="3") == 3
