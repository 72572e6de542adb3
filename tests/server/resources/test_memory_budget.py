"""Messages are cut smaller while memory is short, and as usual when it is not any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.criteria import Area, Content, Criteria, Since
from tailrace.position import Position
from tailrace.v1.change_capture_pb2 import SubscribeResponse
from tailrace_server.codecs import PROTOBUF
from tailrace_server.engine import engine
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.log_cache import batch_cache
from tailrace_server.log_cache.frames import Frames
from tailrace_server.resources.memory import SHORT_MESSAGE_BYTES
from tailrace_server.resources.settings import EngineSettings
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tests.support.polling import until

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

ROWS = 6_000
LARGE_ROW = 1_000
LARGE = 3 * SHORT_MESSAGE_BYTES // 2
"""Two of them are no message while memory is short, and one is large then, and only then."""


def image(number: int) -> bytes:
    size = LARGE if number % LARGE_ROW == 0 else 50
    return b'{"id":%d,"text":"%s"}' % (number, b"x" * size)


async def test_contract_16_messages_are_smaller_while_memory_is_short_and_nothing_is_missing(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = EngineSettings(heartbeat_interval_s=600)
    held = settings.memory_bytes // 2
    monkeypatch.setattr(batch_cache, "anonymous_bytes", lambda: held)
    monkeypatch.setattr(engine, "_MEASURE_EVERY_S", 0.001)
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([Mutation("product", str(each), after=image(each)) for each in range(ROWS)])
        writer.commit()
        writer.publish()
    async with Engine(log_root, settings) as subject:

        async def cut_to(size: int) -> None:
            await until(lambda: subject.statistics(ANONYMOUS).message_bytes_max == size)

        subscription = await subject.subscribe(
            ANONYMOUS,
            "shop",
            [Criteria(area=Area.DATA, entity_type=("product",))],
            start=Since(Position(1)),
            content=Content.AFTER,
            codec=PROTOBUF,
        )
        got: list[Frames] = []

        async def read(captures: int) -> list[Frames]:
            """Read at least so many captures."""
            first, count = len(got), 0
            while count < captures:
                message = await subscription.receive()
                assert isinstance(message, Frames)
                got.append(message)
                count += message.count
            return got[first:]

        usual = await read(LARGE_ROW)
        held = settings.memory_bytes * 4 // 5
        await cut_to(SHORT_MESSAGE_BYTES)
        short = await read(3 * LARGE_ROW)
        held = settings.memory_bytes // 2
        await cut_to(settings.message_bytes)
        again = await read(ROWS - sum(each.count for each in got))
        assert max(len(each.data) for each in usual) > settings.message_bytes * 9 // 10
        assert max(len(each.data) for each in again) > settings.message_bytes * 9 // 10
        several = [len(each.data) for each in short if each.count > 1]
        assert SHORT_MESSAGE_BYTES * 9 // 10 < max(several) <= SHORT_MESSAGE_BYTES
        assert [each.count for each in short if len(each.data) > LARGE] == [1, 1, 1]
        captures = [
            found for each in got for found in SubscribeResponse.FromString(each.data).captures
        ]
        assert [each.primary_key for each in captures] == [*map(str, range(ROWS))]
        assert subject.statistics(ANONYMOUS).waiting_for_memory == 0
