"""Transactions that PostgreSQL streams in pieces before they are committed.

The messages of each are retained until its commit: some in memory, more in a temporary file without a name. A
commit returns them in the form of a transaction that was not streamed. In the file, each message follows its
length and the id of its (sub)transaction, u32 each.

Descriptions of tables are returned even if their subtransaction is aborted: the server sends each only once.
"""

from __future__ import annotations

from struct import Struct
from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING, Final

from tailrace_server.pipeline.feed.postgres.pgoutput import (
    Committed,
    StreamAbort,
    StreamStart,
    StreamStop,
    begin_message,
    commit_message,
    decoded,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_IN_MEMORY: Final = 4 << 20
"""Maximum size of a transaction's messages in memory, in bytes."""
_HEAD: Final = Struct(">II")
_STREAMS: Final = b"SEAc"
_RELATION: Final = b"R"


class Held:
    """The messages of one transaction so far."""

    def __init__(self, folder: Path) -> None:
        """Begin without messages; a file is made in ``folder`` once they are large."""
        self._file = SpooledTemporaryFile(_IN_MEMORY, dir=str(folder))  # noqa: SIM115 - `close`
        self._aborted: set[int] = set()
        self.committed: Committed | None = None
        """The message that has committed it."""
        self.bytes = 0
        """Size of the messages."""

    @property
    def end_lsn(self) -> int:
        """Position behind the committed transaction."""
        assert self.committed is not None
        return self.committed.end_lsn

    def add(self, data: bytes) -> None:
        """Add a message of the stream, which has the id of its (sub)transaction."""
        self.bytes += len(data)
        self._file.write(_HEAD.pack(len(data) - 4, int.from_bytes(data[1:5], "big")))
        self._file.write(data[:1])
        self._file.write(data[5:])

    def abort(self, subtransaction: int) -> None:
        """Leave out the messages of a subtransaction."""
        self._aborted.add(subtransaction)

    def messages(self) -> Iterator[bytes]:
        """Yield the messages of the transaction, from its begin to its commit."""
        committed = self.committed
        assert committed is not None
        assert committed.xid is not None
        yield begin_message(committed.end_lsn, committed.timestamp, committed.xid)
        self._file.seek(0)
        while head := self._file.read(_HEAD.size):
            size, xid = _HEAD.unpack(head)
            data = self._file.read(size)
            if xid not in self._aborted or data[:1] == _RELATION:
                yield data
        yield self.commit_message()

    def commit_message(self) -> bytes:
        """Return the last of the messages."""
        assert self.committed is not None
        return commit_message(self.committed.end_lsn, self.committed.timestamp)

    def close(self) -> None:
        """Drop the messages."""
        self._file.close()


class StreamedTransactions:
    """The streamed transactions of one connection that are not committed yet."""

    def __init__(self, folder: Path) -> None:
        """Begin outside a stream.

        Args:
            folder: Folder for temporary files.
        """
        self._folder = folder
        self._held: dict[int, Held] = {}
        self._current: Held | None = None

    def takes(self, data: bytes) -> bool:
        """Return True if a message belongs to a stream."""
        return self._current is not None or data[0] in _STREAMS

    def add(self, data: bytes) -> Held | None:
        """Take a message; return the transaction that it commits, if it commits one. The caller closes it."""
        if self._current is not None and data[0] not in _STREAMS:
            self._current.add(data)
            return None
        match decoded(data):
            case StreamStart(xid):
                if xid not in self._held:
                    self._held[xid] = Held(self._folder)
                self._current = self._held[xid]
            case StreamStop():
                self._current = None
            case StreamAbort(xid, subtransaction):
                if xid == subtransaction:
                    if (held := self._held.pop(xid, None)) is not None:
                        held.close()
                elif xid in self._held:
                    self._held[xid].abort(subtransaction)
            case Committed() as committed:
                assert committed.xid is not None
                held = self._held.pop(committed.xid, None) or Held(self._folder)
                held.committed = committed
                return held
        return None

    def close(self) -> None:
        """Drop all messages."""
        for each in self._held.values():
            each.close()
        self._held.clear()
