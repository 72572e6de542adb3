"""``python -m tailrace_server.machine_code``: compile the loops for this machine, and print their path."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace_server.machine_code import loader
from tailrace_server.machine_code.loader import BYTE, INT, WORD, address

if TYPE_CHECKING:
    from pathlib import Path

_PRIORITY: Final = 10
"""Niceness of this process, so that a server on the machine has priority."""
_HASH: Final = 0xBA0CD1208F9ACA6C
"""The key hash of ``tailrace`` with seed 0; wal/record/keys.py defines it."""


def make() -> Path:
    """Return the path of the file with the loops; make the file if it is missing.

    Raises:
        OSError: No folder can be written to.
        ImportError: numba is not installed.
        ValueError: The code cannot be linked.
    """
    key = loader.key()
    refused = []
    for path in loader.places(loader.file_name(key)):
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = path.with_name("loops.lock").open("wb")
        except OSError as error:
            refused.append(error)
            continue
        # If several processes start at once, one compiles, and the others wait for its file.
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if loader.read(path, key) is None:
                _write(path, _content(key))
        return path
    raise OSError(f"no folder is writable: {'; '.join(map(str, refused))}")


def _content(key: str) -> bytes:
    """Compile the loops; return the content of their file."""
    from tailrace_server.machine_code.builder import compiled  # it imports numba

    functions, code = compiled()
    # Call one loop. If the code is faulty, it ends this process, before any server loads it.
    text = np.frombuffer(b"tailrace", np.uint8)
    offsets, hashes = np.array([0, len(text)], np.int32), np.zeros(1, np.uint64)
    arguments = address(offsets, INT), address(text, BYTE), 0, 1, 0, address(hashes, WORD)
    loader.mapped(functions, code)["hash_texts"](0, *arguments)
    assert hashes[0] == _HASH, hashes
    head = {"key": key, "sha256": hashlib.sha256(code).hexdigest(), "functions": functions}
    return json.dumps(head).encode() + b"\n" + code


def _write(path: Path, content: bytes) -> None:
    """Write a file and rename it to its path, so that no process sees an incomplete file."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


if __name__ == "__main__":
    os.nice(_PRIORITY)
    print(make())
