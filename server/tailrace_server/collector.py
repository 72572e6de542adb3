"""Python's collector of cycles in a process that keeps millions of objects and answers in milliseconds.

Subscriptions are kept for hours and freed by reference counts, not by the collector; a full collection
walks all of them, on the event loop: 1.1 s at 100,000. So what stands at the start is taken out of its sight,
and it looks at what is young, seldom at everything (docs/adr/0033).
"""

from __future__ import annotations

import gc
from typing import Final

THRESHOLDS: Final = (20_000, 5, 100)
"""Objects that are new, net of those freed, before the young are looked at; how many such looks before the
next generation is; and so on. A look at 100,000 objects takes some 10 ms, and cycles of broken connections
are found after at most as many."""


def settle() -> None:
    """Set the collector up for a process that has started and is about to serve."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
