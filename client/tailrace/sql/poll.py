"""A statement that is asked again and again, for the versions that have come since: none lost, none twice.

::

    statement = "SELECT _change_type, after.price FROM CHANGES('product', $from, $to)"
    async with client.poll("shop", statement, since=0) as poll:
        async for answer in poll:
            async for row in answer:
                print(row)
            save(poll.cursor)       # where to go on, also in another process: ``after`` it

Each answer is of whole versions: from ``$from``, where the last one ended, to ``$to``, the newest that was
published when it was asked for. No clock has a part in it. Behind the first answer each question says by a
cursor what has been read. So a poll notices a log that was restored from an older copy.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from tailrace.clock import SystemClock
from tailrace.cursor import Cursor
from tailrace.errors import SubscriptionClosed, TailraceError
from tailrace.retry import Attempts
from tailrace.sql.answer import Answer
from tailrace.transport.event_loop import OnOneLoop

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from tailrace.retry import Retry, Timeouts


_A = TypeVar("_A", bound=Answer[Any])

Beginning = int | datetime | Cursor
"""The start of a poll: a version, the first one committed at or after a time, or behind a cursor."""


class Poll(OnOneLoop, Generic[_A]):
    """Made by ``Client.poll``. Iterate it under ``async with``; it ends by an error alone, or by you."""

    def __init__(
        self,
        ask: Callable[[Beginning], _A],
        since: Beginning,
        every_s: float,
        retry: Retry,
        timeouts: Timeouts,
    ) -> None:
        """Keep how to ask; nothing is asked before it is iterated.

        Args:
            ask: Returns the answer that begins there.
            since: The first version, a time, or the cursor behind which to begin.
            every_s: From one question to the next.
            retry: How often a request without an answer is repeated.
            timeouts: How long the first one is.
        """
        self._since = since
        self._ask = ask
        self._every_s = every_s
        self._clock = SystemClock()
        self._attempts = Attempts(retry, timeouts, self._clock)
        self._asked_at: float | None = None
        self._answer: _A | None = None
        """The one that the caller has."""

    @property
    def since(self) -> int | datetime:
        """The begin of the next answer: behind the last one that was taken whole."""
        begin = self._begin()
        return begin.version + 1 if isinstance(begin, Cursor) else begin

    @property
    def cursor(self) -> Cursor | None:
        """The same as a cursor, which also says of which log; None while nothing was taken."""
        begin = self._begin()
        return begin if isinstance(begin, Cursor) else None

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
        """Return the next answer with a new version; it waits until there is one.

        The last one is closed. If it was not iterated to its end, its versions come again.

        Raises:
            PositionCompacted: The next versions were trimmed.
            CatalogReplaced: The catalog was made anew; its versions are others.
            CursorAhead: The log was restored from an older copy, which ends before what was read.
            HistoryReplaced: It was also written anew.
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
            answer = self._ask(self._begin())
            try:
                await answer.__aenter__()
            except TailraceError as error:
                await self._clock.sleep(self._attempts.wait_after(error))
                continue
            self._attempts.acknowledged, self._attempts.number = True, 0
            self._answer = answer
            # 3. Where nothing was written there is none that is new. All there is has been read then, but for
            #    one who begins at a time to come: what is written until then is not his.
            header = answer.header
            first = header.since_version
            assert first is not None
            if header.version >= first:
                return answer
            self._answer = None
            if not isinstance(self._since, datetime):
                self._since = header.cursor
            # 4. It has no rows. What is read to its end leaves its process at the server to the next question.
            try:
                async for _ in answer:
                    pass
            except TailraceError as error:
                await self._clock.sleep(self._attempts.wait_after(error))
            finally:
                await answer.__aexit__(None, None, None)

    async def _leave(self) -> None:
        """Close the last answer."""
        if self._answer is not None:
            self._note_taken()
            answer, self._answer = self._answer, None
            await answer.__aexit__(None, None, None)

    def _begin(self) -> Beginning:
        self._note_taken()
        return self._since

    def _note_taken(self) -> None:
        if self._answer is not None and self._answer.is_over:
            self._since = self._answer.header.cursor
