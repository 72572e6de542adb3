"""The key hash: the vectorised form is the scalar one, and both are what the page says."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.wal.record.keys import key_hash, key_hashes, type_seed

TYPES = ["", "order", "a type with a name that is longer than two words", "заказ"]


def test_the_hash_is_that_of_the_page() -> None:
    """docs/wal-format.md quotes these."""
    seed = type_seed("order")
    assert f"{seed:016x}" == "8e17f39395c821fd"
    assert f"{key_hash(seed, '17'):016x}" == "4dde438747fadd02"
    assert f"{key_hash(seed, '[17,longer-key]'):016x}" == "f151b5d0f4ffa191"


@given(
    rows=st.lists(st.tuples(st.sampled_from(TYPES), st.none() | st.text(max_size=40))),
    start=st.integers(0, 5),
)
def test_many_at_once_are_the_same_as_one_by_one(
    rows: list[tuple[str, str | None]], start: int
) -> None:
    seeds = np.array([type_seed(name) for name, _ in rows], np.uint64)[start:]
    keys = pa.array([key for _, key in rows], pa.utf8())[start:]
    expected = [0 if key is None else key_hash(type_seed(name), key) for name, key in rows[start:]]
    assert key_hashes(seeds, keys).tolist() == expected


def test_no_key_hashes_to_zero_and_null_does() -> None:
    assert key_hashes(np.zeros(2, np.uint64), pa.array(["", None])).tolist() == [1, 0]
    assert key_hash(0, "") == 1
