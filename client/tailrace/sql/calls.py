"""The calls of a client in SQL: one answer, or a poll for the answers to all versions, none lost, none twice.

::

    statement = "SELECT _change_type, after.price FROM CHANGES('product', $from, $to)"
    async with client.poll("shop", statement, since=0) as poll:
        async for answer in poll:
            async for row in answer:
                print(row)
            save(poll.cursor)       # a later poll, in another process too, begins ``after`` it

Each answer of a poll is of whole versions: from ``$from``, where the last one ended, to ``$to``, the newest
version published when the poll asked. No clock has a part in it. After the first answer each request carries a
cursor of what was read, so the poll notices a log that was restored from an older copy.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Self, TypeVar

from tailrace.arguments import (
    cursor_of,
    message_bytes,
    micros,
    milliseconds,
    sendable,
    waited_version,
)
from tailrace.clock import SystemClock
from tailrace.cursor import Cursor
from tailrace.errors import InvalidRequest, SubscriptionClosed, TailraceError
from tailrace.event_loop import OnOneLoop
from tailrace.reads.calls import ReadCalls
from tailrace.retry import Attempts
from tailrace.sql.answer import Answer, SqlArrow, SqlRows, parameter_text
from tailrace.transport.grpc import MAX_MESSAGE_BYTES
from tailrace.v1.sql_pb2 import (
    SQL_FORM_ARROW,
    SQL_FORM_ROWS,
    SQL_MISFITS_NULL,
    SQL_MISFITS_REFUSE,
    QuerySqlRequest,
    SqlForm,
    SqlMisfits,
    SqlParameter,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from tailrace.retry import Retry, Timeouts
    from tailrace.transport import Stream

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
            # 1. Wait for the interval since the last request; after a slow answer the next follows at once.
            if self._asked_at is not None:
                waited = self._clock.monotonic() - self._asked_at
                await self._clock.sleep(max(0.0, self._every_s - waited))
            self._asked_at = self._clock.monotonic()
            # 2. Ask. The header names the versions of the answer before any row comes.
            answer = self._ask(self._begin())
            try:
                await answer.__aenter__()
            except TailraceError as error:
                await self._clock.sleep(self._attempts.wait_after(error))
                continue
            self._attempts.acknowledged, self._attempts.number = True, 0
            self._answer = answer
            # 3. Return an answer with new versions. An empty one covers all that is published, so its cursor
            #    is the next start. A start at a later time stays: versions before it are not wanted.
            header = answer.header
            first = header.since_version
            assert first is not None
            if header.version >= first:
                return answer
            self._answer = None
            if not isinstance(self._since, datetime):
                self._since = header.cursor
            # 4. Read the empty answer to its end, so that the server reuses its process for the next request.
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


_ANSWER_S = 60.0
"""A statement may compute for so long before its first row, where the server's own bound is not higher."""
Misfits = Literal["refuse", "null"]
_MISFITS: Final[Mapping[str, SqlMisfits.ValueType]] = {
    "refuse": SQL_MISFITS_REFUSE,
    "null": SQL_MISFITS_NULL,
}


class SqlCalls(ReadCalls):
    """A client's calls."""

    _retry: Retry
    _timeouts: Timeouts

    def sql(
        self,
        catalog: str,
        statement: str,
        *,
        parameters: Mapping[str, object] | None = None,
        since: int | datetime | None = None,
        after: Cursor | str | None = None,
        wait_for: int | None = None,
        wait_s: float = 10.0,
        patience_s: float = _ANSWER_S,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        misfits: Misfits = "refuse",
    ) -> SqlRows:
        """Return the answer to a statement over a catalog's log; it begins when its context is entered.

        Args:
            catalog: Its name.
            statement: One SELECT, or ``SHOW TABLES``, ``DESCRIBE``, ``EXPLAIN``: docs/sql.md.
            parameters: Values of ``$name`` in it: numbers, texts, truths, None, or lists of them. Days and
                times travel as texts, which the statement casts: ``$day::DATE``.
            since: ``$from`` in the statement: a version, 0 the oldest kept, or an aware datetime. ``$to`` is
                then ``header.version``. None: it has neither.
            after: ``$from`` is the version behind this cursor, ``header.cursor`` of an earlier answer.
            wait_for: Wait until this version is published: the writer of V reads its own rows.
            wait_s: For so long at most; then ``DeadlineExceeded``.
            patience_s: For the header, which comes once the columns are known.
            max_message_bytes: A row that is larger is refused.
            misfits: What becomes of a value that its column's type cannot hold: it ends the statement
                ("refuse"), or it is None and the column ``_misfits`` has its text ("null").

        Raises:
            InvalidRequest: An argument has no meaning.
        """
        request = _request(
            catalog,
            statement,
            parameters,
            _begin_of(since, after),
            wait_for,
            wait_s,
            max_message_bytes,
            SQL_FORM_ROWS,
            misfits,
        )
        return self._answer(SqlRows, request, patience_s + (wait_s if wait_for else 0.0))

    def sql_arrow(
        self,
        catalog: str,
        statement: str,
        *,
        parameters: Mapping[str, object] | None = None,
        since: int | datetime | None = None,
        after: Cursor | str | None = None,
        wait_for: int | None = None,
        wait_s: float = 10.0,
        patience_s: float = _ANSWER_S,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        misfits: Misfits = "refuse",
    ) -> SqlArrow:
        """Return the same as an Arrow stream; arguments as ``sql``."""
        request = _request(
            catalog,
            statement,
            parameters,
            _begin_of(since, after),
            wait_for,
            wait_s,
            max_message_bytes,
            SQL_FORM_ARROW,
            misfits,
        )
        return self._answer(SqlArrow, request, patience_s + (wait_s if wait_for else 0.0))

    def poll(
        self,
        catalog: str,
        statement: str,
        *,
        since: int | datetime = 0,
        after: Cursor | str | None = None,
        every_s: float = 1.0,
        parameters: Mapping[str, object] | None = None,
        patience_s: float = _ANSWER_S,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        misfits: Misfits = "refuse",
    ) -> Poll[SqlRows]:
        """Return the answers to a statement over the changes, one after another as they come.

        Args:
            catalog: Its name.
            statement: One SELECT over ``CHANGES('product', $from, $to)``.
            since: The first version, or an aware datetime: the first one committed from then on. 0: the oldest
                kept.
            after: In place of ``since``: ``cursor`` of an earlier poll, or of a state or a subscription, at the
                end of a version. It also identifies the log, so a restored log that was written anew is
                noticed.
            every_s: How often to ask.
            parameters: As ``sql``.
            patience_s: As ``sql``.
            max_message_bytes: As ``sql``.
            misfits: As ``sql``.
        """

        def ask(begin: Beginning) -> SqlRows:
            return self.sql(
                *(catalog, statement),
                parameters=parameters,
                since=None if isinstance(begin, Cursor) else begin,
                after=begin if isinstance(begin, Cursor) else None,
                patience_s=patience_s,
                max_message_bytes=max_message_bytes,
                misfits=misfits,
            )

        begin = _begin_of(since or None, after) or 0
        return Poll(ask, begin, every_s, self._retry, self._timeouts)

    def _answer(self, kind: type[_A], request: QuerySqlRequest, patience_s: float) -> _A:
        def open_stream() -> Stream:
            return self._require().read("QuerySql", request.SerializeToString())

        return kind(open_stream, patience_s)


def _request(
    catalog: str,
    statement: str,
    parameters: Mapping[str, object] | None,
    begin: Beginning | None,
    wait_for: int | None,
    wait_s: float,
    max_message_bytes: int,
    form: SqlForm.ValueType,
    misfits: Misfits,
) -> QuerySqlRequest:
    if misfits not in _MISFITS:
        raise InvalidRequest(f"misfits {misfits!r}: it is refuse or null")
    with sendable("sql"):
        request = QuerySqlRequest(
            catalog=catalog,
            statement=statement,
            parameter=[
                SqlParameter(name=name, value=_parameter(name, value))
                for name, value in (parameters or {}).items()
            ],
            form=form,
            misfits=_MISFITS[misfits],
            wait_for_version=waited_version(wait_for),
            wait_ms=None if wait_for is None else milliseconds(wait_s, "wait_s"),
            max_message_bytes=message_bytes(max_message_bytes),
        )
        if isinstance(begin, Cursor):
            request.after = str(begin)
        elif isinstance(begin, int):
            request.since_version = begin
        elif begin is not None:
            request.from_time = micros(begin)
    return request


def _begin_of(since: int | datetime | None, after: Cursor | str | None) -> Beginning | None:
    if since is not None and after is not None:
        raise InvalidRequest("give at most one of since and after")
    return since if after is None else cursor_of(after)


def _parameter(name: str, value: object) -> str:
    try:
        return parameter_text(value)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"parameter {name!r}: {error}") from None
