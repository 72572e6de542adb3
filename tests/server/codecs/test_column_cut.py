"""Images are cut to the same bytes by compiled code and by the parser."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.criteria import Area
from tailrace_server.codecs import JSON, column_cut
from tailrace_server.codecs.member_cutter import MemberCutter
from tailrace_server.grants.grant import ALL_COLUMNS, Columns
from tailrace_server.grants.shown import Rule, Visibility
from tailrace_server.machine_code.loader import loops_made
from tests.server.codecs.batches import BODIES, TYPES, capture, columns

CUTTER = MemberCutter(loops_made())
_sets = st.builds(Columns, st.frozensets(st.sampled_from("abcd"), max_size=3), st.booleans())
_rules = st.one_of(
    st.builds(lambda shown, bodies: (Rule(None, shown, bodies),), _sets, st.booleans()),
    st.builds(
        lambda one, other: (Rule(frozenset("1"), one, True), Rule(frozenset("12"), other, True)),
        _sets,
        _sets,
    ),
    st.just((Rule(None, ALL_COLUMNS, True),)),
)
_shown = st.builds(
    lambda rules, others: Visibility(((TYPES[0], rules),), others, frozenset({TYPES[1]}), False),
    _rules,
    _rules,
)
_texts = st.none() | st.dictionaries(
    st.sampled_from("abcd"), st.integers() | st.text(), max_size=4
).map(lambda value: json.dumps(value).encode())
_changed = st.none() | st.lists(st.sampled_from("abcd"), max_size=3, unique=True)
_rows = st.builds(
    lambda kind, key, changed, bodies: capture(
        type=kind, key=key, changed=changed, **dict(zip(BODIES, bodies, strict=True))
    ),
    st.sampled_from([0, 1]),
    st.none() | st.sampled_from("123"),
    _changed,
    st.tuples(_texts | st.just(b'{"diff":2}'), _texts, _texts),
) | st.builds(
    lambda count: capture(
        area=Area.INFRASTRUCTURE,
        type=-1,
        key=None,
        after=b'{"transaction_id":"t", "counts":{"product":%d}}' % count,
    ),
    st.integers(0, 9),
)


@given(rows=st.lists(_rows, min_size=1, max_size=8), shown=_shown)
def test_compiled_code_cuts_as_the_parser_does(
    rows: list[dict[str, Any]], shown: Visibility
) -> None:
    batch = columns(rows, by_column=False, wanted=set(BODIES))
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_cut, "_COMPILED_FROM", 1)
        for cutter in (None, CUTTER):
            patch.setattr(column_cut, "cutter_for", lambda _, cutter=cutter: cutter)
            found.append(JSON.encode(column_cut.cut(batch, shown)).to_pylist())
    assert found[0] == found[1]
