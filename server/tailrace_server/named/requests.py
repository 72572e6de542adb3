"""Requests to named subscriptions and their answers, and the owners of names.

Names belong to their owners. Two callers may give the same name, and neither learns of the other's. Callers
whose identity the server does not know own nothing: what they create can be used by every caller.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.cursor import Cursor
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
    """The named subscription that a reader asks for."""

    name: str
    epoch: int | None = None
    """The epoch that it had before its connection broke; None: it comes for the first time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSubscription:
    """A named subscription that is to be created."""

    name: str
    criteria: tuple[Criteria, ...] = ()
    place: str = "latest"
    hold_us: int | None = None
    hold_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class NamedView:
    """One named subscription, now."""

    catalog: str
    document: SubscriptionDocument
    hold: Hold
    name: str
    """The name by which a caller uses it: the given one for its owner, the name in the log for others."""

    @classmethod
    def of(
        cls, document: SubscriptionDocument, view: LogView, now: int, owner: str = ""
    ) -> NamedView:
        """Return one by its newest object, in a log at a time, µs; ``owner`` is the caller that it is for."""
        name = given_name(document.name) if owner and owner == document.owner else document.name
        return cls(view.name, document, hold_of(document, view, now), name)

    @property
    def criteria(self) -> tuple[Criteria, ...]:
        """Its criteria."""
        return criteria_in(self.document.criteria)

    @property
    def cursor(self) -> Cursor:
        """Everything up to it is acknowledged."""
        return Cursor.parse(self.document.cursor)

    @property
    def health(self) -> SubscriptionHealth:
        """The state of its hold: held, not held, broken or lost."""
        return health_of(self.hold)


def owner_of(caller: Principal) -> str:
    """Return the owner of what a caller creates; empty: none."""
    return "" if caller.name == "anonymous" else caller.name


def may_use(caller: Principal, catalog: str, found: SubscriptionDocument) -> bool:
    """Return True if a caller owns a subscription, operates its catalog, or if there is no owner."""
    return (
        not found.owner or found.owner == owner_of(caller) or may(caller, Action.OPERATE, catalog)
    )


def names_meant(caller: Principal, name: str) -> tuple[str, ...]:
    """Return the names in the log that a caller may mean by a name, its own first."""
    return tuple(dict.fromkeys((name_in_log(name, owner_of(caller)), name)))


async def usable(
    caller: Principal, catalog: str, sequences: SubscriptionSequences, name: str
) -> SubscriptionDocument | None:
    """Return the subscription that a caller means by a name, or None where it may use none of that name.

    Raises:
        InvalidRequest: The name is not of the form.
    """
    check_subscription_name(name)
    for each in names_meant(caller, name):
        found = await asyncio.to_thread(sequences.newest, each)
        if found is not None and not found.deleted and may_use(caller, catalog, found):
            return found
    return None
