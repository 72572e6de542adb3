"""The client's interface to a connection: calls whose messages are bytes.

It separates the logic of subscriptions from gRPC. Messages are encoded and decoded above it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Stream(Protocol):
    """The messages that the server sends in one call."""

    async def receive(self) -> bytes | None:
        """Return the next message; None after the server has completed the call.

        Cancelling ``receive`` closes the stream.

        Raises:
            TailraceError: The error that the server sent, or TransportError if the connection failed.
        """

    def close(self) -> None:
        """End the call, if it has not ended. Idempotent."""


class Transport(Protocol):
    """A connection to a server; the first call opens it, and later calls reopen it after a break."""

    @property
    def route(self) -> str:
        """Description of the proxy on the way, for errors of failed calls; empty without a proxy."""

    def open(self, method: str, requests: AsyncIterator[bytes]) -> Stream:
        """Begin a call with many requests and many answers. ``receive`` raises its errors."""

    def read(self, method: str, request: bytes) -> Stream:
        """Begin a call with one request and many answers."""

    async def call(self, method: str, request: bytes, timeout_s: float) -> bytes:
        """Make a call with one request and one answer.

        Raises:
            TailraceError: The error that the server sent, or TransportError if the connection failed.
        """

    async def close(self) -> None:
        """End all calls and the connection."""
