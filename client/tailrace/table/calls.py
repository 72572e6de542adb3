"""The call of a client that gives a live table."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any

from tailrace.criteria import Area, Criteria
from tailrace.reads.calls import ReadCalls
from tailrace.table.follower import Follower
from tailrace.table.sqlite import contents_of
from tailrace.table.table import Table

if TYPE_CHECKING:
    import asyncio
    import os
    from collections.abc import Mapping

    from tailrace.conditions.tree import Where
    from tailrace.retry import Retry, Timeouts
    from tailrace.subscription import Subscription


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
