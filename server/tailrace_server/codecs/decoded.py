"""Captures with their values decoded, in the wire form of another codec.

In ``change``, ``before`` and ``after`` of rows a value becomes what wal/schema/decoding.py makes of it, by the
column as of the image's version. Names, order and all other values stay as the source wrote them, and so does
a value that cannot be decoded. A column whose value the source did not send is left out.
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
    """How the images of an entity type are read in a version."""

    decoders: Mapping[str, Callable[[bytes], bytes]]
    """Column → what decodes its values; without the columns whose values stay."""
    not_sent: Unavailable
    """Tells values that the source did not send."""

    def decoded(self, image: bytes) -> bytes:
        """Return an image with its values decoded, and without those that were not sent."""
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
    """The wire form of another codec, with values decoded."""

    def __init__(self, inner: Codec) -> None:
        """Write captures as ``inner`` does."""
        self.name = f"{inner.name}, decoded"
        self._inner = inner

    def encode(self, columns: CaptureColumns) -> pa.BinaryArray:
        """Return what the other codec makes of the captures decoded."""
        return self._inner.encode(decoded(columns))

    def messages(self, columns: CaptureColumns, message_bytes: int) -> EncodedMessages:
        """Return the same in messages."""
        return self._inner.messages(decoded(columns), message_bytes)

    def with_omitted(self, header_frame: bytes, omitted_bytes: int) -> bytes:
        """Return what the other codec does."""
        return self._inner.with_omitted(header_frame, omitted_bytes)


def decoded(columns: CaptureColumns) -> CaptureColumns:
    """Return the same captures with the values of their bodies decoded."""
    if not columns.texts:
        return columns
    columns = columns.gathered()
    # 1. How the images of each capture are read; None of what is no row. Captures of one version and entity
    #    type follow one another, so it is looked up where they change.
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
    # 2. The bodies, one image at a time. Of most tables nothing is made anew.
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
