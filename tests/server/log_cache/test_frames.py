"""Blocks of frames: parts of messages, what fits, and the part of a smaller selection."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.criteria import Content
from tailrace_server.codecs.columns import join_into_messages
from tailrace_server.log_cache.frames import FrameBlock, body_columns
from tailrace_server.rows.run import BatchSelection

frame_lists = st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=40)


def block_of(frames: list[bytes], message_bytes: int) -> FrameBlock:
    """Return a block of entity-level captures at (1, 0), (2, 10), (3, 20) and so on."""
    count = len(frames)
    versions = np.arange(1, count + 1)
    indexes = np.arange(0, 10 * count, 10, dtype=np.int32)
    return FrameBlock(join_into_messages(frames, message_bytes), versions, indexes, None)


@given(frames=frame_lists, message_bytes=st.integers(1, 60), count_max=st.integers(1, 50))
def test_all_frames_are_taken_in_order_and_whole_messages_are_shared(
    frames: list[bytes], message_bytes: int, count_max: int
) -> None:
    block = block_of(frames, message_bytes)
    place, data = 0, b""
    while place < len(block):
        taken = block.take(place, count_max)
        assert 0 < taken.count <= count_max
        message = block.messages.get(place)
        if message is not None and message.count <= count_max:
            assert taken is message
        place += taken.count
        data += taken.data
        assert taken.last == (place, 10 * (place - 1), 0)
    assert data == b"".join(frames)


@given(frames=frame_lists, bytes_max=st.integers(1, 80), data=st.data())
def test_what_fits_is_as_much_as_possible_of_a_message_and_at_least_one(
    frames: list[bytes], bytes_max: int, data: st.DataObject
) -> None:
    block = block_of(frames, 40)
    start = data.draw(st.integers(0, len(frames) - 1))
    found = block.fitting(start, len(frames), bytes_max)
    message = block.take(start, len(frames))
    assert found.data == b"".join(frames[start : start + found.count])
    assert len(found.data) <= bytes_max or found.count == 1
    if found.count < message.count:
        assert len(found.data) + block.size(start + found.count) > bytes_max


@given(data=st.data(), count=st.sampled_from([1, 16, 40]), message_bytes=st.integers(1, 60))
def test_a_smaller_selection_picks_its_frames_and_their_places(
    data: st.DataObject, count: int, message_bytes: int
) -> None:
    frames = [b"%02d|" % number for number in range(count)]
    rows = data.draw(st.sets(st.integers(0, count - 1), min_size=1).map(sorted))
    selection = BatchSelection("part", np.array(rows, np.int32))
    picked = block_of(frames, message_bytes).pick(selection, 30)
    assert [picked.frame(place) for place in range(len(picked))] == [frames[row] for row in rows]
    assert [picked.coordinates(place) for place in range(len(picked))] == [
        (row + 1, 10 * row, 0) for row in rows
    ]


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        (Content.HEADER, ()),
        (Content.AFTER, ("after",)),
        (Content.CHANGE | Content.BEFORE | Content.AFTER, ("change", "before", "after")),
    ],
)
def test_a_content_needs_the_columns_of_its_images(
    content: Content, columns: tuple[str, ...]
) -> None:
    assert body_columns(content) == columns
