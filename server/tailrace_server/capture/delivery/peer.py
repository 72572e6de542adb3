"""The client of a subscription, as its face sees it: for operators to read, without any effect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a subscription."""

    transport: str
    """How it is served, one of few names: ``grpc``, ``rest_websocket`` … It is a label of metrics."""
    address: str = ""
    """Host and port; empty where there is none, as behind a socket with a path."""
    client: str = ""
    """The program's name: the user agent as it was sent; empty if there is none."""
    principal: str = ""
    """The authenticated principal; the engine notes it at a subscribe."""


IN_PROCESS: Final = Peer("process")
"""A caller of the engine in its own process."""
