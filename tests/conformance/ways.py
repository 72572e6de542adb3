"""The interface that a driver gives to the suite: a served engine, reached over one transport."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from tailrace.criteria import CatchUp, Content
from tests.conformance.entrances import OPEN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from uuid import UUID

    from tailrace.capture import Capture, Heartbeat, StateComplete
    from tailrace.criteria import Beginning, Criteria, OverrunPolicy
    from tailrace.cursor import Cursor
    from tailrace.position import Position
    from tailrace_server.engine.engine import Engine
    from tests.conformance.entrances import Entrance


class Acknowledged(Protocol):
    """What every transport says first."""

    @property
    def subscription_id(self) -> str: ...
    @property
    def catalog_uuid(self) -> UUID: ...
    @property
    def start(self) -> Position: ...
    @property
    def resume_cursor(self) -> Cursor: ...
    @property
    def published(self) -> int: ...
    @property
    def heartbeat_interval_s(self) -> float: ...
    @property
    def catch_up(self) -> CatchUp: ...
    @property
    def overrun_policy(self) -> OverrunPolicy: ...
    @property
    def unknown_names(self) -> tuple[str, ...]: ...
    @property
    def unknown_changes(self) -> tuple[str, ...]: ...
    @property
    def state_version(self) -> int | None: ...


class DrivenSubscription(Protocol):
    """A subscription in the hands of a test."""

    @property
    def acknowledgement(self) -> Acknowledged: ...

    marks: list[StateComplete]
    """That the state is complete, for which ``receive`` returns no captures."""

    async def request(self, n: int) -> None:
        """Ask for more; only where the subscription was made with a demand."""

    async def receive(self) -> tuple[Capture, ...] | Heartbeat:
        """Return the next message, or raise the error that ended the subscription."""

    async def cancel(self) -> None:
        """End it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a test subscribes to."""

    criteria: tuple[Criteria, ...]
    catalog: str
    start: Beginning | None
    content: Content
    demand: int | None
    """None: everything as it comes."""
    more: dict[str, Any]
    """Further fields of the request."""


@dataclass(frozen=True, slots=True)
class Page:
    """A closed range of history."""

    captures: list[Capture]
    anchor: int
    closed_until: int
    next_cursor: Cursor | None
    """None: nothing follows."""
    truncated: bool


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a table."""

    captures: list[Capture]
    """Each as the capture that it came with."""
    version: int
    cursor: Cursor
    """Goes on from the version."""
    next_page: str | None
    """None: nothing follows."""


class Driver:
    """A served engine; subscriptions made through it end with it."""

    cannot: ClassVar[Mapping[str, str]] = {}
    """What the transport has no words for, with the reason: ``demand``. Tests that need it do not run."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @classmethod
    def serve(
        cls, engine: Engine, entrance: Entrance = OPEN
    ) -> AbstractAsyncContextManager[Driver]:
        """Serve an engine and reach it, by an entrance."""
        raise NotImplementedError

    async def subscribe(
        self,
        criteria: Sequence[Criteria] = (),
        *,
        catalog: str = "shop",
        start: Beginning | None = None,
        content: Content = Content.HEADER,
        demand: int | None = None,
        **more: Any,
    ) -> DrivenSubscription:
        """Subscribe; ``demand`` None takes everything as it comes; ``more`` are fields of the request."""
        return await self.open(Asked(tuple(criteria), catalog, start, content, demand, more))

    async def open(self, asked: Asked) -> DrivenSubscription:
        """Subscribe over this transport."""
        raise NotImplementedError

    async def read(
        self,
        criteria: Sequence[Criteria] = (),
        *,
        content: Content = Content.HEADER,
        **bounds: Any,
    ) -> Page:
        """Read a range of the catalog ``shop``; ``bounds`` are fields of ReadChangesRequest."""
        return await self.page(criteria, content, bounds)

    async def page(
        self, criteria: Sequence[Criteria], content: Content, bounds: dict[str, Any]
    ) -> Page:
        """Read it over this transport."""
        raise NotImplementedError

    async def state(self, entity_type: str = "product", **asked: Any) -> Rows:
        """Read a table of the catalog ``shop``; ``asked`` are fields of ReadStateRequest."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Stop the server in good order."""
        self.engine.stop_subscriptions()
