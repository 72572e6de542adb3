"""Has the compiled encoder and cutter ready, and says whether they are there for a batch.

A server loads them before it listens: from a file that takes some milliseconds (``machine_code/``). Elsewhere
the first large batch begins that, in a thread. If this machine has no such file, a separate process makes one,
in seconds. Until it has, and where that fails, Arrow encodes and a parser cuts: slower, and the same bytes.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, Protocol

import structlog

if TYPE_CHECKING:
    from tailrace_server.codecs.columns import CaptureColumns, EncodedMessages
    from tailrace_server.codecs.member_cutter import MemberCutter

_LOAD_FROM_CAPTURES: Final = 512
"""A batch of so many captures starts the loading."""

_log = structlog.get_logger()
_lock = threading.Lock()
_thread: threading.Thread | None = None
"""The thread that loads or has loaded the encoder; None before."""
_encoder: CompiledEncoder | None = None
"""The encoder; None until it is loaded, and if it cannot be."""
_cutter: MemberCutter | None = None
"""Likewise, of members that are not shown."""


class CompiledEncoder(Protocol):
    """The interface of a ``FrameWriter``."""

    def write_messages(self, columns: CaptureColumns, message_bytes: int) -> EncodedMessages:
        """Return the frames in messages."""


def encoder_for(captures: int) -> CompiledEncoder | None:
    """Return the compiled encoder for so many captures; None until it is loaded. Any thread may call it."""
    if _thread is None and captures >= _LOAD_FROM_CAPTURES:
        begin_loading()
    return _encoder


def cutter_for(captures: int) -> MemberCutter | None:
    """Return the compiled cutter for so many captures, as ``encoder_for`` does."""
    encoder_for(captures)
    return _cutter


def begin_loading() -> threading.Thread:
    """Begin to have the encoder, once a process; return the thread that does, to be joined."""
    global _thread
    with _lock:
        if _thread is None:
            _thread = threading.Thread(target=_load, name="load encoder", daemon=True)
            _thread.start()
        return _thread


def wait_while_loading() -> None:
    """Begin to have the encoder, and return once it is there, or has to be compiled first."""
    begin_loading()
    _known.wait()


_known = threading.Event()
"""Set once it is clear whether the encoder can be had without compiling it, and it is there if it can."""


def _load() -> None:
    global _cutter, _encoder
    begun = time.monotonic()
    try:
        # They load LLVM, which a process that encodes little does without.
        from tailrace_server.codecs.frame_writer import FRAME_LOOPS, FrameWriter
        from tailrace_server.codecs.member_cutter import CUT_LOOPS, MemberCutter
        from tailrace_server.machine_code import object_code

        frames, cut = object_code.load(FRAME_LOOPS), object_code.load(CUT_LOOPS)
        if frames is None or cut is None:
            _log.info("compiling the encoder once for this machine; Arrow encodes meanwhile")
            _known.set()
            frames = object_code.build(FRAME_LOOPS) if frames is None else frames
        _encoder = FrameWriter(frames)
        _log.info("compiled encoder loaded", seconds=round(time.monotonic() - begun, 3))
        _cutter = MemberCutter(object_code.build(CUT_LOOPS) if cut is None else cut)
    except Exception as error:  # Arrow and the parser go on: slower, and right
        _log.warning("compiled code not loaded; Arrow goes on encoding", error=str(error))
    finally:
        _known.set()
