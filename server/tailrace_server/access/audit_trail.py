"""The trail of the audit: its lines, the queue that they wait in, and the thread that writes them to a file.

::

    event loop ──put──▶ queue, bounded by bytes ──▶ thread ──▶ file
                  │                                   │ fails
                  └ full: the line is lost and        └ logged at once,
                    counted; a later line               tried again every second
                    reports the number

Each event has a class; its fields are the members of a line, and docs/audit.md lists them. No line has a
credential: the audit records the proven identity, not the proof.

Lines that any stranger can cause (refusals, proofs) may fill half of the queue at most, so that a flood of
them leaves room for the lines of callers who were let in.

The file is opened for appending, so after it was emptied in place (logrotate's ``copytruncate``) the next line
is its first. Before each write the path is checked: if it names another file or none (``create``), the path is
opened again. A line whose first part went to a file that is gone is written again, whole.
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
"""Tells the audit's lines from others, where both go to stderr."""

_encode: Final = Encoder().encode


_AGAIN_S: Final = 1.0
_HANGS_S: Final = 5.0
"""A write that takes longer has stopped: a full pipe, or a storage that does not answer."""
_BATCH_BYTES: Final = 256 << 10
_LINE_BYTES: Final = 100
"""Of memory for a line in the queue, beside its text."""

_log = structlog.get_logger("tailrace.audit")


_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
_MODE: Final = 0o640
"""Its records are about people, so only owner and group may read them."""


class AuditTrail:
    """Lines on their way to the file. Any thread may put one."""

    def __init__(
        self,
        file: AuditFile,
        bytes_max: int,
        monotonic: Callable[[], float] = time.monotonic,
        again_s: float = _AGAIN_S,
    ) -> None:
        """Start the thread; ``close`` ends it.

        Args:
            file: Where it writes.
            bytes_max: Of the queue.
            monotonic: The clock.
            again_s: How soon it tries again to write.
        """
        self._again_s = again_s
        self._file = file
        self._bytes_max = bytes_max
        self._monotonic = monotonic
        self._changed = threading.Condition()
        # All below is read and written under the condition's lock.
        self._lines: deque[bytes] = deque()
        self._queued_bytes = 0
        """Of the queue, with what the thread has taken from it and not written."""
        self._written = self._lost = 0
        self._lost_untold = 0
        """Lines lost since a line last said so."""
        self._writing_since: float | None = None
        """When the write began that has not returned; None: there is none."""
        self._failing_since: float | None = None
        self._reason = ""
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="tailrace-audit", daemon=True)
        self._thread.start()

    def put(self, line: AuditLine) -> bool:
        """Queue a line; return False if it is lost, as the queue has no room. Never waits for the file."""
        data = line.encoded()
        share = 2 if isinstance(line, _FROM_ANYBODY) else 1
        with self._changed:
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
        """Return the figures of this moment."""
        now = self._monotonic()
        with self._changed:
            since, reason = self._failing_since, self._reason
            writing = self._writing_since
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
        """Write what is queued and end; a line that is not written in time is lost, and the log says so."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(deadline_s)
        found = self.statistics()
        if found.queued_bytes:
            _log.error(
                "audit lost",
                reason=found.reason or "the server stops",
                lost_bytes=found.queued_bytes,
            )
        if not self._thread.is_alive():
            self._file.close()

    def _push(self, data: bytes) -> None:
        self._lines.append(data)
        self._queued_bytes += _charged(data)

    def _telling_of_lost(self) -> bytes | None:
        """Return the line with the number of lost ones; None if none were."""
        if not self._lost_untold:
            return None
        return AuditResumed(time=moment(), lost=self._lost_untold).encoded()

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            if not self._write(b"".join(batch)):
                return
            with self._changed:
                self._written += len(batch)
                self._queued_bytes -= sum(map(_charged, batch))

    def _next(self) -> list[bytes] | None:
        """Wait for lines and take some; None once it is closed and there are none."""
        with self._changed:
            while not self._lines:
                # What was lost while nothing could be written is told although nothing new happens.
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
        """Write lines, however long the file takes none; return False if it is closed before they are."""
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
        """Tell that nothing can be written, and wait a moment; return False if it is closed meanwhile."""
        reason = error.strerror or str(error)
        with self._changed:
            self._writing_since = None
            first = self._failing_since is None
            if first:
                self._failing_since = self._monotonic()
            self._reason = reason
        if first:
            _log.error("audit stands still", reason=reason)
        with self._changed:
            return not self._changed.wait_for(lambda: self._closing, self._again_s)

    def _goes_on(self) -> None:
        with self._changed:
            self._writing_since = None
            since, self._failing_since, self._reason = self._failing_since, None, ""
            lost = self._lost
        if since is not None:
            _log.info("audit goes on", stood_still_s=self._monotonic() - since, lines_lost=lost)


@dataclass(frozen=True, slots=True)
class TrailStatistics:
    """The audit's queue, now."""

    written: int
    """Lines written, since the process began."""
    lost: int
    """Lines that did not fit into the queue, since it began."""
    queued_bytes: int
    standing_still_s: float
    """For how long nothing could be written; 0 while it can."""
    reason: str
    """Why; empty while it can."""


class AuditFile:
    """An open file, or stderr. One thread writes at a time."""

    def __init__(self, path: Path | None) -> None:
        """Open a file for appending; None = stderr.

        Raises:
            CannotStart: It cannot be opened, or is a pipe, which would keep the server waiting for a reader.
        """
        self._path = path
        try:
            if path is not None and path.is_fifo():
                raise CannotStart(f"--audit {path}: a named pipe; name a file, or stderr")
            self._descriptor = os.dup(sys.stderr.fileno()) if path is None else _opened(path)
        except OSError as error:
            raise CannotStart(
                f"--audit {path or 'stderr'}: {error.strerror}; the user of the server must be able to write "
                "there"
            ) from error

    def append(self, data: bytes, start: int) -> int:
        """Write lines from a place in them on, as much as the file takes now; return how far it came.

        Raises:
            OSError: It takes nothing.
        """
        begun = start > 0 and data[start - 1] != ord("\n")
        if self._path is not None and self._is_another(begun):
            self._reopen(self._path)
            start = data.rfind(b"\n", 0, start) + 1
        return start + os.write(self._descriptor, memoryview(data)[start:])

    def close(self) -> None:
        """Close it; nothing is written afterwards."""
        os.close(self._descriptor)

    def _is_another(self, begun: bool) -> bool:
        """Return whether what is at the path now has nothing of what was written here."""
        assert self._path is not None
        mine = os.fstat(self._descriptor)
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            return True
        return not os.path.samestat(mine, there) or (begun and there.st_size == 0)

    def _reopen(self, path: Path) -> None:
        descriptor = _opened(path)
        os.close(self._descriptor)
        self._descriptor = descriptor


def _opened(path: Path) -> int:
    return os.open(path, _FLAGS, _MODE)


class AuditLine(Struct, kw_only=True, tag_field="event"):
    """The common members of all lines."""

    time: str
    """When it happened: ISO 8601, UTC, microseconds."""
    logger: str = LOGGER
    """`tailrace.audit`; the lines of the log have another value."""
    principal: str = ""
    """The proven name; `anonymous` where no identity is asked for; empty: the server itself."""
    kind: str = ""
    """How it was proven: `jwt`, `api_key` or `certificate`; `anonymous`; empty for the server itself."""
    issuer: str = ""
    """The issuer of the name: the `iss` of a JWT; empty for others."""
    address: str = ""
    """The peer's address; behind a trusted proxy, the one that the proxy names."""
    transport: str = ""
    """How it came: `grpc`, `rest_websocket`, `rest_events`, `rest`, `graphql_websocket` …"""
    catalog: str = ""
    """The catalog that was asked for, as it was asked for."""

    @classmethod
    def event(cls) -> str:
        """Return the event's name."""
        return str(cls.__struct_config__.tag)

    def encoded(self) -> bytes:
        """Return the line, with its end."""
        try:
            return _encode(self) + b"\n"
        except UnicodeEncodeError:
            # Half a character, as a path or a certificate may have: the line is more than its form.
            return _encode(_written_out(to_builtins(self))) + b"\n"


def _written_out(value: object) -> object:
    """Return a value of JSON in which what is no text has the form of an escape."""
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
    """Somebody proved who they are; once a minute for the same principal, address and transport."""

    expires_at: float | None = None
    """When the proof expires, seconds since 1970; null: never."""


class Refused(AuditLine, tag="refused"):
    """Something was asked for and not given: at the door, or by the engine."""

    code: str = ""
    """The machine code of the error that the caller got."""
    reason: str = ""
    """Its text."""


class Subscribed(AuditLine, tag="subscribed"):
    """A subscription was opened."""

    id: str = ""
    """The subscription's id, as its `ended` has it too."""
    asked: Sequence[str] = ()
    """The request in words, one text for each alternative; of more than 100 values the number of the rest."""
    effective: Sequence[str] = ()
    """The part of them that is granted."""
    content: str = ""
    """The bodies that were asked for."""
    start: str = ""
    """The first position that can come."""


class Ended(AuditLine, tag="ended"):
    """A subscription ended."""

    id: str = ""
    """The subscription's id."""
    code: str = ""
    """Why: the machine code of its last error; `SUBSCRIPTION_CLOSED`: the subscriber left."""
    reason: str = ""
    """The same in words."""
    captures: int = 0
    """Captures that were handed to the transport."""
    bytes: int = 0
    """Their bytes."""
    cursor: str = ""
    """The last cursor: everything before it was handed over."""


class HistoryBegun(AuditLine, tag="history_begun"):
    """A read of history or of state began; one for each page."""

    id: str = ""
    """The read's id, as its `history_ended` has it too."""
    asked: Sequence[str] = ()
    """As of `subscribed`."""
    effective: Sequence[str] = ()
    """As of `subscribed`."""
    content: str = ""
    """The bodies that were asked for."""
    start: str = ""
    """Of state: the version that it is of; empty for history."""


class HistoryEnded(AuditLine, tag="history_ended"):
    """A read of history or of state ended."""

    id: str = ""
    """The read's id."""
    code: str = ""
    """The machine code of the error that ended it; empty: it was read to its end, or left by its reader."""
    reason: str = ""
    """The same in words."""
    captures: int = 0
    """Captures that were handed to the transport."""
    bytes: int = 0
    """Their bytes."""
    cursor: str = ""
    """The cursor of the last capture, of state the page behind the last row; empty before the first."""


class PolicyLoaded(AuditLine, tag="policy_loaded"):
    """The policy was read, at start or because its file changed."""

    file: str = ""
    """Its path."""
    grants: int = 0
    """How many grants it has."""
    fingerprint: str = ""
    """SHA-256 of the file, in hexadecimal."""


class KeysChanged(AuditLine, tag="keys_changed"):
    """The keys that callers are checked against changed."""

    source: str = ""
    """The file or issuer that they are of."""
    added: Sequence[str] = ()
    """Names or ids of keys that are accepted from now on."""
    removed: Sequence[str] = ()
    """Those that are not any more."""


class OperatorAction(AuditLine, tag="operator_action"):
    """An operator did something, or somebody changed or began to read a named subscription."""

    action: str = ""
    """The action: `end_subscription`; `create_subscription`, `read_subscription`, `reset_subscription`,
    `pause_subscription`, `resume_subscription`, `delete_subscription`."""
    subject: str = ""
    """To what: the id of a subscription, or the name of a named one."""
    reason: str = ""
    """Why, in the operator's words; of a reset where to."""


class AuditStarted(AuditLine, tag="audit_started"):
    """The server began to record."""

    pid: int = 0
    """Its process."""
    version: str = ""
    """Its version."""


class AuditResumed(AuditLine, tag="audit_resumed"):
    """Lines were lost before this one: they did not fit into the queue."""

    lost: int = 0
    """How many."""


class AuditStopped(AuditLine, tag="audit_stopped"):
    """The server stopped in good order: the last line of its process."""


_FROM_ANYBODY: Final = (Authenticated, Refused)


def _charged(data: bytes) -> int:
    return len(data) + _LINE_BYTES


def moment() -> str:
    """Return now as lines have it: ``2026-11-26T02:25:09.000731Z``."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
