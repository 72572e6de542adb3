"""The pieces (`spark.pieces`) that the tasks of a large batch exchange: kinds, schemas, plans, shares."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from enum import IntEnum, auto
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa

from tailrace_server.pipeline.catalog.newest_positions import PositionSpan
from tailrace_server.pipeline.input.change import ROWS
from tailrace_server.pipeline.transactions.grouping import Released
from tailrace_server.pipeline.transactions.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tailrace_server.pipeline.input.change import Change

_ROWS_PER_TASK: Final = 20_000


class PieceKind(IntEnum):
    """The kind of a piece."""

    ROWS = auto()
    """Changes of rows: of `ROWS`, or of `PLACED` once they have versions."""
    QUARANTINED = auto()
    """QUARANTINED changes, of `CHANGE_SCHEMA`."""
    TALLIES = auto()
    """Tallies, of `driver_state.TALLY_SCHEMA`."""
    DECODED = auto()
    """A pickled `DecodedSummary`."""
    PENDING_FILE = auto()
    """A pickled pair: a file of earlier batches, and the keys of the transactions whose rows are wanted."""
    PLANS = auto()
    """The plans of a share, in version order, as `encode_plans` encodes them."""
    WRITTEN = auto()
    """A pickled TaskSegment, PendingSegment, or path of a part of the quarantine."""


PLACED: Final = ROWS.append(pa.field("version", pa.int64(), nullable=False))
"""The schema of rows with their versions, relative to the commit; -1 for rows that stay open."""

_LEAD_FIELDS: Final = (
    "key",
    "transaction_id",
    "rows",
    "quarantined",
    "expected",
    "timestamp",
    "source",
    "mark",
    "spans",
)
"""The fields of a tally that go into the transaction's lead record."""
_lead_values = attrgetter(*_LEAD_FIELDS)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def encode_plans(plans: Iterable[Released]) -> bytes:
    """Return plans as bytes: for each transaction, what a task needs to write the lead record."""
    return _encode([(each.late_of, *_lead_values(each.tally)) for each in plans])


def decode_plans(text: bytes) -> list[Released]:
    """Return the transactions of `encode_plans`; their tallies have only the fields of the lead record."""
    plans = []
    for late_of, *values, spans in _decode(text):
        values.append(tuple(PositionSpan(*span) for span in spans))
        plans.append(Released(Tally(**dict(zip(_LEAD_FIELDS, values, strict=True))), late_of))
    return plans


def rows_batch(changes: Sequence[Change]) -> pa.RecordBatch:
    """Return CHANGE changes, at least one, as one record batch of `ROWS`."""
    columns = list(zip(*changes, strict=True))[: len(ROWS)]
    arrays = [pa.array(column, f.type) for column, f in zip(columns, ROWS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ROWS)


@dataclass(frozen=True)
class Layout:
    """The assignment of versions to tasks.

    Task i writes the versions from ``starts[i]``, inclusive, to ``starts[i + 1]``, exclusive. Versions are
    relative to the commit.
    """

    starts: tuple[int, ...]
    versions: int

    @classmethod
    def of(cls, rows: Sequence[int], cores: int) -> Layout:
        """Divide transactions among tasks, in order; each task gets about the same number of rows.

        Args:
            rows: Number of rows of each transaction, in version order.
            cores: Number of tasks that can run at once.
        """
        # Each transaction also has one lead record.
        total = sum(rows) + len(rows)
        tasks = min(max(1, total // _ROWS_PER_TASK), 2 * cores)
        starts = [0]
        done = 0
        for version, count in enumerate(rows):
            # The next task begins at the first version beyond its fair part of the rows. So a huge transaction
            # may leave later tasks without versions, but no transaction is divided.
            if done >= total * len(starts) / tasks:
                starts.append(version)
            done += count + 1
        return cls(tuple(starts), len(rows))

    @property
    def tasks(self) -> int:
        """The number of tasks that write versions; tasks with higher numbers write the rows that stay open."""
        return len(self.starts)

    def task(self, version: int) -> int:
        """Return the number of the task that writes a version."""
        return bisect_right(self.starts, version) - 1

    def range_of(self, task: int) -> tuple[int, int]:
        """Return the first version of a task, and the first one after it."""
        return self.starts[task], (*self.starts, self.versions)[task + 1]
