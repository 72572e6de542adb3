"""The loop of a live table: read all rows, follow their changes, and read anew if changes are lost."""

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
"""Heartbeat interval in seconds; without counts in the lead record, a heartbeat shows that a version is
whole."""
_GONE: Final = (PositionCompacted, CatalogReplaced, ColumnsChanged, HistoryReplaced, CursorAhead)
"""Errors after which all rows are read anew: the changes after the cursor are lost, or are not sufficient."""


class FollowedTable(Protocol):
    """The receiver of a follower's progress. Called on the event loop."""

    @property
    def log(self) -> ChangeLog:
        """The receiver of the row changes that are being applied."""

    def show(self, version: int, *, more: bool) -> None:
        """Handle a new visible version; ``more``: changes of the next version were applied already."""

    def restart(self, version: int, because: TailraceError) -> None:
        """Handle that all rows were read anew as of a version, because of an error."""

    def enter(self) -> None:
        """Handle that the rows have reached the version that was published when the table was entered."""

    def lose(self, error: TailraceError) -> None:
        """Handle that no new versions come, because of an error."""

    def found(self) -> None:
        """Handle that new versions come again."""


class Follower:
    """Reader of all rows of a table, and then of its changes, for ever."""

    def __init__(
        self,
        catalog: str,
        rows: Criteria,
        read: Callable[[], State],
        subscribe: Callable[..., Subscription],
        retry: Retry,
        timeouts: Timeouts,
    ) -> None:
        """Store how to read and to follow the rows of one entity type.

        Args:
            catalog: Name of the catalog.
            rows: Criteria of the table's rows.
            read: Function that returns a read of all rows.
            subscribe: Function that returns a subscription, from criteria and a start.
            retry: Retry policy.
            timeouts: Limits of the time until the first rows.
        """
        self._catalog = catalog
        self._rows = rows
        [self._entity_type] = rows.entity_type
        self._read = read
        self._subscribe = subscribe
        self._retry = retry
        self._timeouts = timeouts
        self._clock = SystemClock()
        self._dropped: set[int] = set()
        """Ids of the table's columns that are known to be dropped."""
        self._warned = False
        """True once a warning was logged for a row that is left out since its condition is undecided."""

    async def run(self, table: FollowedTable, contents: Contents) -> None:
        """Load the contents and follow the changes; never return without an error.

        Raises:
            TailraceError: The table cannot be followed any longer.
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
                # 1. Read all rows, if there are none yet or the changes since are lost.
                if cursor is None:
                    cursor = await self._load(contents, attempts)
                    if because is None:
                        table.show(cursor.version, more=False)
                    else:
                        table.restart(cursor.version, because)
                # 2. Follow the changes. This ends only by an error.
                await self._changes(table, contents, cursor, attempts)
            except _GONE as error:
                # 3. Never overwrite a file whose rows belong to another log: the user has to decide that. In
                # all    other cases read the rows anew. The wait grows with each restart: a table that is
                # trimmed    faster than it loads must not load the server without a pause.
                if held and not attempts.acknowledged and isinstance(error, CatalogReplaced):
                    raise
                because, cursor = error, None
                table.lose(error)
                restarts += 1
                await self._clock.sleep(self._retry.wait_s(min(restarts, 4)))
            except TailraceError as error:
                # 4. A subscription that was acknowledged once has retried by itself, so its error is final. A
                #    catalog that was replaced may be created again in a moment: wait for it.
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
        """Read all rows into the contents; return the cursor at the end of their version."""
        async with self._read() as state:
            attempts.acknowledged = True
            if (shown := state.header.entity_type) != self._entity_type:
                raise InvalidRequest(
                    f"{self._entity_type!r} is a view of {shown!r}: its rows can be read with "
                    "client.state, but not followed; follow the entity type, with the view's "
                    "condition as where"
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
            # Both the rows and their changes must read the condition with the column names of one version.
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
                    # Otherwise a file would keep the cursor of its last row change, however old, and retention
                    # could remove the log after that cursor.
                    await contents.keep()

    def _warn_undecided(self, key: str | None) -> None:
        """Log the first row that is left out because a value that the condition needs is unknown."""
        if not self._warned:
            self._warned = True
            _log.warning(
                "%s in %s: row %r is left out, and later such rows without a further line: a "
                "value that the condition needs was not sent, or its column's type cannot hold "
                "it; let the ingest fill images (--images full)",
                self._entity_type,
                self._catalog,
                key,
            )
