"""How a subscription is served: the options it was opened with, and the acknowledgement that repeats them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tailrace.criteria import CatchUp, OverrunPolicy
from tailrace.errors import InvalidRequest
from tailrace_server.grants.principal import ANONYMOUS, IN_PROCESS, Peer
from tailrace_server.resources.admission import FREE, Admission
from tailrace_server.resources.settings import SubscriptionLimits

if TYPE_CHECKING:
    from uuid import UUID

    from tailrace.criteria import Content, Criteria
    from tailrace.cursor import Cursor
    from tailrace.position import Position
    from tailrace_server.codecs import Codec
    from tailrace_server.grants.principal import Principal
    from tailrace_server.grants.use import GrantUse
    from tailrace_server.resources.settings import EngineSettings
    from tailrace_server.resources.version_waits import VersionWait


DEMAND_MAX: Final = 2**63 - 1
"""Captures; demand saturates here, as int64 does on the wire."""


def added_demand(demand: int | None, n: int) -> int:
    """Return demand with ``n`` captures more; adds up and saturates.

    Raises:
        InvalidRequest: ``n`` is not positive.
    """
    if n <= 0:
        raise InvalidRequest(f"request({n}): demand must be positive (Reactive Streams rule 3.9)")
    return min((demand or 0) + n, DEMAND_MAX)


@dataclass(frozen=True, slots=True)
class SubscribeAcknowledgement:
    """The first message of a subscription: its start, and the bounds by which it is served."""

    subscription_id: str
    catalog: str
    catalog_uuid: UUID
    start: Position
    """First position that can come, inclusive."""
    resume_cursor: Cursor
    """The cursor just before the start."""
    published: int
    """The watermark when the start was resolved."""
    heartbeat_interval_s: float
    queue_captures: int
    message_bytes: int
    max_message_bytes: int
    catch_up: CatchUp = CatchUp.ALL
    """The catch-up policy: what it gets of the versions that it is behind as it begins."""
    overrun_policy: OverrunPolicy = OverrunPolicy.RESYNC
    """The overrun policy: what happens when the ring has overtaken it."""
    unknown_names: tuple[str, ...] = ()
    """Entity types and columns in the criteria that the log does not have: `unknown_names`."""
    unknown_changes: tuple[str, ...] = ()
    """Entity types whose every update matches, whatever it changed: `unknown_changes`."""
    effective_criteria: tuple[Criteria, ...] = ()
    """The criteria narrowed to the grants; empty if all of them are granted."""
    name: str = ""
    """The named subscription that is read; empty: none."""
    epoch: int = 0
    """That of its reader; 0: none."""
    where_version: int | None = None
    """The version whose names the conditions of the criteria have; None: none was without one."""
    state_version: int | None = None
    """The version of the state that is sent first; None: changes only."""


@dataclass(frozen=True, slots=True)
class DeliveryOptions:
    """How a subscription is served: what it asked for, and the engine's bounds for the rest."""

    use: GrantUse
    """The part of its criteria that is granted."""
    content: Content
    codec: Codec
    demand: int | None
    """Captures that may be delivered at first; None without accounting."""
    queue_captures: int
    message_bytes: int
    """The largest message of several captures, bytes."""
    max_message_bytes: int
    """A capture above it comes as its header."""
    heartbeat_interval_s: float
    peer: Peer = IN_PROCESS
    admission: Admission = FREE
    catch_up: CatchUp = CatchUp.ALL
    """The catch-up of a subscription that begins behind: every capture, or the latest of each key."""
    overrun: OverrunPolicy = OverrunPolicy.RESYNC
    """How the subscription continues when its ring has overtaken it."""
    wait: VersionWait | None = None
    """For a version to be published, before the start is found."""
    caller: Principal = ANONYMOUS
    """The caller; its subscriptions end when their grants do."""

    @property
    def is_impatient(self) -> bool:
        """True if the ring must overtake a slow reader even if no other reader is faster."""
        return self.overrun is not OverrunPolicy.RESYNC

    @property
    def expires_in_s(self) -> float | None:
        """Seconds until what the caller has proven ends, at least 0; None: never."""
        expires_at = self.caller.expires_at
        return None if expires_at is None else max(0.0, expires_at - time.time())


def delivery_options(
    settings: EngineSettings,
    limits: SubscriptionLimits | None,
    use: GrantUse,
    content: Content,
    codec: Codec,
    demand: int | None,
    peer: Peer,
    admission: Admission,
) -> DeliveryOptions:
    """Return how a subscription is served: the engine's bounds, with what differs from them.

    Raises:
        InvalidRequest: A demand below zero.
    """
    limits = limits or SubscriptionLimits()
    if demand is not None and demand < 0:
        raise InvalidRequest(f"demand {demand}: it cannot be negative")
    max_message_bytes = limits.max_message_bytes or settings.max_message_bytes
    return DeliveryOptions(
        use=use,
        content=content,
        codec=codec,
        demand=None if demand is None else min(demand, DEMAND_MAX),
        queue_captures=limits.queue_captures or settings.queue_captures,
        message_bytes=min(settings.message_bytes, max_message_bytes),
        max_message_bytes=max_message_bytes,
        heartbeat_interval_s=limits.heartbeat_interval_s or settings.heartbeat_interval_s,
        peer=peer,
        catch_up=limits.catch_up,
        overrun=limits.overrun,
        wait=limits.wait,
        caller=use.caller,
        admission=admission,
    )
