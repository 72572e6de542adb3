"""Compiled loops, or none, for the tests that compare the two."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tailrace_server.machine_code import loader
from tailrace_server.wal.record import keys

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def loops_used(compiled: bool) -> Iterator[None]:
    """Have callers use the compiled loops, also for one row, or none as if they could not be made."""
    found = loader.loops_made()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader, "_loops", found if compiled else None)
        patch.setattr(loader, "_key", loader._key if compiled else "")
        patch.setattr(keys, "_ONE_BY_ONE_MAX", 0)
        yield
