"""The JSON form of a capture, made from a `Capture`: one flat object, the same as every JSON transport's.

::

    {"version":42,"index":2,"ordinal":0,"cursor":"1.….42.2.0.17…","commitTimestamp":1700000000000000,
     "area":"DATA","operation":"UPSERT","entityType":"product","primaryKey":"17","changed":["price"],
     "change":{…},"before":{…},"after":{…}}

Positions are numbers, the timestamp µs since the epoch, enums plain names. ``transition`` follows
``entityType`` if the criteria have a condition. ``containerType`` and ``containerName`` follow ``changed`` at
column level only. A body appears where the content asks for it, null where there is none; ``omittedBytes``
replaces bodies that were too large. Images are
spliced in byte for byte: their digits and the order of their keys are the source's.

The server renders the same form in columns (``capture/codecs/json.py``); a test compares the two
byte for byte.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from tailrace.criteria import CaptureKind, Content

if TYPE_CHECKING:
    from tailrace.capture import Capture, Heartbeat, StateComplete

_BODIES: Final = (
    (Content.CHANGE, "change"),
    (Content.BEFORE, "before"),
    (Content.AFTER, "after"),
)
_encoder: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False)


def render(capture: Capture, content: Content = Content.BODY) -> bytes:
    """Return a capture as one JSON object, UTF-8, without a line end.

    Args:
        capture: What was delivered.
        content: What was asked for; it decides which bodies appear, also as null.
    """
    encode = _encoder.encode
    container = omitted = kind = transition = ""
    if capture.kind is not CaptureKind.CHANGE:
        kind = f',"kind":"{capture.kind.name}"'
    if capture.transition is not None:
        transition = f',"transition":"{capture.transition.name}"'
    if capture.container_type is not None:
        container = (
            f',"containerType":"{capture.container_type.name}"'
            f',"containerName":{encode(capture.container_name)}'
        )
    if capture.omitted_bytes:
        content, omitted = Content.HEADER, f',"omittedBytes":{capture.omitted_bytes}'
    head = (
        f'{{"version":{capture.version},"index":{capture.index},"ordinal":{capture.ordinal}'
        f',"cursor":"{capture.cursor}","commitTimestamp":{capture.commit_timestamp}'
        f',"area":"{capture.area.name}","operation":"{capture.operation.name}"'
        f',"entityType":{encode(capture.entity_type)}{kind}{transition}'
        f',"primaryKey":{encode(capture.primary_key)}'
        f',"changed":{encode(capture.changed)}{container}'
    )
    parts = [head.encode()]
    for asked, name in _BODIES:
        if asked in content:
            body: bytes | None = getattr(capture, name)
            parts += (b',"%s":' % name.encode(), b"null" if body is None else body)
    parts.append(f"{omitted}}}".encode())
    return b"".join(parts)


def render_line(capture: Capture, content: Content = Content.BODY) -> bytes:
    """Return a capture as one line, its line end included, for files and pipes of such lines.

    An image that its source wrote over several lines is put on one: JSON allows a line end between
    tokens only, never inside a string, so a space in its place changes no value.
    """
    line = render(capture, content)
    if b"\n" in line or b"\r" in line:
        line = line.replace(b"\n", b" ").replace(b"\r", b" ")
    return line + b"\n"


def render_state_complete(mark: StateComplete) -> bytes:
    """Return that a state is complete as one line, its line end included; ``stateComplete`` names the form."""
    fields = {"stateComplete": True, "version": mark.version, "cursor": str(mark.cursor)}
    return _encoder.encode(fields).encode() + b"\n"


def render_heartbeat(heartbeat: Heartbeat) -> bytes:
    """Return a heartbeat as one line, its line end included; ``heartbeat`` names the form."""
    fields = {
        "heartbeat": True,
        "published": heartbeat.published,
        "cursor": str(heartbeat.cursor),
        "recordsScanned": heartbeat.records_scanned,
        "recordsMatched": heartbeat.records_matched,
        "nextWithinSeconds": heartbeat.next_within_s,
    }
    if heartbeat.expires_in_s is not None:
        fields["expiresInSeconds"] = heartbeat.expires_in_s
    return _encoder.encode(fields).encode() + b"\n"
