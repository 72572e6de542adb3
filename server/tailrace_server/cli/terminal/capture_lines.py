"""Captures, heartbeats and marks as lines on stdout: JSON, or lines for a person (`capture_text`).

The JSON form of a capture is one flat object, the same as in every JSON transport::

    {"version":42,"index":2,"ordinal":0,"cursor":"1.….42.2.0.17…","commitTimestamp":1700000000000000,
     "area":"DATA","operation":"UPSERT","entityType":"product","primaryKey":"17","changed":["price"],
     "change":{…},"before":{…},"after":{…}}

Positions are numbers, timestamps are µs since the epoch, enums are plain names. ``transition`` follows
``entityType`` if the criteria have a condition. ``containerType`` and ``containerName`` follow ``changed`` at
column level only. A body appears if the content includes it, as null if there is none; ``omittedBytes``
replaces bodies that were too large. Images are copied byte for byte: their digits and the order of their keys
are those of the source. The server renders the same form in columns (``codecs/json.py``); a test compares the
two byte for byte.

Lines are written on the event loop, and a slow reader such as a pager must not block it. If poll reports a pipe
as writable, the pipe accepts PIPE_BUF bytes without blocking (POSIX; 4,096 on Linux). So a write of at most
that size after a poll never waits; the wait itself is an asyncio event, which Ctrl-C can cancel. Such a write
is also atomic, so short lines stay whole. A non-blocking pipe is no alternative: the flag would hold for every
process that shares the pipe. Files and terminals are written to directly.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import stat
from typing import TYPE_CHECKING, Final, Protocol

from tailrace.criteria import CaptureKind, Content

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.capture import Capture, Heartbeat, StateComplete
    from tailrace.cursor import Cursor
    from tailrace.schema import Schema

_BODIES: Final = (
    (Content.CHANGE, "change"),
    (Content.BEFORE, "before"),
    (Content.AFTER, "after"),
)
_encoder: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False)


def render(capture: Capture, content: Content = Content.BODY) -> bytes:
    """Return a capture as one JSON object in UTF-8, without a line end.

    Args:
        capture: The capture.
        content: The requested bodies; these appear, as null if the capture does not have them.
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
    """Return a capture as one line of JSON with its line end.

    An image that its source wrote in several lines is joined to one. JSON allows a line end only between
    tokens, so replacing it by a space changes no value.
    """
    line = render(capture, content)
    if b"\n" in line or b"\r" in line:
        line = line.replace(b"\n", b" ").replace(b"\r", b" ")
    return line + b"\n"


def render_state_complete(mark: StateComplete) -> bytes:
    """Return the mark that a state is complete as one line; the member ``stateComplete`` identifies it."""
    fields = {"stateComplete": True, "version": mark.version, "cursor": str(mark.cursor)}
    return _encoder.encode(fields).encode() + b"\n"


def render_heartbeat(heartbeat: Heartbeat) -> bytes:
    """Return a heartbeat as one line with its line end; the member ``heartbeat`` identifies it."""
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


class OutputForm(Protocol):
    """The form of captures on stdout."""

    def learn(self, schema: Schema) -> None:
        """Store the columns that the next captures have."""

    def captures(self, captures: Sequence[Capture]) -> list[bytes]:
        """Return the lines of each capture."""

    def state_complete(self, mark: StateComplete) -> bytes:
        """Return the line after the last row of a state."""

    def heartbeat(self, heartbeat: Heartbeat) -> bytes:
        """Return the line of a heartbeat."""


class JsonForm:
    """The JSON form: one flat object per line."""

    def __init__(self, content: Content) -> None:
        """Store the requested bodies, which appear in each line, as null if a capture does not have them."""
        self._content = content

    def learn(self, schema: Schema) -> None:
        """Do nothing: the form does not depend on the schema."""

    def captures(self, captures: Sequence[Capture]) -> list[bytes]:
        """Return one line for each capture."""
        return [render_line(each, self._content) for each in captures]

    def state_complete(self, mark: StateComplete) -> bytes:
        """Return the line of the mark."""
        return render_state_complete(mark)

    def heartbeat(self, heartbeat: Heartbeat) -> bytes:
        """Return the line of the heartbeat."""
        return render_heartbeat(heartbeat)


def form_for_stdout(content: Content, *, as_json: bool) -> OutputForm:
    """Return the requested form, adapted to stdout: a terminal, a pipe or a file."""
    if as_json:
        return JsonForm(content)
    # Imported only here, since the form for a person needs the extra `cli`.
    from tailrace_server.cli.terminal.capture_text import TextForm

    return TextForm.for_stdout()


_PIPE_BUF: Final = select.PIPE_BUF
_STDOUT: Final = 1


class LineWriter:
    """Writer of whole lines to a file descriptor, in order. A call must complete before the next one."""

    def __init__(self, descriptor: int = _STDOUT) -> None:
        """Store the descriptor; the caller closes it."""
        self._descriptor = descriptor
        self.whole = 0
        """Number of pieces of the latest call that were written."""
        mode = os.fstat(descriptor).st_mode
        self._pipe = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    async def write(self, pieces: Sequence[bytes]) -> None:
        """Write pieces, each of whole lines. A cancelled call may have written some; ``whole`` is their number.

        Raises:
            BrokenPipeError: The reader has closed the pipe.
        """
        # Join short pieces to one write. In a pipe they have at most PIPE_BUF bytes, so that the write is
        # atomic and `whole` stays exact if the call is cancelled.
        self.whole = 0
        while self.whole < len(pieces):
            stop, size = self.whole + 1, len(pieces[self.whole])
            while stop < len(pieces) and (not self._pipe or size + len(pieces[stop]) <= _PIPE_BUF):
                size += len(pieces[stop])
                stop += 1
            await self._write(b"".join(pieces[self.whole : stop]))
            self.whole = stop

    async def _write(self, data: bytes) -> None:
        # Poll before each write: without that, a full pipe would block the event loop. The first poll without
        # waiting avoids a turn of the loop if the pipe has room.
        view = memoryview(data)
        while view:
            if self._pipe:
                if not self._poll.poll(0):
                    await self._writable()
                written = os.write(self._descriptor, view[:_PIPE_BUF])
            else:
                written = os.write(self._descriptor, view)
            view = view[written:]

    async def _writable(self) -> None:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_writer(self._descriptor, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_writer(self._descriptor)


class Shown:
    """Output of captures to stdout; it counts those that were written, and keeps the cursor to resume from."""

    def __init__(self, form: OutputForm) -> None:
        """Store the form of the lines."""
        self._form = form
        self._writer = LineWriter()
        self.count = 0
        self.cursor: Cursor | None = None
        """Cursor of the last capture written; the caller may set a later one."""

    async def captures(self, captures: Sequence[Capture]) -> None:
        """Write the lines of captures. Captures that a cancelled or failed call has written are counted.

        Raises:
            BrokenPipeError: The reader has closed the pipe.
        """
        # The cursor follows what was really written: after Ctrl-C the user is told to resume from there.
        pieces = self._form.captures(captures)
        try:
            await self._writer.write(pieces)
        finally:
            if whole := self._writer.whole:
                self.count += whole
                self.cursor = captures[whole - 1].cursor

    async def state_complete(self, mark: StateComplete) -> None:
        """Write the line of a mark."""
        await self._writer.write([self._form.state_complete(mark)])

    async def heartbeat(self, heartbeat: Heartbeat) -> None:
        """Write the line of a heartbeat."""
        await self._writer.write([self._form.heartbeat(heartbeat)])
