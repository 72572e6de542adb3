"""Requests to named subscriptions, and their answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.cursor import Cursor
from tailrace_server.wal.subscriptions.criteria_documents import criteria_in
from tailrace_server.wal.subscriptions.holds import health_of, hold_of
from tailrace_server.wal.subscriptions.sequence import given_name

if TYPE_CHECKING:
    from tailrace.criteria import Criteria
    from tailrace.named.values import SubscriptionHealth
    from tailrace_server.wal.files.subscription_documents import SubscriptionDocument
    from tailrace_server.wal.state.view import LogView
    from tailrace_server.wal.subscriptions.holds import Hold


@dataclass(frozen=True, slots=True)
class NameAsked:
    """The named subscription that a reader asks for."""

    name: str
    epoch: int | None = None
    """The epoch that it had before its connection broke; None: it comes for the first time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedAsked:
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
        """The effect of retention on it."""
        return health_of(self.hold)
