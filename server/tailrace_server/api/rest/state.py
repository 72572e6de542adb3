"""Tables: the rows of an entity type as of one version, as a JSON page, lines of JSON, or an Arrow stream.

::

    GET …/state/product          {"catalog": …, "version": 42, "resumeCursor": "1.…", "rows": […],
                                  "hasNext": true, "nextPage": "s1.…", "count": 1000}
    GET …/state/product/4711     {"catalog": …, "version": 42, "resumeCursor": "1.…", "row": {…}}

Each row is returned as the capture of its last change. A table as of a version never changes, so every response
has an ``ETag``. A request with ``If-None-Match`` is answered with 304 if nothing was published since, or for
one row if that row has not changed.
"""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.responses import Response

from tailrace.errors import InvalidRequest, RowUnknown
from tailrace.v1.change_capture_pb2 import ReadStateRequest
from tailrace_server.api import requests, responses
from tailrace_server.api.http.guard import caller_of
from tailrace_server.api.http.requests import (
    ARROW_TYPE,
    JSON_TYPE,
    LINES_TYPE,
    accepted,
    parameters,
)
from tailrace_server.api.json_requests import ELSEWHERE, from_query, in_json_names
from tailrace_server.api.peers import REST, over_http
from tailrace_server.api.rest.answers import (
    ReadAnswer,
    agreed,
    codec_of,
    fitting,
    headers_of,
    tag_of,
    unchanged,
)
from tailrace_server.api.rest.forms import form_of_query

if TYPE_CHECKING:
    from starlette.requests import Request

    from tailrace_server.api.http.streaming import StreamedAnswer
    from tailrace_server.api.rest.forms import CaptureForm
    from tailrace_server.api.settings import HttpSettings
    from tailrace_server.api.websocket import Sockets
    from tailrace_server.engine.engine import Engine
    from tailrace_server.reads.state import StateRead

STATE_HEADERS: Final = {
    "Tailrace-Catalog-Uuid": "catalogUuid",
    "Tailrace-Version": "version",
    "Tailrace-Resume-Cursor": "resumeCursor",
}
"""HTTP header fields that identify what was read: field → member of the JSON page."""

IN_PATH: Final = (*ELSEWHERE, "entityType")
"""Request fields of a table that are not URL parameters."""
IN_PATH_OF_ROW: Final = (
    *IN_PATH,
    "primaryKey",
    "keysOnly",
    "limit",
    "page",
    "where",
    "whereParameter",
    "whereTree",
)
"""Request fields of one row that are not URL parameters."""

_OFFERED: Final = (JSON_TYPE, LINES_TYPE, ARROW_TYPE)


async def table(
    request: Request, engine: Engine, settings: HttpSettings, sockets: Sockets, catalog: str
) -> Response | StreamedAnswer:
    """Answer ``GET …/state/{entityType}``.

    Raises:
        TailraceError: The table cannot be read; nothing has been sent.
    """
    kind = accepted(request, _OFFERED)
    form, message = _asked(request, engine, IN_PATH)
    kind, form = agreed(kind, form)
    # Without a limit, only JSON is divided into pages. Lines and Arrow are streams of the whole table.
    if kind == JSON_TYPE and not message.HasField("limit"):
        message.limit = settings.page_records
    # Until the response owns the read, every error and early return must close it.
    with ExitStack() as stack:
        read, bytes_max = await _open(request, engine, catalog, message, kind, form)
        stack.enter_context(read)
        header = responses.as_json(responses.state_header(read, catalog=catalog))
        headers = headers_of(header, kind, STATE_HEADERS)
        tag = _tag(read, message, kind, form, f"{read.version}:{read.commit_timestamp}")
        if (same := unchanged(request, headers, tag)) is not None:
            return same
        if request.method == "HEAD":
            return Response(headers=headers)
        on_error = partial(sockets.count_error, "http")
        end = partial(_end, read)
        found = ReadAnswer(
            read, kind, "rows", header, end, fitting(kind, form, bytes_max), on_error
        )
        answer = await found.streamed(request, sockets, headers)
        # From here on the chunks of the response own the read, and close it.
        stack.pop_all()
        return answer


async def row(
    request: Request, engine: Engine, _: HttpSettings, __: Sockets, catalog: str
) -> Response:
    """Answer ``GET …/state/{entityType}/{primaryKey}``.

    Raises:
        RowUnknown: The table has no row with this key.
        TailraceError: The table cannot be read.
    """
    kind = accepted(request, (JSON_TYPE,))
    form, message = _asked(request, engine, IN_PATH_OF_ROW)
    key = request.path_params["primaryKey"]
    message.primary_key.append(key)
    kind, form = agreed(kind, form)
    read, bytes_max = await _open(request, engine, catalog, message, kind, form)
    with read:
        async for frames in read:
            data = frames.data
            if len(data) > bytes_max:
                data = form.objects.with_omitted(*form.split(data))
            break
        else:
            raise RowUnknown(message.entity_type, key, read.version)
        header = responses.as_json(responses.state_header(read, catalog=catalog))
        headers = headers_of(header, kind, STATE_HEADERS)
        # The tag is a hash of the row itself. The position of its last change is not enough: in a restored log
        # the same position may be another change.
        tag = _tag(read, message, kind, form, hashlib.blake2s(data).hexdigest())
    if (same := unchanged(request, headers, tag)) is not None:
        return same
    body = msgspec.json.encode(header)[:-1] + b',"row":' + data[:-1] + b"}"
    return Response(body, headers=headers)


def _asked(
    request: Request, engine: Engine, without: tuple[str, ...]
) -> tuple[CaptureForm, ReadStateRequest]:
    form, pairs = form_of_query(parameters(request))
    if form.is_cloud:
        raise InvalidRequest("format: a table has rows as captures, not as CloudEvents")
    message = from_query(
        ReadStateRequest, pairs, criteria_max=engine.settings.criteria, without=without
    )
    message.entity_type = request.path_params["entityType"]
    return form, message


async def _open(
    request: Request,
    engine: Engine,
    catalog: str,
    message: ReadStateRequest,
    kind: str,
    form: CaptureForm,
) -> tuple[StateRead, int]:
    """Return the read, and the size in bytes above which a row is sent without its image."""
    try:
        bytes_max = requests.max_message_bytes(message, engine.settings.max_message_bytes)
        read = await engine.state(
            caller_of(request),
            catalog,
            requests.state(message),
            codec=codec_of(kind, form),
            max_message_bytes=bytes_max,
            peer=over_http(REST, request),
        )
    except InvalidRequest as error:
        # The texts of subclasses contain names that the caller gave, which must not be converted.
        if type(error) is InvalidRequest:
            in_json_names(error)
        raise
    return read, bytes_max


def _tag(read: StateRead, message: ReadStateRequest, kind: str, form: CaptureForm, of: str) -> str:
    """Return the ``ETag`` of a response.

    ``of`` identifies the rows that were read, so different ways to name their version get the same tag.
    """
    shape = (kind, form.objects.name, read.use.identity, read.definition.hex())
    without = ("at_version", "at_time", "wait_for_version", "wait_ms")
    return tag_of(message, without, read.catalog_uuid.hex, of, *shape)


def _end(read: StateRead, _: object, count: int) -> dict[str, Any]:
    page = read.next_page()
    return {
        "hasNext": page is not None,
        "nextPage": None if page is None else str(page),
        "count": count,
    }
