"""Materialize CDCv2: change streams that survive duplication, reordering and re-batching. No I/O.

::

    reader = Reader()
    for message in messages:                       # in any order, repeated or re-batched
        for updates, frontier in reader.receive(message):
            ...                                    # each update once; times before the frontier are final

    writer = Writer()
    writer.write([Update(("apple", 3), 1, 1)])
    messages = writer.advance((2,))                # batches of updates, then one progress statement

The protocol is in `tailrace.cdcv2.statements`, its Avro form in the server's ``cdcv2`` package.
"""

from __future__ import annotations

from tailrace.cdcv2.errors import (
    CdcError,
    Conflict,
    CountExceeded,
    CountsDisagree,
    DiffsDisagree,
    InvalidStatement,
    InvalidWrite,
    StateUnreadable,
)
from tailrace.cdcv2.lattice import INTEGERS, Lattice, antichain, product
from tailrace.cdcv2.reader import Reader, read
from tailrace.cdcv2.statements import (
    Finished,
    Progress,
    ReaderStatistics,
    Statement,
    Update,
    Waiting,
)
from tailrace.cdcv2.writer import Writer

__all__ = [
    "INTEGERS",
    "CdcError",
    "Conflict",
    "CountExceeded",
    "CountsDisagree",
    "DiffsDisagree",
    "Finished",
    "InvalidStatement",
    "InvalidWrite",
    "Lattice",
    "Progress",
    "Reader",
    "ReaderStatistics",
    "StateUnreadable",
    "Statement",
    "Update",
    "Waiting",
    "Writer",
    "antichain",
    "product",
    "read",
]
