"""Codecs that decode the values in images before another codec encodes the captures.

The values in ``change``, ``before`` and ``after`` of rows are decoded by ``wal/schema/decoding.py``, according
to the column in the schema of the image's version. Names, order and all other values stay as the source wrote
them; so does a value that cannot be decoded. Columns whose value the source did not send are left out.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from operator import is_
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import pyarrow as pa

from tailrace.criteria import Area
from tailrace_server.codecs.columns import Codec
from tailrace_server.codecs.json import JSON, JSON_TEXT
from tailrace_server.codecs.protobuf import PROTOBUF
from tailrace_server.wal.record.columns import decode_members
from tailrace_server.wal.record.text_columns import Texts
from tailrace_server.wal.record.unavailable import unavailable
from tailrace_server.wal.schema.decoding import decoding_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tailrace.schema import Column
    from tailrace_server.codecs.columns import CaptureColumns, EncodedMessages
    from tailrace_server.wal.record.unavailable import Unavailable


class _Reading(NamedTuple):
    """Decoder for the images of an entity type in a version."""

    decoders: Mapping[str, Callable[[bytes], bytes]]
    """Column → function that decodes its values; columns without encoding are left out."""
    not_sent: Unavailable
    """Detector of values that the source did not send."""

    def decoded(self, image: bytes) -> bytes:
        """Return an image with decoded values, and without those that the source did not send."""
        # Parse only if necessary: the text may have a placeholder, or some columns need decoding.
        partial = self.not_sent.may_be_in(image)
        if not partial and not self.decoders:
            return image
        members = decode_members(image)
        if partial:
            kept = {
                name: raw for name, raw in members.items() if not self.not_sent.is_one(bytes(raw))
            }
            if len(kept) == len(members) and not self.decoders:
                return image
            members = kept
        for name in self.decoders.keys() & members.keys():
            members[name] = msgspec.Raw(self.decoders[name](bytes(members[name])))
        return msgspec.json.encode(members)


class DecodedCodec(Codec):
    """A codec that decodes values and then encodes captures with another codec."""

    def __init__(self, inner: Codec) -> None:
        """Wrap the codec ``inner``."""
        self.name = f"{inner.name}, decoded"
        self._inner = inner

    def encode(self, columns: CaptureColumns) -> pa.BinaryArray:
        """Return the frames of the decoded captures."""
        return self._inner.encode(decoded(columns))

    def messages(self, columns: CaptureColumns, message_bytes: int) -> EncodedMessages:
        """Return the messages of the decoded captures."""
        return self._inner.messages(decoded(columns), message_bytes)

    def with_omitted(self, header_frame: bytes, omitted_bytes: int) -> bytes:
        """Return the frame that ``inner`` makes; a header has no values to decode."""
        return self._inner.with_omitted(header_frame, omitted_bytes)


def decoded(columns: CaptureColumns) -> CaptureColumns:
    """Return captures with the values of their bodies decoded."""
    if not columns.texts:
        return columns
    columns = columns.gathered()
    # 1. Find the decoder of each capture; None if it is not of a row. Captures of one version and entity type
    #    follow one another, so the lookup is only needed where these change.
    readings: list[_Reading | None] = []
    version, code, found = -1, -1, None
    rows = zip(
        *(columns.versions.tolist(), columns.type_codes.tolist(), columns.areas.tolist()),
        strict=True,
    )
    for row_version, row_code, area in rows:
        if area != Area.DATA or row_code < 0:
            readings.append(None)
            continue
        if (row_version, row_code) != (version, code):
            version, code = row_version, row_code
            schema = columns.schema_of(version)
            type_columns = schema.entity_types.get(columns.entity_types[code], ())
            found = _reading_of(type_columns, schema.placeholders)
        readings.append(found)
    if not any(readings):
        return columns
    # 2. Decode the bodies, one image at a time. Keep the array if no image changed, as in most tables.
    texts = {}
    for name, body in columns.texts.items():
        images = body.array.to_pylist()
        shown = [
            image if image is None or each is None else each.decoded(image)
            for image, each in zip(images, readings, strict=True)
        ]
        same = all(map(is_, images, shown))
        texts[name] = body if same else Texts.of(pa.array(shown, pa.binary()))
    return replace(columns, texts=texts)


@lru_cache(maxsize=1_024)
def _reading_of(columns: tuple[Column, ...], placeholders: tuple[str, ...]) -> _Reading:
    decoders = {
        column.name: decoding.shown
        for column in columns
        if (decoding := decoding_of(column)) is not None
    }
    return _Reading(decoders, unavailable(placeholders))


JSON_DECODED: Final = DecodedCodec(JSON)
JSON_TEXT_DECODED: Final = DecodedCodec(JSON_TEXT)
PROTOBUF_DECODED: Final = DecodedCodec(PROTOBUF)
