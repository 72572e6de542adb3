"""Requests that name many keys: their limit, and their turn to be read beside the event loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from google.protobuf.descriptor import FieldDescriptor

from tailrace.errors import InvalidRequest
from tailrace.v1.capture_pb2 import Condition

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from google.protobuf.message import Message

    from tailrace.v1.change_capture_pb2 import ReadChangesRequest, SubscribeRequest

_Request = TypeVar("_Request", "SubscribeRequest", "ReadChangesRequest")
_Read = TypeVar("_Read")

KEYS_AT_ONCE: Final = 2_000
"""Keys that are read on the event loop, in about a millisecond."""


KEYS_MAX: Final = 100_000
"""Keys of one request, and the same of names of each kind: as objects of Python they take 20 MB, and 0.1 s to
read."""


def refuse_many_keys(message: Message) -> None:
    """Refuse a request with too many keys, or names of one kind, in all its criteria together.

    Conditions have a limit of their own.

    Raises:
        InvalidRequest: It has; says of what, how many, and the limit.
    """
    counts: Counter[str] = Counter()
    _count(message, counts)
    for name, count in counts.items():
        if count > KEYS_MAX:
            raise InvalidRequest(
                f"{name}: {count:,} in one request, the limit is {KEYS_MAX:,}; ask in several requests"
            )


def _count(message: Message, counts: Counter[str]) -> None:
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_STRING:
            if field.is_repeated:
                counts[field.name] += len(value)
        elif field.type == FieldDescriptor.TYPE_MESSAGE and (
            field.message_type is not Condition.DESCRIPTOR
        ):
            for each in value if field.is_repeated else (value,):
                _count(each, counts)


def has_many_keys(message: SubscribeRequest | ReadChangesRequest) -> bool:
    """Return True if a request names so many keys that the event loop should not read them."""
    return sum(len(each.primary_key) for each in message.criteria) > KEYS_AT_ONCE


@asynccontextmanager
async def reading(
    many_keys: asyncio.Lock, function: Callable[[_Request], _Read], message: _Request
) -> AsyncIterator[_Read]:
    """Yield the result of a function of a request; a request with many keys is read beside the event loop.

    100,000 keys take 0.1 s, in which the event loop would serve no other caller. Such requests come one after
    the other: until the engine has charged its criteria, each has copies of its keys that no budget knows. So
    the block opens what the request asks for, and keeps the lock meanwhile. A request that waits for a version
    can take minutes: it gives the lock back before its block.
    """
    if not has_many_keys(message):
        yield function(message)
        return
    async with many_keys:
        found = await asyncio.to_thread(function, message)
        waits = message.HasField("wait_for_version")
        del message
        if not waits:
            yield found
            return
    yield found
