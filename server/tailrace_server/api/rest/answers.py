"""Answers of a read that ends, in the formats that they have in common.

::

    application/json       {…header…, "captures": […], …end…}
    application/x-ndjson   a capture a line, at last {"end": true, …end…}
    …cloudevents-batch+json  [{"specversion": "1.0", "id": "1.…", …}, …]; the last id is where to go on
    …arrow.stream          record batches, see api/rest/arrow.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from tailrace.errors import InvalidRequest
from tailrace_server.api.errors import encoded_problem, logged
from tailrace_server.api.http.compression import accepted_coding, compressed
from tailrace_server.api.rest import arrow
from tailrace_server.api.rest.forms import CaptureForm, as_bytes, as_cloud
from tailrace_server.api.rest.requests import ARROW_TYPE, CLOUD_TYPE, JSON_TYPE, LINES_TYPE
from tailrace_server.api.rest.streaming import StreamedAnswer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from starlette.requests import Request

    from tailrace_server.api.websocket import Sockets
    from tailrace_server.codecs import Codec
    from tailrace_server.log_cache.frames import Frames
    from tailrace_server.reads.log_read import LogRead

_log = structlog.get_logger("tailrace.rest")


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """One read under way."""

    read: LogRead
    kind: str
    """The media type."""
    member: str
    """The member of a JSON page that has the captures."""
    header: dict[str, Any]
    end: Callable[[tuple[int, int, int] | None, int], dict[str, Any]]
    """Returns how it ended, from its last capture and their number."""
    fitting: Callable[[Frames], bytes]
    """Returns the bytes of a message, within its bound."""
    on_error: Callable[[str], None]
    """Counts an error, by its machine code."""
    arrow: Callable[[ReadAnswer], AsyncGenerator[bytes, None]] | None = None
    """Yields its Arrow stream; None: that of captures."""

    async def streamed(
        self, request: Request, sockets: Sockets, headers: dict[str, str]
    ) -> StreamedAnswer:
        """Return the answer, once its first chunk is there."""
        make = {
            JSON_TYPE: _page,
            CLOUD_TYPE: _batch,
            LINES_TYPE: _lines,
            ARROW_TYPE: self.arrow or _arrow,
        }
        chunks = await _begun(make[self.kind](self))
        coding = accepted_coding(request.headers.get("accept-encoding", ""))
        if coding is not None and (encoder := sockets.encoders.make(coding)) is not None:
            chunks = compressed(chunks, encoder)
            headers["Content-Encoding"] = coding
            del encoder  # it counts for as long as somebody has it
        answer = StreamedAnswer(chunks, sockets, headers)
        self.read.on_end = lambda _: answer.interrupt()
        return answer


def fitting(kind: str, form: CaptureForm, bytes_max: int) -> Callable[[Frames], bytes]:
    """Return what gives the bytes of a message; of one capture above the bound without its bodies."""
    codec = codec_of(kind, form)

    def fit(frames: Frames) -> bytes:
        if frames.count > 1 or len(frames.data) <= bytes_max:
            return frames.data
        return codec.with_omitted(*form.split(frames.data))

    return fit


def codec_of(kind: str, form: CaptureForm) -> Codec:
    """Return the wire form of the frames of a media type."""
    return form.lines if kind == LINES_TYPE else form.objects


def agreed(kind: str, form: CaptureForm) -> tuple[str, CaptureForm]:
    """Return a media type and its form: a parameter overrides ``Accept``.

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


def headers_of(header: dict[str, Any], kind: str, fields: Mapping[str, str]) -> dict[str, str]:
    """Return the header fields of an answer; ``fields`` says which members of the header are among them."""
    return {
        "Content-Type": kind,
        "Vary": "Accept, Accept-Encoding, Authorization",
        "Cache-Control": "no-store",
        **{field: str(header[member]).lower() for field, member in fields.items()},
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


async def _page(read: ReadAnswer) -> AsyncGenerator[bytes, None]:
    head = msgspec.json.encode(read.header)[:-1] + b',"%s":[' % read.member.encode()
    async for chunk in _array(read, head, lambda end: b"]," + msgspec.json.encode(end)[1:]):
        yield chunk


async def _batch(read: ReadAnswer) -> AsyncGenerator[bytes, None]:
    async for chunk in _array(read, b"[", lambda _: b"]"):
        yield chunk


async def _array(
    read: ReadAnswer, head: bytes, tail: Callable[[dict[str, Any]], bytes]
) -> AsyncGenerator[bytes, None]:
    parts = [head]
    count, last = 0, None
    with read.read:
        async for frames in read.read:
            count += frames.count
            last = frames.last
            # The comma behind these captures is sent with the next ones.
            yield b"".join((*parts, memoryview(read.fitting(frames))[:-1]))
            del frames  # the next message may have to wait for the room of this one
            parts = [b","]
    if count:
        parts = []
    yield b"".join((*parts, tail(read.end(last, count))))


async def _lines(read: ReadAnswer) -> AsyncGenerator[bytes, None]:
    count, last = 0, None
    try:
        with read.read:
            async for frames in read.read:
                last = frames.last
                yield read.fitting(frames)
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


async def _arrow(read: ReadAnswer) -> AsyncGenerator[bytes, None]:
    stream = arrow.ArrowStream(read.header)
    count, last = 0, None
    with read.read:
        async for frames in read.read:
            count += frames.count
            last = frames.last
            data = read.fitting(frames)
            del frames
            yield stream.batch(data)
            del data
    yield stream.end(read.end(last, count))
