"""A request for a state, and the lookup of its version and columns."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.errors import InvalidRequest, NotPermitted, PositionCompacted
from tailrace.errors.requests import nearest
from tailrace.position import FIRST
from tailrace_server.reads.state_blocks import unknown_page
from tailrace_server.reads.state_place import type_digest
from tailrace_server.wal.state.view import refuse_other_history

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.conditions import ConditionTree
    from tailrace.schema import Column
    from tailrace_server.grants.grant import Columns
    from tailrace_server.log_cache.followed_log import FollowedLog
    from tailrace_server.reads.state_place import StatePage


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRequest:
    """A request for the rows of an entity type or a view as of one version."""

    entity_type: str
    """The name of the entity type or view."""
    primary_keys: tuple[str, ...] = ()
    """The keys of the requested rows; empty: all rows."""
    at_version: int | None = None
    """The version; None: it follows from ``at_time`` or ``page``, or is the newest published one."""
    at_time: int | None = None
    """Time in microseconds; the version is the last one committed at or before it."""
    page: StatePage | None = None
    """The place after the rows of an earlier answer; the version is that of the earlier answer."""
    columns: tuple[str, ...] = ()
    """The columns of the images; empty: all columns."""
    keys_only: bool = False
    """True if rows come without images."""
    limit: int | None = None
    """The most rows to deliver; None: no limit."""
    wait_for_version: int | None = None
    """Version that must be published before the read begins; None: no wait."""
    wait_s: float = 10.0
    """The longest wait for that version, in seconds."""
    where: str | ConditionTree | None = None
    """A condition that the rows meet; None: no condition."""
    where_parameters: tuple[str, ...] = ()
    """The parameters of the condition, each as ``name=value``."""

    def __post_init__(self) -> None:
        """Check that the fields do not contradict each other."""
        given = [
            name for name in ("at_version", "at_time", "page") if getattr(self, name) is not None
        ]
        if len(given) > 1:
            raise InvalidRequest(
                f"give at most one of at_version, at_time, page, not {' and '.join(given)}"
            )
        if self.keys_only and self.columns:
            raise InvalidRequest(
                "column: keys_only leaves all images out; give column or keys_only"
            )
        if self.limit is not None and self.limit <= 0:
            raise InvalidRequest(f"limit {self.limit}: must be a positive number of rows")
        if self.where_parameters and self.where is None:
            raise InvalidRequest("where_parameter: also needs where")
        if self.wait_for_version is None:
            return
        if self.at_time is not None or self.page is not None:
            raise InvalidRequest(
                "wait_for_version: not with at_time or page, whose version is already published"
            )
        if self.at_version is not None and self.at_version < self.wait_for_version:
            raise InvalidRequest(
                f"at_version {self.at_version} is below wait_for_version {self.wait_for_version}"
            )


async def version_asked(log: FollowedLog, request: StateRequest, name: str | None = None) -> int:
    """Wait for the requested version, and return it.

    Args:
        log: The log.
        request: The request.
        name: The name in pages, if it is not the entity type's: that of the requested view.

    Raises:
        DeadlineExceeded: The version to wait for was not published in time.
        InvalidRequest: The version or time is in the future, or the page belongs to another read.
        CatalogReplaced: The page belongs to another log.
        PositionCompacted: The time is before the oldest retained version.
    """
    if request.wait_for_version is not None:
        await log.reach(request.wait_for_version, request.wait_s)
    page = request.page
    if page is not None:
        # The version of a page may mean something else in a log that was restored.
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
            f"at_version {wanted}: the newest published version is {view.published}; wait for a later "
            "one with wait_for_version"
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
        InvalidRequest: The table has no column with a requested name.
        NotPermitted: The caller may not see all columns, and a requested name is not among the visible ones.
            The error is the same for a hidden column and for one that does not exist.
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
    """Return the last version committed at or before a time in microseconds."""
    view = log.view
    now = max(time.time_ns() // 1_000, view.newest_timestamp)
    if timestamp > now:
        raise InvalidRequest(
            f"at_time {timestamp} is in the future: now it is {now} µs since the epoch"
        )
    before = view.oldest.version - 1
    if view.oldest > FIRST and timestamp < view.timestamp_of(before):
        raise PositionCompacted(view.oldest.preceding(), view.oldest, log.newest)
    return view.version_at(timestamp + 1) - 1
