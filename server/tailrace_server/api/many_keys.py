"""The turn of requests that name many keys: read beside the event loop, one after the other."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tailrace.v1.change_capture_pb2 import ReadChangesRequest, SubscribeRequest

_Request = TypeVar("_Request", "SubscribeRequest", "ReadChangesRequest")
_Read = TypeVar("_Read")

KEYS_AT_ONCE: Final = 2_000
"""Keys that are read on the event loop, in about a millisecond."""


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
