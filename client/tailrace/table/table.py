"""The live table: a Mapping that follows its rows, its changes for a reader, and the call that makes it."""

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
    """The changes up to a version do not come one by one: what was built from the table is to be built anew."""

    version: int
    """The rows are as of it."""
    because: TailraceError
    """The log no longer had the changes, it was replaced, or the iteration took them too slowly."""


class LiveChanges:
    """The changes of a table from when it was made, as an async iterator; made by ``Table.changes``.

    They come in order, versions whole. Changes that were not taken wait, up to a number. With more of them
    all that wait are dropped, and a `TableRestarted` comes in their place; the changes behind it follow.
    """

    def __init__(self, backlog: int) -> None:
        """Keep so many at most."""
        self.backlog = backlog
        self._waiting: deque[TableChange | TableRestarted] = deque()
        self._ended: TailraceError | None = None
        self._news = asyncio.Event()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TableChange | TableRestarted:
        """Return the next one; a call that is cancelled has taken nothing.

        Raises:
            TailraceError: Why the table has ended, after all that came before it was taken.
        """
        while not self._waiting:
            if self._ended is not None:
                raise again(self._ended)
            self._news.clear()
            await self._news.wait()
        return self._waiting.popleft()

    def put(self, version: int, changed: ChangeLog) -> None:
        """Take the changes of whole versions up to one."""
        if changed.overflowed or len(self._waiting) + len(changed.changes) > self.backlog:
            slow = SubscriberTooSlow(f"more than {self.backlog} changes of a table were not taken")
            self.restart(TableRestarted(version, slow))
        elif changed.changes:
            self._waiting.extend(changed.changes)
            self._news.set()

    def restart(self, restarted: TableRestarted) -> None:
        """Put it in the place of all that waits."""
        self._waiting.clear()
        self._waiting.append(restarted)
        self._news.set()

    def end(self, error: TailraceError) -> None:
        """Raise an error behind what waits."""
        self._ended = error
        self._news.set()


class Table(Mapping[str, Any], OnOneLoop):
    """A live copy of a table; made by ``Client.table``, used under ``async with``.

    It maps canonical key texts to rows. Reads between two awaits are of one version, ``version``. A
    connection that is lost is made again, and meanwhile the rows stay as they are: ``lost`` says so. Once the
    table has ended for good, every use of it raises why.
    """

    def __init__(
        self,
        contents: Contents,
        follower: Follower,
        start: Callable[[Table], asyncio.Task[None]],
        *,
        backlog: int,
    ) -> None:
        """Keep how to begin; nothing is sent before the context is entered."""
        self._contents = contents
        self._follower = follower
        self._start = start
        self._backlog = _positive("backlog", backlog)
        self._task: asyncio.Task[None] | None = None
        self._version: int | None = None
        """Of the rows that are visible; None: there are none yet."""
        self._moves = 0
        """Counts what makes other rows visible."""
        self._replaced: TailraceError | None = None
        """Why its versions are those of another history since the last time."""
        self._ready = False
        """True if it has reached what was published when it was entered."""
        self._lost: TailraceError | None = None
        self._ended: TailraceError | None = None
        # Kept also where nobody listens: who begins to while a version is applied is told its changes.
        self._log = ChangeLog(backlog)
        self._listeners: WeakSet[LiveChanges] = WeakSet()
        self._waiters: set[asyncio.Future[None]] = set()

    async def __aenter__(self) -> Self:
        """Begin, and wait until the rows are those of what was published then, or a later version.

        Raises:
            TailraceError: The server refused, or could not be reached in time.
            TableFileError: The file holds something else, or cannot be used.
            CatalogReplaced: The file is of another log than the catalog is now.
        """
        if self._task is not None or self._ended is not None:
            raise SubscriptionClosed("a table is entered once; make another with `client.table`")
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
        """End it: nothing can be read any more. A file is left as of its last version. Idempotent."""
        self._check_loop()
        self._end(SubscriptionClosed("the table was closed"))
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    # What it is now.

    @property
    def version(self) -> int:
        """The version that the rows are as of: all changes up to it are in them, and none above it."""
        self._require()
        assert self._version is not None
        return self._version

    @property
    def lost(self) -> TailraceError | None:
        """Why no newer versions come: the server is away, or the rows are read anew. None: they come."""
        self._require()
        return self._lost

    def __getitem__(self, key: str) -> Any:
        """Return the row of a key: Python's values by name, or the image. None: the source sent no image.

        Raises:
            KeyError: No row has the key.
            ValueNotHeld: Python's type for a column cannot hold its value.
            TailraceError: The table has ended.
        """
        self._require()
        row = self._contents.get(key)
        if row is None:
            raise KeyError(key)
        return row.value()

    def __contains__(self, key: object) -> bool:
        """Return whether a row has a key."""
        self._require()
        return isinstance(key, str) and self._contents.get(key) is not None

    def __iter__(self) -> Iterator[str]:
        """Yield the keys, in no order; raises RuntimeError if another version is visible meanwhile."""
        self._require()
        moves = self._moves
        for key in self._contents.all_keys():
            if self._moves != moves:
                raise RuntimeError("the table moved on to another version while its keys were read")
            yield key

    def __len__(self) -> int:
        """Return the number of rows; of a file it is counted."""
        self._require()
        return self._contents.count()

    # A table that follows is equal to itself alone; `dict(table)` is what it is now.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def image(self, key: str) -> bytes | None:
        """Return the image of a row; None: the source sent none. Raises as ``table[key]``."""
        self._require()
        row = self._contents.get(key)
        if row is None:
            raise KeyError(key)
        return row.image

    # What comes.

    async def wait_until(self, version: int) -> int:
        """Wait until the rows are as of a version or a later one; return which.

        Raises:
            CatalogReplaced, CursorAhead, HistoryReplaced: Meanwhile another log or history took the place of
                the one that the version was of; the rows were read anew.
            TailraceError: The table has ended.
        """
        wanted = version_of("version", version)
        self._require()
        replaced = self._replaced
        while self.version < wanted:
            await self._moved()
            if self._replaced is not None and self._replaced is not replaced:
                raise again(self._replaced)
        return self.version

    def changes(self) -> LiveChanges:
        """Return the changes from now on, as an async iterator of its own."""
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
        """Wait until another version is visible, or why none will be."""
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
        """Follow until the table ends; the client owns the task."""
        try:
            try:
                await self._follower.run(self, self._contents)
            finally:
                await self._contents.close()
        except asyncio.CancelledError:
            self._end(SubscriptionClosed("the table was closed"))
            raise
        except Exception as error:
            self._end(kept(error))

    def shut(self, error: TailraceError) -> None:
        """End with an error, at once."""
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
        """Note why no newer versions come."""
        self._lost = error

    def found(self) -> None:
        """Note that they come again."""
        self._lost = None

    def enter(self) -> None:
        """Note that the rows are those of what was published when it was entered."""
        if not self._ready:
            self._ready = True
            self._wake()

    @property
    def log(self) -> ChangeLog:
        """The receiver of the row changes that are being applied."""
        return self._log

    def show(self, version: int, *, more: bool) -> None:
        """Note that the rows are as of a version now; ``more``: changes of the next were applied already."""
        self._version = version
        self._moves += 1
        changed = self._log.whole(version, more=more)
        for each in tuple(self._listeners):
            each.put(version, changed)
        self._wake()

    def restart(self, version: int, because: TailraceError) -> None:
        """Note that the rows were read anew, and are as of a version."""
        self._version = version
        self._moves += 1
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
    """A client's calls beside its reads; the client says how it subscribes, and owns the tasks."""

    _retry: Retry
    _timeouts: Timeouts

    @abstractmethod
    def subscribe(self, *arguments: Any, **options: Any) -> Subscription:
        """Return a subscription to a catalog's changes."""

    @abstractmethod
    def _start(self, stream: Table) -> asyncio.Task[None]:
        """Start the task that makes a table."""

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
            catalog: Its name.
            entity_type: The table.
            where: A condition, as of ``state``: the table has the rows that meet it. None: all rows.
            parameters: Values of the condition's parameters by name, without the colon.
            path: A SQLite file that holds the table, and from which it continues the next time; None = memory.
            typed: Whether rows are Python's values, as of ``subscribe``; else they are images.
            backlog: Changes that wait for who iterates over them, at most.

        Raises:
            InvalidRequest: An argument has no meaning.
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
