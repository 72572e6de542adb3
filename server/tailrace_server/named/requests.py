"""Requests to named subscriptions and their answers, and the owners of names.

Names belong to their owners. Two callers may use the same name without learning of each other. Anonymous
callers own nothing: every caller may use the subscriptions that they create.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.cursor import Cursor, StateCursor
from tailrace.errors import InvalidRequest
from tailrace_server.grants.grant import Action
from tailrace_server.grants.principal import may
from tailrace_server.wal.sequences.holds import health_of, hold_of
from tailrace_server.wal.sequences.subscription_changes import criteria_in
from tailrace_server.wal.sequences.subscriptions import (
    check_subscription_name,
    given_name,
    name_in_log,
)

if TYPE_CHECKING:
    from tailrace.criteria import Criteria
    from tailrace.named import SubscriptionHealth
    from tailrace_server.grants.principal import Principal
    from tailrace_server.wal.files.sequence_documents import SubscriptionDocument
    from tailrace_server.wal.sequences.holds import Hold
    from tailrace_server.wal.sequences.subscriptions import SubscriptionSequences
    from tailrace_server.wal.state.view import LogView


@dataclass(frozen=True, slots=True)
class NamedReader:
    """A request to read a named subscription."""

    name: str
    epoch: int | None = None
    """The reader's epoch before its connection broke; None: it connects for the first time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSubscription:
    """A request to create a named subscription."""

    name: str
    criteria: tuple[Criteria, ...] = ()
    place: str = "latest"
    """The place at which the subscription begins, as text."""
    hold_us: int | None = None
    """The requested hold in time, in microseconds; None: the default."""
    hold_bytes: int | None = None
    """The requested hold in bytes; None: the default."""


@dataclass(frozen=True, slots=True)
class NamedView:
    """The current state of one named subscription, for a caller."""

    catalog: str
    document: SubscriptionDocument
    hold: Hold
    name: str
    """The name for the caller: the owner sees the name as given, other callers the name in the log."""

    @classmethod
    def of(
        cls, document: SubscriptionDocument, view: LogView, now: int, owner: str = ""
    ) -> NamedView:
        """Create the view of a subscription.

        Args:
            document: The newest document of the subscription.
            view: The log.
            now: The current time, in microseconds.
            owner: The caller, as ``owner_of`` returns it.
        """
        name = given_name(document.name) if owner and owner == document.owner else document.name
        return cls(view.name, document, hold_of(document, view, now), name)

    @property
    def criteria(self) -> tuple[Criteria, ...]:
        """The criteria of the subscription."""
        return criteria_in(self.document.criteria)

    @property
    def cursor(self) -> Cursor:
        """The cursor up to which everything is acknowledged."""
        return Cursor.parse(self.document.cursor)

    @property
    def health(self) -> SubscriptionHealth:
        """The state of the hold: held, not held, broken or lost."""
        return health_of(self.hold)


def owner_of(caller: Principal) -> str:
    """Return the owner of subscriptions that a caller creates; empty if the caller is anonymous."""
    return "" if caller.name == "anonymous" else caller.name


def may_use(caller: Principal, catalog: str, found: SubscriptionDocument) -> bool:
    """Return True if a caller owns a subscription or operates its catalog, or if it has no owner."""
    return (
        not found.owner or found.owner == owner_of(caller) or may(caller, Action.OPERATE, catalog)
    )


def names_meant(caller: Principal, name: str) -> tuple[str, ...]:
    """Return the names in the log that a caller's name may mean: first that of its own subscription."""
    return tuple(dict.fromkeys((name_in_log(name, owner_of(caller)), name)))


async def usable(
    caller: Principal, catalog: str, sequences: SubscriptionSequences, name: str
) -> SubscriptionDocument | None:
    """Return the subscription that a caller means by a name; None if the caller may use no such subscription.

    Raises:
        InvalidRequest: The name is invalid.
    """
    check_subscription_name(name)
    for each in names_meant(caller, name):
        found = await asyncio.to_thread(sequences.newest, each)
        if found is not None and not found.deleted and may_use(caller, catalog, found):
            return found
    return None


def start_of(named: NamedView, after: Cursor) -> Cursor:
    """Return a reader's own cursor as its start.

    Raises:
        InvalidRequest: The cursor is before the acknowledged one, or is a position in a state.
    """
    if isinstance(after, StateCursor):
        raise InvalidRequest(
            "after: the cursor is a position in a state, but a named subscription delivers changes; use "
            "a cursor of a change"
        )
    if after < named.cursor:
        raise InvalidRequest(
            f"after {after}: subscription {named.name!r} is acknowledged up to the later cursor "
            f"{named.cursor}; leave after out, or reset the subscription"
        )
    return after
