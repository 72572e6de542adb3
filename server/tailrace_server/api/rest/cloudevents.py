"""Captures as CloudEvents 1.0 in the structured form: the capture is the event's data.

::

    {"specversion":"1.0","id":"1.….42.2.0.17…","source":"urn:uuid:6f1c2a5e-…","type":"tailrace.data.upsert",
     "subject":"product/17","time":"2023-11-14T22:13:20.000000Z","datacontenttype":"application/json",
     "data":{"version":42,"index":2,"ordinal":0,"cursor":"1.….42.2.0.17…",…}}

The source is the catalog's log, which its uuid names for ever; the id is the capture's cursor, so source and id
together are unique, as the specification asks, and any id is a place to go on from. The type is area and
operation, the subject entity type and primary key (the lead of a transaction has none), the time that of the
commit. A frame is the object and a comma.

Source: CloudEvents 1.0.2, core specification and JSON event format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.criteria import Area, Operation
from tailrace_server.codecs.columns import EMPTY, Codec
from tailrace_server.codecs.json import cursor_parts, escaped

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tailrace_server.codecs import CaptureColumns

_encode = msgspec.json.encode


class CloudEventsCodec(Codec):
    """One event a capture."""

    def __init__(self, objects: Codec) -> None:
        """Wrap the objects of a codec whose frames are an object and a comma."""
        self.name = f"{objects.name}-cloudevents"
        self._objects = objects

    def encode(self, columns: CaptureColumns) -> pa.BinaryArray:
        """Return one event a capture."""
        columns = columns.gathered()
        uuid = columns.catalog_uuid
        data = pc.binary_replace_slice(self._objects.encode(columns), -1, _END, b"},")
        return pc.binary_join_element_wise(
            *(_text(b'{"specversion":"1.0","id":"'), *cursor_parts(columns)),
            *(_text(b'","source":"urn:uuid:%s"' % str(uuid).encode()), _kinds(columns)),
            *(_text(b',"time":"'), _times(columns.timestamps)),
            *(_text(b'Z","datacontenttype":"application/json","data":'), data, EMPTY),
        )

    def with_omitted(self, header_frame: bytes, omitted_bytes: int) -> bytes:
        """Return the event with ``omittedBytes`` appended to its data."""
        return self._objects.with_omitted(header_frame[:-2] + b",", omitted_bytes)[:-1] + b"},"


def _kinds(columns: CaptureColumns) -> pa.BinaryArray:
    """Return type and subject of each capture."""
    codes = (columns.type_codes.astype(np.int64) + 1) * 64 + columns.areas * 8 + columns.operations
    distinct, place = np.unique(codes, return_inverse=True)
    texts = []
    for code in distinct.tolist():
        type_code, rest = divmod(code, 64)
        kind = f"tailrace.{Area(rest // 8).name}.{Operation(rest % 8).name}".lower()
        text = b',"type":"%s"' % kind.encode()
        if type_code:
            text += b',"subject":' + _encode(columns.entity_types[type_code - 1])[:-1]
        texts.append(text)
    kinds = pa.array(texts, pa.binary()).take(pa.array(place))
    keys = escaped(columns.keys.array.view(pa.binary()))
    keys = pc.binary_join_element_wise(_text(b"/"), keys, _text(b'"'), EMPTY)
    ends = pc.if_else(pa.array(columns.type_codes >= 0), keys.fill_null(b'"'), _text(b""))
    return pc.binary_join_element_wise(kinds, ends, EMPTY)


def _times(timestamps: NDArray[np.int64]) -> pa.BinaryArray:
    """Return times as RFC 3339 has them, without their zone; few distinct ones."""
    distinct, place = np.unique(timestamps, return_inverse=True)
    texts = np.datetime_as_string(distinct.astype("datetime64[us]"))
    return pa.array(texts.tolist(), pa.string()).view(pa.binary()).take(pa.array(place))


def _text(value: bytes) -> pa.Scalar:
    return pa.scalar(value, pa.binary())


_END: Final = 2**31 - 1
