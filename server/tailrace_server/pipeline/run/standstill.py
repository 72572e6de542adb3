"""Reports of an ingest's standstill while files wait, and of files that changed after they were read.

A separate thread does the checks, because the thread that runs the batches may hang: the JVM or the storage may
not answer, or a batch may be too large for the machine.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from tailrace_server.units import counted, duration, format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace_server.pipeline.run.metrics import IngestMetrics
    from tailrace_server.pipeline.run.progress import ProgressReporter

STANDSTILL_S: Final = 300.0
"""Time without any line read or committed, although files wait, after which an ingest reports a standstill.
Spark's start and, on most machines, a batch take less."""

_LOOK_EVERY_S: Final = 5.0
_LEAVE_S: Final = 1.0
"""Time limit for a running check at the end, in seconds; the check itself may hang on the input folder."""


@contextmanager
def standstill_told(
    metrics: IngestMetrics,
    reporter: ProgressReporter,
    *,
    after_s: float = STANDSTILL_S,
    look_every_s: float = _LOOK_EVERY_S,
) -> Iterator[None]:
    """Watch the run inside the context: print an error line at a standstill, and a line when it continues.

    Args:
        metrics: The metrics of the run.
        reporter: Prints the lines; called from another thread.
        after_s: Seconds of standstill before it is reported.
        look_every_s: Seconds between two checks.
    """
    leaving = threading.Event()

    def watch() -> None:
        told = False
        while not leaving.wait(look_every_s):
            reporter.changed(metrics.changed() or ())
            stands_s = metrics.standstill_s()
            if told and stands_s == 0:
                told = False
                reporter.note("the ingest continues")
            elif not told and stands_s >= after_s:
                told = True
                reporter.complain(_reason(metrics, stands_s))

    thread = threading.Thread(target=watch, name="standstill", daemon=True)
    thread.start()
    try:
        yield
    finally:
        leaving.set()
        thread.join(_LEAVE_S)


def _reason(metrics: IngestMetrics, stands_s: float) -> str:
    waits = metrics.waiting()
    assert waits is not None  # a standstill is reported only if files wait
    return (
        f"nothing was read or committed for {duration(stands_s)}, although "
        f"{counted(waits.files, 'file')} ({format_bytes(waits.nbytes)}) wait: Spark or the "
        "storage does not answer, or a batch is too large for this machine (--batch-bytes); a "
        "restart loses nothing"
    )
