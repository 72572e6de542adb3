"""The driver's state between batches: tallies of open transactions, ids of closed ones, and the idle clock.

**Idle time.** A transaction is idle while none of its rows arrives although rows could arrive. No row can
arrive while a batch runs or while files wait to be read, so the idle clock is stopped then. A transaction
whose rows are all in the waiting files is therefore never split, however long the files take to read. The
clock runs in two cases:

* Between two triggers that both found no new file, unless a batch ran between them.
* Between the starts of two batches that each took all waiting files. The rows of the later batch are tallied
  before the clock is read. Without this case, a source that writes faster than batches run would never be
  idle, and no transaction without END would be complete.

The clock begins with the process, at 0 and stopped.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from tailrace_server.pipeline.catalog.newest_positions import PositionSpan
from tailrace_server.pipeline.catalog.pending import write_pending
from tailrace_server.pipeline.input.change import batch_of
from tailrace_server.pipeline.transactions.tally import Tally
from tailrace_server.wal.committed_reads import Lead, leads_in
from tailrace_server.wal.segment.reader import BatchReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tailrace_server.pipeline.input.source import Source
    from tailrace_server.pipeline.transactions.grouping import Decision, Plan
    from tailrace_server.wal.files.documents import PendingSegment
    from tailrace_server.wal.state.view import LogView

CLOSED_IDS: Final = 100_000
"""Maximum number of closed transactions in memory. A late row of a transaction closed earlier begins a new
transaction."""


TALLY_SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("transaction_id", pa.string()),
        pa.field("place", pa.binary()),
        pa.field("first_arrival", pa.binary()),
        pa.field("last_arrival", pa.binary()),
        pa.field("first_rows", pa.map_(pa.string(), pa.binary())),
        pa.field("mark", pa.binary()),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("quarantined", pa.int64(), nullable=False),
        pa.field("expected", pa.int64()),
        pa.field("timestamp", pa.int64()),
        pa.field("source", pa.string()),
        pa.field(
            "spans",
            pa.list_(
                pa.struct(
                    [
                        pa.field("entity_type", pa.string()),
                        pa.field("log", pa.string()),
                        pa.field("lowest", pa.binary()),
                        pa.field("highest", pa.binary()),
                        pa.field("earliest", pa.int64()),
                        pa.field("latest", pa.int64()),
                        pa.field("marks", pa.int64()),
                    ]
                )
            ),
        ),
        pa.field("segments", pa.list_(pa.string()), nullable=False),
    ]
)
"""The stored fields of `Tally`: all except ``seen``, as idle time begins anew with each process."""
assert {field.name for field in fields(Tally)} == {*TALLY_SCHEMA.names, "seen"}


def tallies_table(tallies: Iterable[Tally]) -> pa.RecordBatch:
    """Return open transactions as a table of `TALLY_SCHEMA`."""
    stated = (replace(t, spans=tuple(span._asdict() for span in t.spans)) for t in tallies)  # type: ignore[misc]
    return batch_of(map(attrgetter(*TALLY_SCHEMA.names), stated), TALLY_SCHEMA)


_ROWS_AT_ONCE: Final = 4_096


def tallies_from(table: pa.Table | pa.RecordBatch, seen: float) -> dict[str, Tally]:
    """Return the transactions of a table of tallies, by key; ``seen`` is a time of the idle clock."""
    # Equal values become one object: there may be hundred thousands of tallies, and few names in them.
    names: dict[str | None, str | None] = {}

    def name(text: str | None) -> str | None:
        return names.setdefault(text, text)

    tallies = {}
    # Some rows at a time: the values that Arrow returns take more memory than the tallies.
    parts = (table.slice(start, _ROWS_AT_ONCE) for start in range(0, len(table), _ROWS_AT_ONCE))
    for row in (row for part in parts for row in part.to_pylist()):
        row["segments"] = tuple(row["segments"])
        row["source"] = name(row["source"])
        first = row["first_arrival"]
        if row["last_arrival"] == first:
            row["last_arrival"] = first
        # A file of an earlier release knows the first row only by file, not by entity type.
        first_rows = row.get("first_rows", [("", first)] if first is not None else [])
        row["first_rows"] = tuple(
            (name(entity_type), first if arrived == first else arrived)
            for entity_type, arrived in first_rows
        )
        row["spans"] = tuple(
            _span(name, row["place"], row["timestamp"], **each) for each in row.get("spans") or ()
        )
        tallies[row["key"]] = Tally(**row, seen=seen)
    return tallies


def _span(
    name: Callable[[str | None], str | None],
    place: bytes | None,
    timestamp: int | None,
    *,
    entity_type: str,
    log: str,
    lowest: bytes,
    highest: bytes,
    earliest: int | None,
    latest: int | None,
    marks: int,
) -> PositionSpan:
    """Return a span whose equal values are one object; ``place`` and ``timestamp`` are those of the tally."""
    lowest = place if lowest == place else lowest
    latest = timestamp if latest == timestamp else latest
    return PositionSpan(
        name(entity_type) or "",
        name(log) or "",
        lowest,
        lowest if highest == lowest else highest,
        latest if earliest == latest else earliest,
        latest,
        marks,
    )


class OpenFiles(NamedTuple):
    """Open transactions, and the pending files that hold them."""

    tallies: dict[str, Tally]
    """Transaction key → tally."""
    rows_files: dict[str, PendingSegment]
    """Path → file with pending rows."""
    tallies_file: PendingSegment | None


def pending_after(
    decision: Decision, before: OpenFiles, added: Sequence[PendingSegment], path: Path
) -> OpenFiles:
    """Return the open transactions after a commit, and the files that hold them.

    Args:
        decision: The decision of the commit, with the transactions that stay open.
        before: The open transactions before the commit, with their files.
        added: Rows files that the commit adds.
        path: Path of a new tallies file; written only if a tally has changed.
    """
    # 1. The rows of this batch are in the files that it adds. Tasks do not report which file holds the rows of
    #    which transaction, so each tally names all added files.
    paths = tuple(file.path for file in added)
    left_open = {
        key: replace(t, segments=t.segments + paths) if key in decision.arrived else t
        for key, t in decision.plan.open.items()
    }
    # 2. Keep a rows file as long as an open transaction names it.
    named = {path for t in left_open.values() for path in t.segments}
    rows_files = before.rows_files | {file.path: file for file in added}
    rows_files = {path: file for path, file in rows_files.items() if path in named}
    # 3. Write the tallies only if one has changed.
    if not left_open:
        return OpenFiles(left_open, rows_files, None)
    if left_open == before.tallies and before.tallies_file is not None:
        return OpenFiles(left_open, rows_files, before.tallies_file)
    return OpenFiles(left_open, rows_files, write_pending(path, tallies_table(left_open.values())))


def is_tallies(table: pa.Table) -> bool:
    """Return True if a pending file holds tallies, not rows or counts."""
    return "segments" in table.schema.names


class ClosedTransactions:
    """A bounded map from transaction key to version, for the transactions that were closed last."""

    def __init__(self, source: Source, limit: int = CLOSED_IDS) -> None:
        """Make an empty map of at most ``limit`` transactions of a source."""
        self._source = source
        self._limit = limit
        self._versions: OrderedDict[str, int] = OrderedDict()

    @property
    def versions(self) -> Mapping[str, int]:
        """Transaction key → version, in the order of closing."""
        return self._versions

    def add(self, transaction_id: str, version: int) -> None:
        """Add a transaction, given its id as the source writes it; drop the oldest above the limit."""
        self._versions[self._source.transaction_key(transaction_id)] = version
        while len(self._versions) > self._limit:
            self._versions.popitem(last=False)

    def add_released(self, first_version: int | None, plan: Plan) -> None:
        """Add the released transactions of a plan.

        Args:
            first_version: The version of the first released transaction; None if there is none.
            plan: The plan that was committed.
        """
        for place, released in enumerate(plan.released):
            transaction_id = released.tally.transaction_id
            if transaction_id is not None and released.late_of is None:
                assert first_version is not None
                self.add(transaction_id, first_version + place)

    @classmethod
    def read(
        cls, path: Path, view: LogView, source: Source, limit: int = CLOSED_IDS
    ) -> ClosedTransactions:
        """Read the closed transactions from the newest ``limit`` leads of a log.

        This reads the head of each batch, and the ``after`` column of each batch that has a lead.

        Raises:
            LogCorrupted: A batch that is needed is damaged.
        """
        closed = cls(source, limit)
        found: dict[str, int] = {}
        seen = 0
        with BatchReader(path) as reader:
            for version, lead in _leads(reader, view):
                seen += 1
                # Leads come newest first, and a transaction's own version counts, not that of its late rows.
                if isinstance(lead.transaction_id, str) and lead.of is None:
                    found.setdefault(lead.transaction_id, version)
                if seen == limit:
                    break
        # Oldest first, so that a later `add` drops the oldest transaction.
        for transaction_id, version in reversed(found.items()):
            closed.add(transaction_id, version)
        return closed


def _leads(reader: BatchReader, view: LogView) -> Iterator[tuple[int, Lead]]:
    """Yield versions and their leads, newest first."""
    for place in range(len(view) - 1, -1, -1):
        yield from reversed(leads_in(reader, view.batch(place)))


class IdleClock:
    """A clock of the seconds in which the source was idle. Not thread-safe: the driver's lock guards it."""

    def __init__(self) -> None:
        """Begin at 0, stopped."""
        self._now = 0.0
        self._idle_since: float | None = None
        """The last time at which the source had no new file; None if a batch has begun since."""
        self._all_read_at: float | None = None
        """The last time at which all input was read or in the running batch; None if files may wait."""

    @property
    def now(self) -> float:
        """The idle seconds since the process began; never decreases."""
        return self._now

    def source_idle(self, at: float) -> None:
        """Record that the source had no new file at a time of the monotonic clock."""
        # The time since the last call was idle only if no batch began in between, which resets `_idle_since`.
        if self._idle_since is not None:
            self._now += max(at - self._idle_since, 0.0)
        self._idle_since = self._all_read_at = at

    def batch_began(self, at: float, *, whole: bool) -> None:
        """Record that a batch begins. Call this before the rows of the batch are tallied.

        Args:
            at: Time at which the files of the batch were listed, or soon after, by the monotonic clock.
            whole: True if the batch has all files that the source had then.
        """
        # This batch and the one before took everything, so a row that is in neither did not come in between.
        if whole and self._all_read_at is not None:
            self._now += max(at - self._all_read_at, 0.0)
        self._all_read_at = at if whole else None
        self._idle_since = None
