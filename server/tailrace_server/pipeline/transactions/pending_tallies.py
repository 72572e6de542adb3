"""Tallies of open transactions as the tables that pending files hold (`pending`)."""

from __future__ import annotations

from dataclasses import fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from tailrace_server.pipeline.ordering.newest_positions import PositionSpan
from tailrace_server.pipeline.pending import write_pending
from tailrace_server.pipeline.row_batches import batch_of
from tailrace_server.pipeline.transactions.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from tailrace_server.pipeline.transactions.grouping import Decision
    from tailrace_server.wal.files.documents import PendingSegment

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
"""The fields of `Tally` but ``seen``: the idle time begins anew with the process that reads them."""


def tallies_table(tallies: Iterable[Tally]) -> pa.RecordBatch:
    """Return open transactions as a table of `TALLY_SCHEMA`."""
    stated = (replace(t, spans=tuple(span._asdict() for span in t.spans)) for t in tallies)  # type: ignore[misc]
    return batch_of(map(attrgetter(*TALLY_SCHEMA.names), stated), TALLY_SCHEMA)


def tallies_from(table: pa.Table, seen: float) -> dict[str, Tally]:
    """Return the open transactions of a tallies file, as seen at a time of this process's clock."""
    tallies = {}
    for row in table.to_pylist():
        row["segments"] = tuple(row["segments"])
        if (
            "first_rows" not in row
        ):  # a file of an earlier release: the rows stand in their file alone
            first = row["first_arrival"]
            row["first_rows"] = [("", first)] if first is not None else []
        row["first_rows"] = tuple(row["first_rows"])
        row["spans"] = tuple(PositionSpan(**span) for span in row.get("spans") or ())
        tallies[row["key"]] = Tally(**row, seen=seen)
    return tallies


class OpenFiles(NamedTuple):
    """Open transactions, and the pending files that hold them."""

    tallies: dict[str, Tally]
    rows_files: dict[str, PendingSegment]
    """By their paths."""
    tallies_file: PendingSegment | None


def pending_after(
    decision: Decision, before: OpenFiles, added: Sequence[PendingSegment], path: Path
) -> OpenFiles:
    """Return what is open after a commit, and the files that hold it.

    Args:
        decision: What the commit leaves open.
        before: What was open.
        added: Rows files that the commit adds.
        path: A new tallies file, written if tallies have changed.
    """
    # 1. A transaction that got rows is also in the files that the batch adds. If tasks wrote them, it is not
    #    known which of them holds its rows, so the tally names all.
    paths = tuple(file.path for file in added)
    left_open = {
        key: replace(t, segments=t.segments + paths) if key in decision.arrived else t
        for key, t in decision.plan.open.items()
    }
    # 2. A rows file stays as long as an open transaction names it.
    named = {path for t in left_open.values() for path in t.segments}
    rows_files = before.rows_files | {file.path: file for file in added}
    rows_files = {path: file for path, file in rows_files.items() if path in named}
    # 3. The tallies are written anew only where they changed.
    if not left_open:
        return OpenFiles(left_open, rows_files, None)
    if left_open == before.tallies and before.tallies_file is not None:
        return OpenFiles(left_open, rows_files, before.tallies_file)
    return OpenFiles(left_open, rows_files, write_pending(path, tallies_table(left_open.values())))


def is_tallies(table: pa.Table) -> bool:
    """Whether a pending file holds tallies; else it holds rows."""
    return "segments" in table.schema.names


assert {field.name for field in fields(Tally)} == {*TALLY_SCHEMA.names, "seen"}
