"""How a table follows: its rows are read, then their changes; and the rows anew, where changes are gone."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from tailrace.capture import Heartbeat, StateComplete
from tailrace.clock import SystemClock
from tailrace.criteria import Content, Transition
from tailrace.errors import (
    CatalogReplaced,
    CatalogUnknown,
    ColumnsChanged,
    ConnectTimeout,
    CursorAhead,
    EntityTypeUnknown,
    HistoryReplaced,
    InvalidRequest,
    PositionCompacted,
    TailraceError,
)
from tailrace.retry import Attempts
from tailrace.table.fold import VersionFold, check_size, criteria_of_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.criteria import Criteria
    from tailrace.cursor import Cursor
    from tailrace.link import Disconnected, Reconnected
    from tailrace.reads.state import State
    from tailrace.retry import Retry, Timeouts
    from tailrace.subscription import Subscription
    from tailrace.table.contents import ChangeLog, Contents

_log: Final = logging.getLogger("tailrace.table")
_HEARTBEAT_S: Final = 1.0
"""If a lead may not count the table's records in its version, a heartbeat says when the version is whole."""
_GONE: Final = (PositionCompacted, CatalogReplaced, ColumnsChanged, HistoryReplaced, CursorAhead)
"""Errors after which the rows are read anew: the changes behind a cursor are gone, or do not say all."""


class FollowedTable(Protocol):
    """The receiver of a follower's progress. Called on the event loop."""

    @property
    def log(self) -> ChangeLog:
        """The receiver of the row changes that are being applied."""

    def show(self, version: int, *, more: bool) -> None:
        """The rows are as of a version now; ``more``: changes of the next were applied already."""

    def restart(self, version: int, because: TailraceError) -> None:
        """The rows were read anew, and are as of a version."""

    def enter(self) -> None:
        """The rows are those of what was published when the table was entered, or newer."""

    def lose(self, error: TailraceError) -> None:
        """No newer versions come, and why."""

    def found(self) -> None:
        """They come again."""


class Follower:
    """Reads a table's rows, and then its changes, for ever."""

    def __init__(
        self,
        catalog: str,
        rows: Criteria,
        read: Callable[[], State],
        subscribe: Callable[..., Subscription],
        retry: Retry,
        timeouts: Timeouts,
    ) -> None:
        """Keep how to read and follow rows of one entity type."""
        self._catalog = catalog
        self._rows = rows
        [self._entity_type] = rows.entity_type
        self._read = read
        self._subscribe = subscribe
        self._retry = retry
        self._timeouts = timeouts
        self._clock = SystemClock()
        self._dropped: set[int] = set()
        """The ids of the table's columns that are known to be dropped."""
        self._warned = False
        """True once this has logged that it leaves out a row whose condition is unknown."""

    async def run(self, table: FollowedTable, contents: Contents) -> None:
        """Never return.

        Raises:
            TailraceError: Why it cannot continue.
        """
        cursor = await contents.open()
        if cursor is not None:
            table.show(cursor.version, more=False)
        held = cursor is not None
        because: TailraceError | None = None
        restarts = 0
        attempts = Attempts(self._retry, self._timeouts, self._clock)
        while True:
            try:
                # 1. All rows, where none are held or the log cannot say what has changed since.
                if cursor is None:
                    cursor = await self._load(contents, attempts)
                    if because is None:
                        table.show(cursor.version, more=False)
                    else:
                        table.restart(cursor.version, because)
                # 2. Their changes. It only ever ends by an error.
                await self._changes(table, contents, cursor, attempts)
            except _GONE as error:
                # 3. A file that was opened and belongs to another log is never overwritten without its owner.
                #    In all other cases the rows are read anew. The wait grows with each restart, since a
                #    table that is trimmed faster than it loads would otherwise load for ever.
                if held and not attempts.acknowledged and isinstance(error, CatalogReplaced):
                    raise
                because, cursor = error, None
                table.lose(error)
                restarts += 1
                await self._clock.sleep(self._retry.wait_s(min(restarts, 4)))
            except TailraceError as error:
                # 4. A subscription that was acknowledged once tries again by itself. A catalog that was
                #    replaced may be created again in a moment, so its absence is waited for.
                made_again = because is not None and isinstance(
                    error, CatalogUnknown | EntityTypeUnknown
                )
                if cursor is None and made_again:
                    attempts.number += 1
                    wait_s = self._retry.wait_s(attempts.number)
                elif cursor is None or isinstance(error, ConnectTimeout):
                    wait_s = attempts.wait_after(error)
                else:
                    raise
                table.lose(error)
                await self._clock.sleep(wait_s)

    async def _load(self, contents: Contents, attempts: Attempts) -> Cursor:
        """Read all rows; return the cursor that they are as of."""
        async with self._read() as state:
            attempts.acknowledged = True
            if (shown := state.header.entity_type) != self._entity_type:
                raise InvalidRequest(
                    f"{self._entity_type!r} is a view of {shown!r}: its rows can be read, by client.state, and "
                    "not followed; follow the entity type with the view's condition as where"
                )
            await contents.begin_again()
            async for rows in state.batches():
                for row in rows:
                    check_size(self._entity_type, row.primary_key, row.position, row.omitted_bytes)
                    if row.is_undecided:
                        self._warn_undecided(row.primary_key)
                await contents.add([row for row in rows if not row.is_undecided])
            cursor = state.header.cursor
        await contents.replace(cursor)
        attempts.number = 0
        return cursor

    async def _changes(
        self, table: FollowedTable, contents: Contents, cursor: Cursor, attempts: Attempts
    ) -> None:
        def lost(disconnected: Disconnected) -> None:
            table.lose(disconnected.error)

        def found(_: Reconnected) -> None:
            table.found()

        fold = VersionFold(self._catalog, self._entity_type, cursor, self._dropped)
        rows = self._rows
        if rows.where is not None:
            # The names in the condition mean the columns of the version whose rows were read.
            rows = replace(rows, where_version=contents.loaded)
        subscription = self._subscribe(
            criteria_of_table(rows),
            after=cursor,
            content=Content.AFTER,
            heartbeat_interval_s=_HEARTBEAT_S,
            on_disconnect=lost,
            on_reconnect=found,
        )
        async with subscription as captures:
            attempts.acknowledged = True
            table.found()
            published = captures.acknowledgement.published
            if cursor.version >= published:
                table.enter()
            async for message in captures.messages():
                assert not isinstance(message, StateComplete), "no state was asked for"
                if not isinstance(message, Heartbeat):
                    for each in message:
                        if each.transition is Transition.UNKNOWN:
                            self._warn_undecided(each.primary_key)
                # The contents change first, then the version that the table shows: a reader between the two
                # sees newer rows, and never a version whose rows are missing.
                steps = fold.take(message)
                await contents.apply(steps, table.log)
                whole = [step.cursor for step in steps if step.cursor is not None]
                if whole:
                    table.show(whole[-1].version, more=steps[-1].cursor is None)
                    if whole[-1].version >= published:
                        table.enter()
                if isinstance(message, Heartbeat):
                    # Without this a file would hold the cursor of the last row that changed, and retention
                    # could take the log behind it.
                    await contents.keep()

    def _warn_undecided(self, key: str | None) -> None:
        """Log the first row that is left out because a value that the condition needs is not known."""
        if not self._warned:
            self._warned = True
            _log.warning(
                "%s in %s: row %r is left out, and others like it without a further line: a value that the "
                "condition needs was not sent, or its column's type cannot hold it; have the ingest keep whole "
                "images (--images full)",
                self._entity_type,
                self._catalog,
                key,
            )
