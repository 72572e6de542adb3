"""Codecs: they turn the captures of a batch, as columns, into frames of one wire form.

A frame is one whole capture with nothing of a subscription in it. So any slice of a run's frames, joined,
is valid for every subscriber with the same content.
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
