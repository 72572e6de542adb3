"""Loads the compiled encoder in the background, and says whether it is there to encode a batch.

A log of some size starts the loading when a server opens it, else the first large batch does. It runs in
a thread of its own, and until it ends Arrow encodes. So a server starts at once, and one with little to
do never spends the second and the memory. The thread takes turns with the event loop, so that loading
early is better than loading under load.
"""

from __future__ import annotations

import threading
import time
from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol, cast

import structlog

if TYPE_CHECKING:
    from tailrace_server.capture.codecs.columns import CaptureColumns, EncodedMessages

_LOAD_FROM_CAPTURES: Final = 512
"""A batch of so many captures starts the loading."""
_LOAD_FROM_LOG_RECORDS: Final = 100_000
"""A log of so many records starts the loading when it is opened."""
_MODULE: Final = "tailrace_server.capture.codecs.compiled_frames"

_log = structlog.get_logger()
_lock = threading.Lock()
_thread: threading.Thread | None = None
"""The thread that loads or has loaded the encoder; None before."""
_encoder: CompiledEncoder | None = None
"""The encoder; None until it is loaded, and if it cannot be."""


class CompiledEncoder(Protocol):
    """What the module ``compiled_frames`` offers."""

    def write_messages(self, columns: CaptureColumns, message_bytes: int) -> EncodedMessages:
        """Return the frames in messages."""


def encoder_for(captures: int) -> CompiledEncoder | None:
    """Return the compiled encoder for so many captures; None until it is loaded. Any thread may call it."""
    if _thread is None and captures >= _LOAD_FROM_CAPTURES:
        begin_loading()
    return _encoder


def load_for_log(records: int) -> None:
    """Begin to load the encoder if a log of so many records is worth it."""
    if _thread is None and records >= _LOAD_FROM_LOG_RECORDS:
        begin_loading()


def begin_loading() -> threading.Thread:
    """Begin to load the encoder, once a process; return the thread that does, to be joined."""
    global _thread
    with _lock:
        if _thread is None:
            _thread = threading.Thread(target=_load, name="load encoder", daemon=True)
            _thread.start()
        return _thread


def _load() -> None:
    global _encoder
    begun = time.monotonic()
    try:
        _encoder = cast("CompiledEncoder", import_module(_MODULE))
    except Exception as error:  # Arrow goes on encoding: slower, and right
        _log.warning("compiled encoder not loaded; Arrow goes on encoding", error=str(error))
    else:
        _log.info("compiled encoder loaded", seconds=round(time.monotonic() - begun, 3))
