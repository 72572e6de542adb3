"""The context of resolvers: one operation's way to the engine."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from tailrace.errors import CatalogUnknown, InvalidRequest, TailraceError
from tailrace_server.api.graphql import types
from tailrace_server.api.graphql.connection import read_page
from tailrace_server.api.graphql.tables import read_table
from tailrace_server.codecs.columns import no_schema
from tailrace_server.grants.grant import Action
from tailrace_server.grants.principal import IN_PROCESS, Peer
from tailrace_server.wal.catalog import SYSTEM_CATALOG

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    import strawberry

    from tailrace.schema import Schema
    from tailrace_server.api.graphql.arguments import Scope
    from tailrace_server.api.graphql.catalog_schema import CatalogSchema
    from tailrace_server.api.settings import HttpSettings
    from tailrace_server.engine.engine import Engine
    from tailrace_server.grants.principal import Principal

_Page = TypeVar("_Page", types.HistoryPage, types.TablePage)


class Context:
    """One operation of a catalog's path; Strawberry's ``info.context``."""

    def __init__(
        self,
        engine: Engine,
        settings: HttpSettings,
        catalog: str,
        built: CatalogSchema,
        caller: Principal,
        peer: Peer = IN_PROCESS,
    ) -> None:
        """Bind to who asks, and to the schema that the document was validated against."""
        self.caller = caller
        self._peer = peer
        self.engine = engine
        self.settings = settings
        self.catalog = catalog
        self.built = built
        self._reading = asyncio.Lock()
        self._history_bytes = settings.graphql_history_bytes
        self.pages = engine.pages.empty()
        """The bytes charged for the pages of this operation, until its answer is made."""
        self.schema_of: Callable[[int], Schema] = no_schema
        """The schema of each version of the history that was read last."""

    async def page(
        self, info: strawberry.Info, arguments: Mapping[str, Any], scope: Scope
    ) -> types.HistoryPage:
        """Return a page of history; the pages of one operation are read one after the other.

        Raises:
            InvalidRequest: The pages before it are all that one operation may read.
            ServerFull: Other operations have read all that there is room for.
        """
        read = partial(
            read_page,
            self.engine,
            self.caller,
            self._peer,
            self.settings,
            self.catalog,
            arguments,
            scope,
            bodies_of(info.selected_fields),
            self.built.condition(scope.rows_of, arguments),
        )
        return await self._read(read)

    async def table(self, info: strawberry.Info, arguments: Mapping[str, Any]) -> types.TablePage:
        """Return rows of the table that a field is of; read in turn with the pages of history, as ``page``."""
        entity_type = self.built.tables[info.field_name]
        read = partial(
            read_table,
            self.engine,
            self.caller,
            self._peer,
            self.settings,
            self.catalog,
            entity_type,
            arguments,
            self.built.condition(entity_type, arguments),
            with_images="after" in bodies_of(info.selected_fields),
        )
        return await self._read(read)

    async def _read(self, read: Callable[..., Awaitable[_Page]]) -> _Page:
        async with self._reading:
            if self._history_bytes <= 0:
                limit = self.settings.graphql_history_bytes
                raise InvalidRequest(
                    f"the fields before have read {limit} bytes of history, the limit of an operation; "
                    "ask for this page by itself"
                )
            try:
                page = await read(bytes_max=self._history_bytes, pages=self.pages)
            except TailraceError as error:
                # graphql-core refers to an error from a frame that it passed through: such a cycle lasts until
                # the collector comes. Without the frames below, the error keeps no page that long.
                raise error.with_traceback(None) from error.__cause__
            self._history_bytes -= page.nbytes
            self.schema_of = page.schema_of
            return page

    async def catalog_now(self) -> types.CatalogObject:
        """Return the catalog of this path.

        Raises:
            CatalogUnknown: It has gone meanwhile.
        """
        infos = self.engine.catalogs(self.caller)
        for each in infos:
            if each.name == self.catalog:
                return types.catalog_of(each)
        raise CatalogUnknown(self.catalog, [each.name for each in infos])

    async def schema(self, version: int | None) -> types.SchemaObject:
        """Return the schema of the log at a version, with the names that it has here."""
        if version is not None and version < 1:
            raise InvalidRequest(f"version {version}: versions count from 1")
        view = await self.engine.view(self.caller, self.catalog, action=Action.SCHEMA)
        found = view.schema_of(view.published if version is None else min(version, view.published))
        rows = {row.entity_type: row for row in self.built.rows.values()}
        fields = {
            name: {column: field for field, ((column, *_), _) in row.fields.items()}
            for name, row in rows.items()
        }
        return types.SchemaObject(
            id=found.id,
            entity_types=[
                types.EntityType(
                    name=name,
                    type=rows[name].name if name in rows else None,
                    columns=[
                        types.ColumnObject(
                            name=column.name,
                            field=fields.get(name, {}).get(column.name),
                            role=types.ContainerTypeEnum[column.role.name],
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

    def statistics(self) -> types.StatisticsObject:
        """Return figures of the catalog, or of all of them on the system path."""
        every = self.engine.statistics(self.caller).observers
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
        return types.StatisticsObject(
            published_version=None if one is None else one.published,  # type: ignore[arg-type]
            committed_version=None if one is None else one.committed,  # type: ignore[arg-type]
            **total,
        )


def bodies_of(selections: Iterable[Any]) -> frozenset[str]:
    """Return the bodies that a selection may need, by the names in it."""
    found = set()
    for each in selections:
        name = str(getattr(each, "name", "")).removesuffix("Text")
        if name in types.BODIES:
            found.add(name)
        if name == types.UNAVAILABLE:
            found |= {*types.TOLD_FROM}
        found |= bodies_of(each.selections)
    return frozenset(found)
