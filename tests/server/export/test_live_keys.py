"""The set of live keys, against a set of Python."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.export import diffs
from tailrace_server.export.diffs import LiveKeys

HASHES = st.integers(0, 9) | st.integers(2**64 - 9, 2**64 - 1)


@given(
    st.lists(st.none() | st.tuples(HASHES, st.booleans()), max_size=60),
    st.sampled_from([1, 2, 7, 100_000]),
)
def test_it_holds_what_a_set_holds_whenever_changes_are_merged(
    steps: list[tuple[int, bool] | None], changes_max: int
) -> None:
    """None empties the set, as a truncate does."""
    keys, wanted = LiveKeys(), set[int]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diffs, "_CHANGES_MAX", changes_max)
        for step in steps:
            if step is None:
                keys.clear()
                wanted.clear()
            else:
                keys.put(step[0], live=step[1])
                wanted.add(step[0]) if step[1] else wanted.discard(step[0])
            for key in (*range(10), *range(2**64 - 9, 2**64)):
                assert (key in keys) == (key in wanted)
