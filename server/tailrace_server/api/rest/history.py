"""History: a range of a catalog's log as a JSON page, lines of JSON, CloudEvents, or an Arrow stream.

The formats are described in api/rest/answers.py. The JSON page has the header, ``captures`` and the end::

    {"catalog": …, "anchor": …, "closedUntil": …, "captures": […],
     "hasNext": true, "nextCursor": "1.…", "count": 1000}

The HTTP header fields ``Tailrace-*`` also have the versions that the read is pinned to. A range that can never
change has an ``ETag``. A repeated request with ``If-None-Match`` is answered with 304 before anything is read.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog
from starlette.responses import Response

from tailrace.errors import InvalidRequest
from tailrace.position import Position
from tailrace.v1.change_capture_pb2 import ReadChangesRequest
from tailrace_server.api import requests, responses
from tailrace_server.api.http.guard import caller_of
from tailrace_server.api.http.requests import (
    ARROW_TYPE,
    CLOUD_TYPE,
    JSON_TYPE,
    LINES_TYPE,
    accepted,
    asked_body,
    parameters,
)
from tailrace_server.api.json_requests import (
    ELSEWHERE,
    from_json,
    from_query,
    in_json,
    in_json_names,
)
from tailrace_server.api.peers import REST, over_http
from tailrace_server.api.requests import reading
from tailrace_server.api.rest.answers import (
    ReadAnswer,
    agreed,
    codec_of,
    fitting,
    headers_of,
    tag_of,
    unchanged,
)
from tailrace_server.api.rest.forms import (
    CaptureForm,
    form_of,
    form_of_query,
)

if TYPE_CHECKING:
    from starlette.requests import Request

    from tailrace_server.api.http.streaming import StreamedAnswer
    from tailrace_server.api.settings import HttpSettings
    from tailrace_server.api.websocket import Sockets
    from tailrace_server.engine.engine import Engine
    from tailrace_server.reads.history import HistoryBounds, HistoryRead
    from tailrace_server.wal.state.view import LogView

_log = structlog.get_logger("tailrace.rest")

HEADERS: Final = {
    "Tailrace-Catalog-Uuid": "catalogUuid",
    "Tailrace-Anchor": "anchor",
    "Tailrace-Closed-Until": "closedUntil",
    "Tailrace-Truncated": "truncated",
}
"""HTTP header fields that identify what was read: field → member of the JSON page."""

_OFFERED: Final = (JSON_TYPE, LINES_TYPE, ARROW_TYPE, CLOUD_TYPE)


async def changes(
    request: Request, engine: Engine, settings: HttpSettings, sockets: Sockets, catalog: str
) -> Response | StreamedAnswer:
    """Answer ``GET …/changes`` and ``POST …/changes/query``.

    Raises:
        TailraceError: The range or the catalog cannot be read; nothing has been sent.
    """
    # 1. Parse the request. A GET and a POST become the same protobuf message, as on all faces.
    kind = accepted(request, _OFFERED)
    if request.method == "POST":
        form, value = form_of(await asked_body(request, settings))
        message = from_json(
            ReadChangesRequest, value, criteria_max=engine.settings.criteria, without=ELSEWHERE
        )
    else:
        form, pairs = form_of_query(parameters(request))
        message = from_query(
            ReadChangesRequest, pairs, criteria_max=engine.settings.criteria, without=ELSEWHERE
        )
    kind, form = agreed(kind, form)
    try:
        bounds = requests.history_bounds(message)
        limit = requests.limit(message)
        bytes_max = requests.max_message_bytes(message, engine.settings.max_message_bytes)
        content = requests.content(message.body)
    except InvalidRequest as error:
        raise in_json_names(error) from None
    # Without a limit, only JSON is divided into pages. Lines and Arrow are streams of the whole range.
    if limit is None and kind in (JSON_TYPE, CLOUD_TYPE):
        limit = settings.page_records
    # 2. Open the read. One with many keys is parsed in a thread, and such requests wait for each other.
    async with reading(
        engine.turns.many_keys, in_json(requests.history_criteria), message
    ) as criteria:
        history = await engine.history(
            caller_of(request),
            catalog,
            criteria,
            bounds=bounds,
            reverse=message.reverse,
            content=content,
            codec=codec_of(kind, form),
            limit=limit,
            max_message_bytes=bytes_max,
            peer=over_http(REST, request),
        )
    # The read has the criteria now. Drop this reference, as they may be large.
    del criteria
    # 3. Answer. Until the response owns the read, every error and early return must close it.
    with ExitStack() as stack:
        stack.enter_context(history)
        view = await engine.view(caller_of(request), catalog)
        header = responses.as_json(responses.history_header(history, catalog=view.name))
        headers = headers_of(header, kind, HEADERS)
        # Only a range that can never change has a tag.
        if (last := _last_version(bounds, history, view)) is not None:
            tag = _tag(message, kind, form, limit, view, last, history.use.identity)
            if (same := unchanged(request, headers, tag)) is not None:
                return same
        if request.method == "HEAD":
            return Response(headers=headers)
        end = partial(_end, history, message.reverse)
        on_error = partial(sockets.count_error, "http")
        read = ReadAnswer(
            history, kind, "captures", header, end, fitting(kind, form, bytes_max), on_error
        )
        answer = await read.streamed(request, sockets, headers)
        # From here on the chunks of the response own the read, and close it.
        stack.pop_all()
        return answer


def _end(
    history: HistoryRead, reverse: bool, last: tuple[int, int, int] | None, count: int
) -> dict[str, Any]:
    """Return the members that close a page."""
    cursor = requests.next_cursor(history, last, reverse=reverse)
    return {
        "hasNext": cursor is not None,
        "nextCursor": None if cursor is None else str(cursor),
        "count": count,
    }


def _last_version(bounds: HistoryBounds, history: HistoryRead, view: LogView) -> int | None:
    """Return the last version of a range; None if versions to be published later may fall into it."""
    # Each bound that lies within the published versions closes the range; the lowest one decides.
    ends = [] if bounds.anchor is None else [bounds.anchor]
    if bounds.until is not None and bounds.until <= Position(view.published + 1, 0):
        ends.append(bounds.until.version - (bounds.until.index == 0))
    if bounds.before is not None and bounds.before.position.version <= view.published:
        ends.append(bounds.before.position.version)
    if bounds.until_time is not None and bounds.until_time <= history.closed_until:
        ends.append(view.version_at(bounds.until_time) - 1)
    return min(ends, default=None)


def _tag(
    message: ReadChangesRequest,
    kind: str,
    form: CaptureForm,
    limit: int | None,
    view: LogView,
    last: int,
    granted: str,
) -> str:
    """Return the ``ETag`` of a closed range.

    The tag depends on the caller's grants, because a browser caches responses for all of its users. It also
    depends on the commit timestamp of the last version, because a log may be restored and then have another
    history.
    """
    return tag_of(
        message,
        ("wait_for_version", "wait_ms"),
        view.uuid.hex,
        str(view.known_timestamp_of(last)),
        str(view.oldest),
        str(view.bodies.bodies_from),
        granted,
        *(kind, form.objects.name, str(limit)),
    )
