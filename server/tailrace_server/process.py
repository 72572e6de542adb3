"""Process-wide settings of the operating system, the C library, Python and gRPC.

``cli/__init__.py`` and ``app.py`` call each function once, early. This module imports no package that loads
slowly, since its first function must run before anything else.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import sys
from typing import Any, Final, Literal

ARENAS_MAX: Final = 1
"""Number of heaps of the C library. All threads share one, so that a thread can reuse what another has freed
(ADR 0033)."""

LARGE_BLOCK_BYTES: Final = 4 << 20
"""Larger than a batch or its frames. Above twice this size, the free end of the heap is returned to the
kernel."""

COLLECTOR_THRESHOLDS: Final = (20_000, 5, 1 << 30)
"""Thresholds of Python's cycle collector: new objects (minus freed ones) before the youngest generation is
collected, such collections before the next generation is collected, and so on. To collect 100,000 objects takes
about 10 ms. Python never collects the oldest generation by itself: `collector` does that, in bounded time."""

_CALLS_MAX: Final = 2_000
"""Limit of nested function calls; Python's default, which writers have, is 1,000."""

EXPERIMENTS: Final = "GRPC_EXPERIMENTS"
"""gRPC's environment variable for experiments to switch on, or with a minus off."""

VERBOSITY: Final = "GRPC_VERBOSITY"
"""gRPC's environment variable for the level of the lines that core writes to stderr."""

HAND_OVER_S: Final = 0.0005
"""Seconds for which a thread may hold the GIL while another thread waits for it."""

Scheduling = Literal["batch", "normal"]
"""The scheduling policy of the server's threads; see ``schedule``."""

_M_ARENA_MAX: Final = -8
"""The number of the option M_ARENA_MAX in glibc's malloc.h."""


def share_one_arena() -> None:
    """Let all threads allocate from one arena; call it before any thread starts.

    By default glibc gives threads separate arenas, up to eight for each processor, and each arena retains the
    most memory that it ever used. Frames that one reader thread has freed cannot be reused by another, or by
    gRPC's threads. Under constant load this memory grows for a long time, most of it free. One arena costs no
    speed, since nearly all allocations are made while the GIL is held (docs/adr/0033).

    Does nothing if the environment sets ``MALLOC_ARENA_MAX``, or if the C library has no arenas.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ:
        mallopt(_M_ARENA_MAX, ARENAS_MAX)


def expect_large_blocks() -> None:
    """Make the C library allocate blocks as large as a batch from its heap from the start.

    By default glibc maps large blocks separately and unmaps them when they are freed, and does the same with
    the end of its heap. It raises its threshold for this to the largest mapped block that was freed. Until then
    each batch is written to fresh pages, which took 1/5 of the time of a first catch-up (docs/adr/0037). So
    this function allocates and frees one large block; it takes no memory, since nothing is written to it.

    Has no effect if the environment sets glibc's thresholds: these are then fixed.
    """
    # Argument and result types are needed: ctypes would cut a pointer to 32 bits.
    library = ctypes.CDLL(None)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    library.free.restype, library.free.argtypes = None, (ctypes.c_void_p,)
    library.free(library.malloc(LARGE_BLOCK_BYTES))


def poll_in_calling_thread() -> None:
    """Choose gRPC's older listener; call it before gRPC is imported, which reads its environment then.

    By default a pool of gRPC's threads polls the sockets and passes each event to the thread that waits for it.
    With the older listener the waiting thread polls, so a message wakes one thread less. This saves 1/10 of the
    server's time if one subscriber catches up, and nothing with a hundred subscribers (docs/adr/0033).

    Does nothing if the environment sets ``GRPC_EXPERIMENTS``.
    """
    os.environ.setdefault(EXPERIMENTS, "-event_engine_listener")


def quiet_core(level: str = "ERROR") -> None:
    """Let gRPC's core log only errors, or the given level; call it before gRPC is imported.

    Core writes to stderr directly, without regard to the settings of the log: for instance a line for each TLS
    handshake that a peer breaks, as often as the peer likes. Commands that connect report their own errors, so
    they use the level ``NONE``.

    Does nothing if the environment sets ``GRPC_VERBOSITY``.
    """
    os.environ.setdefault(VERBOSITY, level)


def read_deep_values() -> None:
    """Raise the recursion limit, so that parsers here can read any value that a writer has accepted.

    Parsers stop at Python's limit of nested calls, which includes the calls above the parser. A writer with few
    calls above its parser accepts a value of about 980 levels, which a reader with more calls could not parse.
    """
    sys.setrecursionlimit(max(sys.getrecursionlimit(), _CALLS_MAX))


def raise_descriptor_limit() -> None:
    """Raise the limit of file descriptors to the highest that this process may set; a refusal is logged.

    Each connection and each open file of the log takes a descriptor. Shells and service managers start a
    process with a low limit, often 1,024, which the process itself may raise. Idle connections would reach this
    limit long before the server's own bounds.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        _log().warning("limit of file descriptors not raised", limit=soft, reason=str(error))


def schedule(scheduling: Scheduling) -> None:
    """Set the scheduling policy of this thread and of all threads that it starts from now on.

    By default a thread that wakes up interrupts the running one. On a busy server the running thread is nearly
    always of the same process and holds the GIL, which the other thread needs next. So that thread sleeps
    again, at the cost of two context switches and of cached data. With ``SCHED_BATCH`` a waking thread waits
    for its turn; it still gets an idle processor at once (docs/adr/0033).

    Does nothing if the kernel has no such policy, or if the process was started with a policy other than the
    default. A refusal is logged; the server is then slower, but correct.
    """
    if scheduling == "normal" or not hasattr(os, "SCHED_BATCH"):
        return
    try:
        # Only replace the default: another policy was chosen on purpose.
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except OSError as error:
        _log().warning("scheduling policy not changed", reason=error.strerror)


def hand_over_soon() -> None:
    """Let threads release the GIL sooner to a waiting thread; the default is 5 ms.

    The event loop releases the GIL briefly in each call to the kernel, Arrow or numpy, and so does the thread
    that follows the log in each read of a file. Another busy thread then takes the GIL and the loop waits. By
    default it waits 5 ms about ten times for one change, while other threads read for other subscribers
    (docs/adr/0057).
    """
    sys.setswitchinterval(HAND_OVER_S)


def freeze_collector() -> None:
    """Exempt all objects of the start from Python's cycle collector, and make its collections rare.

    Subscriptions live for hours and are freed by reference counts, not by the collector. A full collection
    visits all of them, on the event loop: 1.1 s for 100,000 subscriptions (docs/adr/0033).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)


def _log() -> Any:
    import structlog  # not at the top: see the head of this module

    return structlog.get_logger("tailrace.server")
