"""The calls of a client in SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from tailrace.arguments import (
    cursor_of,
    message_bytes,
    micros,
    milliseconds,
    sendable,
    waited_version,
)
from tailrace.cursor import Cursor
from tailrace.errors import InvalidRequest
from tailrace.reads.calls import ReadCalls
from tailrace.sql.answer import Answer, SqlArrow, SqlRows
from tailrace.sql.poll import Beginning, Poll
from tailrace.sql.values import parameter_text
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
    from collections.abc import Mapping
    from datetime import datetime

    from tailrace.retry import Retry, Timeouts
    from tailrace.transport import Stream

_ANSWER_S = 60.0
"""A statement may compute for so long before its first row, where the server's own bound is not higher."""
Misfits = Literal["refuse", "null"]
_MISFITS: Final[Mapping[str, SqlMisfits.ValueType]] = {
    "refuse": SQL_MISFITS_REFUSE,
    "null": SQL_MISFITS_NULL,
}
_A = TypeVar("_A", bound=Answer[Any])


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
