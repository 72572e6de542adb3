"""What resolvers have in hand: one operation's way to the engine."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from tailrace import wire
from tailrace.capture import Heartbeat
from tailrace.errors import CatalogUnknown, InvalidRequest
from tailrace.v1.change_capture_pb2 import SubscribeResponse
from tailrace_server.api.graphql import signals, types
from tailrace_server.api.graphql.arguments import Scope, wish_of
from tailrace_server.api.graphql.connection import read_page
from tailrace_server.capture.codecs import PROTOBUF
from tailrace_server.wal.catalog import SYSTEM_CATALOG

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
    from uuid import UUID

    import strawberry

    from tailrace.capture import Capture
    from tailrace.errors import TailraceError
    from tailrace_server.api.graphql.schema import CatalogSchema
    from tailrace_server.api.settings import HttpSettings
    from tailrace_server.capture.delivery.subscription import Subscription
    from tailrace_server.capture.engine import Engine


class Context:
    """One operation of a catalog's path; Strawberry's ``info.context``."""

    def __init__(
        self, engine: Engine, settings: HttpSettings, catalog: str, built: CatalogSchema
    ) -> None:
        """Bind to the schema that the document was validated against."""
        self.engine = engine
        self.settings = settings
        self.catalog = catalog
        self.built = built
        self.on_end: Callable[[TailraceError], None] | None = None
        """Told when a subscription ends while its reader is busy."""
        self._reading = asyncio.Lock()
        self._history_bytes = settings.graphql_history_bytes
        self._extensions: dict[str, Any] | None = None

    async def events(
        self, info: strawberry.Info, arguments: Mapping[str, Any], scope: Scope
    ) -> AsyncGenerator[Capture | None, None]:
        """Yield what a subscription field delivers; None for a signal, which is in the extensions."""
        wish = wish_of(
            arguments,
            scope,
            bodies_of(info.selected_fields),
            criteria_max=self.engine.settings.criteria,
        )
        subscription = await self.engine.subscribe(
            self.catalog,
            wish.criteria,
            start=wish.start,
            content=wish.content,
            codec=PROTOBUF,
            limits=wish.limits,
        )
        subscription.on_end = self.on_end
        try:
            async with aclosing(
                self._events(subscription, bool(arguments.get("signals")))
            ) as events:
                async for event in events:
                    yield event
        finally:
            subscription.cancel()

    async def _events(
        self, subscription: Subscription, signalled: bool
    ) -> AsyncGenerator[Capture | None, None]:
        uuid = subscription.acknowledgement.catalog_uuid
        if signalled:
            self._extensions = signals.acknowledgement(
                subscription.acknowledgement, self.engine, self.settings
            )
            yield None
        while True:
            message = await subscription.receive()
            if not isinstance(message, Heartbeat):
                for capture in captures_of(message.data, uuid):
                    yield capture
            elif signalled:
                self._extensions = signals.heartbeat(message)
                yield None

    def take_extensions(self) -> dict[str, Any] | None:
        """Return the extensions of the event that was just yielded."""
        found, self._extensions = self._extensions, None
        return found

    async def page(
        self, info: strawberry.Info, arguments: Mapping[str, Any], scope: Scope
    ) -> types.Connection:
        """Return a page of history; the pages of one operation are read one after the other.

        Raises:
            InvalidRequest: The pages before it are all that one operation may read.
        """
        async with self._reading:
            if self._history_bytes <= 0:
                limit = self.settings.graphql_history_bytes
                raise InvalidRequest(
                    f"the fields before have read {limit} bytes of history, the limit of an operation; "
                    "ask for this page by itself"
                )
            page = await read_page(
                self.engine,
                self.settings,
                self.catalog,
                arguments,
                scope,
                bodies_of(info.selected_fields),
                bytes_max=self._history_bytes,
            )
            self._history_bytes -= page.nbytes
            return page

    async def catalog_now(self) -> types.Catalog:
        """Return the catalog of this path.

        Raises:
            CatalogUnknown: It has gone meanwhile.
        """
        infos = self.engine.catalogs()
        for each in infos:
            if each.name == self.catalog:
                return types.catalog_of(each)
        raise CatalogUnknown(self.catalog, [each.name for each in infos])

    async def schema(self, version: int | None) -> types.Schema:
        """Return the schema of the log at a version, with the names that it has here."""
        if version is not None and version < 1:
            raise InvalidRequest(f"version {version}: versions count from 1")
        published = self.engine.observer(self.catalog).view.published
        at = published if version is None else min(version, published)
        found = await self.engine.schema(self.catalog, at)
        rows = {row.entity_type: row for row in self.built.rows.values()}
        fields = {
            name: {column: field for field, ((column, *_), _) in row.fields.items()}
            for name, row in rows.items()
        }
        return types.Schema(
            id=found.id,
            entity_types=[
                types.EntityType(
                    name=name,
                    type=rows[name].name if name in rows else None,
                    columns=[
                        types.Column(
                            name=column.name,
                            field=fields.get(name, {}).get(column.name),
                            role=types.ContainerType[column.role.name],
                            sql_type=column.sql_type,
                            encoding=column.encoding,
                            nullable=column.nullable,
                            key=column.key,
                            origin=column.origin.value,
                            id=column.id,
                            dropped=column.dropped,
                        )
                        for column in columns
                    ],
                )
                for name, columns in found.entity_types.items()
            ],
        )

    def statistics(self) -> types.Statistics:
        """Return figures of the catalog, or of all of them on the system path."""
        every = self.engine.statistics().observers
        system = self.catalog == SYSTEM_CATALOG
        found = every if system else tuple(each for each in every if each.catalog == self.catalog)
        total = {
            name: sum(getattr(each, name) for each in found)
            for name in (
                *("records", "records_routed", "publishers", "subscriptions"),
                *("batches_unreadable", "ring_bytes"),
            )
        }
        one = found[0] if found and not system else None
        return types.Statistics(
            published_version=None if one is None else one.published,  # type: ignore[arg-type]
            committed_version=None if one is None else one.committed,  # type: ignore[arg-type]
            **total,
        )


def captures_of(data: bytes, uuid: UUID) -> tuple[Capture, ...]:
    """Return the captures of frames of the protobuf codec."""
    return wire.captures(SubscribeResponse.FromString(data).captures, uuid)


def bodies_of(selections: Iterable[Any]) -> frozenset[str]:
    """Return the bodies that a selection may need, judged by the names in it."""
    found = set()
    for each in selections:
        name = str(getattr(each, "name", "")).removesuffix("Text")
        if name in types.BODIES:
            found.add(name)
        found |= bodies_of(each.selections)
    return frozenset(found)
