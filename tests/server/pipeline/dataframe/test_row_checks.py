"""What rows of a DataFrame must be: the parts that are done for whole columns at once."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.dataframe.input_rows import columns_named


@given(
    st.integers(1, 80).flatmap(
        lambda names: st.lists(
            st.none() | st.lists(st.integers(0, names - 1).map(str), max_size=12), max_size=12
        )
    )
)
def test_a_name_that_a_row_has_twice_is_found_however_many_there_are(
    changed: list[list[str] | None],
) -> None:
    wide = [[str(number) for number in range(len(changed) * 7)]]  # more names than bits
    for rows in (changed, wide + changed):
        texts = pa.array([None] * len(rows), pa.string())
        names = ("transaction_id", "entity_type", "primary_key")
        table = pa.table(dict.fromkeys(names, texts))
        array = pa.array(rows, pa.list_(pa.string()))
        if any(len(set(each)) < len(each) for each in rows if each):
            with pytest.raises(InvalidRequest, match="has a column twice"):
                columns_named(table, array)
        else:
            found = columns_named(table, array)
            assert [found.names[code] for code in found.codes] == [
                name for each in rows for name in each or ()
            ]
