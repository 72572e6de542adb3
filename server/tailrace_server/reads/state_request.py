"""A request for a state, and the version that it means."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.errors import InvalidRequest, NotPermitted, PositionCompacted
from tailrace.position import FIRST
from tailrace_server.log_cache.start import refuse_other_history
from tailrace_server.reads.state_blocks import unknown_page
from tailrace_server.reads.state_place import type_digest
from tailrace_server.wal.sequences.settings import nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.conditions import ConditionTree
    from tailrace.schema import Column
    from tailrace_server.grants.grant import Columns
    from tailrace_server.log_cache.followed_log import FollowedLog
    from tailrace_server.reads.state_place import StatePage


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRequest:
    """A request for a state."""

    entity_type: str
    primary_keys: tuple[str, ...] = ()
    """Only these rows; empty: all of them."""
    at_version: int | None = None
    """As of this version; None: by what follows, or the newest published."""
    at_time: int | None = None
    """As of the last version committed at or before this time, µs."""
    page: StatePage | None = None
    """Behind the rows of an earlier answer, as of its version."""
    columns: tuple[str, ...] = ()
    """Of the images; empty: all of them."""
    keys_only: bool = False
    """True if rows come without images."""
    limit: int | None = None
    """How many rows at most."""
    wait_for_version: int | None = None
    """Wait until this version is published."""
    wait_s: float = 10.0
    """For so long at most."""
    where: str | ConditionTree | None = None
    """Only rows that meet this condition."""
    where_parameters: tuple[str, ...] = ()
    """Of the condition, each as ``name=value``."""

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        given = [
            name for name in ("at_version", "at_time", "page") if getattr(self, name) is not None
        ]
        if len(given) > 1:
            raise InvalidRequest(
                f"give at most one of at_version, at_time, page, not {' and '.join(given)}"
            )
        if self.keys_only and self.columns:
            raise InvalidRequest("column: keys_only leaves all images out; give one of them")
        if self.limit is not None and self.limit <= 0:
            raise InvalidRequest(f"limit {self.limit}: it counts rows and must be positive")
        if self.where_parameters and self.where is None:
            raise InvalidRequest("where_parameter: it needs a where")
        if self.wait_for_version is None:
            return
        if self.at_time is not None or self.page is not None:
            raise InvalidRequest(
                "wait_for_version: not with at_time or page, whose version is past"
            )
        if self.at_version is not None and self.at_version < self.wait_for_version:
            raise InvalidRequest(
                f"at_version {self.at_version} lies below wait_for_version {self.wait_for_version}"
            )


async def version_asked(log: FollowedLog, request: StateRequest, name: str | None = None) -> int:
    """Return the version that is requested, once it is published.

    Args:
        log: The log.
        request: What is requested.
        name: That of the table in pages, where it is not the entity type's.

    Raises:
        TailraceError: As ``StateRead.begin``.
    """
    if request.wait_for_version is not None:
        await log.reach(request.wait_for_version, request.wait_s)
    page = request.page
    if page is not None:
        refuse_other_history(await log.view_with(page.passed.version), page.passed)
    if page is not None and page.type_digest != type_digest(name or request.entity_type):
        raise unknown_page()
    if request.at_time is not None:
        return _version_at(log, request.at_time)
    wanted = request.at_version if page is None else page.passed.version
    if wanted is None:
        return log.view.published
    view = await log.view_with(wanted)
    if not 0 <= wanted <= view.published:
        raise InvalidRequest(
            f"at_version {wanted}: the newest published is {view.published}; wait for a later one with "
            "wait_for_version"
        )
    return wanted


def ids_asked(
    request: StateRequest, version: int, columns: Sequence[Column], granted: Columns
) -> frozenset[int]:
    """Return the ids of the requested columns.

    Args:
        request: The request, which names columns.
        version: The version that is read.
        columns: The columns of the table at that version.
        granted: The columns that the caller may see.

    Raises:
        InvalidRequest: The table has no column of a requested name.
        NotPermitted: The same, for a caller from whom columns are hidden. A hidden column and a column that
            does not exist get the same answer, and the hint names visible columns only.
    """
    known = {each.name: each.id for each in columns if granted.shows(each.name)}
    for name in request.columns:
        if name in known:
            continue
        hint = nearest(name, known)
        if not granted.are_all:
            raise NotPermitted(f"column {name!r} is not granted{hint}")
        raise InvalidRequest(
            f"column: {request.entity_type!r} has no column {name!r} at version {version}{hint}"
        )
    return frozenset(known[name] for name in request.columns)


def _version_at(log: FollowedLog, timestamp: int) -> int:
    """Return the last version committed at or before a time, µs."""
    view = log.view
    now = max(time.time_ns() // 1_000, view.newest_timestamp)
    if timestamp > now:
        raise InvalidRequest(
            f"at_time {timestamp} lies in the future: it is {now} µs since the epoch now"
        )
    before = view.oldest.version - 1
    if view.oldest > FIRST and timestamp < view.timestamp_of(before):
        raise PositionCompacted(view.oldest.preceding(), view.oldest, log.newest)
    return view.version_at(timestamp + 1) - 1
