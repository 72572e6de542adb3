"""A part of a read. A plan has the parts (plan.py), and the open log makes and reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace_server.wal.base.winners import HASHES_END

if TYPE_CHECKING:
    from uuid import UUID

    from tailrace_server.log_read.bounds import RecordRange
    from tailrace_server.log_read.request import ReadRequest


@dataclass(frozen=True, slots=True)
class ReadPart:
    """A part of a read that is read alone, with bounded memory. It can be pickled."""

    request: ReadRequest
    uuid: UUID
    """The log's uuid: a part of another log is refused."""
    version: int
    """The version whose schema gives the columns, and of the state."""
    span: RecordRange
    """The records of the part; for a state, those up to its version."""
    hashes: tuple[int, int] = (0, HASHES_END)
    """The first and the end (exclusive) of the range of key hashes."""
