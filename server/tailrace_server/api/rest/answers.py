"""Responses of bounded reads (history, tables, SQL), in the formats that these reads share.

::

    application/json       {…header…, "captures": […], …end…}
    application/x-ndjson   one capture a line; the last line is {"end": true, …end…}
    …cloudevents-batch+json  [{"specversion": "1.0", "id": "1.…", …}, …]; resume after the last id
    …arrow.stream          record batches, see below

An Arrow IPC stream has one column for each field of a capture; bodies are binary. The metadata of the schema
has the version and bounds that the read is pinned to (``tailrace.anchor``, ``tailrace.closedUntil``, …). The
last batch has no rows; its metadata has the end of the read (``tailrace.hasNext``, ``tailrace.nextCursor``,
``tailrace.count``). A stream without that batch, or without Arrow's end-of-stream marker, was cut.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import structlog
from starlette.responses import Response

from tailrace.errors import InvalidRequest
from tailrace_server.api.errors import encoded_problem, logged
from tailrace_server.api.http.compression import accepted_coding, compressed
from tailrace_server.api.http.requests import ARROW_TYPE, CLOUD_TYPE, JSON_TYPE, LINES_TYPE
from tailrace_server.api.http.streaming import StreamedAnswer
from tailrace_server.api.rest.forms import CaptureForm, as_bytes, as_cloud

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping

    from google.protobuf.message import Message
    from starlette.requests import Request

    from tailrace_server.api.websocket import Sockets
    from tailrace_server.codecs import Codec
    from tailrace_server.log_cache.frames import Frames
    from tailrace_server.reads.log_read import LogRead


_log = structlog.get_logger("tailrace.rest")


COLUMNS: Final = pa.schema(
    [
        pa.field("version", pa.int64(), nullable=False),
        pa.field("index", pa.int32(), nullable=False),
        pa.field("ordinal", pa.int32(), nullable=False),
        pa.field("cursor", pa.string(), nullable=False),
        pa.field("commitTimestamp", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("area", pa.string(), nullable=False),
        pa.field("operation", pa.string(), nullable=False),
        pa.field("entityType", pa.string()),
        pa.field("primaryKey", pa.string()),
        pa.field("changed", pa.list_(pa.string())),
        pa.field("transition", pa.string()),
        pa.field("containerType", pa.string()),
        pa.field("containerName", pa.string()),
        pa.field("change", pa.binary()),
        pa.field("before", pa.binary()),
        pa.field("after", pa.binary()),
        pa.field("omittedBytes", pa.int64(), nullable=False),
    ]
)
_BODIES: Final = ("change", "before", "after")
_NULL: Final = b"null"


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """One read in progress, and how to format its response."""

    read: LogRead
    kind: str
    """The media type of the response."""
    member: str
    """Name of the member of a JSON page that contains the captures."""
    header: dict[str, Any]
    """Members that precede the captures."""
    end: Callable[[tuple[int, int, int] | None, int], dict[str, Any]]
    """Function that returns the closing members, from the last capture's place and the number of captures."""
    fitting: Callable[[Frames], bytes]
    """Function that returns the bytes of a message, within the size limit (see `fitting`)."""
    on_error: Callable[[str], None]
    """Function that counts an error by its machine code."""
    arrow: Callable[[ReadAnswer], AsyncGenerator[bytes, None]] | None = None
    """Function that yields the Arrow stream; None means the stream of captures."""

    async def streamed(
        self, request: Request, sockets: Sockets, headers: dict[str, str]
    ) -> StreamedAnswer:
        """Return the response after reading its first chunk; an error before it is raised."""
        # Read the first chunk before the compression: an error until then is still answered with its own
        # status.
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
            # The encoder is counted while it is referenced: only the chunks may keep it.
            del encoder
        answer = StreamedAnswer(chunks, sockets, headers)
        self.read.on_end = lambda _: answer.interrupt()
        return answer


def fitting(kind: str, form: CaptureForm, bytes_max: int) -> Callable[[Frames], bytes]:
    """Return the function for the bytes of a message; it removes the bodies of a capture above the limit."""
    codec = codec_of(kind, form)

    def fit(frames: Frames) -> bytes:
        if frames.count > 1 or len(frames.data) <= bytes_max:
            return frames.data
        return codec.with_omitted(*form.split(frames.data))

    return fit


def codec_of(kind: str, form: CaptureForm) -> Codec:
    """Return the codec that encodes the frames of a media type."""
    return form.lines if kind == LINES_TYPE else form.objects


def agreed(kind: str, form: CaptureForm) -> tuple[str, CaptureForm]:
    """Return the media type and form of a response: the parameter ``format`` overrides ``Accept``.

    Raises:
        InvalidRequest: CloudEvents are requested as an Arrow stream, which has only columns of captures.
    """
    if kind == ARROW_TYPE:
        if form.is_cloud:
            raise InvalidRequest("format: an Arrow stream can have captures only, not CloudEvents")
        return kind, as_bytes(form)
    if kind == CLOUD_TYPE:
        return kind, as_cloud(form)
    if kind == JSON_TYPE and form.is_cloud:
        return CLOUD_TYPE, form
    return kind, form


def headers_of(header: dict[str, Any], kind: str, fields: Mapping[str, str]) -> dict[str, str]:
    """Return the HTTP header fields of a response; ``fields`` maps field names to members of ``header``."""
    return {
        "Content-Type": kind,
        "Vary": "Accept, Accept-Encoding, Authorization",
        "Cache-Control": "no-store",
        **{field: str(header[member]).lower() for field, member in fields.items()},
    }


def tag_of(message: Message, without: Iterable[str], *parts: str) -> str:
    """Return the ``ETag`` of a response to a request.

    It is weak: responses may differ in the figures around what was read, and be equally right.

    Args:
        message: The request.
        without: Fields of the request that do not change the answer.
        parts: What else the answer depends on.
    """
    asked = type(message)()
    asked.CopyFrom(message)
    for name in without:
        asked.ClearField(name)
    text = "|".join((*parts, asked.SerializeToString(deterministic=True).hex()))
    return f'W/"{hashlib.blake2s(text.encode(), digest_size=12).hexdigest()}"'


def unchanged(request: Request, headers: dict[str, str], tag: str) -> Response | None:
    """Add a tag to header fields; return the response 304 if the client already has what the tag names."""
    headers |= {"ETag": tag, "Cache-Control": "private, no-cache"}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return None


async def _begun(chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Read the first chunk, then return an iterator over all chunks.

    An error before the first chunk is raised here, so that it can still be answered with its own status.
    """
    begun = [await anext(chunks)]

    async def again() -> AsyncGenerator[bytes, None]:
        try:
            yield begun.pop()
            async for chunk in chunks:
                yield chunk
                # Free the chunk before waiting: the next one may need its memory.
                del chunk
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
            # Each frame ends with a comma. The last comma is withheld and sent before the next captures, as the
            # array may end here.
            yield b"".join((*parts, memoryview(read.fitting(frames))[:-1]))
            # Free the message before waiting: the next one may need its memory.
            del frames
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
        # Before the first line, the error becomes a response with its own status.
        if not count:
            raise
        found = logged(error, _log)
        read.on_error(found.code)
        yield b'{"error":%s}\n' % encoded_problem(found)
        return
    yield msgspec.json.encode({"end": True, **read.end(last, count)}) + b"\n"


async def _arrow(read: ReadAnswer) -> AsyncGenerator[bytes, None]:
    # After the first piece, an error cuts the connection (`StreamedAnswer`): Arrow has no way to report it.
    stream = ArrowStream(read.header)
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


class _Capture(msgspec.Struct):
    version: int
    index: int
    ordinal: int
    cursor: str
    commitTimestamp: int
    area: str
    operation: str
    entityType: str | None = None
    primaryKey: str | None = None
    changed: list[str] | None = None
    transition: str | None = None
    containerType: str | None = None
    containerName: str | None = None
    change: msgspec.Raw = msgspec.Raw(_NULL)
    before: msgspec.Raw = msgspec.Raw(_NULL)
    after: msgspec.Raw = msgspec.Raw(_NULL)
    omittedBytes: int = 0


_decode: Final = msgspec.json.Decoder(list[_Capture]).decode


class ArrowStream:
    """Writer of one Arrow IPC stream of captures, piece by piece."""

    def __init__(self, header: dict[str, Any]) -> None:
        """Start the stream; the schema is part of the first piece."""
        self._sink = io.BytesIO()
        self._schema = COLUMNS.with_metadata(_metadata(header))
        self._writer = pa.ipc.new_stream(self._sink, self._schema)

    def batch(self, frames: bytes) -> bytes:
        """Return the record batch of a message of JSON frames, encoded."""
        # Each frame ends with a comma: without the last one, the frames are the inside of a JSON array.
        captures = _decode(b"[" + frames[:-1] + b"]")
        columns = [
            pa.array([_body(getattr(each, field.name)) for each in captures], field.type)
            if field.name in _BODIES
            else pa.array([getattr(each, field.name) for each in captures], field.type)
            for field in self._schema
        ]
        self._writer.write_batch(pa.record_batch(columns, schema=self._schema))
        return self._taken()

    def end(self, figures: dict[str, Any]) -> bytes:
        """Return the last piece: an empty batch with ``figures`` as metadata, and the end of the stream."""
        empty = pa.record_batch([pa.array([], each.type) for each in self._schema], self._schema)
        self._writer.write_batch(empty, custom_metadata=_metadata(figures))
        self._writer.close()
        return self._taken()

    def _taken(self) -> bytes:
        # Return what Arrow's writer has written since the last call, and reuse the buffer.
        data = self._sink.getvalue()
        self._sink.seek(0)
        self._sink.truncate()
        return data


def _body(raw: msgspec.Raw) -> bytes | None:
    data = bytes(raw)
    return None if data == _NULL else data


def _metadata(values: dict[str, Any]) -> dict[str, str]:
    return {
        f"tailrace.{name}": value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for name, value in values.items()
    }
