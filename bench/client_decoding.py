"""What does the Python client spend on a capture, from the bytes of a message to the value, and to its row?

::

    messages of 327 captures ──▶ protobuf's C parser alone
                             ──▶ the same, and seven fields read by Python
                             ──▶ parse and ``tailrace.wire.captures``: what a subscription hands over

    images in memory         ──▶ ``json.loads``                                    (baseline)
    server ──▶ grpc.aio      ──▶ protobuf, ``json.loads`` of each image            (baseline: no client of ours)
           ──▶ ``batches()`` ──▶ nothing; ``json.loads`` of each image; ``row()``

All figures are CPU time of this process, in turn. The first three are in process; in the others the server has
the other core. It does not show what a receiver does with a row.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import UUID

import grpc.aio

import tailrace
from bench._harness import (
    machine,
    median,
    pin_to_the_server,
    server,
    stay_with_the_subscribers,
    table,
    tailrace_server,
)
from bench._log import CATALOG, mutation, write_log
from tailrace.criteria import Area, Content, Criteria
from tailrace.v1 import capture_pb2
from tailrace.v1.change_capture_pb2 import SubscribeRequest, SubscribeResponse
from tailrace.wire import captures, subscribe_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    Way = Callable[[str], Coroutine[None, None, int]]
    """Receives RECEIVED captures or more from an address and returns how many."""

CAPTURES = 327
"""Of a message: what 64 KiB hold of 200 bytes."""
MESSAGES = 300
"""A run; their captures are all different."""
RUNS = 9
RECEIVED = 200_000
"""Captures that come over a connection in a run."""
RECEIVE_RUNS = 5
_UUID = UUID(int=1)
_IMAGES: Final = [mutation(number).after or b"" for number in range(1000)]
_PRODUCTS: Final = Criteria(area=Area.DATA, entity_type=("product",))


def message(number: int) -> bytes:
    """Return one message of a subscription."""
    response = SubscribeResponse()
    for place in range(CAPTURES):
        row = mutation(number * CAPTURES + place)
        response.captures.add(
            version=number * 4 + place // 100 + 1,
            index=place % 100 + 1,
            commit_timestamp=1_700_000_000_000_000 + number,
            area=capture_pb2.AREA_DATA,
            operation=capture_pb2.OPERATION_UPSERT,
            entity_type=row.entity_type,
            primary_key=row.primary_key,
            after=row.after,
        )
    return response.SerializeToString()


def parse(data: bytes) -> int:
    """Parse a message and look at nothing in it."""
    return len(SubscribeResponse.FromString(data).captures)


def read_seven(data: bytes) -> int:
    """Parse a message and read seven fields of each capture."""
    found = [
        (
            *(each.version, each.index, each.commit_timestamp, each.operation),
            *(each.entity_type, each.primary_key, each.after),
        )
        for each in SubscribeResponse.FromString(data).captures
    ]
    return len(found)


def decode(data: bytes) -> int:
    """Decode a message as the client does."""
    return len(captures(subscribe_parts(data).captures, _UUID, Content.AFTER))


def us_a_capture(kind: Callable[[bytes], int], messages: Sequence[bytes]) -> float:
    """Return what one way costs."""
    started = time.process_time()
    for each in messages:
        assert kind(each) == CAPTURES
    return (time.process_time() - started) / len(messages) / CAPTURES * 1e6


async def from_memory(_: str) -> int:
    """Parse images that are there."""
    for number in range(RECEIVED):
        json.loads(_IMAGES[number % len(_IMAGES)])
    return RECEIVED


async def from_grpc(address: str) -> int:
    """Receive without the client: bare grpc.aio, protobuf, and the image of each capture parsed."""
    request = SubscribeRequest(
        catalog=CATALOG,
        criteria=[capture_pb2.Criteria(area=capture_pb2.AREA_DATA, entity_type=["product"])],
        body=[capture_pb2.BODY_AFTER],
        since_version=0,
    )
    count = 0
    async with grpc.aio.insecure_channel(address) as channel:
        subscribe = channel.unary_stream("/tailrace.v1.ChangeCapture/Subscribe", None, None)
        call = subscribe(request.SerializeToString())
        while count < RECEIVED:
            data = await call.read()
            assert isinstance(data, bytes)
            found = SubscribeResponse.FromString(data).captures
            for capture in found:
                json.loads(capture.after)
            count += len(found)
    return count


def from_batches(take: Callable[[tailrace.Capture], object] | None) -> Way:
    """Return how the client receives, with something done to each capture, or nothing."""

    async def receive(address: str) -> int:
        count = 0
        async with (
            tailrace.connect(address) as client,
            client.subscribe(CATALOG, _PRODUCTS, since=0, content=Content.AFTER) as subscription,
        ):
            async for batch in subscription.batches():
                if take is not None:
                    for capture in batch:
                        take(capture)
                count += len(batch)
                if count >= RECEIVED:
                    break
        return count

    return receive


def load_after(capture: tailrace.Capture) -> object:
    """Parse an image as the usual consumer does."""
    assert capture.after is not None
    return json.loads(capture.after)


WAYS: Final[dict[str, Way]] = {
    "`json.loads` from memory": from_memory,
    "grpc.aio, protobuf, `json.loads`": from_grpc,
    "`batches()` alone": from_batches(None),
    "`batches()`, `json.loads`": from_batches(load_after),
    "`batches()`, `row()`": from_batches(tailrace.Capture.row),
}


def cpu_us(way: Way, address: str) -> float:
    """Return CPU µs of this process a capture received."""
    started = time.process_time()
    count = asyncio.run(way(address))
    return (time.process_time() - started) / count * 1e6


def in_process() -> None:
    """Measure decoding alone and print."""
    pin_to_the_server()
    messages = [message(number) for number in range(MESSAGES)]
    first = captures(subscribe_parts(messages[0]).captures, _UUID)[0]
    assert first.after == mutation(0).after
    kinds = (parse, read_seven, decode)
    runs = [[us_a_capture(kind, messages) for kind in kinds] for _ in range(RUNS)]
    middle = [median([run[place] for run in runs]) for place in range(len(kinds))]
    table(
        f"CPU µs a capture of {len(messages[0]) // CAPTURES} bytes, {CAPTURES} a message, "
        f"median of {RUNS} runs",
        ["parser alone", "and seven fields", "decoded", "decoded / seven fields"],
        [[*(f"{each:.2f}" for each in middle), f"{median([run[2] / run[1] for run in runs]):.2f}"]],
    )


def connected() -> None:
    """Measure receiving and print."""
    stay_with_the_subscribers()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_log(root, rows=RECEIVED, rows_per_transaction=100, transactions_per_commit=20)
        with server(tailrace_server(root)) as subject:
            cpu_us(from_batches(None), subject.address)  # the server loads what it loads once
            runs = [
                [cpu_us(way, subject.address) for way in WAYS.values()] for _ in range(RECEIVE_RUNS)
            ]
    table(
        f"CPU of the receiver, {RECEIVED:,} captures, median of {RECEIVE_RUNS} runs",
        ["way", "µs a capture", "captures/s of CPU", "/ `json.loads` from memory"],
        [
            [
                name,
                f"{median([run[place] for run in runs]):.2f}",
                f"{1e3 / median([run[place] for run in runs]):.0f} k",
                f"{median([run[place] / run[0] for run in runs]):.2f}",
            ]
            for place, name in enumerate(WAYS)
        ],
    )


def main() -> None:
    """Measure and print."""
    print(machine())
    in_process()
    connected()


if __name__ == "__main__":
    main()
