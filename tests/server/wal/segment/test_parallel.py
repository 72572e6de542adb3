"""Batches that several threads read: the same, in the same order, and not many ahead."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING, cast

import pytest

from tailrace.errors import LogCorrupted
from tailrace_server.wal.catalog import open_catalog
from tailrace_server.wal.segment import parallel
from tailrace_server.wal.segment.parallel import read_batches
from tailrace_server.wal.segment.reader import BatchReader
from tests.server.wal.logs import write

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from tailrace_server.wal.segment.reader import BatchHead
    from tailrace_server.wal.segment.refs import BatchRef


class Noting:
    """A reader that notes which heads it was asked for, and finds one damaged."""

    def __init__(self, reader: BatchReader, damaged: BatchRef | None = None) -> None:
        self._reader, self._damaged = reader, damaged
        self._lock = threading.Lock()
        self.asked: list[BatchRef] = []
        self.body = reader.body

    def head(self, ref: BatchRef) -> BatchHead:
        with self._lock:
            self.asked.append(ref)
        if ref == self._damaged:
            raise LogCorrupted("there", 0, "damaged")
        return self._reader.head(ref)


def test_batches_come_in_their_order_whoever_reads_them(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(log_root, "shop", 20)
    log = open_catalog(log_root, "shop")
    refs = [log.view.batch(place) for place in range(len(log.view))]

    with BatchReader(log.path) as reader:

        def read(
            threads: int, given: BatchReader = reader
        ) -> list[tuple[BatchRef, list[int], pa.BinaryArray]]:
            found = read_batches(given, refs[::-1], ("after",), lambda _: [0], threads)
            return [
                (ref, head.versions.tolist(), (bodies or reader.body(ref, ("after",)))["after"])
                for ref, head, bodies in found
            ]

        assert read(1) == read(4) == read(16) == read(256)
        assert [ref for ref, _, _ in read(4)] == refs[::-1]
        for bytes_max, most in ((1 << 30, 4), (0, 1)):
            monkeypatch.setattr(parallel, "_AHEAD_BYTES", bytes_max)
            noting = Noting(reader)
            given = cast("BatchReader", noting)
            with closing(read_batches(given, refs, (), lambda _: [], 4)) as found:
                assert next(found).bodies is None
                assert len(noting.asked) <= most
        # A fault is told where its batch is due, and not to who stops before it.
        given = cast("BatchReader", Noting(reader, refs[-1]))
        found = read_batches(given, refs, (), lambda _: [], 16)
        assert [next(found).ref for _ in refs[:-1]] == refs[:-1]
        with pytest.raises(LogCorrupted, match="damaged"):
            next(found)
    assert not [each for each in threading.enumerate() if each.name.startswith("scan")]
