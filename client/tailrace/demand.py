"""Demand on the client's side: the requested captures, and the part that each connection was sent.

Requests add up and saturate. A new connection is asked for what is still owed (requested and not received),
in the message that subscribes; later requests follow on the same call, several made in one turn of the loop
as one.
"""

from __future__ import annotations

import asyncio
import operator
from typing import TYPE_CHECKING, Final

from tailrace.errors import InvalidRequest
from tailrace.v1.change_capture_pb2 import DemandRequest

if TYPE_CHECKING:
    from tailrace.v1.change_capture_pb2 import SubscribeRequest, SubscribeSystemRequest

DEMAND_MAX: Final = 2**63 - 1


class Demand:
    """One subscription's demand, over all its connections."""

    __slots__ = ("_waiter", "received", "requested")

    def __init__(self) -> None:
        """Begin with none."""
        self.requested = 0
        """Captures asked for since the beginning."""
        self.received = 0
        """Captures that came."""
        self._waiter: asyncio.Future[None] | None = None

    def request(self, n: int) -> None:
        """Ask for ``n`` captures more.

        Raises:
            InvalidRequest: ``n`` is not positive.
            TypeError: ``n`` is not a whole number; nothing was asked for.
        """
        n = whole("request", n)
        if n <= 0:
            raise InvalidRequest(
                f"request({n}): demand must be positive (Reactive Streams rule 3.9)"
            )
        self.requested = min(self.requested + n, self.received + DEMAND_MAX)
        self.wake()

    async def wait(self) -> None:
        """Wait until something was requested, or until ``wake``; one connection at a time does."""
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def wake(self) -> None:
        """Wake the connection, which checks the demand again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def whole(name: str, n: object) -> int:
    """Return a number of captures as an int.

    Raises:
        TypeError: It is not a whole number; ``name`` is what was called so.
    """
    try:
        return operator.index(n)  # type: ignore[arg-type]  # it says so itself
    except TypeError:
        raise TypeError(f"{name}({n!r}): demand is a whole number of captures") from None


class DemandRequests:
    """The request messages of one connection: the subscribe, then demand as it grows, until closed."""

    __slots__ = ("_closed", "_demand", "_first", "_told")

    def __init__(self, demand: Demand, first: DemandRequest) -> None:
        """Take the demand that is owed now into the first message."""
        self._demand = demand
        self._closed = False
        self._told = demand.requested
        if demand.requested > demand.received:
            first.request = demand.requested - demand.received
        self._first: DemandRequest | None = first

    def __aiter__(self) -> DemandRequests:
        return self

    async def __anext__(self) -> bytes:
        if self._first is not None:
            message, self._first = self._first, None
            return message.SerializeToString()
        while self._demand.requested == self._told and not self._closed:
            await self._demand.wait()
        if self._closed:
            raise StopAsyncIteration
        more = self._demand.requested - self._told
        self._told += more
        return DemandRequest(request=more).SerializeToString()

    def close(self) -> None:
        """End it; gRPC waits for the next message of a call even when that has ended."""
        self._closed = True
        self._demand.wake()


def subscribing(request: SubscribeRequest | SubscribeSystemRequest) -> DemandRequest:
    """Return the first message of a connection."""
    if request.DESCRIPTOR.name == "SubscribeRequest":
        return DemandRequest(subscribe=request)  # type: ignore[arg-type]  # told by its name
    return DemandRequest(subscribe_system=request)  # type: ignore[arg-type]
