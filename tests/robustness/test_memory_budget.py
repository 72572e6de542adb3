"""Memory stays inside its budget, whatever subscribers do: measured on the process, not summed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tailrace.criteria import Content, Criteria, Since
from tailrace.errors import SubscriberTooSlow
from tailrace.position import Position
from tailrace_server.capture.cache import anonymous_bytes, return_freed_pages
from tailrace_server.capture.codecs import PROTOBUF
from tailrace_server.capture.engine import Engine
from tailrace_server.capture.frames import Frames
from tailrace_server.capture.settings import EngineSettings
from tailrace_server.wal.writer import LogWriter, Mutation

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace_server.capture.subscription import Subscription

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MIB = 1 << 20


def row(number: int, size: int = 20) -> Mutation:
    return Mutation("product", str(number), after=b'{"id":%d,"text":"%s"}' % (number, b"x" * size))


async def test_contract_16_a_hundred_thousand_key_publishers_stay_inside_the_budget(
    log_root: Path,
) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([row(0)])
        writer.commit()
        writer.publish()
        base = anonymous_bytes()
        settings = EngineSettings(
            memory_bytes=base + 1024 * MIB, rings_bytes=64 * MIB, heartbeat_interval_s=600
        )
        async with Engine(log_root, settings) as engine:
            subscriptions = [
                await engine.subscribe(
                    "shop",
                    [Criteria(entity_type=("product",), primary_key=(str(number),))],
                    codec=PROTOBUF,
                    demand=0,
                )
                for number in range(100_000)
            ]
            for first in range(0, 100_000, 20_000):
                for _ in range(2):
                    writer.append([row(number) for number in range(first, first + 20_000)])
                    writer.commit()
                    writer.publish()
            subscriptions[-1].request(2)
            message = await subscriptions[-1].receive()
            assert isinstance(message, Frames)
            observer = engine.observer("shop").statistics()
            assert observer.publishers == 100_000
            assert observer.ring_bytes <= 64 * MIB
            assert (anonymous_bytes() - base) / 100_000 <= 10 * 1024


@pytest.mark.parametrize("arriving", [100, 1000])
async def test_contract_13_16_a_thousand_stalled_readers_of_rows_of_1_mib_stay_inside_the_budget(
    log_root: Path, arriving: int
) -> None:
    """They come so many at a time, the next ones once the process is inside its budget again.

    It is never above it by more than those hold who have just come and are not known to stall yet: the copy
    that each one's transport makes, and the message here, which those share that come for the same row; and by
    what the cache may keep of the frames that were made for them.
    """
    rows = 100
    with LogWriter.open(log_root, "shop") as writer:
        for number in range(rows):
            writer.append([row(number, MIB)])
            writer.commit()
        writer.publish()
    return_freed_pages()
    base = anonymous_bytes()
    settings = EngineSettings(memory_bytes=base + 256 * MIB, heartbeat_interval_s=600)
    async with Engine(log_root, settings) as engine:
        held: dict[Subscription, Frames] = {}
        ended: list[Subscription] = []

        async def stall(number: int) -> None:
            """Take one message, hold it as a transport would, and let go when told to."""
            subscription = await engine.subscribe(
                "shop",
                [Criteria(entity_type=("product",))],
                start=Since(Position(1 + number % rows)),
                content=Content.AFTER,
                codec=PROTOBUF,
            )
            message = await subscription.receive()
            assert isinstance(message, Frames)
            # A transport copies what it is handed: these bytes are this reader's own.
            held[subscription] = Frames(bytes(bytearray(message.data)), message.count, message.last)
            subscription.on_end = lambda _: ended.append(subscription)

        def let_go() -> int:
            for subscription in ended:
                held.pop(subscription, None)
            return len(held) + len(ended)

        stalled: list[asyncio.Task[None]] = []
        highest = 0
        for first in range(0, 1000, arriving):
            numbers = range(first, first + arriving)
            stalled += [asyncio.ensure_future(stall(number)) for number in numbers]
            async with asyncio.timeout(30):
                while let_go() < len(stalled) or anonymous_bytes() > settings.memory_bytes:
                    await asyncio.sleep(0)
                    highest = max(highest, anonymous_bytes())
        assert len(ended) + len(held) == 1000
        assert engine.statistics().disconnected_for_memory == len(ended)
        with pytest.raises(SubscriberTooSlow) as too_slow:
            await ended[0].receive()
        assert too_slow.value.resume_cursor is not None
        message_bytes = max(len(each.data) for each in held.values())
        just_come = (arriving + min(arriving, rows)) * message_bytes
        assert highest <= settings.memory_bytes + just_come + settings.frames_bytes
        await asyncio.gather(*stalled)
