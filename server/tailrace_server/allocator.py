"""The C allocator in a process of many threads that runs for months.

glibc gives threads arenas of their own, up to eight for each processor, and each keeps what was its highest
use: the frames that one reader thread freed are of no use to the next, nor to gRPC's threads, which come and
go. Under constant load that is memory that grows for a long time, most of it free. All threads share one arena
here; nearly all of their allocations are made under Python's lock anyway (docs/adr/0034).
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

ARENAS_MAX: Final = 1
"""Heaps of the C library, for all threads together: what one frees another can use. See ADR 0034."""

_M_ARENA_MAX: Final = -8
"""Its number in glibc's malloc.h."""


def share_one_arena() -> None:
    """Have all threads allocate from one arena; to be called before there are any.

    Does nothing where the environment sets ``MALLOC_ARENA_MAX``, nor where the C library has no arenas.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ:
        mallopt(_M_ARENA_MAX, ARENAS_MAX)
