"""The difference between a snapshot of a table and the table's newest state in the log.

The first snapshot of a table inserts all rows. After a kill, or if the source has lost its position, a later
snapshot changes only what differs, so subscribers get no change of rows that are the same.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tailrace.criteria import Operation
from tailrace_server.wal.base.reading import last_known
from tailrace_server.wal.committed_reads import read_committed
from tailrace_server.wal.record.mutation import Mutation

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from tailrace_server.pipeline.feed.source import SnapshotRows
    from tailrace_server.wal.catalog_writer import CatalogWriter
    from tailrace_server.wal.segment.reader import BatchReader
    from tailrace_server.wal.state.view import LogView
    from tailrace_server.wal.transaction_writer import TransactionWriter

_REMOVED_AT_ONCE: Final = 10_000
"""Maximum number of removals in a version."""


class SnapshotDifference:
    """Compares snapshots with the log of one catalog. Memory: the keys of a table that the log has already."""

    def __init__(self, writer: CatalogWriter, log: TransactionWriter) -> None:
        """Begin without a table.

        Args:
            writer: The catalog's writer, for reads.
            log: The writer of transactions, with ``images="full"``.
        """
        self._writer = writer
        self._log = log
        self._seen: dict[str, set[str] | None] = {}
        """Entity type of a begun snapshot → its keys so far; None if the log had no such entity type."""

    def of(self, given: SnapshotRows) -> list[Mutation] | pa.RecordBatch:
        """Return the changes that some rows of a snapshot need; as columns if the log has no such table.

        Raises:
            LogCorrupted: A part of the log that is read is damaged.
        """
        name, rows = given.entity_type, given.rows
        if given.columns is not None:
            self._seen.pop(name, None)  # of a snapshot that was given up
        if name not in self._seen:
            state = self._writer.state
            known = self._writer.log.committed_view().schema_of(state.last_version).entity_types
            self._seen[name] = set() if name in known else None
        seen = self._seen[name]
        if isinstance(rows, pa.RecordBatch):
            if seen is None:
                types = pa.repeat(pa.scalar(name), len(rows)).dictionary_encode()
                return rows.add_column(0, "entity_type", types)
            images = rows["after"].cast(pa.binary()).to_pylist()
            rows = dict(zip(rows["primary_key"].to_pylist(), images, strict=True))
        if seen is None:
            self._log.expect_new(name, rows)
            return [Mutation(name, key, after=image) for key, image in rows.items()]
        seen.update(rows)
        newest = self._log.newest_images(name, rows)
        return [
            Mutation(name, key, after=image)
            for key, image in rows.items()
            if newest.get(key) != image
        ]

    def removals(
        self, entity_type: str, stays: Callable[[Sequence[str]], Collection[str]] | None = None
    ) -> Iterator[list[Mutation]]:
        """Yield the removals of the rows that a complete snapshot lacks, in versions of bounded size.

        Rows of the snapshot need not be committed; changes of the source that came before it must be.

        Args:
            entity_type: Name of the entity type.
            stays: As in `SnapshotEnd`.

        Raises:
            LogCorrupted: A part of the log that is read is damaged.
        """
        seen = self._seen.pop(entity_type, set())
        if seen is None:
            return
        gone = read_committed(self._writer, None, entity_type, partial(_missing, seen), list[str]())
        for start in range(0, len(gone), _REMOVED_AT_ONCE):
            keys = gone[start : start + _REMOVED_AT_ONCE]
            left = () if stays is None else stays(keys)
            yield [Mutation(entity_type, key, Operation.REMOVE) for key in keys if key not in left]


def _missing(seen: set[str], view: LogView, reader: BatchReader, name: str) -> list[str]:
    return [
        key
        for part in last_known(view, reader, name).parts()
        for key in part.primary_keys.to_pylist()
        if key not in seen
    ]
