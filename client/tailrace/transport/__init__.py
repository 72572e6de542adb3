"""The client's interface to a connection: calls that carry bytes.

The seam between the logic of subscriptions and gRPC; messages cross it encoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Stream(Protocol):
    """The answers to one call."""

    async def receive(self) -> bytes | None:
        """Return the next message; None when the server has completed.

        Cancelling it closes the stream.

        Raises:
            TailraceError: What the server said, or TransportError.
        """

    def close(self) -> None:
        """End the call, if it has not ended. Idempotent."""


class Transport(Protocol):
    """A connection to a server; opened by its first call, reopened when it broke."""

    @property
    def route(self) -> str:
        """The proxy in between, for errors of failed calls; empty if there is none."""

    def open(self, method: str, requests: AsyncIterator[bytes]) -> Stream:
        """Begin a call with many requests. Nothing is awaited; errors come from ``receive``."""

    def read(self, method: str, request: bytes) -> Stream:
        """Begin a call with one request and many answers."""

    async def call(self, method: str, request: bytes, timeout_s: float) -> bytes:
        """Make a call with one request and one answer.

        Raises:
            TailraceError: What the server said, or TransportError.
        """

    async def close(self) -> None:
        """End all calls and the connection."""
