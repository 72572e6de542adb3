"""The places of a commit's segments: the file, the first version and the first row of each."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from tailrace_server.wal.files.documents import ENTRIES, SegmentDocument
from tailrace_server.wal.files.sealed import object_name
from tailrace_server.wal.segment.carried import CarriedSegment
from tailrace_server.wal.state.batch_table import (
    BATCH_FIELDS,
    FIRST_INDEX,
    FIRST_VERSION,
    LAST_INDEX,
    LAST_VERSION,
    ROWS,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace_server.wal.segment.writer import SegmentReceipt


def carried_records(
    segments: Sequence[SegmentReceipt | CarriedSegment],
) -> tuple[bytes, list[SegmentReceipt]]:
    """Return the records that an entry is to carry, if any, and the receipts of all segments."""
    data, receipts = b"", []
    for place, segment in enumerate(segments):
        if isinstance(segment, CarriedSegment):
            assert place == 0, "an entry carries one segment, its first"
            data = segment.data
            receipts.append(segment.receipt)
        else:
            receipts.append(segment)
    return data, receipts


def place_segments(
    receipts: Sequence[SegmentReceipt], last_version: int, end_row: int, *, entry: int
) -> list[SegmentDocument]:
    """Give segments their versions and their records running numbers; one without a path is the entry's own."""
    placed: list[SegmentDocument] = []
    for receipt in receipts:
        if receipt.continues and not placed:
            raise ValueError(
                f"{receipt.path} continues a transaction, but no segment comes before it"
            )
        base = last_version if receipt.continues else last_version + 1
        columns = list(map(list, zip(*receipt.batches, strict=True)))
        for place in (FIRST_VERSION, LAST_VERSION):
            columns[place] = [base + version for version in columns[place]]
        columns.append(list(accumulate(columns[ROWS][:-1], initial=end_row)))
        placed.append(
            SegmentDocument(
                path=receipt.path or f"{ENTRIES}/{object_name(entry)}",
                rows=receipt.rows,
                bytes=receipt.bytes,
                base_version=base,
                first=(columns[FIRST_VERSION][0], columns[FIRST_INDEX][0]),
                last=(columns[LAST_VERSION][-1], columns[LAST_INDEX][-1]),
                counts=receipt.counts,
                prefix=list(receipt.prefix),
                batches=dict(zip(BATCH_FIELDS, columns, strict=True)),
            )
        )
        last_version = placed[-1].last[0]
        end_row += receipt.rows
    return placed
