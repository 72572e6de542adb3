"""The live table: a Mapping that follows a table's rows, an iterator over its changes, and the call for it."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet

from tailrace.arguments import version_of
from tailrace.criteria import Area, Criteria
from tailrace.errors import (
    ColumnsChanged,
    InvalidRequest,
    PositionCompacted,
    SubscriberTooSlow,
    SubscriptionClosed,
    TailraceError,
    again,
    kept,
)
from tailrace.event_loop import OnOneLoop
from tailrace.reads.calls import ReadCalls
from tailrace.table.contents import ChangeLog
from tailrace.table.follower import Follower
from tailrace.table.sqlite import contents_of

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from tailrace.conditions import Where
    from tailrace.retry import Retry, Timeouts
    from tailrace.subscription import Subscription
    from tailrace.table.contents import Contents, TableChange


@dataclass(frozen=True, slots=True)
class TableRestarted:
    """Mark that the changes up to a version were skipped: state derived from the table must be rebuilt."""

    version: int
    """Version of the table's rows after the skipped changes."""
    because: TailraceError
    """The reason: the log lost the changes or was replaced, or the iteration was too slow."""


class LiveChanges:
    """The changes of a table from now on, as an async iterator; made by ``Table.changes``.

    Changes come in order and by whole versions. Changes that were not taken are queued, up to ``backlog``. If
    there are more, the queue is replaced by a `TableRestarted`, and later changes follow it.
    """

    def __init__(self, backlog: int) -> None:
        """Begin with an empty queue; ``backlog`` is its maximum length."""
        self.backlog = backlog
        self._waiting: deque[TableChange | TableRestarted] = deque()
        self._ended: TailraceError | None = None
        self._news = asyncio.Event()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TableChange | TableRestarted:
        """Return the next change or restart. A cancelled call has taken nothing.

        Raises:
            TailraceError: The table has ended. All earlier changes are returned first.
        """
        while not self._waiting:
            if self._ended is not None:
                raise again(self._ended)
            self._news.clear()
            await self._news.wait()
        return self._waiting.popleft()

    def put(self, version: int, changed: ChangeLog) -> None:
        """Queue the changes of whole versions; ``version`` is the last of them."""
        # Drop all or nothing: a gap within the queue would be invisible to the reader.
        if changed.overflowed or len(self._waiting) + len(changed.changes) > self.backlog:
            slow = SubscriberTooSlow(
                f"more than {self.backlog} changes of a table were not read in time"
            )
            self.restart(TableRestarted(version, slow))
        elif changed.changes:
            self._waiting.extend(changed.changes)
            self._news.set()

    def restart(self, restarted: TableRestarted) -> None:
        """Replace the queue by a restart."""
        self._waiting.clear()
        self._waiting.append(restarted)
        self._news.set()

    def end(self, error: TailraceError) -> None:
        """End the iteration with an error after the queued changes."""
        self._ended = error
        self._news.set()


class Table(Mapping[str, Any], OnOneLoop):
    """A live copy of a table; made by ``Client.table``, used under ``async with``.

    It maps canonical key texts to rows. All reads between two awaits see one version, ``version``. A lost
    connection is restored; meanwhile the rows do not change, and ``lost`` has the reason. Once the table has
    ended, every use of it raises the reason.
    """

    def __init__(
        self,
        contents: Contents,
        follower: Follower,
        start: Callable[[Table], asyncio.Task[None]],
        *,
        backlog: int,
    ) -> None:
        """Store how to begin; entering the context sends the first request."""
        self._contents = contents
        self._follower = follower
        self._start = start
        self._backlog = _positive("backlog", backlog)
        self._task: asyncio.Task[None] | None = None
        self._version: int | None = None
        """Version of the visible rows; None: there are no rows yet."""
        self._moves = 0
        """Number of times that other rows became visible."""
        self._replaced: TailraceError | None = None
        """Error that last caused a new load from another log or history; None: there was none."""
        self._ready = False
        """True once the rows have reached the version that was published when the table was entered."""
        self._lost: TailraceError | None = None
        self._ended: TailraceError | None = None
        # Changes are collected even without listeners: one that begins while a version is being applied gets
        # all changes of that version.
        self._log = ChangeLog(backlog)
        self._listeners: WeakSet[LiveChanges] = WeakSet()
        self._waiters: set[asyncio.Future[None]] = set()

    async def __aenter__(self) -> Self:
        """Start the table, and wait until its rows have reached the version that is published now.

        Raises:
            TailraceError: The server refused the requests, or could not be reached in time.
            TableFileError: The file has other contents, or cannot be used.
            CatalogReplaced: The rows in the file belong to another log.
        """
        if self._task is not None or self._ended is not None:
            raise SubscriptionClosed(
                "a table can be entered only once; make another one with `client.table`"
            )
        self._note_loop()
        self._task = self._start(self)
        try:
            while not self._ready:
                await self._moved()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close."""
        await self.close()

    async def close(self) -> None:
        """End the table; it can no longer be read. A file keeps the last version. Idempotent."""
        self._check_loop()
        self._end(SubscriptionClosed("the table was closed"))
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    # What it is now.

    @property
    def version(self) -> int:
        """Version of the rows: they have all changes up to it, and none after it."""
        self._require()
        assert self._version is not None
        return self._version

    @property
    def lost(self) -> TailraceError | None:
        """The reason why no new versions come now: a lost connection, or a new load. None: they come."""
        self._require()
        return self._lost

    def __getitem__(self, key: str) -> Any:
        """Return the row with a key: Python values by column, or the image; None if the source sent no image.

        Raises:
            KeyError: The table has no row with the key.
            ValueNotHeld: Python's type for a column cannot hold its value.
            TailraceError: The table has ended.
        """
        self._require()
        row = self._contents.get(key)
        if row is None:
            raise KeyError(key)
        return row.value()

    def __contains__(self, key: object) -> bool:
        """Return True if the table has a row with a key."""
        self._require()
        return isinstance(key, str) and self._contents.get(key) is not None

    def __iter__(self) -> Iterator[str]:
        """Yield the keys in any order; raise RuntimeError if another version becomes visible meanwhile."""
        self._require()
        # As for a dict: iterating while the keys change is an error, instead of a mixture of two versions.
        moves = self._moves
        for key in self._contents.all_keys():
            if self._moves != moves:
                raise RuntimeError("the table advanced to another version while its keys were read")
            yield key

    def __len__(self) -> int:
        """Return the number of rows; with a file this reads all of them."""
        self._require()
        return self._contents.count()

    # A live table is equal to itself only, since its rows change; `dict(table)` is a copy to compare.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def image(self, key: str) -> bytes | None:
        """Return the image of a row; None if the source sent none.

        Raises:
            KeyError: The table has no row with the key.
            TailraceError: The table has ended.
        """
        self._require()
        row = self._contents.get(key)
        if row is None:
            raise KeyError(key)
        return row.image

    # What comes.

    async def wait_until(self, version: int) -> int:
        """Wait until the rows have reached a version; return their version.

        Raises:
            CatalogReplaced, CursorAhead, HistoryReplaced: During the wait another log or history took the place
                of the one that has the version, and the rows were read anew.
            TailraceError: The table has ended.
        """
        wanted = version_of("version", version)
        self._require()
        # Compare by identity: another error means that the history was replaced after the call began. The
        # version number then means nothing in the new history.
        replaced = self._replaced
        while self.version < wanted:
            await self._moved()
            if self._replaced is not None and self._replaced is not replaced:
                raise again(self._replaced)
        return self.version

    def changes(self) -> LiveChanges:
        """Return a new async iterator over the changes from now on."""
        self._require()
        changes = LiveChanges(self._backlog)
        self._listeners.add(changes)
        return changes

    def __aiter__(self) -> LiveChanges:
        """Iterate over the changes from now on."""
        return self.changes()

    def _require(self) -> None:
        self._check_loop()
        if self._ended is not None:
            raise again(self._ended)
        if not self._ready:
            raise SubscriptionClosed("the table has not been entered")

    async def _moved(self) -> None:
        """Wait until another version becomes visible; raise if the table ends."""
        if self._ended is not None:
            raise again(self._ended)
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)
        if self._ended is not None:
            raise again(self._ended)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    # Called by the client.

    async def run(self) -> None:
        """Keep the rows current until the table ends; the client owns the task."""
        try:
            try:
                await self._follower.run(self, self._contents)
            finally:
                # On every way out: a file has to be completed, and its owner's lock released.
                await self._contents.close()
        except asyncio.CancelledError:
            self._end(SubscriptionClosed("the table was closed"))
            raise
        except Exception as error:
            self._end(kept(error))

    def shut(self, error: TailraceError) -> None:
        """End the table with an error, at once."""
        self._end(error)
        if self._task is not None:
            self._task.cancel()

    def _end(self, error: TailraceError) -> None:
        if self._ended is not None:
            return
        self._ended = error
        for each in tuple(self._listeners):
            each.end(error)
        self._wake()

    # Called by the follower.

    def lose(self, error: TailraceError) -> None:
        """Store the reason why no new versions come."""
        self._lost = error

    def found(self) -> None:
        """Note that new versions come again."""
        self._lost = None

    def enter(self) -> None:
        """Note that the rows have reached the version that was published when the table was entered."""
        if not self._ready:
            self._ready = True
            self._wake()

    @property
    def log(self) -> ChangeLog:
        """The receiver of the row changes that are being applied."""
        return self._log

    def show(self, version: int, *, more: bool) -> None:
        """Note a new visible version, and pass its changes on; ``more``: the next version was begun already."""
        # There is no await here: no reader sees the new rows with the old version number.
        self._version = version
        self._moves += 1
        changed = self._log.whole(version, more=more)
        for each in tuple(self._listeners):
            each.put(version, changed)
        self._wake()

    def restart(self, version: int, because: TailraceError) -> None:
        """Note that all rows were read anew as of a version, because of an error."""
        self._version = version
        self._moves += 1
        # After a trim or a change of columns the history is the same, so version numbers keep their meaning.
        if not isinstance(because, PositionCompacted | ColumnsChanged):
            self._replaced = because
        self._log = ChangeLog(self._backlog)
        for each in tuple(self._listeners):
            each.restart(TableRestarted(version, because))
        self._wake()


def _positive(name: str, number: object) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise InvalidRequest(f"{name} {number!r}: write a whole number above 0")
    return number


class TableCalls(ReadCalls):
    """The client's call for live tables; the client class provides the subscriptions and owns the tasks."""

    _retry: Retry
    _timeouts: Timeouts

    @abstractmethod
    def subscribe(self, *arguments: Any, **options: Any) -> Subscription:
        """Return a subscription to a catalog's changes."""

    @abstractmethod
    def _start(self, stream: Table) -> asyncio.Task[None]:
        """Start the task of a table."""

    def table(
        self,
        catalog: str,
        entity_type: str,
        *,
        where: Where | None = None,
        parameters: Mapping[str, object] | None = None,
        path: str | os.PathLike[str] | None = None,
        typed: bool = True,
        backlog: int = 10_000,
    ) -> Table:
        """Return a live local copy of a table; it begins when its context is entered.

        Args:
            catalog: Name of the catalog.
            entity_type: Entity type of the rows; a view cannot be followed.
            where: Condition that the rows must meet, in the forms of ``state``. None: all rows.
            parameters: Values of the condition's parameters by name, without the colon.
            path: SQLite file for the rows, from which a later run continues; None = memory.
            typed: True if rows shall be Python values by column; False for images.
            backlog: Maximum number of changes that are queued for an iteration over them.

        Raises:
            InvalidRequest: An argument is invalid.
        """
        rows = Criteria(
            area=Area.DATA, entity_type=(entity_type,), where=where, parameters=parameters or {}
        )
        contents = contents_of(path, catalog, rows, typed=typed)
        read = partial(
            self.state,
            *(catalog, entity_type),
            where=where,
            parameters=dict(rows.parameters),
            typed=typed,
        )
        subscribe = partial(self.subscribe, catalog, typed=typed)
        follower = Follower(catalog, rows, read, subscribe, self._retry, self._timeouts)
        return Table(contents, follower, self._start, backlog=backlog)
