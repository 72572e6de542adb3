"""Which transactions have been closed not long ago, read from the leads of the log."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa

from tailrace_server.pipeline.transactions.grouping import CLOSED_IDS
from tailrace_server.wal.segment.reader import BatchReader

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tailrace_server.pipeline.sources.source import Source
    from tailrace_server.pipeline.transactions.grouping import Plan
    from tailrace_server.wal.state.view import LogView


class _Lead(msgspec.Struct):
    """The members that are read. Other writers may write leads, so any type is accepted."""

    transaction_id: object = None
    of: object = None


_decode = msgspec.json.Decoder(_Lead).decode


class ClosedTransactions:
    """Transaction key → version, of the transactions closed last; the oldest are forgotten."""

    def __init__(self, source: Source, limit: int = CLOSED_IDS) -> None:
        """Remember up to ``limit`` transactions of a source."""
        self._source = source
        self._limit = limit
        self._versions: OrderedDict[str, int] = OrderedDict()

    @property
    def versions(self) -> Mapping[str, int]:
        """Transaction key → version, the oldest first."""
        return self._versions

    def add(self, transaction_id: str, version: int) -> None:
        """Remember one, by its id as the source writes it."""
        self._versions[self._source.transaction_key(transaction_id)] = version
        while len(self._versions) > self._limit:
            self._versions.popitem(last=False)

    def add_released(self, first_version: int | None, plan: Plan) -> None:
        """Remember the transactions that have become versions from one on; None: there are none."""
        for place, released in enumerate(plan.released):
            transaction_id = released.tally.transaction_id
            if transaction_id is not None and released.late_of is None:
                assert first_version is not None
                self.add(transaction_id, first_version + place)

    @classmethod
    def read(
        cls, path: Path, view: LogView, source: Source, limit: int = CLOSED_IDS
    ) -> ClosedTransactions:
        """Read the newest leads of a log.

        Cost is that of the heads of the versions read, and of the bodies of the batches that hold
        a lead.

        Raises:
            LogCorrupted: A batch that is needed is damaged.
        """
        closed = cls(source, limit)
        found: dict[str, int] = {}
        seen = 0
        with BatchReader(path) as reader:
            for version, lead in _leads(reader, view):
                seen += 1
                # Newest first; a late version must not stand for the transaction it belongs to.
                if isinstance(lead.transaction_id, str) and lead.of is None:
                    found.setdefault(lead.transaction_id, version)
                if seen == limit:
                    break
        for transaction_id, version in reversed(found.items()):
            closed.add(transaction_id, version)
        return closed


def _leads(reader: BatchReader, view: LogView) -> Iterator[tuple[int, _Lead]]:
    """Yield versions and their leads, newest first."""
    for place in range(len(view) - 1, -1, -1):
        ref = view.batch(place)
        head = reader.head(ref)
        rows = np.flatnonzero(head.indexes == 0)
        if not len(rows):
            continue
        bodies = reader.body(ref, ("after",))["after"].take(pa.array(rows)).to_pylist()
        for version, body in zip(head.versions[rows][::-1].tolist(), reversed(bodies), strict=True):
            yield version, _decode(body)
