"""What follows from a mutation's images.

Which mutations are refused is tested with a writer, in `wal/state/test_commit_log.py`.
"""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.wal.record.mutation import Mutation, columns_of, with_changes

ROWS = st.dictionaries(st.sampled_from(["id", "name", "price", "größe"]), st.none() | st.integers())


def changes(mutation: Mutation) -> tuple[tuple[str, ...] | None, bytes | None]:
    return with_changes(mutation, columns_of(mutation.before), columns_of(mutation.after))


@given(ROWS, ROWS)
def test_the_changes_lead_from_before_to_after(
    before: dict[str, int | None], after: dict[str, int | None]
) -> None:
    images = [json.dumps(row, ensure_ascii=False).encode() for row in (before, after)]
    changed, change = changes(Mutation("t", "1", before=images[0], after=images[1]))
    assert changed is not None
    assert change is not None
    found = json.loads(change)
    assert tuple(found) == changed
    # A column that is missing afterwards is null; apart from that the change makes one row of the other.
    assert {**before, **found} == {**dict.fromkeys(before), **after}
    assert set(changed) == {
        name
        for name in {*before, *after}
        if (name in before) != (name in after) or before[name] != after[name]
    }


def test_values_are_compared_as_text_and_kept_as_text() -> None:
    mutation = Mutation("t", "1", before=b'{"a":1.0,"b":1e2}', after=b'{"a":1.00, "b": 1e2}')
    assert changes(mutation) == (("a",), b'{"a":1.00}')


def test_what_is_given_is_not_derived() -> None:
    update = Mutation("t", "1", before=b'{"a":1}', after=b'{"a":2}')
    assert changes(replace(update, changed=())) == ((), None)
    assert changes(replace(update, change=b'{"x":1}')) == (("a",), b'{"x":1}')
    assert changes(Mutation("t", "1", after=b'{"a":2}')) == (None, None)


def test_an_image_has_columns_and_no_image_has_none() -> None:
    assert columns_of(None) == {}
    assert {name: bytes(text) for name, text in columns_of(b'{"a":[1, 2],"b":"x"}').items()} == {
        "a": b"[1, 2]",
        "b": b'"x"',
    }
