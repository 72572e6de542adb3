"""History: a closed range of a catalog's log as a JSON page, lines of JSON, CloudEvents, or an Arrow stream.

::

    application/json       {"catalog": …, "anchor": …, "closedUntil": …, "captures": […],
                            "hasNext": true, "nextCursor": "1.…", "count": 1000}
    application/x-ndjson   a capture a line, at last {"end": true, "hasNext": false, "nextCursor": null, …}
    …cloudevents-batch+json  [{"specversion": "1.0", "id": "1.…", …}, …]; the last id is where to go on
    …arrow.stream          record batches, see api/rest/arrow.py

What the read is pinned to stands in the header fields ``Tailrace-*`` too. A range that can never change has an
``ETag``: asked for again with ``If-None-Match``, it is answered with 304 before anything is read.
"""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog
from starlette.responses import Response

from tailrace.errors import InvalidRequest
from tailrace.position import Position
from tailrace.v1.change_capture_pb2 import ReadChangesRequest
from tailrace_server.api import requests
from tailrace_server.api.errors import encoded_problem, logged
from tailrace_server.api.http.compression import accepted_coding, compressed
from tailrace_server.api.http.guard import caller_of
from tailrace_server.api.json_requests import ELSEWHERE, from_json, from_query, in_json_names
from tailrace_server.api.peers import REST, over_http
from tailrace_server.api.rest import arrow, responses
from tailrace_server.api.rest.forms import (
    CaptureForm,
    as_bytes,
    as_cloud,
    form_of,
    form_of_query,
)
from tailrace_server.api.rest.requests import (
    ARROW_TYPE,
    CLOUD_TYPE,
    JSON_TYPE,
    LINES_TYPE,
    accepted,
    asked_body,
    parameters,
)
from tailrace_server.api.rest.streaming import StreamedAnswer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from starlette.requests import Request

    from tailrace_server.api.settings import HttpSettings
    from tailrace_server.api.websocket import Sockets
    from tailrace_server.capture.codecs import Codec
    from tailrace_server.capture.engine import Engine
    from tailrace_server.capture.history import HistoryBounds, HistoryRead
    from tailrace_server.capture.reading.frames import Frames
    from tailrace_server.wal.state.view import LogView

_log = structlog.get_logger("tailrace.rest")

HEADERS: Final = {
    "Tailrace-Catalog-Uuid": "catalogUuid",
    "Tailrace-Anchor": "anchor",
    "Tailrace-Closed-Until": "closedUntil",
    "Tailrace-Truncated": "truncated",
}
"""What a read is pinned to: header field → member of the JSON page."""

_OFFERED: Final = (JSON_TYPE, LINES_TYPE, ARROW_TYPE, CLOUD_TYPE)


@dataclass(frozen=True, slots=True)
class _Read:
    """One read under way."""

    history: HistoryRead
    kind: str
    form: CaptureForm
    header: dict[str, Any]
    view: LogView
    reverse: bool
    bytes_max: int
    on_error: Callable[[str], None]

    @property
    def codec(self) -> Codec:
        """The wire form of its frames."""
        return self.form.lines if self.kind == LINES_TYPE else self.form.objects

    def end(self, last: tuple[int, int, int] | None, count: int) -> dict[str, Any]:
        """Return how it ended."""
        cursor = requests.next_cursor(self.history, last, reverse=self.reverse)
        return {
            "hasNext": cursor is not None,
            "nextCursor": None if cursor is None else str(cursor),
            "count": count,
        }


async def changes(
    request: Request, engine: Engine, settings: HttpSettings, sockets: Sockets, catalog: str
) -> Response | StreamedAnswer:
    """Answer ``GET …/changes`` and ``POST …/changes/query``.

    Raises:
        TailraceError: Before anything is sent: the range or the catalog is not there to be read.
    """
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
    kind, form = _agreed(kind, form)
    try:
        bounds = requests.history_bounds(message)
        limit = requests.limit(message)
        bytes_max = requests.max_message_bytes(message, engine.settings.max_message_bytes)
        criteria = await requests.read(requests.criteria, message.criteria, message.criteria)
        content = requests.content(message.body)
    except InvalidRequest as error:
        raise in_json_names(error) from None
    if limit is None and kind in (JSON_TYPE, CLOUD_TYPE):
        limit = settings.page_records
    history = await engine.history(
        caller_of(request),
        catalog,
        criteria,
        bounds=bounds,
        reverse=message.reverse,
        content=content,
        codec=form.lines if kind == LINES_TYPE else form.objects,
        limit=limit,
        max_message_bytes=bytes_max,
        peer=over_http(REST, request),
    )
    del criteria  # the read has them
    with ExitStack() as stack:
        stack.enter_context(history)
        view = await engine.view(caller_of(request), catalog)
        header = responses.history_header(history, catalog=view.name)
        headers = _headers(header, kind)
        if is_closed(bounds, history, view):
            tag = _tag(message, kind, form, limit, view, history.use.identity)
            headers |= {"ETag": tag, "Cache-Control": "private, no-cache"}
            if tag in request.headers.get("if-none-match", ""):
                return Response(status_code=304, headers=headers)
        if request.method == "HEAD":
            return Response(headers=headers)
        on_error = partial(sockets.count_error, "http")
        read = _Read(history, kind, form, header, view, message.reverse, bytes_max, on_error)
        make = {JSON_TYPE: _page, CLOUD_TYPE: _batch, LINES_TYPE: _lines, ARROW_TYPE: _arrow}[kind]
        chunks = await _begun(make(read))
        coding = accepted_coding(request.headers.get("accept-encoding", ""))
        if coding is not None and (encoder := sockets.encoders.make(coding)) is not None:
            chunks = compressed(chunks, encoder)
            headers["Content-Encoding"] = coding
            del encoder  # it counts for as long as somebody has it
        answer = StreamedAnswer(chunks, sockets, headers)
        history.on_end = lambda _: answer.interrupt()
        stack.pop_all()  # from here on the chunks have it
        return answer


def is_closed(bounds: HistoryBounds, history: HistoryRead, view: LogView) -> bool:
    """Return whether nothing that is still to be published can fall into a range."""
    if bounds.anchor is not None:
        return True
    if bounds.until is not None and bounds.until <= Position(view.published + 1, 0):
        return True
    if bounds.before is not None and bounds.before.position.version <= view.published:
        return True
    return bounds.until_time is not None and bounds.until_time <= history.closed_until


def _agreed(kind: str, form: CaptureForm) -> tuple[str, CaptureForm]:
    """Return media type and form that go together: what a parameter names stands above ``Accept``.

    Raises:
        InvalidRequest: Arrow has columns of captures and nothing around them.
    """
    if kind == ARROW_TYPE:
        if form.is_cloud:
            raise InvalidRequest("format: an Arrow stream has captures, not CloudEvents")
        return kind, as_bytes(form)
    if kind == CLOUD_TYPE:
        return kind, as_cloud(form)
    if kind == JSON_TYPE and form.is_cloud:
        return CLOUD_TYPE, form
    return kind, form


def _tag(
    message: ReadChangesRequest,
    kind: str,
    form: CaptureForm,
    limit: int | None,
    view: LogView,
    granted: str,
) -> str:
    """Return the tag of a closed range. Weak: the figures around the captures may differ.

    Whoever is granted less, or more by now, has another one: a browser keeps answers for whoever sits there.
    """
    asked = message.SerializeToString(deterministic=True)
    shape = (kind, form.objects.name, str(limit))
    parts = (view.uuid.hex, str(view.oldest), granted, *shape, asked.hex())
    return f'W/"{hashlib.blake2s("|".join(parts).encode(), digest_size=12).hexdigest()}"'


def _headers(header: dict[str, Any], kind: str) -> dict[str, str]:
    return {
        "Content-Type": kind,
        "Vary": "Accept, Accept-Encoding, Authorization",
        "Cache-Control": "no-store",
        **{field: str(header[member]).lower() for field, member in HEADERS.items()},
    }


async def _begun(chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Read up to the first chunk, so that what is wrong is an answer of its own, and return all of them."""
    begun = [await anext(chunks)]

    async def again() -> AsyncGenerator[bytes, None]:
        try:
            yield begun.pop()
            async for chunk in chunks:
                yield chunk
                del chunk  # while the next one waits for room, the last is not kept
        finally:
            await chunks.aclose()

    return again()


async def _page(read: _Read) -> AsyncGenerator[bytes, None]:
    head = msgspec.json.encode(read.header)[:-1] + b',"captures":['
    async for chunk in _array(read, head, lambda end: b"]," + msgspec.json.encode(end)[1:]):
        yield chunk


async def _batch(read: _Read) -> AsyncGenerator[bytes, None]:
    async for chunk in _array(read, b"[", lambda _: b"]"):
        yield chunk


async def _array(
    read: _Read, head: bytes, tail: Callable[[dict[str, Any]], bytes]
) -> AsyncGenerator[bytes, None]:
    parts = [head]
    count, last = 0, None
    with read.history:
        async for frames in read.history:
            count += frames.count
            last = frames.last
            # The comma behind these captures is sent with the next ones.
            yield b"".join((*parts, memoryview(_fitting(read, frames))[:-1]))
            del frames  # the next message may have to wait for the room of this one
            parts = [b","]
    if count:
        parts = []
    yield b"".join((*parts, tail(read.end(last, count))))


def _fitting(read: _Read, frames: Frames) -> bytes:
    """Return a message; one capture above the bound without its bodies."""
    if frames.count > 1 or len(frames.data) <= read.bytes_max:
        return frames.data
    return read.codec.with_omitted(*read.form.split(frames.data))


async def _lines(read: _Read) -> AsyncGenerator[bytes, None]:
    count, last = 0, None
    try:
        with read.history:
            async for frames in read.history:
                last = frames.last
                yield _fitting(read, frames)
                count += frames.count
                del frames
    except Exception as error:
        if not count:
            raise
        found = logged(error, _log)
        read.on_error(found.code)
        yield b'{"error":%s}\n' % encoded_problem(found)
        return
    yield msgspec.json.encode({"end": True, **read.end(last, count)}) + b"\n"


async def _arrow(read: _Read) -> AsyncGenerator[bytes, None]:
    stream = arrow.ArrowStream(read.header)
    count, last = 0, None
    with read.history:
        async for frames in read.history:
            count += frames.count
            last = frames.last
            data = _fitting(read, frames)
            del frames
            yield stream.batch(data)
            del data
    yield stream.end(read.end(last, count))
