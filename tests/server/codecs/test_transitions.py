"""How a change moved its row, in each wire form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tailrace.criteria import Operation, Transition
from tailrace.v1.change_capture_pb2 import SubscribeResponse
from tailrace.wire import captures as read
from tailrace_server.cli.terminal.capture_lines import render
from tailrace_server.codecs import CDCV2, JSON, PROTOBUF
from tailrace_server.codecs.protobuf import encode_one_by_one
from tailrace_server.rows.transitions import TRANSITION_BITS, UNSURE, without_hidden
from tests.server.codecs.batches import BODIES, CATALOG, capture, captures, columns
from tests.server.codecs.test_frame_writer import compiled

codes = st.sampled_from([0, *Transition, Transition.ENTER | UNSURE, Transition.LEAVE | UNSURE])


@given(rows=st.lists(captures, min_size=1, max_size=10), data=st.data())
def test_protobuf_and_json_say_it_and_the_client_reads_it(
    rows: list[dict[str, Any]], data: st.DataObject
) -> None:
    given = np.array(data.draw(st.lists(codes, min_size=len(rows), max_size=len(rows))), np.uint8)
    judged = replace(columns(rows, by_column=False, wanted={*BODIES}), transitions=given)
    frames = encode_one_by_one(judged)
    assert frames == PROTOBUF.encode(judged).to_pylist() == compiled(judged)
    messages = SubscribeResponse.FromString(b"".join(frames)).captures
    expected = [code & TRANSITION_BITS for code in given.tolist()]
    assert [each.transition for each in messages] == expected
    whole = read([each.SerializeToString() for each in messages], CATALOG)
    assert [each.transition for each in whole] == [
        Transition(code) if code else None for code in expected
    ]
    assert [frame[:-1] for frame in JSON.encode(judged).to_pylist()] == [*map(render, whole)]


def test_cdcv2_says_exactly_what_went_and_what_came_of_the_condition() -> None:
    update = capture(before=b'{"id":1}', after=b'{"id":2}', changed=["id"])
    removal = capture(before=b'{"id":1}', operation=Operation.REMOVE)
    moves: list[tuple[dict[str, Any], int, list[tuple[bytes, int]]]] = [
        (update, Transition.ENTER, [(b'{"id":2}', 1)]),
        (update, Transition.UPDATE, [(b'{"id":1}', -1), (b'{"id":2}', 1)]),
        (update, Transition.LEAVE, [(b'{"id":1}', -1)]),
        (removal, Transition.LEAVE, [(b'{"id":1}', -1)]),
        # Nobody knows whether it was in: the stream ends there, as without an image.
        (update, Transition.ENTER | UNSURE, [(b"", 0)]),
        (update, Transition.LEAVE | UNSURE, [(b"", 0)]),
    ]
    given = np.array([code for _, code, _ in moves], np.uint8)
    for times in (1, 4):  # one by one, and by column
        judged = columns([row for row, _, _ in moves] * times, by_column=False, wanted={*BODIES})
        judged = replace(
            without_hidden(judged, np.tile(given, times)), transitions=np.tile(given, times)
        )
        found = [
            [(each.data, each.diff) for each in SubscribeResponse.FromString(frame).updates]
            for frame in CDCV2.encode(judged).to_pylist()
        ]
        assert found == [updates for _, _, updates in moves] * times


def test_no_image_outside_of_the_condition_is_shown() -> None:
    whole = capture(before=b"{}", after=b"{}", change=b"{}", changed=["id"])
    removal = {**whole, "operation": Operation.REMOVE, "after": None}
    shown = {
        Transition.ENTER: {"change", "after"},
        Transition.UPDATE: {*BODIES},
        Transition.LEAVE: {"before"},
        Transition.ENTER | UNSURE: {"change", "after"},
        Transition.LEAVE | UNSURE: set(),
    }
    for code, names in shown.items():
        for row in (whole, removal):
            given = columns([row], by_column=False, wanted={*BODIES})
            found = without_hidden(given, np.array([code], np.uint8)).texts
            kept = {name for name, body in found.items() if not body.all_null}
            expected = names if row is whole else (names | {"change"}) - {"after"}
            assert kept == expected, code
