"""Has the compiled code of this package ready, and says whether it is there for a number of images.

It is loaded from a file in some milliseconds once there are many images. If this machine has no such file, a
separate process makes one, in seconds. Until it has, and where that fails, Python reads columns: slower, and
the same values.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace_server.machine_code.object_code import CompiledModule

_LOAD_FROM_IMAGES: Final = 256
"""So many images in one array, or more, start the loading."""
_LOAD_FROM_ALL: Final = 2_048
"""As do so many in arrays of fewer: small commits come one after the other."""
_MODULE: Final = "tailrace_server.typed.compiled_values"
_SOURCES: Final = (
    "tailrace_server.typed.compiled_members",
    "tailrace_server.typed.value_table",
    "tailrace_server.numba_tools",
    "tailrace_server.wal.record.json_check_compiled",
)
_log = logging.getLogger(__name__)
_lock = threading.Lock()
_images = 0
"""Those of arrays of fewer so far."""
_tried = False
"""Whether it was looked for."""
_loops: Loops | None = None


class Loops(NamedTuple):
    """The compiled code. Each takes the address of a table (value_table.py); any thread may call it."""

    locate: Callable[[int], int]
    numbers: Callable[[int], int]
    texts: Callable[[int], int]


def loops_for(images: int) -> Loops | None:
    """Return the compiled code for so many images; None until it is loaded. Any thread may call it."""
    global _images
    if not _tried:
        _images += images  # threads may lose some of each other's, and load it later
        if images >= _LOAD_FROM_IMAGES or _images >= _LOAD_FROM_ALL:
            _load()
    return _loops


def loops_made() -> Loops:
    """Return the compiled code, made first if need be. From then on `loops_for` has it too.

    Raises:
        OSError: It cannot be made.
        ImportError: There is nothing to make it with.
    """
    from tailrace_server.machine_code import object_code

    global _loops
    module = _module()
    found = Loops(**(object_code.load(module) or object_code.build(module)))
    _loops = found
    return found


def _load() -> None:
    global _loops, _tried
    with _lock:
        if _tried:
            return
        _tried = True
        try:
            # It loads LLVM, which a process that reads few images does without.
            from tailrace_server.machine_code import object_code

            found = object_code.load(_module())
            if found is not None:
                _loops = Loops(**found)
                return
        except Exception as error:  # Python goes on reading: slower, and the same
            _tell(error)
            return
        threading.Thread(target=_make, name="compile columns", daemon=True).start()


def _make() -> None:
    _log.info("compiling the reader of columns once for this machine; Python reads meanwhile")
    try:
        loops_made()
    except Exception as error:  # as above
        _tell(error)


def _tell(error: Exception) -> None:
    # An installation without what makes it is none that lacks something.
    level = logging.INFO if isinstance(error, ImportError) else logging.WARNING
    _log.log(level, "compiled code not loaded; Python goes on reading columns: %s", error)


def _module() -> CompiledModule:
    from tailrace_server.machine_code.object_code import CompiledModule

    return CompiledModule(_MODULE, Loops._fields, _SOURCES)
