r"""Frames of the JSON form for formats that need one capture apart from the next.

::

    lines    {"version":42,…}\n
    events   id: 1.….42.2.0.17…\ndata: {"version":42,…}\n\n

They are made of the frames of a codec of objects, in columns, once for all who read the same format. An image
that its source wrote over several lines is put on one: JSON allows a line end between tokens only, so that a
space in its place changes no value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from tailrace_server.codecs import Codec
from tailrace_server.codecs.columns import EMPTY
from tailrace_server.codecs.json import cursor_parts

if TYPE_CHECKING:
    from tailrace_server.codecs import CaptureColumns

_END: Final = 2**31 - 1


class LinesCodec(Codec):
    """One object a line."""

    def __init__(self, objects: Codec) -> None:
        """Frame the objects of a codec whose frames are an object and a comma."""
        self.name = f"{objects.name}-lines"
        self._objects = objects

    def encode(self, columns: CaptureColumns) -> pa.BinaryArray:
        """Return one line a capture."""
        return pc.binary_replace_slice(on_one_line(self._objects.encode(columns)), -1, _END, b"\n")

    def with_omitted(self, header_frame: bytes, omitted_bytes: int) -> bytes:
        """Return the line with ``omittedBytes`` appended."""
        return self._objects.with_omitted(header_frame[:-1] + b",", omitted_bytes)[:-1] + b"\n"


class EventsCodec(Codec):
    """One server-sent event a capture; its id is the cursor."""

    def __init__(self, objects: Codec) -> None:
        """Frame the objects of a codec whose frames are an object and a comma."""
        self.name = f"{objects.name}-events"
        self._objects = objects

    def encode(self, columns: CaptureColumns) -> pa.BinaryArray:
        """Return one event a capture."""
        objects = pc.binary_replace_slice(
            on_one_line(self._objects.encode(columns)), -1, _END, b"\n\n"
        )
        return pc.binary_join_element_wise(
            *(pa.scalar(b"id: ", pa.binary()), *cursor_parts(columns)),
            *(pa.scalar(b"\ndata: ", pa.binary()), objects, EMPTY),
        )

    def with_omitted(self, header_frame: bytes, omitted_bytes: int) -> bytes:
        """Return the event with ``omittedBytes`` appended to its object."""
        return self._objects.with_omitted(header_frame[:-2] + b",", omitted_bytes)[:-1] + b"\n\n"


def on_one_line(frames: pa.BinaryArray) -> pa.BinaryArray:
    """Return frames of JSON without line ends."""
    for end in (b"\n", b"\r"):
        if pc.any(pc.match_substring(frames, end)).as_py():
            frames = pc.replace_substring(frames, end, b" ")
    return frames
