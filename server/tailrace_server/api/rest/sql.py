"""SQL statements over REST: the answer as a JSON page, lines of JSON, or an Arrow stream.

::

    POST …/sql   {"statement": "SELECT name FROM product WHERE price > $least", "parameters": {"least": 100}}

                 {"catalog": …, "version": 42, "closedUntil": …, "columns": [{"name": "name", "type": …}],
                  "rows": [{"name": "table"}, …], "count": 2}

The formats are described in api/rest/answers.py, except Arrow: its stream has the columns of the statement, and
only the HTTP header fields ``Tailrace-*`` have the version that the answer is pinned to.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from tailrace.errors import InvalidRequest
from tailrace.sql.answer import parameter_text
from tailrace.v1.sql_pb2 import QuerySqlRequest
from tailrace_server.api import requests, responses, sql_requests
from tailrace_server.api.http.guard import caller_of
from tailrace_server.api.http.requests import (
    ARROW_TYPE,
    JSON_TYPE,
    LINES_TYPE,
    accepted,
    body,
    no_parameters,
)
from tailrace_server.api.http.streaming import made_for
from tailrace_server.api.json_requests import decode_exactly, from_json, in_json_names
from tailrace_server.api.peers import REST, over_http
from tailrace_server.api.rest.answers import ReadAnswer, headers_of
from tailrace_server.reads.sql_request import SqlForm

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request
    from starlette.types import ASGIApp

    from tailrace_server.api.http.streaming import StreamedAnswer
    from tailrace_server.api.settings import HttpSettings
    from tailrace_server.api.websocket import Sockets
    from tailrace_server.engine.engine import Engine
    from tailrace_server.log_cache.frames import Frames
    from tailrace_server.reads.sql_request import SqlRequest

SQL_HEADERS: Final = {
    "Tailrace-Catalog-Uuid": "catalogUuid",
    "Tailrace-Version": "version",
    "Tailrace-Closed-Until": "closedUntil",
    "Tailrace-Resume-Cursor": "resumeCursor",
}
"""HTTP header fields that identify what was read: field → member of the JSON page."""
_NOBODY: Final = 499
"""Status of a request whose client has disconnected; it appears only in the server's own records."""
ELSEWHERE_OF_SQL: Final = ("catalog", "form", "parameter")
"""Request fields that are given by the path, by ``Accept`` and by ``parameters`` instead."""
_FORMS: Final = {
    JSON_TYPE: SqlForm.OBJECTS,
    LINES_TYPE: SqlForm.LINES,
    ARROW_TYPE: SqlForm.ARROW,
}


async def answer(
    request: Request, engine: Engine, settings: HttpSettings, sockets: Sockets, catalog: str
) -> ASGIApp:
    """Answer ``POST …/sql``; cancel the statement if the client disconnects before the first row.

    Raises:
        TailraceError: The statement cannot be answered; nothing has been sent.
    """
    kind = accepted(request, tuple(_FORMS))
    no_parameters(request, "a POST has its arguments in the body; leave the query out")
    message = _message(await body(request, settings, decode_exactly), engine.settings.criteria)
    try:
        asked = sql_requests.asked(message, _FORMS[kind])
        bytes_max = requests.max_message_bytes(message, engine.settings.max_message_bytes)
    except InvalidRequest as error:
        raise in_json_names(error) from None
    # A statement may compute for long before the first row. `made_for` cancels it if the client disconnects.
    begun = _begun(request, engine, sockets, catalog, kind, asked, bytes_max)
    return await made_for(request, begun) or Response(status_code=_NOBODY)


async def _begun(
    request: Request,
    engine: Engine,
    sockets: Sockets,
    catalog: str,
    kind: str,
    asked: SqlRequest,
    bytes_max: int,
) -> StreamedAnswer:
    read = await engine.reads.sql(
        caller_of(request), over_http(REST, request), catalog, asked, max_message_bytes=bytes_max
    )
    # Until the response owns the read, every error must close it.
    with ExitStack() as stack:
        stack.enter_context(read)
        header = responses.as_json(responses.sql_header(read, catalog=catalog))
        headers = headers_of(header, kind, SQL_HEADERS)
        on_error = partial(sockets.count_error, "http")
        found = ReadAnswer(read, kind, "rows", header, _end, _as_it_is, on_error, _pieces)
        streamed = await found.streamed(request, sockets, headers)
        # From here on the chunks of the response own the read, and close it.
        stack.pop_all()
        return streamed


def _message(value: object, criteria_max: int) -> QuerySqlRequest:
    # `parameters` is an object of JSON values here, and a list of texts in the protobuf message.
    given: object = {}
    if isinstance(value, dict):
        given = value.pop("parameters", None)
        given = {} if given is None else given
    if not isinstance(given, dict):
        raise InvalidRequest("parameters: must be an object, such as {'least': 100}")
    message = from_json(QuerySqlRequest, value, criteria_max=criteria_max, without=ELSEWHERE_OF_SQL)
    for name, each in given.items():
        message.parameter.add(name=name, value=_text(name, each))
    return message


def _text(name: str, value: object) -> str:
    try:
        return parameter_text(value)
    except ValueError as error:
        raise InvalidRequest(f"parameters.{name[:60]}: {error}") from None
    except (TypeError, RecursionError):
        raise InvalidRequest(
            f"parameters.{name[:60]}: must be a number, a text, true, false, null, or a list of them"
        ) from None


def _end(_: object, count: int) -> dict[str, Any]:
    return {"count": count}


def _as_it_is(frames: Frames) -> bytes:
    return frames.data


async def _pieces(read: ReadAnswer) -> AsyncGenerator[bytes, None]:
    """Yield the Arrow stream, which the engine has already encoded."""
    with read.read:
        async for frames in read.read:
            yield frames.data
            del frames
