"""Codecs: captures of a batch, as columns, to ready frames of one wire form.

A frame is one capture, whole and absolute, with nothing of a subscription in it, so that any slice
of a run's frames, joined, is valid for every subscriber that asked for the same content.
"""

from tailrace_server.capture.codecs.cdcv2 import CDCV2
from tailrace_server.capture.codecs.columns import CaptureColumns, Codec
from tailrace_server.capture.codecs.json import JSON, JSON_TEXT
from tailrace_server.capture.codecs.protobuf import PROTOBUF

__all__ = ["CDCV2", "JSON", "JSON_TEXT", "PROTOBUF", "CaptureColumns", "Codec"]
