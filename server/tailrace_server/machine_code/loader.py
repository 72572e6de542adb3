"""The loader of the compiled loops: finds, checks and maps the file of this machine, or has it made.

A file has a head, which is one line of JSON, and the code after it::

    {"key": …, "sha256": of the code, "functions": {name: [place in the code, number of arguments]}}

``key`` is a hash of everything on which the code depends: the sources in this folder, Python, numba, LLVM and
the processor. The file's name contains the key as well, so a file of another version is ignored and not
replaced. A file that is incomplete, or whose code has another hash, is treated as missing.

Files are in ``__pycache__`` next to this module, or else in the user's cache folder. Loading code from there is
no further risk: a user who can write to these folders can also change the Python code that we run.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import logging
import mmap
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tailrace_server import end_with_parent

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

Loop = Callable[..., int]
"""A loop, called with addresses and numbers. It runs without the GIL, and any thread may call it."""
BYTE, INT, LONG, WORD = map(np.dtype, (np.uint8, np.int32, np.int64, np.uint64))
"""The element types of arrays that loops read and write."""

_MAKE_FROM: Final = 2_048
"""Rows that a process handles without the loops before it has them made. A short command does not reach
this."""
_FOLDER: Final = Path(__file__).parent
_MEMORY: Final[list[mmap.mmap]] = []
"""The mapped code. It is never unmapped, since any thread may be running it."""
_log = logging.getLogger(__name__)
_lock = threading.Lock()


class Loops(NamedTuple):
    """The loops by name; the docstrings in ``loops/`` describe their arguments."""

    first_doubtful: Loop
    mark_unknown: Loop
    find_shapes: Loop
    differences: Loop
    hash_texts: Loop
    read_members: Loop
    cut_messages: Loop
    mark_distinct: Loop
    gather: Loop
    cut_members: Loop
    measure_frames: Loop
    write_frames: Loop
    read_changes: Loop
    read_copied: Loop


_loops: Loops | None = None
_key: str | None = None
"""The key of the file. None: not computed yet. "": the loops cannot be used here, for example without numba."""
_maker: threading.Thread | None = None
"""The thread that makes the file; None if none was started."""
_rows = 0
"""Number of rows that this process has handled without the loops."""


def loops(rows: int, least: int = 0) -> Loops | None:
    """Return the loops; None if they are not available yet or at all, or not worth a call. Thread-safe.

    The first call loads the loops. If their file does not exist, a process of low priority makes it once this
    process has handled some thousand rows. Until then callers use their implementations in Python.

    Args:
        rows: Number of rows that the caller will handle, with the loops or without.
        least: Number of rows from which the loops are worth a call.
    """
    global _rows
    if rows < least:
        return None
    if _loops is None and _maker is None and _key != "":
        _rows += rows  # without a lock: lost additions only make the loops a little later
        if _key is None or _rows >= _MAKE_FROM:
            prepare(make=_rows >= _MAKE_FROM)
    return _loops


def prepare(*, make: bool = True) -> threading.Thread | None:
    """Load the loops. If their file is missing and ``make`` is True, start a thread that has it made.

    Return that thread; None if none was ever started.
    """
    global _key, _maker
    with _lock:
        if _key is None:
            try:
                found = key()
                _load(found)
            except (OSError, PackageNotFoundError) as error:
                found = ""
                _say_plain(error)
            _key = found
        if _loops is None and _key and _maker is None and make:
            _maker = threading.Thread(target=_make, args=(_key,), name="compile loops", daemon=True)
            _maker.start()
        return _maker


def loops_made() -> Loops:
    """Return the loops; if their file is missing, wait until it is made.

    Raises:
        OSError: The loops cannot be made; the log has the reason.
    """
    if (maker := prepare()) is not None:
        maker.join()
    if _loops is None:
        raise OSError("the compiled loops cannot be made; see the log")
    return _loops


def address(array: NDArray[Any], kind: np.dtype[Any]) -> int:
    """Return the address of an array, which must be contiguous and have the given element type."""
    assert array.dtype == kind, (array.dtype, kind)
    return int(pa.py_buffer(array).address)  # raises an error if the array is not contiguous


def key() -> str:
    """Return a hash of everything on which the code depends, as 16 hexadecimal digits.

    Raises:
        PackageNotFoundError: numba is not installed.
        OSError: A source cannot be read.
    """
    found = hashlib.sha256()
    for path in sorted(_FOLDER.rglob("*.py")):
        found.update(path.read_bytes())
    parts = sys.implementation.cache_tag, platform.machine(), version("numba"), version("llvmlite")
    for each in (*parts, _processor()):
        found.update(f"\0{each}".encode())
    return found.hexdigest()[:16]


def places(name: str) -> Iterator[Path]:
    """Yield the paths at which a file with a name may be, the preferred one first."""
    yield _FOLDER / "__pycache__" / name
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    yield Path(caches).expanduser() / "tailrace" / name


def file_name(key: str) -> str:
    """Return the name of the file with a key."""
    return f"loops.{sys.implementation.cache_tag}.{key}.object"


def read(path: Path, key: str) -> tuple[dict[str, tuple[int, int]], bytes] | None:
    """Return the functions and the code of a file; None if it is missing, incomplete, or has another key."""
    try:
        head, _, code = path.read_bytes().partition(b"\n")
        found = json.loads(head)
        is_sound = (found["key"], found["sha256"]) == (key, hashlib.sha256(code).hexdigest())
        return (found["functions"], code) if is_sound else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def mapped(functions: Mapping[str, tuple[int, int]], code: bytes) -> dict[str, Loop]:
    """Map code into executable memory that cannot be written to; return its functions, by name.

    Raises:
        OSError: The system does not allow executable memory.
    """
    # Copy the code into a file without a name, and map that. A file in a cache folder could be truncated while
    # it is mapped, and the next call would end the process. No page is writable and executable at the same
    # time.
    descriptor = os.memfd_create("tailrace-loops", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(code)
        memory = mmap.mmap(descriptor, len(code), mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_EXEC)
    finally:
        os.close(descriptor)
    _MEMORY.append(memory)
    begin = pa.py_buffer(memory).address

    # ctypes releases the GIL while such a function runs.
    return {
        name: ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * arguments)(begin + place)
        for name, (place, arguments) in functions.items()
    }


def _processor() -> str:
    """Return the model and the features of the first processor, as Linux lists them."""
    with open("/proc/cpuinfo", "rb", buffering=0) as file:
        first = file.read(1 << 14).partition(b"\n\n")[0].decode(errors="replace")
    fields = (line.partition(":") for line in first.splitlines())
    named = {name.strip(): value.strip() for name, _, value in fields}
    return "\n".join(f"{name}={named[name]}" for name in _PROCESSOR_FIELDS if name in named)


_PROCESSOR_FIELDS: Final = (
    *("vendor_id", "cpu family", "model", "flags"),  # x86-64
    *("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "Features"),  # AArch64
)


def _load(key: str) -> None:
    """Load the loops if their file exists."""
    global _loops
    begun = time.monotonic()
    for path in places(file_name(key)):
        if (found := read(path, key)) is not None:
            _loops = Loops(**mapped(*found))
            _log.info("compiled loops loaded in %.1f ms", 1e3 * (time.monotonic() - begun))
            return


def _make(key: str) -> None:
    """Run a process that makes the file, and load the file."""
    _log.info("compiling loops once for this machine; until then plain Python is used")
    # The compiler must not outlive this process, so it is started by a program that ends it with its parent.
    bound = (sys.executable, end_with_parent.__file__, str(os.getpid()))
    made = subprocess.run(
        (*bound, sys.executable, "-m", "tailrace_server.machine_code"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if made.returncode:
        reason = made.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        _say_plain(f"the compiler ended with status {made.returncode}: {reason}")
        return
    try:
        _load(key)
    except OSError as error:
        _say_plain(error)


def _say_plain(reason: object) -> None:
    """Log why callers have to use their implementations in Python."""
    _log.info("no compiled loops; plain Python is used, which is slower: %s", reason)
