"""Watch over the views that a catalog's subscriptions use; it ends subscriptions whose view has changed.

This server refuses to drop a view that its subscriptions use. But another process may drop the view. Then its
subscriptions end within a second, each with a cursor to resume from. They also end if the source removes
something that the view needs, before an incomplete change is routed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Self

import structlog

from tailrace.errors import InvalidRequest, kept
from tailrace_server.grants.shown_views import ViewedRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tailrace.schema import Schema
    from tailrace_server.live.publisher import Publisher
    from tailrace_server.live.subscription import Subscription
    from tailrace_server.log_cache.followed_log import FollowedLog
    from tailrace_server.wal.files.sequence_documents import ViewDocument

    Publishers = Callable[[], Iterable[Publisher[Subscription]]]

_LOOK_EVERY_S: Final = 1.0
_log = structlog.get_logger("tailrace.engine")


class ViewWatch:
    """Async context manager that checks for dropped and changed views while it is open. For the event loop."""

    def __init__(self, log: FollowedLog, publishers: Publishers) -> None:
        """Bind to a log; ``publishers`` returns the current publishers."""
        self._log = log
        self._publishers = publishers
        self._schema: Schema | None = None
        """The schema of the last routed batch."""
        self._following: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Start the task that checks for dropped views."""
        self._following = asyncio.get_running_loop().create_task(self._follow(), name="views")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cancel the task, and wait for its end."""
        assert self._following is not None
        self._following.cancel()
        await asyncio.wait((self._following,))

    def used_by(self, name: str) -> int:
        """Return the number of subscriptions that use a view."""
        return sum(any(view.name == name for view in views) for _, views in self._users())

    def see(self, schema: Schema) -> None:
        """End the subscriptions whose views do not fit the schema of the next batch; call before routing it."""
        if schema is self._schema:
            return
        self._schema = schema
        for publisher, shown in self._viewed():
            try:
                shown.refuse_changed(schema)
            except InvalidRequest as error:
                for each in tuple(publisher.subscriptions):
                    each.end(kept(error))

    def _viewed(self) -> Iterator[tuple[Publisher[Subscription], ViewedRows]]:
        """Yield the publishers whose criteria named views, each with its visibility."""
        if not self._log.definitions.had_views.is_set():
            return  # most logs have no view, and thousands of publishers
        for publisher in self._publishers():
            shown = publisher.predicate.shown
            if isinstance(shown, ViewedRows):
                yield publisher, shown

    def _users(self) -> list[tuple[Subscription, tuple[ViewDocument, ...]]]:
        return [
            (each, each.options.use.views)
            for publisher, _ in self._viewed()
            for each in publisher.subscriptions
        ]

    async def _follow(self) -> None:
        # A thousand catalogs without views must cost nothing.
        await self._log.definitions.had_views.wait()
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            try:
                if users := self._users():
                    await self._end_dropped(users)
            except Exception as error:  # usually a fault of the storage; retry
                _log.warning("views not read", catalog=self._log.view.name, error=str(error))

    async def _end_dropped(
        self, users: list[tuple[Subscription, tuple[ViewDocument, ...]]]
    ) -> None:
        defined = (await self._log.definitions.newest()).views
        for subscription, views in users:
            for view in views:
                # Compare definitions, not only names: a view may have been dropped and defined again.
                if (now := defined.get(view.name)) != view:
                    what = "dropped" if now is None else "dropped and defined again"
                    cursor = subscription.resume_cursor()
                    subscription.end(
                        InvalidRequest(
                            f"view {view.name} has been {what}; to continue with its successor, "
                            f"subscribe after {cursor}"
                        )
                    )
