"""Transactions of a batch and their leads. The records that come of it: `test_sink`."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest

from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.dataframe.transactions import Transactions
from tailrace_server.wal.record.columns import lead_text


def transactions(*rows: tuple[str | None, int, str | None]) -> Transactions:
    """Return the transactions of rows, as (id, operation, entity type)."""
    ids, operations, types = zip(*rows, strict=True)
    return Transactions(
        pa.table(
            {
                "transaction_id": pa.array(ids, pa.string()),
                "operation": pa.array(operations, pa.int64()),
                "entity_type": pa.array(types, pa.string()),
            }
        )
    )


def test_rows_without_id_stand_alone_and_given_leads_have_index_0() -> None:
    found = transactions(
        ("a", 3, None), ("a", 1, "t"), (None, 1, "t"), (None, 2, "u"), ("b", 1, "t"), ("b", 1, "t")
    )
    assert found.starts.tolist() == [0, 2, 3, 4]
    assert found.of_row.tolist() == [0, 0, 1, 2, 3, 3]
    assert found.has_lead.tolist() == [True, False, False, False]
    assert found.index.tolist() == [0, 1, 1, 1, 1, 2]
    with pytest.raises(InvalidRequest, match="first of its transaction"):
        transactions(("a", 1, "t"), ("a", 3, None))


@pytest.mark.parametrize("types", [2, 40])
def test_leads_are_byte_for_byte_what_the_log_writes_for_few_types_and_for_many(types: int) -> None:
    rows = [('quo"te', 1, f"t{n:02}") for n in reversed(range(types))] + [(None, 1, "t01")] * 2
    leads = transactions(*rows).lead_texts().to_pylist()
    counts = Counter({f"t{n:02}": 1 for n in range(types)})
    one = Counter({"t01": 1})
    assert leads == [
        lead_text(transaction_id='quo"te', counts=counts, source_count=types),
        lead_text(transaction_id=None, counts=one, source_count=1),
        lead_text(transaction_id=None, counts=one, source_count=1),
    ]
