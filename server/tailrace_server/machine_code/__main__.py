"""``python -m tailrace_server.machine_code``: compile the loops for this machine, and print where they are."""

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
"""For nice: a server that runs meanwhile comes first."""
_HASH: Final = 0xBA0CD1208F9ACA6C
"""The key hash of ``tailrace`` with seed 0; wal/record/keys.py defines it."""


def make() -> Path:
    """Return the file of the loops, made if it is not there.

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
        # Of several processes that start at once, one compiles and the others find its file.
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if loader.read(path, key) is None:
                _write(path, _content(key))
        return path
    raise OSError(f"no folder can be written to: {'; '.join(map(str, refused))}")


def _content(key: str) -> bytes:
    from tailrace_server.machine_code.builder import compiled  # it imports numba

    functions, code = compiled()
    # A fault in the code ends this process, before any other process loads it.
    text = np.frombuffer(b"tailrace", np.uint8)
    offsets, hashes = np.array([0, len(text)], np.int32), np.zeros(1, np.uint64)
    arguments = address(offsets, INT), address(text, BYTE), 0, 1, 0, address(hashes, WORD)
    loader.mapped(functions, code)["hash_texts"](0, *arguments)
    assert hashes[0] == _HASH, hashes
    head = {"key": key, "sha256": hashlib.sha256(code).hexdigest(), "functions": functions}
    return json.dumps(head).encode() + b"\n" + code


def _write(path: Path, content: bytes) -> None:
    """Put a file in its place, whole or not at all."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


if __name__ == "__main__":
    os.nice(_PRIORITY)
    print(make())
