"""Codecs: they turn the captures of a batch, as columns, into frames of one wire form.

A frame is one whole capture and has no data of a subscription. So the bytes of any slice of a run's frames are
valid for every subscriber that requested the same content.
"""

from tailrace_server.codecs.cdcv2 import CDCV2
from tailrace_server.codecs.columns import CaptureColumns, Codec
from tailrace_server.codecs.decoded import (
    JSON_DECODED,
    JSON_TEXT_DECODED,
    PROTOBUF_DECODED,
)
from tailrace_server.codecs.json import JSON, JSON_TEXT
from tailrace_server.codecs.protobuf import PROTOBUF

__all__ = [
    "CDCV2",
    "JSON",
    "JSON_DECODED",
    "JSON_TEXT",
    "JSON_TEXT_DECODED",
    "PROTOBUF",
    "PROTOBUF_DECODED",
    "CaptureColumns",
    "Codec",
]
