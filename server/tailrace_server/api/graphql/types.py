"""The GraphQL types that every catalog has; schema.py generates the types of its entity types.

Resolvers read from the engine's values: a `Capture`, a `CatalogInfo`, or a record of statistics.
"""

# No `from __future__ import annotations` here: Strawberry needs annotations as values, not as strings.
import asyncio
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import msgspec
import strawberry

from tailrace.capture import Capture
from tailrace.criteria import (
    Area,
    CaptureKind,
    CatchUp,
    ContainerType,
    Initial,
    Operation,
    OverrunPolicy,
    Transition,
)
from tailrace.schema import Schema
from tailrace_server.api.graphql.catalog_schema import unavailable_in
from tailrace_server.api.graphql.errors import omitted
from tailrace_server.api.graphql.scalars import Json, Long

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from tailrace_server.catalogs.catalog_info import CatalogInfo


_ENUMS: Final[tuple[tuple[type[Enum], str], ...]] = (
    (Area, "The kind of a record."),
    (Operation, "The kind of a change. EXPIRE is a removal by time to live."),
    (ContainerType, "The level of a capture: catalog, row, or column by its role."),
    (CaptureKind, "The kind of a capture."),
    (Transition, "How a change moved its row, as a condition on rows sees it."),
    (Initial, "The beginning of a subscription."),
    (
        CatchUp,
        "The captures for a subscription that begins before the newest published version.",
    ),
    (
        OverrunPolicy,
        "The server's action if the ring overtakes a live subscription that is too slow.",
    ),
)
"""The enums of the client that are GraphQL enums of the same names, with their descriptions."""
for _kind, _described in _ENUMS:
    strawberry.enum(_kind, description=_described)


@strawberry.input(
    name="Criteria",
    description="One alternative of a request: its fields are joined by AND, the values of a list by OR.",
)
class CriteriaInput:
    """The input of one criteria; its fields are those of ``Criteria`` in proto/tailrace/v1."""

    area: Area | None = None
    entity_type: list[str] | None = strawberry.field(default=None, description="Exact names.")
    primary_key: list[str] | None = strawberry.field(
        default=None, description="Canonical text; a compact JSON array for several columns."
    )
    operation: list[Operation] | None = None
    container_type: list[ContainerType] | None = strawberry.field(
        default=None, description="A role of columns requests a capture of each such column."
    )
    container_name: list[str] | None = strawberry.field(
        default=None, description="Names of columns; requests a capture of each."
    )
    where: str | None = strawberry.field(
        default=strawberry.UNSET,
        description="A condition in SQL on the values of rows, of exactly one entity type; `transition` says "
        "how a change moved its row.",
    )
    where_parameter: list[str] | None = strawberry.field(
        default=None, description="Values of the condition's parameters, each as name=value."
    )
    where_version: Long | None = strawberry.field(
        default=None, description="The version in which its names are looked up; null: the newest."
    )


def image_of(capture: Capture, body: str) -> bytes | None:
    """Return a body of a capture by name; None if the capture has no such body.

    Raises:
        ValueUnfit: The bodies were omitted because they were too large.
    """
    if capture.omitted_bytes:
        raise omitted(capture.omitted_bytes)
    found: bytes | None = getattr(capture, body)
    return found


def is_capture(cls: type, value: object, info: object) -> bool:
    """Return True if the value is a capture: it can be of every type of change."""
    return isinstance(value, Capture)


def _unavailable(root: Any, info: strawberry.Info) -> list[str]:
    context: Any = info.context
    schema = Schema() if context is None else context.schema_of(root.version)
    return unavailable_in((root.before, root.after), schema)


def _cursor(root: Any) -> str:
    return str(root.cursor)


@strawberry.interface(name="Change", description="The fields of every change, typed or not.")
class ChangeInterface:
    """The interface of all changes: the fields of a capture without its bodies."""

    version: Long = strawberry.field(description="Version of the catalog: +1 per transaction.")
    index: int = strawberry.field(description="Place of the record in its version; 0 is the lead.")
    ordinal: int = strawberry.field(description="0 for the record, 1… for its columns.")
    commit_timestamp: Long = strawberry.field(description="µs since 1970.")
    entity_type: str | None = strawberry.field(description="Null on transaction leads.")
    primary_key: str | None = strawberry.field(
        description="Canonical text; null on leads and truncates."
    )
    changed: list[str] | None = strawberry.field(
        description="Names of the columns that an update changed; null for inserts and removals."
    )
    container_name: str | None = strawberry.field(
        description="Name of the column, at column level."
    )
    omitted_bytes: Long = strawberry.field(
        description="Size of bodies left out because the change was above maxMessageBytes; else 0."
    )

    unavailable: list[str] = strawberry.field(
        resolver=_unavailable,
        description="Names of columns whose value the source did not send, because it did not change. They "
        "are null in a typed row: keep the earlier value.",
    )

    cursor: str = strawberry.field(
        resolver=_cursor, description="Continues strictly after this change: give it as `after`."
    )
    area: Area
    operation: Operation
    kind: CaptureKind = strawberry.field(
        description="STATE: a row of the state with which the subscription begins. LATEST: the newest of the "
        "changes of its key that the subscription missed.",
    )
    transition: Transition | None = strawberry.field(
        description="How the change moved its row, by the criteria's condition; null without a condition.",
    )
    container_type: ContainerType | None = strawberry.field(
        description="Role of the column, at column level."
    )


UNAVAILABLE: Final = "unavailable"
"""Name of the field of `ChangeInterface` that is computed from bodies."""
TOLD_FROM: Final = ("before", "after")
"""The bodies from which the field `UNAVAILABLE` is computed."""
HEAD: Final = (
    *("version", "index", "ordinal", "cursor", "commitTimestamp", "area", "operation"),
    *(
        "kind",
        "transition",
        "entityType",
        "primaryKey",
        "changed",
        "containerType",
        "containerName",
        "omittedBytes",
    ),
    UNAVAILABLE,
)
"""Names of the fields of `ChangeInterface`."""
BODIES: Final = ("change", "before", "after")


def _json_body(name: str) -> Any:
    def body(root: Any) -> Any:
        found = image_of(root, name)
        return None if found is None else msgspec.Raw(found)

    return strawberry.field(resolver=body, graphql_type=Json | None, name=name)


def _text_body(name: str) -> Any:
    def body(root: Any) -> Any:
        found = image_of(root, name)
        return None if found is None else found.decode()

    described = f"The same as {name}, as a string: exact where a reader's numbers are not."
    return strawberry.field(
        resolver=body, graphql_type=str | None, name=f"{name}Text", description=described
    )


@strawberry.type(description="A change of anything in the catalog, its bodies as JSON.")
class CatalogChange(ChangeInterface):
    """A change of any entity type, with bodies as JSON and as text."""

    change: Json | None = _json_body("change")
    before: Json | None = _json_body("before")
    after: Json | None = _json_body("after")
    change_text: str | None = _text_body("change")
    before_text: str | None = _text_body("before")
    after_text: str | None = _text_body("after")

    is_type_of = classmethod(is_capture)  # type: ignore[var-annotated]


@strawberry.type(name="Position", description="Place of a record.")
class PositionObject:
    """A position: version and index of a record."""

    version: Long
    index: int


@strawberry.type(description="Relay's page information.")
class PageInfo:
    """The page information of Relay: neighbours and cursors of a page."""

    has_next_page: bool
    has_previous_page: bool
    start_cursor: str | None
    end_cursor: str | None


@strawberry.type(description="A change in a page of history.")
class CatalogChangeEdge:
    """An edge of `CatalogChangeConnection`."""

    cursor: str
    node: CatalogChange


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge as resolvers return it, for any type of connection."""

    cursor: str
    node: Capture


class HistoryPage:
    """A page of history, from which the fields of every connection type are resolved."""

    def __init__(self, captures: "list[Capture]", page_info: PageInfo, **facts: Any) -> None:
        """Store the captures, in the order of the list, and the other values of the page."""
        self.captures = captures
        self.page_info = page_info
        self.anchor: int = facts["anchor"]
        self.closed_until: int = facts["closed_until"]
        self.oldest: PositionObject = facts["oldest"]
        self.truncated: bool = facts["truncated"]
        self.unknown_changes: list[str] = facts["unknown_changes"]
        self.nbytes: int = facts["nbytes"]
        self.schema_of: Callable[[int], Schema] = facts["schema_of"]


@strawberry.interface(name="ChangePage", description="The fields of every page of history.")
class ChangePage:
    """The interface of all pages of history: their fields other than edges."""

    page_info: PageInfo
    anchor: Long = strawberry.field(
        description="Version to which the page is pinned; give it with later pages."
    )
    closed_until: Long = strawberry.field(
        description="Commit timestamp, µs: no change can still appear below it."
    )
    oldest: PositionObject = strawberry.field(description="Oldest position that is retained.")
    truncated: bool = strawberry.field(
        description="True: a bound by time is before the oldest retained record."
    )
    unknown_changes: list[str] = strawberry.field(
        description="Entity types whose updates come without the row before, so criteria with columns match "
        "every update."
    )


class TablePage:
    """A page of a table's rows, from which the fields of every table type are resolved."""

    def __init__(self, edges: list[Edge], page_info: PageInfo, **facts: Any) -> None:
        """Store the rows, in the order of the list, and the other values of the page."""
        self.edges = edges
        self.page_info = page_info
        self.version: int = facts["version"]
        self.commit_timestamp: int = facts["commit_timestamp"]
        self.resume_cursor: str = facts["resume_cursor"]
        self.nbytes: int = facts["nbytes"]
        self.schema_of: Callable[[int], Schema] = facts["schema_of"]


def is_table(cls: type, value: object, info: object) -> bool:
    """Return True if the value is a page of rows: it can be of every table type."""
    return isinstance(value, TablePage)


def is_connection(cls: type, value: object, info: object) -> bool:
    """Return True if the value is a page of history: it can be of every connection type."""
    return isinstance(value, HistoryPage)


def edges_of(root: Any) -> "AsyncIterator[Edge]":
    """Yield the edges of a page, and yield the event loop between them to live subscriptions."""
    if isinstance(root, TablePage):
        return _in_turns(root.edges)
    return _in_turns(Edge(str(capture.cursor), capture) for capture in root.captures)


async def _in_turns(edges: "Iterable[Edge]") -> "AsyncIterator[Edge]":
    for place, edge in enumerate(edges):
        if place % _EDGES_AT_ONCE == _EDGES_AT_ONCE - 1:
            await asyncio.sleep(0)
        yield edge


_EDGES_AT_ONCE: Final = 16  # Then other tasks get their turn.


def edges_field(edge: Any) -> Any:
    """Return the field ``edges`` of a connection or table type."""
    return strawberry.field(resolver=edges_of, graphql_type=list[edge])


@strawberry.type(description="A page of history, of whole records.")
class CatalogChangeConnection(ChangePage):
    """The connection of untyped changes, in Relay's form."""

    edges: list[CatalogChangeEdge] = edges_field(CatalogChangeEdge)

    is_type_of = classmethod(is_connection)  # type: ignore[var-annotated]


@strawberry.type(name="Catalog", description="The present state of a catalog.")
class CatalogObject:
    """A catalog, from `CatalogInfo`."""

    name: str
    uuid: strawberry.ID
    oldest: PositionObject
    published_version: Long
    committed_version: Long = strawberry.field(
        description="Highest durable version; those above publishedVersion wait for their publication."
    )
    newest_timestamp: Long = strawberry.field(description="Commit time of publishedVersion, µs.")


def catalog_of(info: "CatalogInfo") -> CatalogObject:
    """Return the GraphQL object of a catalog."""
    return CatalogObject(
        name=info.name,
        uuid=strawberry.ID(str(info.uuid)),
        oldest=PositionObject(version=Long(info.oldest.version), index=info.oldest.index),
        published_version=Long(info.published),
        committed_version=Long(info.committed),
        newest_timestamp=Long(info.newest_timestamp),
    )


@strawberry.type(
    name="Column", description="A column of an entity type. Its ordinal is 1 + its place."
)
class ColumnObject:
    """A column in the schema of the log."""

    name: str
    field: str | None = strawberry.field(description="Its field in this GraphQL schema.")
    role: ContainerType
    sql_type: str | None = strawberry.field(description="The type in SQL; null: unknown.")
    encoding: str = strawberry.field(description="Encoding of its values in images.")
    nullable: bool
    key: int = strawberry.field(description="Place in the primary key, from 1; 0 for none.")
    origin: str = strawberry.field(
        description="Origin of the type: declared, debezium, table or inferred."
    )
    id: int = strawberry.field(description="Identity in the catalog; a rename keeps it.")
    dropped: bool = strawberry.field(description="True: the source has dropped the column.")


@strawberry.type(description="An entity type and its columns.")
class EntityType:
    """An entity type in the schema of the log."""

    name: str
    type: str | None = strawberry.field(description="Its type in this GraphQL schema.")
    columns: list[ColumnObject]


@strawberry.type(name="Schema", description="The schema of a catalog at a version.")
class SchemaObject:
    """The schema of the log as of a version."""

    id: int
    entity_types: list[EntityType]


@strawberry.type(
    name="Statistics", description="Figures of a catalog, or of the whole server, of this moment."
)
class StatisticsObject:
    """Figures of one observed catalog, or their sums over all."""

    published_version: Long | None = strawberry.field(description="Null for the whole server.")
    committed_version: Long | None
    records: Long
    records_routed: Long
    publishers: int
    subscriptions: int
    batches_unreadable: Long
    ring_bytes: Long
