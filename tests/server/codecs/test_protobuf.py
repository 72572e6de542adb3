"""Protobuf frames decode to what went in; `test_frame_writer` compares the two encoders."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.criteria import ContainerType
from tailrace.v1 import capture_pb2
from tailrace.v1.change_capture_pb2 import SubscribeResponse
from tailrace_server.codecs import PROTOBUF
from tailrace_server.codecs.protobuf import encode_one_by_one
from tests.server.codecs.batches import BODIES, TYPES, capture, captures, columns


@given(
    rows=st.lists(captures, max_size=12),
    by_column=st.booleans(),
    wanted=st.sets(st.sampled_from(BODIES)),
)
def test_protobuf_frames_decode_to_what_went_in(
    rows: list[dict[str, Any]], by_column: bool, wanted: set[str]
) -> None:
    given_columns = columns(rows, by_column=by_column, wanted=wanted)
    frames = PROTOBUF.encode(given_columns).to_pylist()
    assert encode_one_by_one(given_columns) == frames
    message = SubscribeResponse.FromString(b"".join(frames))
    assert len(message.captures) == len(rows) == len(frames)
    for found, row in zip(message.captures, rows, strict=True):
        expected = capture_pb2.Capture(
            version=row["version"],
            index=row["index"],
            commit_timestamp=row["timestamp"],
            area=row["area"],
            operation=row["operation"],
            entity_type=TYPES[row["type"]] if row["type"] != -1 else None,
            primary_key=row["key"],
            **{name: row[name] for name in wanted},
        )
        if row["changed"] is not None:
            expected.changed.names.extend(row["changed"])
            expected.changed.SetInParent()
        if by_column:
            ordinal, kind, name = row["container"]
            expected.ordinal, expected.container_type = ordinal, kind
            expected.container_name = name if kind else ""
        assert found == expected


def test_many_captures_at_column_level_are_the_bytes_of_few() -> None:
    row = capture(container=(1, ContainerType.ATTRIBUTE, "name"), changed=["name"], after=b"{}")
    many = columns([row] * 20, by_column=True, wanted=set(BODIES))
    assert b"".join(PROTOBUF.messages(many, 300).data) == b"".join(encode_one_by_one(many))


@pytest.mark.parametrize("omitted", [1, 3_000_000])
def test_a_header_takes_the_size_of_what_was_left_out(omitted: int) -> None:
    (frame,) = PROTOBUF.encode(columns([capture()], by_column=False, wanted=set())).to_pylist()
    (found,) = SubscribeResponse.FromString(PROTOBUF.with_omitted(frame, omitted)).captures
    assert (found.version, found.omitted_bytes) == (1, omitted)
