"""The commit times of versions, also those that the log has forgotten.

A log that is trimmed forgets the commits of the versions that it gives up, though rows of these may live on in
its base. For an age after the last change they must be known for as long as that age. So commits of the writer
note, among the source positions, how far the log was at a time, 32 times within an age::

    ttl:604800     1200:1732600000000000,1310:1732618900000000

Versions 1201 to 1310 were committed by the second time. If a version's own time is forgotten, that of the next
mark counts, or of the oldest commit that is known: later than it was, never earlier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace_server.pipeline.expiry.due_rows import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

    from tailrace_server.wal.state.view import LogView

_STEPS: Final = 32
"""Marks within an age."""
_MARKS_MAX: Final = 2 * _STEPS
_SECOND_US: Final = 1_000_000


def marks_after(
    positions: Mapping[str, int | str], ages_s: Iterable[int], version: int, timestamp: int
) -> dict[str, int | str]:
    """Return as source positions the marks that a commit adds.

    Args:
        positions: Those before the commit.
        ages_s: The ages that are needed, in seconds.
        version: The last version before the commit.
        timestamp: When it was committed, or later, µs.
    """
    added: dict[str, int | str] = {}
    for age_s in ages_s if version else ():
        marks = _marks_in(positions, age_s)
        if not marks or timestamp - marks[-1][1] >= age_s * _SECOND_US // _STEPS:
            marks = [*marks, (version, timestamp)][-_MARKS_MAX:]
            added[f"ttl:{age_s}"] = ",".join(f"{place}:{at}" for place, at in marks)
    return added


def commit_times(
    view: LogView, versions: npt.NDArray[np.int64], positions: Mapping[str, int | str], age_s: int
) -> npt.NDArray[np.int64]:
    """Return when versions were committed, µs, at the latest; shape (n,).

    Args:
        view: The log.
        versions: In any order, shape (n,).
        positions: Source positions, with the marks of the age.
        age_s: The age, in seconds.
    """
    times = view.known_timestamps_of(versions)
    forgotten = np.flatnonzero(times == 0)
    if len(forgotten):
        oldest = int(view.timestamps_of(np.array([view.oldest.version], np.int64))[0]) or NEVER
        marks = np.array([*_marks_in(positions, age_s), (NEVER, NEVER)], np.int64)
        places = np.searchsorted(marks[:, 0], versions[forgotten], "left")
        times[forgotten] = np.minimum(marks[places, 1], oldest)
    return np.minimum(times, NEVER - age_s * _SECOND_US)


def _marks_in(positions: Mapping[str, int | str], age_s: int) -> list[tuple[int, int]]:
    """Return pairs of version and time, rising."""
    text = str(positions.get(f"ttl:{age_s}", ""))
    pairs = (mark.partition(":") for mark in text.split(",") if mark)
    return [(int(version), int(at)) for version, _, at in pairs]
