"""Reports that an ingest has stopped although files wait, and input files that changed after they were read.

A thread of its own looks, as the one that runs the batches may hang: the JVM or a storage does not answer, or
a batch is too much for the machine.
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
"""An ingest that has read and committed nothing for so long although files wait says so: longer than Spark
takes to start, and than a batch takes on most machines."""

_LOOK_EVERY_S: Final = 5.0
_LEAVE_S: Final = 1.0
"""How long the end waits for a look that is under way; the folder may be what does not answer."""


@contextmanager
def standstill_told(
    metrics: IngestMetrics,
    reporter: ProgressReporter,
    *,
    after_s: float = STANDSTILL_S,
    look_every_s: float = _LOOK_EVERY_S,
) -> Iterator[None]:
    """Write an error line when a run comes to a standstill, and a line when it continues.

    Args:
        metrics: Of the run within.
        reporter: Writes the lines, from another thread.
        after_s: The time of a standstill before it is reported.
        look_every_s: Time between two looks.
    """
    leaving = threading.Event()

    def watch() -> None:
        told = False
        while not leaving.wait(look_every_s):
            reporter.changed(metrics.changed() or ())
            stands_s = metrics.standstill_s()
            if told and stands_s == 0:
                told = False
                reporter.note("the ingest goes on")
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
    assert waits is not None  # else it would not stand still
    return (
        f"nothing was read or committed for {duration(stands_s)} although {counted(waits.files, 'file')} "
        f"({format_bytes(waits.nbytes)}) wait: Spark or the storage does not answer, or a batch is too much "
        "for this machine (--batch-bytes); a restart loses nothing"
    )
