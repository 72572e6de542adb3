"""Reading local files: whole, or by ranges of one that stays open."""

from __future__ import annotations

import os

from tailrace_server.wal.files.system_errors import translated


class OpenFile:
    """A descriptor that closes with its last reader, even if a cache has dropped it meanwhile."""

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)

    def read_into(self, data: memoryview, offset: int) -> int:
        """Fill memory with the bytes from an offset on; return how many there were.

        Raises:
            OSError: The device failed.
        """
        done, length = 0, len(data)
        while done < length:
            read = os.preadv(self.descriptor, [data[done:]], offset + done)
            if not read:
                break
            done += read
        return done

    def size(self) -> int:
        """Return the file's bytes."""
        return os.fstat(self.descriptor).st_size


def open_file(path: str) -> int | None:
    """Open a file to be read; None where there is none. Errors as of ``read_open``."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise translated(error, f"cannot read {path}") from error


def read_open(descriptor: int, path: str, limit: int | None = None) -> tuple[bytes, os.stat_result]:
    """Return what is in an open file, its first ``limit`` bytes only if given, and its status just before.

    Args:
        descriptor: Of the file, read from its beginning.
        path: What to call it in an error.
        limit: Bytes to read at most; None: all.

    Raises:
        LogUnreadable: It may not be read.
        LogError: The device failed.
    """
    try:
        status = os.fstat(descriptor)
        length = status.st_size if limit is None else min(status.st_size, limit)
        data = os.read(descriptor, length)
        while len(data) < length and (more := os.read(descriptor, length - len(data))):
            data += more
    except OSError as error:
        raise translated(error, f"cannot read {path}") from error
    return data, status
