"""The client's SQL calls: a single answer, or a poll whose answers cover every version exactly once.

::

    statement = "SELECT _change_type, after.price FROM CHANGES('product', $from, $to)"
    async with client.poll("shop", statement, since=0) as poll:
        async for answer in poll:
            async for row in answer:
                print(row)
            save(poll.cursor)       # a later poll, also in another process, begins ``after`` it

Each answer of a poll covers whole versions: from ``$from``, which follows the last answer, to ``$to``, the
newest version published at the time of the request. Commit times play no part in this. After the first answer
each request carries a cursor of what was read, so the poll notices if the log was restored from an older copy.
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
"""The start of a poll: a version, the first version committed at or after a time, or the one after a cursor."""


class Poll(OnOneLoop, Generic[_A]):
    """An endless iterator over the answers to a repeated statement; made by ``Client.poll``.

    Iterate it under ``async with``. It ends only by an error, or when the context is left.
    """

    def __init__(
        self,
        ask: Callable[[Beginning], _A],
        since: Beginning,
        every_s: float,
        retry: Retry,
        timeouts: Timeouts,
    ) -> None:
        """Store the parameters; the iteration sends the first request.

        Args:
            ask: Function that returns the answer from a start on.
            since: Start of the first answer.
            every_s: Interval between requests, in seconds.
            retry: Retry policy of failed requests.
            timeouts: Limits of the time until the first answer.
        """
        self._since = since
        self._ask = ask
        self._every_s = every_s
        self._clock = SystemClock()
        self._attempts = Attempts(retry, timeouts, self._clock)
        self._asked_at: float | None = None
        self._answer: _A | None = None
        """Answer that the caller is reading; None: there is none."""

    @property
    def since(self) -> int | datetime:
        """Start of the next answer: the version after the last answer that was read to its end."""
        begin = self._begin()
        return begin.version + 1 if isinstance(begin, Cursor) else begin

    @property
    def cursor(self) -> Cursor | None:
        """``since`` as a cursor, which also identifies the log; None until an answer was read to its end."""
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
        """Close the current answer."""
        await self._leave()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> _A:
        """Wait for a new version, and return the next answer.

        The previous answer is closed. If it was not read to its end, the new answer repeats its versions.

        Raises:
            PositionCompacted: The next versions were trimmed.
            CatalogReplaced: Another log has taken the catalog's name.
            CursorAhead: The log was restored from an older copy, which ends before the last answer.
            HistoryReplaced: The log was restored from an older copy and then written further.
            TailraceError: The server refused the request, or could not be reached and no retry is left.
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
            # 3. Return an answer with new versions. An empty answer ends at the newest published version, so
            # its    cursor is the next start. But keep a start that is a time in the future: versions committed
            #    before that time were not requested.
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
        # Note the cursor while the answer is still here: closing it may fail.
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
"""Default of the maximum wait for the header of an answer, in seconds: the statement may compute so long."""
Misfits = Literal["refuse", "null"]
_MISFITS: Final[Mapping[str, SqlMisfits.ValueType]] = {
    "refuse": SQL_MISFITS_REFUSE,
    "null": SQL_MISFITS_NULL,
}


class SqlCalls(ReadCalls):
    """The client's SQL calls."""

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
            catalog: Name of the catalog.
            statement: One SELECT, or ``SHOW TABLES``, ``DESCRIBE``, ``EXPLAIN``: docs/sql.md.
            parameters: Values of ``$name`` in the statement: numbers, texts, booleans, None, or lists of them.
                Dates and times are sent as texts, which the statement has to cast: ``$day::DATE``.
            since: Value of ``$from`` in the statement: a version (0 = the oldest retained), or an aware
                datetime. ``$to`` is then ``header.version``. None: the statement has neither.
            after: Cursor after which ``$from`` begins, such as ``header.cursor`` of an earlier answer. In place
                of ``since``.
            wait_for: Version to wait for before the statement runs. A writer passes the version that it has
                just committed.
            wait_s: Maximum wait for that version, in seconds; after it ``DeadlineExceeded`` is raised.
            patience_s: Maximum wait for the header in seconds; it comes once the columns are known.
            max_message_bytes: Maximum size of a row; a larger row ends the answer with an error.
            misfits: What to do with a value that its column's type cannot hold: "refuse" ends the statement
                with an error; "null" returns None, and the column ``_misfits`` has the value's text.

        Raises:
            InvalidRequest: An argument is invalid.
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
        """Return the answer to a statement as an Arrow stream; the arguments are those of ``sql``."""
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
        """Return a poll: it repeats a statement over changes, and iterates over the answers with new versions.

        Args:
            catalog: Name of the catalog.
            statement: One SELECT over ``CHANGES('product', $from, $to)``.
            since: First version to read, or an aware datetime, which means the first version committed at or
                after it. 0: the oldest retained.
            after: Cursor to begin after, in place of ``since``: ``cursor`` of an earlier poll, or a cursor of a
                state or a subscription at the end of a version. A cursor also identifies the log, so the poll
                notices if the log was restored and then written further.
            every_s: Interval between requests, in seconds.
            parameters: Values of the statement's parameters, as for ``sql``.
            patience_s: Maximum wait for each header, in seconds.
            max_message_bytes: Maximum size of a row, as for ``sql``.
            misfits: What to do with a value that its column's type cannot hold, as for ``sql``.
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
        raise InvalidRequest(f"misfits {misfits!r}: write refuse or null")
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
