"""What does the Python client spend on a capture, from the bytes of a message to the value?

::

    messages of 327 captures ──▶ protobuf's C parser alone                       (baseline)
                             ──▶ the same, and seven fields read by Python
                             ──▶ parse and ``tailrace.wire.captures``: what a subscription hands over

One core, in process, the messages as the server makes them, the three in turn. It does not show the connection,
nor what the receiver does with a capture.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from uuid import UUID

from bench._harness import machine, median, pin_to_the_server, table
from bench._log import mutation
from tailrace.criteria import Content
from tailrace.v1 import capture_pb2
from tailrace.v1.change_capture_pb2 import SubscribeResponse
from tailrace.wire import captures, subscribe_response

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CAPTURES = 327
"""Of a message: what 64 KiB hold of 200 bytes."""
MESSAGES = 300
"""A run; their captures are all different."""
RUNS = 9
_UUID = UUID(int=1)


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
    return len(captures(subscribe_response(data).captures, _UUID, Content.AFTER))


def us_a_capture(kind: Callable[[bytes], int], messages: Sequence[bytes]) -> float:
    """Return what one way costs."""
    started = time.perf_counter()
    for each in messages:
        assert kind(each) == CAPTURES
    return (time.perf_counter() - started) / len(messages) / CAPTURES * 1e6


def main() -> None:
    """Measure and print."""
    print(machine())
    pin_to_the_server()
    messages = [message(number) for number in range(MESSAGES)]
    first = captures(subscribe_response(messages[0]).captures, _UUID)[0]
    assert first.after == mutation(0).after
    kinds = (parse, read_seven, decode)
    runs = [[us_a_capture(kind, messages) for kind in kinds] for _ in range(RUNS)]
    middle = [median([run[place] for run in runs]) for place in range(len(kinds))]
    table(
        f"µs a capture of {len(messages[0]) // CAPTURES} bytes, {CAPTURES} a message, median of {RUNS} runs",
        ["parser alone", "and seven fields", "decoded", "decoded / seven fields"],
        [[*(f"{each:.2f}" for each in middle), f"{median([run[2] / run[1] for run in runs]):.2f}"]],
    )


if __name__ == "__main__":
    main()
