"""A statement that is asked again and again, for the versions that have come since: none lost, none twice.

::

    statement = "SELECT _change_type, after.price FROM CHANGES('product', $from, $to)"
    async with client.poll("shop", statement, since=0) as poll:
        async for answer in poll:
            async for row in answer:
                print(row)
            save(poll.since)        # where to go on, also in another process

Each answer is of whole versions: from ``$from``, where the last one ended, to ``$to``, the newest that was
published when it was asked for. No clock has a part in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from tailrace.clock import SystemClock
from tailrace.errors import CatalogReplaced, SubscriptionClosed, TailraceError
from tailrace.retry import Attempts
from tailrace.sql.answer import Answer
from tailrace.transport.event_loop import OnOneLoop

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from types import TracebackType
    from uuid import UUID

    from tailrace.retry import Retry, Timeouts


_A = TypeVar("_A", bound=Answer[Any])


class Poll(OnOneLoop, Generic[_A]):
    """Made by ``Client.poll``. Iterate it under ``async with``; it ends by an error alone, or by you."""

    def __init__(
        self,
        ask: Callable[[int | datetime], _A],
        since: int | datetime,
        every_s: float,
        retry: Retry,
        timeouts: Timeouts,
    ) -> None:
        """Keep how to ask; nothing is asked before it is iterated.

        Args:
            ask: Returns the answer that begins with a version.
            since: The first version.
            every_s: From one question to the next.
            retry: How often a question is asked again that nobody answers.
            timeouts: How long the first one is.
        """
        self._since = since
        self._ask = ask
        self._every_s = every_s
        self._clock = SystemClock()
        self._attempts = Attempts(retry, timeouts, self._clock)
        self._asked_at: float | None = None
        self._uuid: UUID | None = None
        self._answer: _A | None = None
        """The one that the caller has."""

    @property
    def since(self) -> int | datetime:
        """Where the next answer begins: behind the last one that was taken whole."""
        self._note_taken()
        return self._since

    async def __aenter__(self) -> Self:
        self._note_loop()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the answer that is under way."""
        await self._leave()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> _A:
        """Return the next answer of which a version is new; it waits until there is one.

        The last one is closed. If it was not iterated to its end, its versions come again.

        Raises:
            PositionCompacted: The next versions were trimmed.
            CatalogReplaced: The catalog was made anew; its versions are others.
            TailraceError: The server refused, or could not be reached for as long as ``Retry`` says.
        """
        self._check_loop()
        if self._loop is None:
            raise SubscriptionClosed("the poll has not been entered: iterate inside async with")
        await self._leave()
        while True:
            # 1. At its time. One that took longer than that is followed by the next at once.
            if self._asked_at is not None:
                waited = self._clock.monotonic() - self._asked_at
                await self._clock.sleep(max(0.0, self._every_s - waited))
            self._asked_at = self._clock.monotonic()
            # 2. The header says which versions are in the answer, before any row comes.
            answer = self._ask(self.since)
            try:
                await answer.__aenter__()
            except TailraceError as error:
                await self._clock.sleep(self._attempts.wait_after(error))
                continue
            self._attempts.acknowledged, self._attempts.number = True, 0
            self._answer = answer
            # 3. A server that is behind, or to which nothing was written, has none that is new.
            header = answer.header
            if self._uuid not in (None, header.catalog_uuid):
                assert self._uuid is not None
                raise CatalogReplaced(header.catalog, self._uuid, header.catalog_uuid)
            self._uuid = header.catalog_uuid
            first = header.since_version
            assert first is not None
            if header.version >= first:
                return answer
            self._answer, self._since = None, first
            await answer.__aexit__(None, None, None)

    async def _leave(self) -> None:
        """Close the last answer."""
        if self._answer is not None:
            self._note_taken()
            answer, self._answer = self._answer, None
            await answer.__aexit__(None, None, None)

    def _note_taken(self) -> None:
        if self._answer is not None and self._answer.is_over:
            self._since = self._answer.header.version + 1
