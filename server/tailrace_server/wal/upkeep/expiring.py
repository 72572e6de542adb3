"""Expiry of bodies: old records of an entity type are rewritten without their images.

The setting ``bodies`` of an entity type is the time for which bodies are retained. A hold of a named
subscription can retain them longer. Heads are never removed, so positions, running numbers, counts and captures
without bodies stay available. Before bodies expire, a base is made of the version just before the first one
that retains its bodies. So the state of the table stays readable from that version on::

    heads     ────────────────────────────────────────────▶
    bodies                        ┃───────────────────────▶
                                  ┃◀──── bodies ──────────  now
    bases                        ▲

One checkpoint contains both the first version with bodies and the rewritten files. So the log and the files on
the disk always agree. As with trims, bodies are retained for 1/8 longer than the setting requires, because each
expiry makes a base and rewrites the segments at the border.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tailrace.errors import LogError, LogFull
from tailrace_server.failpoints import reach
from tailrace_server.wal.base.making import drop_unneeded, keeps_state, make_base
from tailrace_server.wal.sequences.holds import held_from
from tailrace_server.wal.sequences.settings import BODIES, newest_settings
from tailrace_server.wal.state.batch_table import FIRST_VERSION, LAST_VERSION, SEGMENT
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.state.entity_names import EntityNames
from tailrace_server.wal.upkeep.compaction import (
    Compaction,
    published_segments,
    rewrite,
    stretches_of,
)
from tailrace_server.wal.upkeep.keeping import first_after, slack_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from tailrace_server.wal.state.expired_bodies import BodiesFrom
    from tailrace_server.wal.state.state import LogState

_STEP_BYTES: Final = 4 << 30
"""The most bytes of segments that one checkpoint replaces, roughly. This work is lost if another process
creates the checkpoint first."""
_ATTEMPTS: Final = 8


class _Due(NamedTuple):
    """The bodies of one entity type that are to be removed."""

    entity_type: str
    """The entity type's newest name."""
    names: EntityNames
    first: int
    """The first version whose bodies are retained."""
    segments: npt.NDArray[np.int64]
    """Places of the segments that may have bodies of earlier versions."""


def expiry_is_due(log: CommitLog, settings: Mapping[str, Mapping[str, int]], now: int) -> bool:
    """Return True if bodies of an entity type are older, by 1/8 or more, than its setting requires.

    Args:
        log: The log.
        settings: The settings of the entity types, by their newest names.
        now: Current time, µs since the epoch.
    """
    return bool(_due(log, settings, now, at_once=False))


def expire(path: Path, now: int, *, at_once: bool = False) -> Compaction | None:
    """Remove expired bodies, from a few GiB of segments at most; return the result, or None if none are due.

    Any process may call this at any time.

    Args:
        path: The catalog's folder.
        now: Current time, µs since the epoch.
        at_once: Remove all bodies older than the setting requires, without waiting for the further 1/8.

    Raises:
        LogFull: The device has no room for the base or the new segments; the log is unchanged.
        LogCorrupted: A batch to rewrite, or a part of the log or the base from which to make a base, is
            damaged.
        LogError: Other processes kept changing the settings, bases or checkpoints; the log is unchanged.
    """
    for _ in range(_ATTEMPTS):
        log = CommitLog.open(path)
        settings = newest_settings(log.store, log.uuid).by_type(log.view)
        due = _due(log, settings, now, at_once=at_once)
        if not due:
            return None
        # 1. Limit the work of this step to some versions; compute the first version with bodies after it.
        stop = _end_of_step(log.state, due)
        begins = [each._replace(first=min(each.first, stop)) for each in due]
        bodies_from = _joined(log, begins)
        # 2. Make and reserve the bases first: after the expiry, state can be read only from them on.
        for version in sorted({each.first - 1 for each in begins}):
            make_base(path, now, version, reserve=True)
        reach("expire.has_base")
        # 3. Rewrite the segments with such bodies, and name all new segments by one checkpoint.
        places = sorted({place for each in due for place in each.segments.tolist()})
        chosen = [place for place in places if _first_version(log.state, place) < stop]
        stretches = [
            stretch for run in _runs(chosen) for stretch in stretches_of(log.state, run, least=1)
        ]
        may_go = partial(_may_go, begins=begins, now=now, at_once=at_once)
        if (done := rewrite(log, stretches, now, bodies_from, may_go)) is not None:
            with suppress(LogFull):  # the next base that is made drops them
                drop_unneeded(path, now)
            return done
    raise LogError(
        f"no bodies were removed in {path}: other processes change its settings, checkpoints or "
        "bases at the same time; try again"
    )


def _may_go(log: CommitLog, *, begins: Sequence[_Due], now: int, at_once: bool) -> bool:
    """Return True if the bodies may still be removed, and state stays readable after the next checkpoint.

    Writing bases and new segments takes long. Meanwhile a user may have set a longer time, or created a
    subscription that holds bodies. Or another checkpoint may have used the number for which bases are reserved.
    """
    newest = CommitLog.open(log.path)
    if newest.state.checkpoint > log.state.checkpoint:
        return True  # the next checkpoint's number is used, so its creation fails; this is called again then
    for version in sorted({each.first - 1 for each in begins}):
        make_base(log.path, now, version, reserve=True)
    settings = newest_settings(log.store, log.uuid).by_type(newest.view)
    firsts = {each.entity_type: each.first for each in _due(newest, settings, now, at_once=at_once)}
    return all(
        firsts.get(each.entity_type, 0) >= each.first and keeps_state(log, each.first)
        for each in begins
    )


def _due(
    log: CommitLog, settings: Mapping[str, Mapping[str, int]], now: int, *, at_once: bool
) -> list[_Due]:
    view, state, published = log.view, log.state, log.published_view()
    schema = view.schema_of(view.published)
    found = []
    for entity_type, given in settings.items():
        kept = given.get(BODIES)
        if kept is None or entity_type not in schema.entity_types:
            continue
        # 1. The range of versions whose bodies may go: from the first with bodies up to the first within the
        #    time, the first that is unpublished, and the first that a named subscription holds.
        names = EntityNames(schema, entity_type)
        begun = max(view.oldest.version, view.bodies.first_kept(entity_type, view.published))
        first = min(first_after(published, now - kept), _unpublished(state))
        first = held_from(log.path, view, first, now)
        segments = _segments_with(log, names, begun, first)
        if not len(segments):
            continue
        # 2. It is due only if the oldest body is older than the time and its slack.
        oldest = max(begun, _first_version(state, int(segments[0])))
        late = now - kept - (0 if at_once else slack_of(kept))
        if oldest < first_after(published, late):
            found.append(_Due(entity_type, names, first, segments))
    return found


def _segments_with(
    log: CommitLog, names: EntityNames, begin: int, stop: int
) -> npt.NDArray[np.int64]:
    """Return the places of the segments that may have records of an entity type in a range of versions."""
    state = log.state
    if stop <= begin:
        return np.zeros(0, np.int64)
    called = {names.name_in(schema) for schema in log.view.schemas()}
    columns = state.batches.columns[:, : len(state.batches)]
    ranged = (columns[LAST_VERSION] >= begin) & (columns[FIRST_VERSION] < stop)
    places: npt.NDArray[np.int64] = np.unique(columns[SEGMENT][ranged])
    segments = state.batches.segments
    counts = (segments[place].counts for place in places.tolist())
    has_some = [each is None or not called.isdisjoint(each) for each in counts]
    found: npt.NDArray[np.int64] = places[np.array(has_some, np.bool_)]
    return found


def _unpublished(state: LogState) -> int:
    """Return the first version of the first segment with unpublished records, which must not be rewritten."""
    count = published_segments(state)
    if count == len(state.batches.segments):
        return state.published + 1
    return _first_version(state, count)


def _first_version(state: LogState, segment: int) -> int:
    columns = state.batches.columns[:, : len(state.batches)]
    return int(columns[FIRST_VERSION, int(np.searchsorted(columns[SEGMENT], segment))])


def _end_of_step(state: LogState, due: Iterable[_Due]) -> int:
    """Return the version at which one step ends, exclusive; the step includes at least one due segment."""
    places = sorted({place for each in due for place in each.segments.tolist()})
    sizes = state.batches.segments.sizes
    begin, size = _first_version(state, places[0]), 0
    for place in places:
        # A step ends between two versions, so segments that begin with the same version stay in one step.
        if size > _STEP_BYTES and (first := _first_version(state, place)) > begin:
            return first
        size += int(sizes[place])
    return max(each.first for each in due)


def _joined(log: CommitLog, begins: Iterable[_Due]) -> BodiesFrom:
    """Return the first version with bodies after this step, by each entity type's name at that version."""
    view = log.view
    newer = [(each.names.name_in(view.schema_of(each.first)), each) for each in begins]
    changed = {each.entity_type for each in begins}
    kept = [
        (name, first)
        for name, first in view.bodies.bodies_from
        if EntityNames(view.schema_of(first), name).name_in(view.schema_of(view.published))
        not in changed
    ]
    return tuple(kept) + tuple((name, each.first) for name, each in newer if name is not None)


def _runs(places: list[int]) -> list[range]:
    """Return ascending places as ranges of neighbouring places."""
    runs: list[range] = []
    for place in places:
        if runs and runs[-1].stop == place:
            runs[-1] = range(runs[-1].start, place + 1)
        else:
            runs.append(range(place, place + 1))
    return runs
