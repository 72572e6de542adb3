"""Lines to a pipe that is full for a while. Ctrl-C and closed pipes: tests/process/test_watch.py."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from tailrace_server.cli.terminal.capture_lines import LineWriter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PIECES = [b"%05d %s\n" % (number, b"x" * 3_000) for number in range(200)]


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)
    os.close(writing)


async def test_a_full_pipe_is_waited_for_and_every_line_comes_whole(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    writer = LineWriter(writing)
    size = sum(map(len, PIECES))
    task = asyncio.create_task(writer.write(PIECES))
    received = b""
    while len(received) < size:
        received += await asyncio.to_thread(os.read, reading, 1 << 16)
    await task
    assert received == b"".join(PIECES)
    assert writer.whole == len(PIECES)


async def test_a_cancelled_write_counts_the_lines_that_went_out_whole(
    pipe: tuple[int, int],
) -> None:
    reading, writing = pipe
    writer = LineWriter(writing)
    task = asyncio.create_task(writer.write(PIECES))
    await asyncio.sleep(0)  # it has filled the pipe, and waits
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    received = os.read(reading, 1 << 20)
    assert 0 < writer.whole < len(PIECES)
    assert received.startswith(b"".join(PIECES[: writer.whole]))
    assert len(received) < sum(map(len, PIECES[: writer.whole + 1]))


async def test_a_file_takes_everything_at_once(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with path.open("wb") as file:
        await LineWriter(file.fileno()).write(PIECES)
    assert path.read_bytes() == b"".join(PIECES)
