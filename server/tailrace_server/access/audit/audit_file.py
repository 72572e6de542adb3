"""The file that the audit is appended to, which others may move away or empty meanwhile.

It is opened for appending, so after it was emptied in place (logrotate's ``copytruncate``) the next line is its
first. Before each write its path is looked at: if another file is there, or none (``create``), that is opened.
A line whose first part went to a file that is gone is written again, whole.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from tailrace_server.errors import CannotStart

if TYPE_CHECKING:
    from pathlib import Path

_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
_MODE: Final = 0o640
"""Its records are about people, so only owner and group may read them."""


class AuditFile:
    """An open file, or stderr. One thread writes at a time."""

    def __init__(self, path: Path | None) -> None:
        """Open a file for appending; None = stderr.

        Raises:
            CannotStart: It cannot be opened, or is a pipe, which would keep the server waiting for a reader.
        """
        self._path = path
        try:
            if path is not None and path.is_fifo():
                raise CannotStart(f"--audit {path}: a named pipe; name a file, or stderr")
            self._descriptor = os.dup(sys.stderr.fileno()) if path is None else _opened(path)
        except OSError as error:
            raise CannotStart(
                f"--audit {path or 'stderr'}: {error.strerror}; the user of the server must be able to write "
                "there"
            ) from error

    def append(self, data: bytes, start: int) -> int:
        """Write lines from a place in them on, as much as the file takes now; return how far it came.

        Raises:
            OSError: It takes nothing.
        """
        begun = start > 0 and data[start - 1] != ord("\n")
        if self._path is not None and self._is_another(begun):
            self._reopen(self._path)
            start = data.rfind(b"\n", 0, start) + 1
        return start + os.write(self._descriptor, memoryview(data)[start:])

    def close(self) -> None:
        """Close it; nothing is written afterwards."""
        os.close(self._descriptor)

    def _is_another(self, begun: bool) -> bool:
        """Return whether what is at the path now has nothing of what was written here."""
        assert self._path is not None
        mine = os.fstat(self._descriptor)
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            return True
        return not os.path.samestat(mine, there) or (begun and there.st_size == 0)

    def _reopen(self, path: Path) -> None:
        descriptor = _opened(path)
        os.close(self._descriptor)
        self._descriptor = descriptor


def _opened(path: Path) -> int:
    return os.open(path, _FLAGS, _MODE)
