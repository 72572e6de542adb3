"""The terms of a subscription: how it wants to be served, and what it is told first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uuid import UUID

    from tailrace.criteria import Content
    from tailrace.cursor import Cursor
    from tailrace.position import Position
    from tailrace_server.capture.codecs import Codec


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """What the server made of a subscribe; always the first message."""

    subscription_id: str
    catalog: str
    catalog_uuid: UUID
    start: Position
    """First position that can come, inclusive."""
    resume_cursor: Cursor
    """The cursor that stands just before the start."""
    published: int
    """The watermark when the start was resolved."""
    heartbeat_interval_s: float
    queue_captures: int
    message_bytes: int
    max_message_bytes: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """How a subscription wants to be served; resolved, nothing left open."""

    content: Content
    codec: Codec
    demand: int | None
    queue_captures: int
    message_bytes: int
    max_message_bytes: int
    heartbeat_interval_s: float
