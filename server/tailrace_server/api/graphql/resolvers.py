"""The reads of resolvers: the context of one operation, pages of history in Relay's form, and rows of a table.

A list of history is in the order of the log, or in reverse order with ``reverse``. ``first`` is the number of
records at the beginning of the list, after a cursor. ``last`` is the number of records at its end, before a
cursor. A page never splits a record. The log is read from the side on which the page lies, so only records of
the page are read.

Rows of a table are also edges. Reading after the cursor of an edge continues after its row.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tailrace import wire
from tailrace.criteria import After, FromTime, Since
from tailrace.cursor import Cursor
from tailrace.errors import CatalogUnknown, InvalidRequest, TailraceError
from tailrace.position import Position, TimestampMicros
from tailrace.v1.capture_fields_pb2 import ReadStateResponseParts, SubscribeResponseParts
from tailrace.v1.change_capture_pb2 import ReadChangesRequest, ReadStateRequest
from tailrace_server.api import requests
from tailrace_server.api.graphql import types
from tailrace_server.api.graphql.arguments import plain
from tailrace_server.api.json_requests import from_json, in_json, in_json_names
from tailrace_server.api.requests import reading
from tailrace_server.codecs import PROTOBUF
from tailrace_server.codecs.columns import no_schema
from tailrace_server.grants.grant import Action
from tailrace_server.grants.principal import IN_PROCESS, Peer
from tailrace_server.wal.catalog import SYSTEM_CATALOG
from tailrace_server.wal.state.view import refuse_other_history

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    import strawberry

    from tailrace.capture import Capture
    from tailrace.criteria import Start
    from tailrace.schema import Schema
    from tailrace_server.api.graphql.arguments import Scope, TypedCondition
    from tailrace_server.api.graphql.catalog_schema import CatalogSchema
    from tailrace_server.api.settings import HttpSettings
    from tailrace_server.engine.engine import Engine
    from tailrace_server.grants.principal import Principal
    from tailrace_server.reads.history import HistoryBounds, HistoryRead
    from tailrace_server.reads.state import StateRead
    from tailrace_server.resources.memory import MemoryCharge
    from tailrace_server.wal.state.view import LogView


_BOUNDS: Final = (
    *("sinceVersion", "sinceIndex", "untilVersion", "untilIndex"),
    *("anchor", "waitForVersion", "waitMs"),
)
"""Arguments that are copied to the request unchanged."""
COPIES: Final = 4
"""Number of copies of a page in memory: messages, captures, values of the answer, and its text."""


_Page = TypeVar("_Page", types.HistoryPage, types.TablePage)


async def read_page(
    engine: Engine,
    caller: Principal,
    peer: Peer,
    settings: HttpSettings,
    catalog: str,
    arguments: Mapping[str, Any],
    scope: Scope,
    bodies: frozenset[str],
    condition: TypedCondition | None,
    *,
    bytes_max: int,
    pages: MemoryCharge,
) -> types.HistoryPage:
    """Read a page of history; its memory is charged to ``pages``.

    The page ends after the record with which it exceeds ``bytes_max``.

    Raises:
        InvalidRequest: The arguments contradict each other.
        TailraceError: The range cannot be read.
        ServerFull: There is no memory for the page.
    """
    # 1. The side from which the log is read: `reverse` and `last` both turn it around.
    asked = {name: plain(value) for name, value in arguments.items() if value is not None}
    limit, from_end = _limit(asked, settings.page_records)
    reverse = bool(asked.get("reverse", False))
    backwards = reverse != from_end
    # 2. The range. Cursors and times are added later by `_bounds`, as GraphQL allows combinations of them.
    message = _message(asked, scope, bodies, condition, engine.settings.criteria)
    try:
        bounds = requests.history_bounds(message)
    except InvalidRequest as error:
        raise in_json_names(error) from None
    names = [name for name in ("after", "before") if name in asked]
    cursors: dict[str, Cursor] = {name: Cursor.parse(asked[name]) for name in names}
    newest = max((each.version for each in cursors.values()), default=0)
    # Wait before the cursors are checked: a cursor may point to the version that is waited for. The view must
    # contain the versions of both cursors, or a valid cursor would look like one ahead of the log.
    if bounds.wait is not None:
        await engine.view(caller, catalog, bounds.wait)
    view = await engine.view(caller, catalog, newest)
    with nullcontext() if condition is None else condition.told():
        async with reading(
            engine.turns.many_keys, in_json(requests.history_criteria), message
        ) as criteria:
            history = await engine.history(
                caller,
                catalog,
                criteria,
                bounds=_bounds(asked, cursors, bounds, view, reverse=reverse),
                reverse=backwards,
                content=requests.content(message.body),
                codec=PROTOBUF,
                limit=limit,
                peer=peer,
            )
    # 3. Read. A page from the end was read backwards.
    with history:
        capture_bytes_max = engine.settings.max_message_bytes
        captures, more, size = await _read(history, bytes_max, capture_bytes_max, pages)
    if from_end:
        captures.reverse()
    return types.HistoryPage(
        captures,
        types.PageInfo(
            has_next_page="before" in asked if from_end else more,
            has_previous_page=more if from_end else "after" in asked,
            start_cursor=str(captures[0].cursor) if captures else None,
            end_cursor=str(captures[-1].cursor) if captures else None,
        ),
        anchor=history.anchor,
        closed_until=history.closed_until,
        oldest=types.PositionObject(version=history.oldest.version, index=history.oldest.index),  # type: ignore[arg-type]
        truncated=history.truncated,
        unknown_changes=list(history.unknown_changes),
        nbytes=size,
        schema_of=view.schema_of,
    )


def _limit(asked: Mapping[str, Any], most: int) -> tuple[int, bool]:
    """Return the number of records to read, and True if they are at the end of the list."""
    if "first" in asked and "last" in asked:
        raise InvalidRequest("give first or last, not both")
    name = "last" if "last" in asked else "first"
    count = asked.get(name, most)
    if not 1 <= count <= most:
        raise InvalidRequest(f"{name} {count}: must be from 1 to {most}, the largest page")
    return count, name == "last"


def _message(
    asked: Mapping[str, Any],
    scope: Scope,
    bodies: frozenset[str],
    condition: TypedCondition | None,
    criteria_max: int,
) -> ReadChangesRequest:
    """Return the request without cursors and times: `_bounds` adds them, as other faces cannot combine them."""
    fields = {name: asked[name] for name in _BOUNDS if name in asked}
    fields["criteria"] = scope.narrowed(
        asked.get("criteria"), None if condition is None else condition.tree
    )
    fields["body"] = sorted(bodies)
    return from_json(ReadChangesRequest, fields, criteria_max=criteria_max)


def _bounds(
    asked: Mapping[str, Any],
    cursors: Mapping[str, Cursor],
    bounds: HistoryBounds,
    view: LogView,
    *,
    reverse: bool,
) -> HistoryBounds:
    """Return the range that satisfies all given bounds, so that a page after a cursor stays in its range.

    Raises:
        CatalogReplaced, CursorAhead, HistoryReplaced: A cursor belongs to another history than this log's.
    """
    lower_name, upper_name = ("before", "after") if reverse else ("after", "before")
    # Check all cursors here: the reader gets only the highest lower bound, and checks only that one.
    for name, cursor in cursors.items():
        refuse_other_history(view, cursor, upper=name == upper_name)
    # Of several lower bounds the highest one holds; upper bounds are separate fields, which the reader
    # combines.
    lowers = [] if bounds.lower is None else [bounds.lower]
    if lower_name in cursors:
        lowers.append(After(cursors[lower_name]))
    if "from" in asked:
        lowers.append(FromTime(TimestampMicros(asked["from"])))

    def begins_at(start: Start) -> Position:
        match start:
            case Since(position):
                return position
            case After(cursor):
                return cursor.position
            case FromTime(timestamp):
                return Position(view.version_at(timestamp), 0)

    return replace(
        bounds,
        lower=max(lowers, key=begins_at, default=None),
        until_time=asked.get("to"),
        before=cursors.get(upper_name),
    )


async def _read(
    history: HistoryRead, bytes_max: int, capture_bytes_max: int, pages: MemoryCharge
) -> tuple[list[Capture], bool, int]:
    """Return captures, True if there are more, and their bytes; captures above the limit have no bodies."""
    captures: list[Capture] = []
    size = 0
    async for frames in history:
        message = SubscribeResponseParts.FromString(frames.data)
        found = wire.captures(message.captures, history.catalog_uuid)
        # End the page only between two records: captures of the same record share a position.
        if size > bytes_max and found[0].position != captures[-1].position:
            return captures, True, size
        if len(found) == 1 and len(frames.data) > capture_bytes_max:
            found = (without_bodies(found[0]),)
        else:
            pages.add(len(frames.data) * COPIES)
            size += len(frames.data)
        captures += found
    return captures, history.has_next, size


def without_bodies(capture: Capture) -> Capture:
    """Return a capture without bodies, with their total size as ``omitted_bytes``."""
    bodies = (capture.change, capture.before, capture.after)
    size = sum(len(body or b"") for body in bodies)
    return capture._replace(change=None, before=None, after=None, omitted_bytes=size)


async def read_table(
    engine: Engine,
    caller: Principal,
    peer: Peer,
    settings: HttpSettings,
    catalog: str,
    entity_type: str,
    arguments: Mapping[str, Any],
    condition: TypedCondition | None,
    *,
    with_images: bool,
    bytes_max: int,
    pages: MemoryCharge,
) -> types.TablePage:
    """Read a page of rows of a table; its memory is charged to ``pages``.

    The page ends after the row with which it exceeds ``bytes_max``.

    Raises:
        InvalidRequest: An argument is invalid.
        TailraceError: The table cannot be read.
        ServerFull: There is no memory for the page.
    """
    most = settings.page_records
    count = arguments.get("limit", most)
    if not 1 <= count <= most:
        raise InvalidRequest(f"first {count}: must be from 1 to {most}, the largest page")
    fields = {**arguments, "limit": count, "entityType": entity_type, "keysOnly": not with_images}
    if condition is not None:
        del fields["where"]
        fields["whereTree"] = condition.tree
    message = from_json(ReadStateRequest, fields, criteria_max=engine.settings.criteria)
    try:
        with nullcontext() if condition is None else condition.told():
            read = await engine.state(
                caller, catalog, requests.state(message), codec=PROTOBUF, peer=peer
            )
    except InvalidRequest as error:
        # The texts of subclasses contain names that the caller gave, which must not be converted.
        if type(error) is InvalidRequest:
            in_json_names(error)
        raise
    view = await engine.view(caller, catalog)
    with read:
        edges, more, size = await _edges_of(
            read, bytes_max, engine.settings.max_message_bytes, pages
        )
    return types.TablePage(
        edges,
        types.PageInfo(
            has_next_page=more,
            has_previous_page="page" in arguments,
            start_cursor=edges[0].cursor if edges else None,
            end_cursor=edges[-1].cursor if edges else None,
        ),
        version=read.version,
        commit_timestamp=read.commit_timestamp,
        resume_cursor=str(read.cursor),
        nbytes=size,
        schema_of=view.schema_of,
    )


async def _edges_of(
    read: StateRead, bytes_max: int, row_bytes_max: int, pages: MemoryCharge
) -> tuple[list[types.Edge], bool, int]:
    """Return edges, True if there are more rows, and their size in bytes.

    A row above ``row_bytes_max`` is returned without its image.
    """
    edges: list[types.Edge] = []
    size = 0
    async for frames in read:
        if size > bytes_max:
            return edges, True, size
        found = wire.captures(
            ReadStateResponseParts.FromString(frames.data).rows, read.catalog_uuid
        )
        if len(found) == 1 and len(frames.data) > row_bytes_max:
            found = (without_bodies(found[0]),)
        else:
            pages.add(len(frames.data) * COPIES)
            size += len(frames.data)
        edges += [types.Edge(str(read.page_behind(each.primary_key or "")), each) for each in found]
    return edges, read.has_next, size


class Context:
    """The context of one operation on a catalog, which resolvers get as ``info.context``."""

    def __init__(
        self,
        engine: Engine,
        settings: HttpSettings,
        catalog: str,
        built: CatalogSchema,
        caller: Principal,
        peer: Peer = IN_PROCESS,
    ) -> None:
        """Bind to a caller, and to the schema that the document was validated against."""
        self.caller = caller
        self._peer = peer
        self.engine = engine
        self.settings = settings
        self.catalog = catalog
        self.built = built
        self._reading = asyncio.Lock()
        """Held while a page is read: the pages of an operation are read one after the other."""
        self._history_bytes = settings.graphql_history_bytes
        """Bytes that this operation may still read."""
        self.pages = engine.pages.empty()
        """Memory charged for the pages of this operation until its answer is encoded."""
        self.schema_of: Callable[[int], Schema] = no_schema
        """Function that returns the schema of a version; set by the page that was read last."""

    async def page(
        self, info: strawberry.Info, arguments: Mapping[str, Any], scope: Scope
    ) -> types.HistoryPage:
        """Return a page of history; the pages of one operation are read one after the other.

        Raises:
            InvalidRequest: Earlier pages of this operation have used up its limit.
            ServerFull: The pages of other operations use all available memory.
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
        """Return rows of the table that a field names; read in turn with the pages of history, see ``page``."""
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
                    f"the previous fields have read {limit} bytes of history, the limit of an operation; "
                    "request this page in an operation of its own"
                )
            try:
                page = await read(bytes_max=self._history_bytes, pages=self.pages)
            except TailraceError as error:
                # graphql-core stores the error in a frame of its traceback: a cycle that lives until the
                # garbage collector runs. Without its traceback the error does not keep the page in memory for
                # that time.
                raise error.with_traceback(None) from error.__cause__
            self._history_bytes -= page.nbytes
            self.schema_of = page.schema_of
            return page

    async def catalog_now(self) -> types.CatalogObject:
        """Return the catalog of this path.

        Raises:
            CatalogUnknown: The catalog has been dropped meanwhile.
        """
        infos = self.engine.catalogs(self.caller)
        for each in infos:
            if each.name == self.catalog:
                return types.catalog_of(each)
        raise CatalogUnknown(self.catalog, [each.name for each in infos])

    async def schema(self, version: int | None) -> types.SchemaObject:
        """Return the schema of the log at a version (None = the newest), with its GraphQL names."""
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
                            role=column.role,
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
        """Return the statistics of this catalog; on the system path, the totals of all granted catalogs."""
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
    """Return the bodies that a selection may need, by the names of its fields at any depth."""
    found = set()
    for each in selections:
        name = str(getattr(each, "name", "")).removesuffix("Text")
        if name in types.BODIES:
            found.add(name)
        if name == types.UNAVAILABLE:
            found |= {*types.TOLD_FROM}
        found |= bodies_of(each.selections)
    return frozenset(found)
