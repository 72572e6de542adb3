"""The server's answer to a subscribe: the first message of every subscription."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.criteria import CatchUp, OverrunPolicy

if TYPE_CHECKING:
    from uuid import UUID

    from tailrace.criteria import Criteria
    from tailrace.cursor import Cursor
    from tailrace.position import Position


@dataclass(frozen=True, slots=True)
class Limits:
    """The server's bounds for one subscription."""

    queue_captures: int
    """Captures that the server keeps ready at most."""
    message_bytes: int
    """Largest message, bytes; less while the server is short of memory. A larger capture comes alone."""
    max_message_bytes: int
    """A larger capture comes without bodies and with ``omitted_bytes``."""
    send_deadline_s: float
    """How long a write may stay blocked before the server ends the stream as too slow."""
    request_bytes: int
    """Largest request that the server takes."""


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """A subscription is open. Changes that are committed after it was received will be delivered."""

    subscription_id: str
    """Name of the subscription in the server's logs and statistics."""
    catalog: str
    catalog_uuid: UUID
    """Identity of the log that its cursors belong to."""
    start: Position
    """First position that can come, inclusive."""
    resume_cursor: Cursor
    """Stands just before ``start``."""
    published: int
    """The watermark when the start was resolved, 0 for none."""
    heartbeat_interval_s: float
    limits: Limits
    features: frozenset[str]
    """The server's features beyond the first release of the protocol."""
    catch_up: CatchUp = CatchUp.ALL
    """The catch-up policy: what it gets of the versions that it is behind as it begins."""
    overrun_policy: OverrunPolicy = OverrunPolicy.RESYNC
    """The overrun policy: what happens when the server's ring has overtaken it."""
    unknown_names: tuple[str, ...] = ()
    """Entity types and columns in the criteria that the log does not have; what they name is waited for."""
    unknown_changes: tuple[str, ...] = ()
    """Entity types whose updates come without ``before``: each matches the columns in the criteria, changed or
    not."""
    effective_criteria: tuple[Criteria, ...] = ()
    """The criteria narrowed to the grants; empty if all of them are granted."""
    name: str = ""
    """The named subscription that is read; empty: none."""
    epoch: int = 0
    """This reader's among all that the named subscription has had; 0: none."""
    state_version: int | None = None
    """The version of the state that is sent first; ``start`` is that of the changes. None: changes only."""
    where_version: int | None = None
    """The version whose names the conditions of the criteria have; None: there is no condition."""
