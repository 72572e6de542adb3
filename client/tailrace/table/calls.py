"""The call of a client that gives a live table."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any

from tailrace.reads.calls import ReadCalls
from tailrace.table.follower import Follower
from tailrace.table.sqlite import contents_of
from tailrace.table.table import Table

if TYPE_CHECKING:
    import asyncio
    import os

    from tailrace.retry import Retry, Timeouts
    from tailrace.subscription import Subscription


class TableCalls(ReadCalls):
    """What a client has of it, beside its reads; it says how it subscribes, and owns the tasks."""

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
        path: str | os.PathLike[str] | None = None,
        typed: bool = True,
        backlog: int = 10_000,
    ) -> Table:
        """Return a live local copy of a table; it begins when its context is entered.

        Args:
            catalog: Its name.
            entity_type: The table.
            path: A SQLite file that holds it, and goes on from there the next time; None = memory.
            typed: Whether rows are Python's values, as of ``subscribe``; else they are images.
            backlog: Changes that wait for who iterates over them, at most.

        Raises:
            InvalidRequest: An argument has no meaning.
        """
        contents = contents_of(path, catalog, entity_type, typed=typed)
        read = partial(self.state, catalog, entity_type, typed=typed)
        subscribe = partial(self.subscribe, catalog, typed=typed)
        follower = Follower(catalog, entity_type, read, subscribe, self._retry, self._timeouts)
        return Table(contents, follower, self._start, backlog=backlog)
