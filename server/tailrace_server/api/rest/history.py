"""History: a closed range of a catalog's log as a JSON page, lines of JSON, or an Arrow stream.

::

    application/json       {"catalog": …, "anchor": …, "closedUntil": …, "captures": […],
                            "hasNext": true, "nextCursor": "1.…", "count": 1000}
    application/x-ndjson   a capture a line, at last {"end": true, "hasNext": false, "nextCursor": null, …}
    …arrow.stream          record batches, see api/rest/arrow.py

What the read is pinned to stands in the header fields ``Tailrace-*`` too. A range that can never change has an
``ETag``: asked for again with ``If-None-Match``, it is answered with 304 before anything is read.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.responses import Response

from tailrace.errors import InvalidRequest
from tailrace.position import Position
from tailrace.v1.change_capture_pb2 import ReadChangesRequest
from tailrace_server.api import requests
from tailrace_server.api.errors import encoded_problem
from tailrace_server.api.json_requests import from_json, from_query, in_json_names
from tailrace_server.api.rest import arrow, responses
from tailrace_server.api.rest.asking import (
    ARROW_TYPE,
    JSON_TYPE,
    LINES_TYPE,
    accepted,
    body,
    parameters,
)
from tailrace_server.api.rest.codecs import LINES
from tailrace_server.api.rest.streaming import StreamedAnswer
from tailrace_server.capture.codecs import JSON
from tailrace_server.errors import as_tailrace_error

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request

    from tailrace_server.api.settings import HttpSettings
    from tailrace_server.api.websocket import Sockets
    from tailrace_server.capture.engine import Engine
    from tailrace_server.capture.history import History, HistoryBounds
    from tailrace_server.wal.view import LogView

_OFFERED: Final = (JSON_TYPE, LINES_TYPE, ARROW_TYPE)
_BODIES: Final = ("change", "before", "after")


@dataclass(frozen=True, slots=True)
class _Read:
    """One read under way."""

    history: History
    header: dict[str, Any]
    view: LogView
    reverse: bool
    bytes_max: int

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
    form = accepted(request, _OFFERED)
    if request.method == "POST":
        value = await body(request, settings)
        message = from_json(ReadChangesRequest, value, without=("catalog",))
    else:
        message = from_query(ReadChangesRequest, parameters(request), without=("catalog",))
    try:
        bounds = requests.history_bounds(message)
        limit = requests.limit(message)
        bytes_max = requests.max_message_bytes(message, engine.settings.max_message_bytes)
        criteria = requests.criteria(message.criteria)
        content = requests.content(message.body)
    except InvalidRequest as error:
        raise in_json_names(error) from None
    if limit is None and form == JSON_TYPE:
        limit = settings.page_records
    history = await engine.history(
        catalog,
        criteria,
        bounds=bounds,
        reverse=message.reverse,
        content=content,
        codec=LINES if form == LINES_TYPE else JSON,
        limit=limit,
        max_message_bytes=bytes_max,
    )
    view = engine.observer(catalog).view
    header = responses.history_header(history, catalog=view.name)
    headers = _headers(header, form)
    if is_closed(bounds, history, view):
        tag = _tag(message, form, limit, view)
        headers |= {"ETag": tag, "Cache-Control": "private, no-cache"}
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
    if request.method == "HEAD":
        return Response(headers=headers)
    read = _Read(history, header, view, message.reverse, bytes_max)
    make = {JSON_TYPE: _page, LINES_TYPE: _lines, ARROW_TYPE: _arrow}[form]
    return StreamedAnswer(await _begun(make(read)), sockets, headers)


def is_closed(bounds: HistoryBounds, history: History, view: LogView) -> bool:
    """Return whether nothing that is still to be published can fall into a range."""
    if bounds.anchor is not None:
        return True
    if bounds.until is not None and bounds.until <= Position(view.published + 1, 0):
        return True
    if bounds.before is not None and bounds.before.position.version <= view.published:
        return True
    return bounds.until_time is not None and bounds.until_time <= history.closed_until


def _tag(message: ReadChangesRequest, form: str, limit: int | None, view: LogView) -> str:
    """Return the tag of a closed range. Weak: the figures around the captures may differ."""
    asked = message.SerializeToString(deterministic=True)
    parts = (view.uuid.hex, str(view.oldest), form, str(limit), asked.hex())
    return f'W/"{hashlib.blake2s("|".join(parts).encode(), digest_size=12).hexdigest()}"'


def _headers(header: dict[str, Any], form: str) -> dict[str, str]:
    return {
        "Content-Type": form,
        "Vary": "Accept",
        "Cache-Control": "no-store",
        "Tailrace-Catalog-Uuid": header["catalogUuid"],
        "Tailrace-Anchor": str(header["anchor"]),
        "Tailrace-Closed-Until": str(header["closedUntil"]),
        "Tailrace-Truncated": str(header["truncated"]).lower(),
    }


async def _begun(chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Read up to the first chunk, so that what is wrong is an answer of its own, and return all of them."""
    first = await anext(chunks)

    async def again() -> AsyncGenerator[bytes, None]:
        try:
            yield first
            async for chunk in chunks:
                yield chunk
        finally:
            await chunks.aclose()

    return again()


async def _page(read: _Read) -> AsyncGenerator[bytes, None]:
    parts = [msgspec.json.encode(read.header)[:-1], b',"captures":[']
    count, last = 0, None
    async for frames in read.history:
        data = frames.data
        if frames.count == 1 and len(data) > read.bytes_max:
            data = without_bodies(data)
        # The comma behind these captures is sent with the next ones.
        yield b"".join((*parts, memoryview(data)[:-1]))
        parts = [b","]
        count += frames.count
        last = frames.last
    if count:
        parts = []
    yield b"".join((*parts, b"],", msgspec.json.encode(read.end(last, count))[1:]))


async def _lines(read: _Read) -> AsyncGenerator[bytes, None]:
    count, last = 0, None
    try:
        async for frames in read.history:
            data = frames.data
            if frames.count == 1 and len(data) > read.bytes_max:
                data = LINES.with_omitted(*_split(data))
            yield data
            count += frames.count
            last = frames.last
    except Exception as error:
        if not count:
            raise
        yield b'{"error":%s}\n' % encoded_problem(as_tailrace_error(error))
        return
    yield msgspec.json.encode({"end": True, **read.end(last, count)}) + b"\n"


async def _arrow(read: _Read) -> AsyncGenerator[bytes, None]:
    stream = arrow.ArrowStream(read.header)
    count, last = 0, None
    async for frames in read.history:
        data = frames.data
        if frames.count == 1 and len(data) > read.bytes_max:
            data = without_bodies(data)
        yield stream.batch(data)
        count += frames.count
        last = frames.last
    yield stream.end(read.end(last, count))


def without_bodies(frame: bytes) -> bytes:
    """Return the frame of one capture as its header, with the size of what was left out."""
    return JSON.with_omitted(*_split(frame))


def _split(frame: bytes) -> tuple[bytes, int]:
    """Return a capture's frame without its bodies, and their size."""
    members = msgspec.json.decode(frame[:-1], type=dict[str, msgspec.Raw])
    omitted = sum(len(bytes(members.pop(name, b""))) for name in _BODIES)
    return msgspec.json.encode(members) + frame[-1:], omitted
