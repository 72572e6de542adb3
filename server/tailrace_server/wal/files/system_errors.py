"""Errors of the operating system as errors of the log."""

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
    """Turn errors of the operating system into ours."""
    try:
        yield
    except OSError as error:
        raise translated(error, doing) from error


def is_scarce(error: BaseException) -> bool:
    """Return True if the process lacks file descriptors or memory: a passing error, no fault of the log."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, OSError) and cause.errno in _SCARCE


def is_full(error: OSError) -> bool:
    """Return True if an error says that there is no room."""
    return error.errno in _FULL


def translated(error: OSError, doing: str) -> LogError:
    """Return our error for one of the operating system."""
    reason = f"{doing}: {error.strerror or error}"
    if error.errno in _FULL:
        return LogFull(
            f"{reason}; what was committed stays, and writing goes on once there is room"
        )
    if error.errno == errno.EROFS:
        return LogUnreadable(
            f"{reason}; the log's file system is mounted read-only: mount it for writing, or work on a "
            "copy of the log. To serve and inspect it needs no writing"
        )
    if error.errno in _DENIED:
        user = f"user {os.geteuid()}"
        return LogUnreadable(
            f"{reason}; give {user} permission to the log's folder and its contents"
        )
    return LogError(reason)
