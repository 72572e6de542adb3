"""The versions that the bounds of a read mean: version numbers, or the commit times of versions."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from tailrace.errors import InvalidRequest, PositionCompacted
from tailrace.position import FIRST, Position

if TYPE_CHECKING:
    from tailrace_server.wal.state.view import LogView

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def last_version(view: LogView, bound: int | datetime) -> int:
    """Return the version that a bound names: a version number, or the last version up to a time.

    Args:
        view: The log.
        bound: A version number, or a time with a zone.

    Raises:
        InvalidRequest: The version is not published, or the time is in the future.
        PositionCompacted: The versions of the time were trimmed.
    """
    if isinstance(bound, int):
        if not 0 <= bound <= view.published:
            raise InvalidRequest(
                f"version {bound}: the log has versions from {view.oldest.version} to {view.published}"
            )
        return bound
    timestamp = refuse_future(view, bound)
    refuse_forgotten(view, timestamp)
    # Several versions may have one timestamp: the first version after it, minus one, is the last of them.
    return view.version_at(timestamp + 1) - 1


def first_version(view: LogView, bound: int | datetime) -> int:
    """Return the version that a bound names: a version number, or the first version from a time on.

    Args:
        view: The log.
        bound: A version number, or a time with a zone.

    Raises:
        InvalidRequest: The version is negative.
        PositionCompacted: The versions of the time were trimmed.
    """
    if isinstance(bound, int):
        if bound < 0:
            raise InvalidRequest(f"version {bound}: versions count from 1")
        return max(bound, 1)
    timestamp = micros(bound)
    refuse_forgotten(view, timestamp)
    return view.version_at(timestamp)


def refuse_future(view: LogView, moment: datetime) -> int:
    """Return a time in µs.

    Raises:
        InvalidRequest: The time is in the future.
    """
    timestamp = micros(moment)
    if timestamp > max(time.time_ns() // 1_000, view.newest_timestamp):
        raise InvalidRequest(f"{moment}: this time is in the future")
    return timestamp


def refuse_forgotten(view: LogView, timestamp: int) -> None:
    """Check that the log still has the versions of a time, in µs.

    Raises:
        PositionCompacted: A trim has removed them.
    """
    if view.oldest > FIRST and timestamp < view.timestamp_of(view.oldest.version):
        newest = Position(view.published, 0)
        raise PositionCompacted(view.oldest.preceding(), view.oldest, newest)


def micros(moment: datetime) -> int:
    """Return a time with a zone as µs since 1970."""
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
