"""Whether a batch is encoded by machine code: from when the compiled encoder is loaded.

A log of some size begins to load it when a server opens it, else the first large batch, in a thread of its
own; until it is there Arrow does the work. So a server starts at once, and one with little to do
never spends the second and the memory. Loading takes turns with the event loop: better early.
"""

from __future__ import annotations

import threading
import time
from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol, cast

import structlog

if TYPE_CHECKING:
    import pyarrow as pa

    from tailrace_server.capture.codecs.columns import CaptureColumns, Messages

_LARGE: Final = 512
"""So many captures in a batch show that there is a second's work to save,"""
_MANY: Final = 100_000
"""and so many records in a log."""
_MODULE: Final = "tailrace_server.capture.codecs.compiled_frames"

_log = structlog.get_logger()
_lock = threading.Lock()
_loading: threading.Thread | None = None
_machine: Machine | None = None


class Machine(Protocol):
    """The compiled encoder: the module ``machine``."""

    def encode(self, columns: CaptureColumns) -> pa.BinaryArray:
        """Return the frame of each capture."""

    def write(self, columns: CaptureColumns, message_bytes: int) -> Messages:
        """Return the frames in messages."""


def machine(captures: int) -> Machine | None:
    """Return the compiled encoder for so many captures; None: Arrow is to do it. Any thread may ask."""
    if _loading is None and captures >= _LARGE:
        load()
    return _machine


def expect(records: int) -> None:
    """Load it if so many records are likely to be asked for."""
    if _loading is None and records >= _MANY:
        load()


def load() -> threading.Thread:
    """Begin to load it, once a process; return the thread that does, for who wants to wait."""
    global _loading
    with _lock:
        if _loading is None:
            _loading = threading.Thread(target=_load, name="load encoder", daemon=True)
            _loading.start()
        return _loading


def _load() -> None:
    global _machine
    begun = time.monotonic()
    try:
        _machine = cast("Machine", import_module(_MODULE))
    except Exception as error:  # as fast as before, only not faster
        _log.warning("compiled encoder not loaded; Arrow goes on encoding", error=str(error))
    else:
        _log.info("compiled encoder loaded", seconds=round(time.monotonic() - begun, 3))
