"""Parts that threads read ahead: their order, their errors and the bound of the look-ahead."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tailrace_server.log_read.ahead import read_ahead

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_threads_read_ahead_in_order_and_end_when_the_reader_stops() -> None:
    meeting = threading.Barrier(2)

    def part(number: int) -> Iterator[pa.RecordBatch]:
        if number < 2:
            meeting.wait(60)  # the first two parts are read at the same time
        for each in range(3):
            if number == 5:
                raise ValueError("damaged")
            yield pa.record_batch({"a": pa.array([number * 3 + each])})

    def parts(count: int) -> list[Any]:
        return [lambda number=number: part(number) for number in range(count)]

    found = [each.column("a")[0].as_py() for each in read_ahead(parts(5), 3, in_order=True)]
    assert found == [*range(15)]
    # An error comes in the place of its part; a reader that stops leaves no thread.
    rows: list[pa.RecordBatch] = []
    with pytest.raises(ValueError, match="damaged"):
        rows.extend(read_ahead(parts(9), 3, in_order=True))
    for in_order in (True, False):
        reading = read_ahead(parts(5), 3, in_order=in_order)
        next(reading)
        reading.close()
    # Without an order every row comes once, and an error ends all parts.
    found = [each.column("a")[0].as_py() for each in read_ahead(parts(5), 3, in_order=False)]
    assert sorted(found) == [*range(15)]
    with pytest.raises(ValueError, match="damaged"):
        rows.extend(read_ahead(parts(9), 3, in_order=False))


def test_a_full_buffer_makes_its_thread_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace_server.log_read.ahead._BUFFER_BYTES", 1)
    given = [0, 0]

    def part(number: int) -> Iterator[pa.RecordBatch]:
        for _ in range(50):
            given[number] += 1
            yield pa.record_batch({"a": pa.array([number])})

    reading = read_ahead([lambda: part(0), lambda: part(1)], 2, in_order=True)
    for count in range(1, 51):
        next(reading)
        assert given[1] <= 2
        assert given[0] <= count + 2
    assert len([*reading]) == 50
