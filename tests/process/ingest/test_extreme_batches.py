"""Large batches of extreme shapes: the log is that of a driver alone, and the driver gets no row of them.

`bench/debezium_against_parquet.py` measures time and memory of the same shapes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from bench.debezium_against_parquet import SHAPES, SOURCE, write_files
from tailrace_server.pipeline.transactions import large_batch
from tailrace_server.pipeline.transactions.pieces import PieceKind
from tests.process.ingest.reading import records
from tests.process.ingest.test_ingest import quarantine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.process.ingest.conftest import Source

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("shape", SHAPES)
def test_the_driver_gets_tallies_and_receipts_and_no_row_of_a_large_batch(
    make_source: Callable[[str], Source], monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    received: list[tuple[int, int]] = []
    collected = large_batch._collected

    def noted(pieces: Any) -> Iterator[tuple[int, Any]]:
        for kind, piece in collected(pieces):
            received.append((kind, len(piece)))
            yield kind, piece

    monkeypatch.setattr(large_batch, "_collected", noted)
    monkeypatch.setattr("tailrace_server.pipeline.transactions.pieces._ROWS_PER_TASK", 100)
    large, small = make_source("large"), make_source("small")
    for source in (large, small):
        source.input.rmdir()
        write_files(source.input, shape, 4_000 if shape == "wide" else 600)
    counters = large.ingest(source=SOURCE, small_batch_rows=0).counters
    assert {kind for kind, _ in received} <= {
        *(PieceKind.TALLIES, PieceKind.DECODED, PieceKind.WRITTEN)
    }
    # Fixed costs are those of a few tasks: schemas of tables, receipts.
    tallied = sum(size for kind, size in received if kind == PieceKind.TALLIES)
    assert tallied <= 512 * counters.versions + 40_000
    assert sum(size for kind, size in received if kind == PieceKind.DECODED) <= 300_000
    written = small.ingest(source=SOURCE).counters
    assert (counters.versions, counters.rows) == (written.versions, written.rows)
    assert counters.set_aside == written.set_aside
    assert records(large.catalog) == records(small.catalog)
    assert quarantine(large) == quarantine(small)
