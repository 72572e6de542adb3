"""Translation of errors of the operating system to errors of the log."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from tailrace.errors import LogError, LogFull, LogUnreadable

if TYPE_CHECKING:
    from collections.abc import Iterator

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_DENIED: Final = frozenset({errno.EACCES, errno.EPERM})
_SCARCE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


@contextmanager
def os_errors(doing: str) -> Iterator[None]:
    """Raise the log's error in place of an ``OSError`` of the block."""
    try:
        yield
    except OSError as error:
        raise translated(error, doing) from error


def is_scarce(error: BaseException) -> bool:
    """Return True if the process ran out of file descriptors or memory: temporary, no fault of the log."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, OSError) and cause.errno in _SCARCE


def is_full(error: OSError) -> bool:
    """Return True if an error reports that the file system, a quota, or a file's maximum size is exhausted."""
    return error.errno in _FULL


def translated(error: OSError, doing: str) -> LogError:
    """Return the log's error for an error of the operating system."""
    reason = f"{doing}: {error.strerror or error}"
    if error.errno in _FULL:
        return LogFull(
            f"{reason}; committed versions are safe, and writing continues once there is free space"
        )
    if error.errno == errno.EROFS:
        return LogUnreadable(
            f"{reason}; the log's file system is mounted read-only: mount it for writing, or work "
            "on a copy of the log. Serving and inspecting a log need no write access"
        )
    if error.errno in _DENIED:
        user = f"user {os.geteuid()}"
        return LogUnreadable(
            f"{reason}; give {user} permission to the log's folder and its contents"
        )
    return LogError(reason)
