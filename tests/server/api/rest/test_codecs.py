"""Lines and events of any batch. Against the other formats, on real answers: test_history.py, test_forms.py."""

from __future__ import annotations

import json

import pytest

from tailrace.criteria import ContainerType
from tailrace_server.api.rest.forms import EventsCodec, LinesCodec
from tailrace_server.codecs import JSON
from tests.server.codecs.batches import BODIES, capture, columns

IMAGE = b'{\r\n "a": "x",\n "b": 1\n}'


@pytest.mark.parametrize("by_column", [False, True])
def test_frames_can_be_told_apart_by_their_line_ends(by_column: bool) -> None:
    column = capture(version=2, key="a\nb", container=(3, ContainerType.PRICE, "p\r\n"))
    rows = [capture(after=IMAGE), column, capture(before=b"{}", key=None, type=-1)]
    batch = columns(rows, by_column=by_column, wanted=set(BODIES))
    objects = [json.loads(each[:-1]) for each in JSON.encode(batch).to_pylist()]
    lines = b"".join(LinesCodec(JSON).encode(batch).to_pylist())
    assert [json.loads(each) for each in lines.split(b"\n")[:-1]] == objects
    events = b"".join(EventsCodec(JSON).encode(batch).to_pylist())
    for event, found in zip(events.split(b"\n\n")[:-1], objects, strict=True):
        id, data = event.split(b"\n")
        assert id.decode() == f"id: {found['cursor']}"
        assert json.loads(data.removeprefix(b"data: ")) == found


def test_a_header_takes_the_size_of_what_was_left_out_and_keeps_its_end() -> None:
    batch = columns([capture()], by_column=False, wanted=set())
    for codec, end in ((LinesCodec(JSON), b"}\n"), (EventsCodec(JSON), b"}\n\n")):
        (frame,) = codec.encode(batch).to_pylist()
        found = codec.with_omitted(frame, 70_000)
        assert found.endswith(end)
        assert json.loads(found[found.index(b"{") :])["omittedBytes"] == 70_000
