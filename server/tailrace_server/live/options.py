"""The options of a subscription, and the acknowledgement that reports them to the subscriber."""

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
"""The largest demand, in captures: the largest int64, as on the wire."""


def added_demand(demand: int | None, n: int) -> int:
    """Return the demand increased by ``n`` captures, at most ``DEMAND_MAX``.

    Raises:
        InvalidRequest: ``n`` is not positive.
    """
    if n <= 0:
        raise InvalidRequest(f"request({n}): demand must be positive (Reactive Streams rule 3.9)")
    return min((demand or 0) + n, DEMAND_MAX)


@dataclass(frozen=True, slots=True)
class SubscribeAcknowledgement:
    """The first message of a subscription: its start and the bounds of its messages."""

    subscription_id: str
    catalog: str
    catalog_uuid: UUID
    start: Position
    """First position that can be delivered, inclusive."""
    resume_cursor: Cursor
    """The cursor just before the start."""
    published: int
    """The watermark when the start was resolved."""
    heartbeat_interval_s: float
    queue_captures: int
    message_bytes: int
    max_message_bytes: int
    catch_up: CatchUp = CatchUp.ALL
    """The catch-up policy: what the subscription receives of the versions between its start and now."""
    overrun_policy: OverrunPolicy = OverrunPolicy.RESYNC
    """The overrun policy: what happens when the ring has overtaken the subscription."""
    unknown_names: tuple[str, ...] = ()
    """Entity types and columns in the criteria that the log does not have."""
    unknown_changes: tuple[str, ...] = ()
    """Entity types whose updates all match, because the columns that they changed are unknown."""
    effective_criteria: tuple[Criteria, ...] = ()
    """The criteria narrowed to the grants; empty if the criteria are granted as requested."""
    name: str = ""
    """Name of the named subscription; empty for an unnamed one."""
    epoch: int = 0
    """Epoch of the named subscription's reader; 0 for an unnamed one."""
    where_version: int | None = None
    """Version of the schema by which the names in conditions were resolved, for conditions that gave none; None
    if no condition needs it."""
    state_version: int | None = None
    """Version of the state that is delivered first; None if only changes are delivered."""


@dataclass(frozen=True, slots=True)
class DeliveryOptions:
    """The options of one subscription: those of the request, and the engine's defaults for the others."""

    use: GrantUse
    """The grants that the subscription depends on, with its granted criteria."""
    content: Content
    codec: Codec
    demand: int | None
    """Initial demand, in captures; None: any number."""
    queue_captures: int
    message_bytes: int
    """Largest size of a message of several captures, in bytes."""
    max_message_bytes: int
    """Largest size of a capture, in bytes; a larger capture is delivered as its header only."""
    heartbeat_interval_s: float
    peer: Peer = IN_PROCESS
    admission: Admission = FREE
    catch_up: CatchUp = CatchUp.ALL
    """The catch-up policy of a subscription that begins behind: every capture, or the latest of each key."""
    overrun: OverrunPolicy = OverrunPolicy.RESYNC
    """How the subscription continues when its ring has overtaken it."""
    wait: VersionWait | None = None
    """A version whose publication is awaited before the start is resolved; None: no wait."""
    caller: Principal = ANONYMOUS
    """The caller; its subscriptions end when their grants do."""

    @property
    def is_impatient(self) -> bool:
        """True if the ring must overtake a slow reader even if no other reader is faster."""
        return self.overrun is not OverrunPolicy.RESYNC

    @property
    def expires_in_s(self) -> float | None:
        """Seconds until the caller's credentials expire, at least 0; None: they do not expire."""
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
    """Return the options of a subscription: the engine's settings, overridden by ``limits``.

    Raises:
        InvalidRequest: The demand is negative.
    """
    limits = limits or SubscriptionLimits()
    if demand is not None and demand < 0:
        raise InvalidRequest(f"demand {demand}: must not be negative")
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
