"""The types that every catalog has; those of its entity types are made in schema.py.

Sources of the resolvers are the engine's own values: a `Capture`, a `CatalogInfo`, a record of statistics.
"""

# Strawberry reads annotations at run time; as values they need no name to be looked up.
import asyncio
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import msgspec
import strawberry

from tailrace.capture import Capture
from tailrace.schema import Schema
from tailrace_server.api.graphql.catalog_schema import unavailable_in
from tailrace_server.api.graphql.errors import omitted
from tailrace_server.api.graphql.scalars import Json, Long

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from tailrace_server.catalogs.catalog_info import CatalogInfo


@strawberry.enum(name="Area", description="What kind of thing a record is about.")
class AreaEnum(Enum):
    """As `tailrace.criteria.Area`, by name."""

    SCHEMA = "SCHEMA"
    DATA = "DATA"
    INFRASTRUCTURE = "INFRASTRUCTURE"


@strawberry.enum(
    name="Operation", description="What happened to it. EXPIRE is a removal by time-to-live."
)
class OperationEnum(Enum):
    """As `tailrace.criteria.Operation`, by name."""

    UPSERT = "UPSERT"
    REMOVE = "REMOVE"
    TRANSACTION = "TRANSACTION"
    EXPIRE = "EXPIRE"


@strawberry.enum(
    name="ContainerType",
    description="The level that a capture speaks of: catalog, row, or column by its role.",
)
class ContainerTypeEnum(Enum):
    """As `tailrace.criteria.ContainerType`, by name."""

    CATALOG = "CATALOG"
    ENTITY = "ENTITY"
    ATTRIBUTE = "ATTRIBUTE"
    ASSOCIATED_DATA = "ASSOCIATED_DATA"
    PRICE = "PRICE"
    REFERENCE = "REFERENCE"


@strawberry.enum(name="CaptureKind", description="What a change stands for.")
class CaptureKindEnum(Enum):
    """As `tailrace.criteria.CaptureKind`, by name."""

    CHANGE = "CHANGE"
    STATE = "STATE"
    LATEST = "LATEST"


@strawberry.enum(
    name="Transition", description="How a change moved its row, as a condition on rows sees it."
)
class TransitionEnum(Enum):
    """As `tailrace.criteria.Transition`, by name."""

    ENTER = "ENTER"
    UPDATE = "UPDATE"
    LEAVE = "LEAVE"
    UNKNOWN = "UNKNOWN"


@strawberry.enum(name="Initial", description="What a subscription begins with.")
class InitialEnum(Enum):
    """As `tailrace.criteria.Initial`, by name."""

    STATE = "STATE"


@strawberry.enum(
    name="CatchUp",
    description="What a subscription gets that begins behind what is published.",
)
class CatchUpEnum(Enum):
    """As `tailrace.criteria.CatchUp`, by name."""

    ALL = "ALL"
    LATEST = "LATEST"


@strawberry.enum(
    name="OverrunPolicy",
    description="What becomes of a live subscription that takes less than comes, once the server's ring has "
    "overtaken it.",
)
class OverrunPolicyEnum(Enum):
    """As `tailrace.criteria.OverrunPolicy`, by name."""

    RESYNC = "RESYNC"
    LATEST = "LATEST"
    DISCONNECT = "DISCONNECT"


@strawberry.input(
    name="Criteria",
    description="One alternative of what is wanted: its fields are AND, the values of a list any-of.",
)
class CriteriaInput:
    """As proto/tailrace/v1 has it."""

    area: AreaEnum | None = None
    entity_type: list[str] | None = strawberry.field(default=None, description="Exact names.")
    primary_key: list[str] | None = strawberry.field(
        default=None, description="Canonical text; of several columns a compact JSON array."
    )
    operation: list[OperationEnum] | None = None
    container_type: list[ContainerTypeEnum] | None = strawberry.field(
        default=None, description="A role of columns asks for a capture of each such column."
    )
    container_name: list[str] | None = strawberry.field(
        default=None, description="Names of columns; asks for a capture of each."
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
        default=None, description="The version whose names of columns it has; null: the newest."
    )


def image_of(capture: Capture, body: str) -> bytes | None:
    """Return a body.

    Raises:
        ValueUnfit: It was left out, being too large.
    """
    if capture.omitted_bytes:
        raise omitted(capture.omitted_bytes)
    found: bytes | None = getattr(capture, body)
    return found


def is_capture(cls: type, value: object, info: object) -> bool:
    """Say that a capture is one of whatever type the field has."""
    return isinstance(value, Capture)


def _unavailable(root: Any, info: strawberry.Info) -> list[str]:
    context: Any = info.context
    schema = Schema() if context is None else context.schema_of(root.version)
    return unavailable_in((root.before, root.after), schema)


def _cursor(root: Any) -> str:
    return str(root.cursor)


def _area(root: Any) -> AreaEnum:
    return AreaEnum[root.area.name]


def _operation(root: Any) -> OperationEnum:
    return OperationEnum[root.operation.name]


def _kind(root: Any) -> CaptureKindEnum:
    return CaptureKindEnum[root.kind.name]


def _transition(root: Any) -> TransitionEnum | None:
    found = root.transition
    return None if found is None else TransitionEnum[found.name]


def _container_type(root: Any) -> ContainerTypeEnum | None:
    found = root.container_type
    return None if found is None else ContainerTypeEnum[found.name]


@strawberry.interface(name="Change", description="What every change has, typed or not.")
class ChangeInterface:
    """The head of a capture."""

    version: Long = strawberry.field(description="Version of the catalog: +1 per transaction.")
    index: int = strawberry.field(description="Place of the record in its version; 0 is the lead.")
    ordinal: int = strawberry.field(description="0 for the record, 1… for its columns.")
    commit_timestamp: Long = strawberry.field(description="µs since 1970.")
    entity_type: str | None = strawberry.field(description="Null on transaction leads.")
    primary_key: str | None = strawberry.field(
        description="Canonical text; null on leads and where every key is meant."
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
        description="Names of columns whose value the source did not send, since the change did not touch it. "
        "They are null in a typed row: keep the value from before.",
    )

    cursor: str = strawberry.field(
        resolver=_cursor, description="Resume strictly after this change: hand it in as `after`."
    )
    area: AreaEnum = strawberry.field(resolver=_area)
    operation: OperationEnum = strawberry.field(resolver=_operation)
    kind: CaptureKindEnum = strawberry.field(
        resolver=_kind,
        description="STATE: a row of the state that the subscription begins with. LATEST: the newest change of "
        "its key of those that it has missed.",
    )
    transition: TransitionEnum | None = strawberry.field(
        resolver=_transition,
        description="How it moved its row, as the criteria's condition sees it; null where none has judged it.",
    )
    container_type: ContainerTypeEnum | None = strawberry.field(
        resolver=_container_type, description="Role of the column, at column level."
    )


UNAVAILABLE: Final = "unavailable"
"""The field of `ChangeInterface` that is computed from bodies."""
TOLD_FROM: Final = ("before", "after")
"""Those bodies."""
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
"""Fields of `ChangeInterface`."""
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
    """A capture, untyped."""

    change: Json | None = _json_body("change")
    before: Json | None = _json_body("before")
    after: Json | None = _json_body("after")
    change_text: str | None = _text_body("change")
    before_text: str | None = _text_body("before")
    after_text: str | None = _text_body("after")

    is_type_of = classmethod(is_capture)  # type: ignore[var-annotated]


@strawberry.type(name="Position", description="Place of a record.")
class PositionObject:
    """Version and index."""

    version: Long
    index: int


@strawberry.type(description="Relay's page information.")
class PageInfo:
    """The place of a page in its range."""

    has_next_page: bool
    has_previous_page: bool
    start_cursor: str | None
    end_cursor: str | None


@strawberry.type(description="A change in a page of history.")
class CatalogChangeEdge:
    """Edge of `CatalogChangeConnection`."""

    cursor: str
    node: CatalogChange


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge of any connection."""

    cursor: str
    node: Capture


class HistoryPage:
    """A page of history: what the fields of every connection are read from."""

    def __init__(self, captures: "list[Capture]", page_info: PageInfo, **facts: Any) -> None:
        """Keep the captures in the order they are to be listed."""
        self.captures = captures
        self.page_info = page_info
        self.anchor: int = facts["anchor"]
        self.closed_until: int = facts["closed_until"]
        self.oldest: PositionObject = facts["oldest"]
        self.truncated: bool = facts["truncated"]
        self.unknown_changes: list[str] = facts["unknown_changes"]
        self.nbytes: int = facts["nbytes"]
        self.schema_of: Callable[[int], Schema] = facts["schema_of"]


@strawberry.interface(name="ChangePage", description="What every page of history says.")
class ChangePage:
    """The facts around the edges."""

    page_info: PageInfo
    anchor: Long = strawberry.field(
        description="Version that the page is pinned to; hand it in with later pages."
    )
    closed_until: Long = strawberry.field(
        description="Commit timestamp, µs, below which nothing can still appear."
    )
    oldest: PositionObject = strawberry.field(description="Oldest position that is retained.")
    truncated: bool = strawberry.field(
        description="Whether a bound by time reaches below what is retained."
    )
    unknown_changes: list[str] = strawberry.field(
        description="Entity types whose updates come without the row before, so that criteria with columns "
        "match every one."
    )


class TablePage:
    """Rows of a table: what the fields of every such type are read from."""

    def __init__(self, edges: list[Edge], page_info: PageInfo, **facts: Any) -> None:
        """Keep the rows in the order they are to be listed."""
        self.edges = edges
        self.page_info = page_info
        self.version: int = facts["version"]
        self.commit_timestamp: int = facts["commit_timestamp"]
        self.resume_cursor: str = facts["resume_cursor"]
        self.nbytes: int = facts["nbytes"]
        self.schema_of: Callable[[int], Schema] = facts["schema_of"]


def is_table(cls: type, value: object, info: object) -> bool:
    """Say that rows are of whatever table the field has."""
    return isinstance(value, TablePage)


def is_connection(cls: type, value: object, info: object) -> bool:
    """Say that a page is one of whatever type the field has."""
    return isinstance(value, HistoryPage)


def edges_of(root: Any) -> "AsyncIterator[Edge]":
    """Yield the edges of a page, letting others have their turn: the loop serves live subscriptions too."""
    if isinstance(root, TablePage):
        return _in_turns(root.edges)
    return _in_turns(Edge(str(capture.cursor), capture) for capture in root.captures)


async def _in_turns(edges: "Iterable[Edge]") -> "AsyncIterator[Edge]":
    for place, edge in enumerate(edges):
        if place % _EDGES_AT_ONCE == _EDGES_AT_ONCE - 1:
            await asyncio.sleep(0)
        yield edge


_EDGES_AT_ONCE: Final = 16


def edges_field(edge: Any) -> Any:
    """Return the field of a connection's edges."""
    return strawberry.field(resolver=edges_of, graphql_type=list[edge])


@strawberry.type(description="A page of history, of whole records.")
class CatalogChangeConnection(ChangePage):
    """Relay's connection over changes of any kind."""

    edges: list[CatalogChangeEdge] = edges_field(CatalogChangeEdge)

    is_type_of = classmethod(is_connection)  # type: ignore[var-annotated]


@strawberry.type(name="Catalog", description="A catalog as it stands now.")
class CatalogObject:
    """From `CatalogInfo`."""

    name: str
    uuid: strawberry.ID
    oldest: PositionObject
    published_version: Long
    committed_version: Long = strawberry.field(
        description="Highest durable version; those above publishedVersion wait for their publication."
    )
    newest_timestamp: Long = strawberry.field(description="Of the newest published version, µs.")


def catalog_of(info: "CatalogInfo") -> CatalogObject:
    """Return a catalog as GraphQL has it."""
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
    """From the schema of the log."""

    name: str
    field: str | None = strawberry.field(description="Its field in this GraphQL schema.")
    role: ContainerTypeEnum
    sql_type: str | None = strawberry.field(description="As SQL writes it; null where not known.")
    encoding: str = strawberry.field(description="How the images' text encodes a value.")
    nullable: bool
    key: int = strawberry.field(description="Place in the primary key, from 1; 0 for none.")
    origin: str = strawberry.field(
        description="Where this comes from: declared, debezium, table, inferred."
    )
    id: int = strawberry.field(description="Identity in the catalog; a rename keeps it.")
    dropped: bool = strawberry.field(description="Whether the source has it no more.")


@strawberry.type(description="An entity type and its columns.")
class EntityType:
    """From the schema of the log."""

    name: str
    type: str | None = strawberry.field(description="Its type in this GraphQL schema.")
    columns: list[ColumnObject]


@strawberry.type(name="Schema", description="The schema of a catalog at a version.")
class SchemaObject:
    """From the schema of the log."""

    id: int
    entity_types: list[EntityType]


@strawberry.type(
    name="Statistics", description="Figures of a catalog, or of the whole server, of this moment."
)
class StatisticsObject:
    """Sums over what is observed."""

    published_version: Long | None = strawberry.field(description="Null for the whole server.")
    committed_version: Long | None
    records: Long
    records_routed: Long
    publishers: int
    subscriptions: int
    batches_unreadable: Long
    ring_bytes: Long
