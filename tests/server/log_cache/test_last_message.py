"""The last message and its room: who waits, and who goes first."""

from __future__ import annotations

from tailrace_server.log_cache.frames import Frames
from tailrace_server.log_cache.last_message import LastMessage
from tailrace_server.resources.memory import SHORT_MESSAGE_BYTES, LargeMessages

BUDGET = 1 << 20
LARGE = 50_000
"""Twice its size is more than half of the room of newcomers."""


class Reader:
    """A subscription with a last message, as far as room concerns it."""

    def __init__(self, large: LargeMessages) -> None:
        self.last = LastMessage(SHORT_MESSAGE_BYTES, large)
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1

    def takes(self, size: int) -> bool:
        admitted = self.last.admits(size, self)
        if admitted:
            self.last.frames, self.last.handed_at = Frames(bytes(size), 1, (1, 0, 0)), 5.0
        return admitted


def test_a_message_of_usual_size_needs_no_room() -> None:
    large = LargeMessages(BUDGET, SHORT_MESSAGE_BYTES)
    readers = [Reader(large) for _ in range(100)]
    assert all(reader.takes(SHORT_MESSAGE_BYTES) for reader in readers)
    assert not any(reader.last.has_room for reader in readers)
    assert large.waiting == large.wanted_bytes == 0


def test_a_large_message_waits_until_one_before_it_is_taken() -> None:
    large = LargeMessages(BUDGET, SHORT_MESSAGE_BYTES)
    first, second = Reader(large), Reader(large)
    assert first.takes(LARGE)
    assert not second.takes(LARGE)
    assert second.last.waits_for_room(second)
    assert (first.last.has_room, second.last.has_room) == (True, False)
    first.last.taken(first)
    assert second.woken == 1
    assert not second.last.waits_for_room(second)
    assert second.takes(LARGE)


def test_one_that_came_back_for_more_is_not_kept_waiting_by_newcomers() -> None:
    large = LargeMessages(BUDGET, SHORT_MESSAGE_BYTES)
    reader, stalled, newcomer = Reader(large), Reader(large), Reader(large)
    assert reader.takes(LARGE)
    reader.last.taken(reader)
    assert stalled.takes(LARGE)
    assert not newcomer.takes(LARGE)
    assert reader.takes(LARGE)


def test_the_end_gives_back_room_and_place_in_the_line() -> None:
    large = LargeMessages(BUDGET, SHORT_MESSAGE_BYTES)
    first, second, third = (Reader(large) for _ in range(3))
    assert first.takes(LARGE)
    assert not second.takes(LARGE)
    assert not third.takes(LARGE)
    second.last.end(second)
    first.last.end(first)
    assert (second.woken, third.woken) == (0, 1)


def test_it_stalls_from_the_hand_over_to_the_next_call() -> None:
    reader = Reader(LargeMessages(BUDGET, SHORT_MESSAGE_BYTES))
    assert reader.last.stalled_for(9.0) == 0
    reader.takes(100)
    assert (reader.last.nbytes, reader.last.stalled_for(9.0)) == (100, 4.0)
    reader.last.taken(reader)
    assert (reader.last.nbytes, reader.last.stalled_for(9.0)) == (0, 0)


def test_messages_are_cut_smaller_while_memory_is_short() -> None:
    large = LargeMessages(BUDGET, 4 * SHORT_MESSAGE_BYTES)
    last = LastMessage(2 * SHORT_MESSAGE_BYTES, large)
    assert last.bytes_max == 2 * SHORT_MESSAGE_BYTES
    large.measured(BUDGET)
    assert last.bytes_max == SHORT_MESSAGE_BYTES
