"""The trail of the audit: its lines, their queue, and the thread that writes them to a file.

::

    event loop ──put──▶ queue, bounded by bytes ──▶ thread ──▶ file
                  │                                   │ fails
                  └ full: the line is lost and        └ logged at once,
                    counted; a later line               tried again every second
                    reports the number

Each event has a class; its fields are the members of the line, and docs/audit.md lists them. No line contains a
credential: the audit records the proven identity, not its proof.

Strangers can cause two kinds of lines, refusals and authentications. These may fill at most half of the queue,
so a flood of them leaves room for the lines of admitted callers.

The file is opened for appending. So after the file was emptied in place (logrotate's ``copytruncate``) the next
line is its first. Before each write the path is checked: if it names another file or none (``create``), the
path is opened again. If the first part of a line went to the old file, the whole line is written to the new
one.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import structlog
from msgspec import Struct, to_builtins
from msgspec.json import Encoder

from tailrace_server.errors import CannotStart

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


LOGGER: Final = "tailrace.audit"
"""Name of the logger in each line; it distinguishes the audit from the log if both go to stderr."""

_encode: Final = Encoder().encode


_AGAIN_S: Final = 1.0
_HANGS_S: Final = 5.0
"""Seconds after which a write counts as stuck: a full pipe, or a storage that does not answer."""
_BATCH_BYTES: Final = 256 << 10
_LINE_BYTES: Final = 100
"""Bytes of memory that a queued line takes in addition to its text."""

_log = structlog.get_logger("tailrace.audit")


_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
_MODE: Final = 0o640
"""The mode of a new file: its lines are about people, so only owner and group may read them."""


class AuditTrail:
    """The queue of lines and the thread that writes them. Any thread may call ``put``."""

    def __init__(
        self,
        file: AuditFile,
        bytes_max: int,
        monotonic: Callable[[], float] = time.monotonic,
        again_s: float = _AGAIN_S,
    ) -> None:
        """Start the thread; ``close`` ends it.

        Args:
            file: The file to write.
            bytes_max: Most bytes in the queue.
            monotonic: The clock.
            again_s: Seconds until a failed write is tried again.
        """
        self._again_s = again_s
        self._file = file
        self._bytes_max = bytes_max
        self._monotonic = monotonic
        self._changed = threading.Condition()
        # The lock of the condition guards all attributes below.
        self._lines: deque[bytes] = deque()
        self._queued_bytes = 0
        """Bytes of the queue, including the lines that the thread has taken and not written yet."""
        self._written = self._lost = 0
        self._lost_untold = 0
        """Number of lost lines that no line in the file reports yet."""
        self._writing_since: float | None = None
        """Monotonic time at which the current write began; None if no write is running."""
        self._failing_since: float | None = None
        self._reason = ""
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="tailrace-audit", daemon=True)
        self._thread.start()

    def put(self, line: AuditLine) -> bool:
        """Queue a line; return False if the queue is full and the line is lost. Never waits for the file."""
        data = line.encoded()
        share = 2 if isinstance(line, _FROM_ANYBODY) else 1
        with self._changed:
            # The report of lost lines must precede this line, so both need room.
            told = self._telling_of_lost()
            needed = _charged(data) + (_charged(told) if told else 0)
            if self._closing or self._queued_bytes + needed > self._bytes_max // share:
                self._lost += 1
                self._lost_untold += 1
                return False
            if told:
                self._push(told)
                self._lost_untold = 0
            self._push(data)
            self._changed.notify()
        return True

    def statistics(self) -> TrailStatistics:
        """Return the current figures."""
        now = self._monotonic()
        with self._changed:
            since, reason = self._failing_since, self._reason
            writing = self._writing_since
            # A write that hangs raises no error, so its duration is the only sign.
            if since is None and writing is not None and now - writing >= _HANGS_S:
                since, reason = writing, "a write does not return"
            return TrailStatistics(
                written=self._written,
                lost=self._lost,
                queued_bytes=self._queued_bytes,
                standing_still_s=0.0 if since is None else max(now - since, 1e-9),
                reason=reason,
            )

    def close(self, deadline_s: float) -> None:
        """Write the queued lines and end. Lines that are not written in time are lost; the log reports them."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        # A write may hang for ever, so wait for a bounded time; the thread is a daemon.
        self._thread.join(deadline_s)
        found = self.statistics()
        if found.queued_bytes:
            _log.error(
                "audit lost",
                reason=found.reason or "the server stops",
                lost_bytes=found.queued_bytes,
            )
        # A thread that still writes needs the descriptor.
        if not self._thread.is_alive():
            self._file.close()

    def _push(self, data: bytes) -> None:
        self._lines.append(data)
        self._queued_bytes += _charged(data)

    def _telling_of_lost(self) -> bytes | None:
        """Return the line that reports the number of lost lines; None if no line was lost."""
        if not self._lost_untold:
            return None
        return AuditResumed(time=moment(), lost=self._lost_untold).encoded()

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            if not self._write(b"".join(batch)):
                return
            # Only now release the room: until they are written, the bytes are in memory.
            with self._changed:
                self._written += len(batch)
                self._queued_bytes -= sum(map(_charged, batch))

    def _next(self) -> list[bytes] | None:
        """Wait for lines and return some; None when the queue is closed and empty."""
        with self._changed:
            while not self._lines:
                # Report lines that were lost while the file could not be written, even if no new event comes.
                if told := self._telling_of_lost():
                    self._push(told)
                    self._lost_untold = 0
                elif self._closing:
                    return None
                else:
                    self._changed.wait()
            batch, size = [], 0
            while self._lines and size < _BATCH_BYTES:
                batch.append(self._lines.popleft())
                size += len(batch[-1])
            return batch

    def _write(self, data: bytes) -> bool:
        """Write lines, and retry until that succeeds; return False if the trail was closed before."""
        place = 0
        while place < len(data):
            with self._changed:
                self._writing_since = self._monotonic()
            try:
                place = self._file.append(data, place)
            except OSError as error:
                if not self._fails(error):
                    return False
            else:
                self._goes_on()
        return True

    def _fails(self, error: OSError) -> bool:
        """Log that the file cannot be written, and wait before a retry; return False if closed meanwhile."""
        reason = error.strerror or str(error)
        with self._changed:
            self._writing_since = None
            first = self._failing_since is None
            if first:
                self._failing_since = self._monotonic()
            self._reason = reason
        if first:
            _log.error("audit not written", reason=reason)
        with self._changed:
            # ``close`` ends the pause at once, so that the process does not wait for a retry.
            return not self._changed.wait_for(lambda: self._closing, self._again_s)

    def _goes_on(self) -> None:
        with self._changed:
            self._writing_since = None
            since, self._failing_since, self._reason = self._failing_since, None, ""
            lost = self._lost
        if since is not None:
            _log.info("audit resumed", stood_still_s=self._monotonic() - since, lines_lost=lost)


@dataclass(frozen=True, slots=True)
class TrailStatistics:
    """The figures of the audit's queue at one moment."""

    written: int
    """Number of lines written since the process began."""
    lost: int
    """Number of lines lost since the process began, because the queue was full."""
    queued_bytes: int
    standing_still_s: float
    """Seconds since the file could last be written; 0 while it can."""
    reason: str
    """Why the file cannot be written; empty while it can."""


class AuditFile:
    """The open file of the audit, or stderr. One thread writes at a time."""

    def __init__(self, path: Path | None) -> None:
        """Open a file for appending; None = stderr.

        Raises:
            CannotStart: The file cannot be opened, or is a named pipe, on which the server would wait for a
                reader.
        """
        self._path = path
        try:
            if path is not None and path.is_fifo():
                raise CannotStart(f"--audit {path}: a named pipe; give a file, or stderr")
            self._descriptor = os.dup(sys.stderr.fileno()) if path is None else _opened(path)
        except OSError as error:
            raise CannotStart(
                f"--audit {path or 'stderr'}: {error.strerror}; give the server's user write permission"
            ) from error

    def append(self, data: bytes, start: int) -> int:
        """Write ``data`` from ``start`` on, as much as the file accepts now; return the new place in ``data``.

        Raises:
            OSError: The file cannot be written.
        """
        begun = start > 0 and data[start - 1] != ord("\n")
        if self._path is not None and self._is_another(begun):
            self._reopen(self._path)
            # The new file has no part of the current line, so go back to the line's begin.
            start = data.rfind(b"\n", 0, start) + 1
        return start + os.write(self._descriptor, memoryview(data)[start:])

    def close(self) -> None:
        """Close the file; nothing may be written afterwards."""
        os.close(self._descriptor)

    def _is_another(self, begun: bool) -> bool:
        """Return True if the path names another file, no file, or a file that was emptied inside of a line."""
        assert self._path is not None
        mine = os.fstat(self._descriptor)
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            return True
        # An emptied file is the same file. It matters only if the first part of a line was in it.
        return not os.path.samestat(mine, there) or (begun and there.st_size == 0)

    def _reopen(self, path: Path) -> None:
        descriptor = _opened(path)
        os.close(self._descriptor)
        self._descriptor = descriptor


def _opened(path: Path) -> int:
    return os.open(path, _FLAGS, _MODE)


class AuditLine(Struct, kw_only=True, tag_field="event"):
    """The members that all lines have."""

    time: str
    """Time of the event: ISO 8601, UTC, microseconds."""
    logger: str = LOGGER
    """Always `tailrace.audit`; the lines of the log have another value."""
    principal: str = ""
    """The proven name of the caller; `anonymous` if no identity is required; empty for the server itself."""
    kind: str = ""
    """Kind of the proof: `jwt`, `api_key`, `certificate` or `anonymous`; empty for the server itself."""
    issuer: str = ""
    """The issuer of the name: the `iss` of a JWT; empty for other kinds."""
    address: str = ""
    """Address of the peer; behind a trusted proxy, the address that the proxy reports."""
    transport: str = ""
    """Transport of the request: `grpc`, `rest_websocket`, `rest_events`, `rest`, `graphql_websocket` …"""
    catalog: str = ""
    """Name of the requested catalog, as it was requested."""

    @classmethod
    def event(cls) -> str:
        """Return the name of the event."""
        return str(cls.__struct_config__.tag)

    def encoded(self) -> bytes:
        """Return the line as JSON, with its line end."""
        try:
            return _encode(self) + b"\n"
        except UnicodeEncodeError:
            # A lone surrogate, which a path or a certificate may contain. An escaped line is better than none.
            return _encode(_written_out(to_builtins(self))) + b"\n"


def _written_out(value: object) -> object:
    """Return a JSON value whose lone surrogates are escaped."""
    match value:
        case str():
            return value.encode(errors="backslashreplace").decode()
        case dict():
            return {_written_out(name): _written_out(each) for name, each in value.items()}
        case list() | tuple():
            return [*map(_written_out, value)]
        case _:
            return value


class Authenticated(AuditLine, tag="authenticated"):
    """A caller was authenticated; at most once a minute for the same principal, address and transport."""

    expires_at: float | None = None
    """Time at which the credential expires, in seconds since 1970; null if it does not expire."""


class Refused(AuditLine, tag="refused"):
    """A request was refused, by the authentication or by the engine."""

    code: str = ""
    """Machine code of the error that the caller received."""
    reason: str = ""
    """Text of the error."""


class Subscribed(AuditLine, tag="subscribed"):
    """A subscription was opened."""

    id: str = ""
    """Id of the subscription; its `ended` line has the same id."""
    asked: Sequence[str] = ()
    """The requested criteria in words, a text for each alternative. At most 100 values of a list are named; a
    number replaces the others."""
    effective: Sequence[str] = ()
    """The granted part of the criteria, in the same form."""
    content: str = ""
    """The requested bodies."""
    start: str = ""
    """The first position that can be delivered."""


class Ended(AuditLine, tag="ended"):
    """A subscription ended."""

    id: str = ""
    """Id of the subscription."""
    code: str = ""
    """Machine code of the error that ended it; `SUBSCRIPTION_CLOSED` if the subscriber left."""
    reason: str = ""
    """Text of that error."""
    captures: int = 0
    """Number of captures that were passed to the transport."""
    bytes: int = 0
    """Bytes of these captures."""
    cursor: str = ""
    """The last cursor: everything before it was passed to the transport."""


class HistoryBegun(AuditLine, tag="history_begun"):
    """A read of history or of state began; a line for each page."""

    id: str = ""
    """Id of the read; its `history_ended` line has the same id."""
    asked: Sequence[str] = ()
    """The requested criteria in words, as in `subscribed`."""
    effective: Sequence[str] = ()
    """The granted part of the criteria, as in `subscribed`."""
    content: str = ""
    """The requested bodies."""
    start: str = ""
    """Version of the state that is read; empty for history."""


class HistoryEnded(AuditLine, tag="history_ended"):
    """A read of history or of state ended."""

    id: str = ""
    """Id of the read."""
    code: str = ""
    """Machine code of the error that ended the read; empty if it was complete, or the reader left."""
    reason: str = ""
    """Text of that error."""
    captures: int = 0
    """Number of captures that were passed to the transport."""
    bytes: int = 0
    """Bytes of these captures."""
    cursor: str = ""
    """Cursor of the last capture; for state, the cursor after the last row; empty if nothing was passed."""


class PolicyLoaded(AuditLine, tag="policy_loaded"):
    """The policy was read, at start or because its file changed."""

    file: str = ""
    """Path of the policy file."""
    grants: int = 0
    """Number of grants in the file."""
    fingerprint: str = ""
    """SHA-256 of the file, in hexadecimal."""


class KeysChanged(AuditLine, tag="keys_changed"):
    """The set of accepted keys changed."""

    source: str = ""
    """The file or the issuer of the keys."""
    added: Sequence[str] = ()
    """Names or ids of the keys that are accepted from now on."""
    removed: Sequence[str] = ()
    """Names or ids of the keys that are no longer accepted."""


class OperatorAction(AuditLine, tag="operator_action"):
    """An operator acted, or a caller changed or began to read a named subscription."""

    action: str = ""
    """The action: `end_subscription`; `create_subscription`, `read_subscription`, `reset_subscription`,
    `pause_subscription`, `resume_subscription`, `delete_subscription`."""
    subject: str = ""
    """The id of the subscription, or the name of the named subscription."""
    reason: str = ""
    """The reason that the operator gave; for a reset, the new start."""


class AuditStarted(AuditLine, tag="audit_started"):
    """The server began to record."""

    pid: int = 0
    """Process id of the server."""
    version: str = ""
    """Version of the server."""


class AuditResumed(AuditLine, tag="audit_resumed"):
    """Lines were lost before this one, because the queue was full."""

    lost: int = 0
    """Number of lost lines."""


class AuditStopped(AuditLine, tag="audit_stopped"):
    """The server stopped in an orderly way. This is the last line of its process."""


_FROM_ANYBODY: Final = (Authenticated, Refused)


def _charged(data: bytes) -> int:
    return len(data) + _LINE_BYTES


def moment() -> str:
    """Return the current time in the form of the lines: ``2026-11-26T02:25:09.000731Z``."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
