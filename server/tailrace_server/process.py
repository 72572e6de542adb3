"""Process-wide settings of the operating system, the C library, Python and gRPC.

Each function is called once, early; ``cli/__init__.py`` and ``app.py`` say when. Nothing here imports a
package that is slow to load, since the first of them runs before anything else does.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import sys
from typing import Any, Final, Literal

ARENAS_MAX: Final = 1
"""Heaps of the C library, for all threads together: what one frees another can use. See ADR 0033."""

LARGE_BLOCK_BYTES: Final = 4 << 20
"""More than a batch or its frames have. The end of the heap goes back to the kernel from twice of it on."""

COLLECTOR_THRESHOLDS: Final = (20_000, 5, 1 << 30)
"""New objects, net of those freed, before the youngest generation is collected; such collections before
the next generation is; and so on. Collecting 100,000 objects takes some 10 ms. Everything is never collected
by itself: `collector` does it where it is short."""

_CALLS_MAX: Final = 2_000
"""Nested calls of functions; Python's default, which writers have, is 1,000."""

EXPERIMENTS: Final = "GRPC_EXPERIMENTS"
"""gRPC's environment variable of experiments to switch on, or off with a minus."""

VERBOSITY: Final = "GRPC_VERBOSITY"
"""gRPC's environment variable of what its core writes to stderr."""

HAND_OVER_S: Final = 0.0005
"""How long a thread may keep Python's lock while another waits for it."""

Scheduling = Literal["batch", "normal"]
"""How the kernel schedules the server's threads; see ``schedule``."""

_M_ARENA_MAX: Final = -8
"""The option's number in glibc's malloc.h."""


def share_one_arena() -> None:
    """Have all threads allocate from one arena; to be called before there are any.

    glibc gives threads arenas of their own, up to eight for each processor, and each keeps what was its
    highest use: frames that one reader thread freed are of no use to the next, nor to gRPC's threads. Under
    constant load that memory grows for a long time, most of it free. With one arena nothing is lost, as
    nearly all allocations are made under Python's lock anyway (docs/adr/0033).

    Does nothing where the environment sets ``MALLOC_ARENA_MAX``, nor where the C library has no arenas.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ:
        mallopt(_M_ARENA_MAX, ARENAS_MAX)


def expect_large_blocks() -> None:
    """Have the C library keep blocks as large as a batch in its heap from the start.

    It maps large blocks apart and unmaps them again, and the end of its heap likewise, until it has learnt
    how large those are that come and go: from the largest such block that was freed. Up to then each batch
    is written to fresh pages, which was a fifth of the time of a first catch-up (docs/adr/0037). So one is
    freed here; as nothing was written to it, it takes no memory.

    Does nothing where the environment sets glibc's thresholds: they stand, and it learns nothing.
    """
    library = ctypes.CDLL(None)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    library.free.restype, library.free.argtypes = None, (ctypes.c_void_p,)
    library.free(library.malloc(LARGE_BLOCK_BYTES))


def poll_in_calling_thread() -> None:
    """Choose gRPC's older listener; to be called before gRPC is imported, which reads its environment then.

    By default a pool of gRPC's threads polls the sockets and hands each event on to the thread that asked
    for it. With the older listener the asking thread polls itself, so a message wakes one thread less: a
    tenth of the server's time where one subscriber catches up, no difference with a hundred (docs/adr/0033).

    Does nothing where the environment says what gRPC is to try.
    """
    os.environ.setdefault(EXPERIMENTS, "-event_engine_listener")


def quiet_core(level: str = "ERROR") -> None:
    """Have gRPC's core write no more than its errors; to be called before gRPC is imported.

    It writes to stderr itself, past every setting of the log: a line for each handshake of TLS that a peer
    spoils, for as many as it likes. A command that connects says itself why it cannot: ``NONE``.

    Does nothing where the environment says what gRPC is to write.
    """
    os.environ.setdefault(VERBOSITY, level)


def read_deep_values() -> None:
    """Let the parsers of this process read each value that a writer takes, however deep it nests.

    Parsers stop at Python's limit of nested calls, which counts their callers too. A writer with few callers
    takes a value of some 980 levels, which a reader with more callers could not parse.
    """
    sys.setrecursionlimit(max(sys.getrecursionlimit(), _CALLS_MAX))


def raise_descriptor_limit() -> None:
    """Raise the limit of file descriptors to the highest that this process may set; a refusal is logged.

    Each connection takes a descriptor, and so does each open file of the log. Shells and service managers
    start a process with a low limit that it may raise itself, often 1,024: idle connections would reach it
    long before the server's own bounds do.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        _log().warning("limit of file descriptors stays", limit=soft, reason=str(error))


def schedule(scheduling: Scheduling) -> None:
    """Set how the kernel schedules this thread and all that it starts from now on.

    By default a thread that wakes interrupts the one that runs. On a busy server the running one is nearly
    always of the same process and holds Python's lock, which the other needs next: it finds that out, sleeps
    again, and has cost two switches and what lay in the caches. With ``SCHED_BATCH`` it waits for its turn;
    it gets an idle processor as soon as ever (docs/adr/0033).

    Does nothing where the kernel has no such policy, nor where whoever started the process has set another
    than the default. A refusal is logged: the server is slower then, not wrong.
    """
    if scheduling == "normal" or not hasattr(os, "SCHED_BATCH"):
        return
    try:
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except OSError as error:
        _log().warning("scheduling stays normal", reason=error.strerror)


def hand_over_soon() -> None:
    """Have threads hand over Python's lock sooner than by default, after 5 ms.

    The event loop lets go of it for a moment in each call to the kernel, to Arrow or to numpy, and the thread
    that follows the log in each read of a file. Whoever works in another thread has it then, and the loop
    waits: by default ten times 5 ms for one change on its way, while others are being read for (docs/adr/0057).
    """
    sys.setswitchinterval(HAND_OVER_S)


def freeze_collector() -> None:
    """Exempt all objects of the start from Python's cycle collector, and make its collections rare.

    Subscriptions are kept for hours and freed by reference counts, not by the collector; a full collection
    walks all of them, on the event loop: 1.1 s at 100,000 (docs/adr/0033).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)


def _log() -> Any:
    import structlog  # not at the top: see the head of this module

    return structlog.get_logger("tailrace.server")
