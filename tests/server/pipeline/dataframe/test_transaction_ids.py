"""Transactions that come back, against a set of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.dataframe import transactions
from tailrace_server.pipeline.dataframe.sink import RecordSink
from tailrace_server.pipeline.dataframe.transactions import SeenTransactions, refuse_split
from tailrace_server.wal.segment.writer import SegmentWriter
from tests.server.pipeline.dataframe.test_sink import INPUT, row
from tests.server.wal.logs import segment_path

if TYPE_CHECKING:
    from pathlib import Path

IDS = st.lists(st.lists(st.none() | st.text(max_size=20), max_size=6), max_size=12)


@given(IDS)
def test_an_id_that_comes_back_is_refused_whatever_lies_between(
    batches: list[list[str | None]],
) -> None:
    seen, model = SeenTransactions(), set[str]()
    for batch in batches:
        ids = [id for id in batch if id is not None]
        again = {id for id in ids if id in model or ids.count(id) > 1}
        if again:
            with pytest.raises(
                InvalidRequest, match="continues after other transactions"
            ) as refused:
                seen.add(pa.array(batch, pa.string()))
            assert any(f"transaction {id!r} continues" in str(refused.value) for id in again)
            return
        seen.add(pa.array(batch, pa.string()))
        model.update(ids)
    hashes = seen.hashes()
    assert len(hashes) == len(model)
    assert (hashes[1:] > hashes[:-1]).all()


def partition(
    folder: Path, name: str, *ids: str
) -> tuple[np.ndarray[tuple[int], np.dtype[np.uint64]], list[Path]]:
    path = segment_path(folder, f"{name}.arrow")
    with SegmentWriter(path, fsync=False) as segment:
        writing = RecordSink(segment, {})
        writing.write(pa.RecordBatch.from_pylist([row(id) for id in ids], schema=INPUT))
        result = writing.finish()
    assert result is not None
    return result.transactions, [path]


@pytest.mark.parametrize(
    "partitions", [["A", "B", "A"], ["AX", "BA"], ["AB", "BC"]], ids=lambda each: "-".join(each)
)
def test_a_transaction_in_two_partitions_is_named(tmp_path: Path, partitions: list[str]) -> None:
    parts = [partition(tmp_path, str(n), *ids) for n, ids in enumerate(partitions)]
    with pytest.raises(InvalidRequest, match=r"transaction '[AB]' is in two .*repartitionByRange"):
        refuse_split(parts)
    refuse_split(parts[:1])
    refuse_split([])


def test_ids_that_share_a_hash_are_told_apart_by_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [partition(tmp_path, name, name) for name in ("A", "B")]
    monkeypatch.setattr(transactions, "key_hash", lambda seed, id: 7)
    refuse_split([(np.array([7], np.uint64), path) for _, path in parts])
