"""Generation of a catalog's GraphQL schema from the schema of its log.

::

    entity type order_line ─▶ stem OrderLine
        type OrderLine              a row: a nullable field for each column
        type OrderLineChange        a change of a row: the head, before, after
        onOrderLineChange           subscription: changes of rows
        onOrderLineSchemaChange     subscription: changes of the columns
        orderLineChanges            query: history
        orderLine, orderLines       queries: one row, and the table, as of a version

Every field of a row is nullable, because a row may be older than a column and then has no value for it. A
column that the source has dropped has no field; its values in older rows are visible in the JSON bodies. A
GraphQL schema is immutable. When the schema of the log changes, a new GraphQL schema is built, and open
subscriptions keep the old one.
"""

# No `from __future__ import annotations` here: Strawberry needs annotations as values, not as strings.

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, Optional

import strawberry
from strawberry.schema.config import StrawberryConfig
from strawberry.types.fields.resolver import StrawberryResolver

from tailrace import criteria as vocabulary
from tailrace.schema import Column
from tailrace.schema import Schema as LogSchema
from tailrace_server.api.graphql import names, types
from tailrace_server.api.graphql.arguments import WHERE, Scope
from tailrace_server.api.graphql.catalog_schema import (
    CatalogSchema,
    ColumnNames,
    RowType,
    VersionedRow,
    columns_by_name,
    row_of,
)
from tailrace_server.api.graphql.column_readings import ColumnReading, histories, reading_of
from tailrace_server.api.graphql.resolvers import Context  # noqa: TC001  # see above
from tailrace_server.api.graphql.scalars import SCALARS, Json, Long
from tailrace_server.api.graphql.types import (
    CatalogChange,
    CatalogChangeConnection,
    CatalogObject,
    ChangeInterface,
    ChangePage,
    CriteriaInput,
    SchemaObject,
    StatisticsObject,
)
from tailrace_server.api.graphql.where import TEST_TYPES, add_conditions

UNSET: Final = strawberry.UNSET
_RESERVED: Final = (
    *("Query", "Subscription", "Change", "ChangePage", "Criteria", "Area", "Operation"),
    *("ContainerType", "Catalog", "CatalogChange", "System", "Position", "PageInfo", "Column"),
    *("EntityType", "Schema", "Statistics", "CatalogChangeEdge", "CatalogChangeConnection"),
    *("CatalogSchemaChange", "SystemChange", "Int", "Float", "String", "Boolean", "ID", "Long"),
    *("BigInt", "Decimal", "Date", "Time", "Timestamp"),
    *("JSON", "Connection", "Edge", "CatchUp", "OverrunPolicy"),
    *TEST_TYPES,
)
"""Names of types that every schema has, so that no entity type may take them."""


def build(
    schema: LogSchema | None,
    earlier: Sequence[LogSchema] = (),
    before: CatalogSchema | None = None,
    part: tuple[names.CatalogNames, Collection[str]] | None = None,
) -> CatalogSchema:
    """Build the GraphQL schema of a catalog.

    Args:
        schema: The current schema of the log; None for the system log, which has no entity types.
        earlier: The schemas of older versions of the log, oldest first.
        before: The previous GraphQL schema. Its types of unchanged rows are reused.
        part: The names of the catalog, and the stems of the entity types to include; None includes all.
    """
    # 1. Choose the entity types to include.
    named = catalog_names(schema) if part is None else part[0]
    stems = {
        stem: entity_type
        for stem, entity_type in named.stems.items()
        if part is None or stem in part[1]
    }
    # 2. Create the types and fields of each entity type.
    history = histories(earlier) if stems else {}
    rows: dict[str, RowType] = {}
    made_types: dict[str, tuple[type, type, type]] = {}
    tables: dict[str, str] = {}
    of_table: dict[str, tuple[type, type]] = {}
    pages = {"changes": Scope()}
    scopes = {"onSystemChange": Scope()} if schema is None else dict(_UNTYPED)
    queries: dict[str, Any] = {"changes": _history(CatalogChangeConnection)}
    live: dict[str, Any] = {name: _live(CatalogChange, scope) for name, scope in scopes.items()}
    for stem, entity_type in stems.items():
        assert schema is not None
        row = _row_type(stem, entity_type, schema, earlier, history)
        name = f"{stem}Change"
        # Creating a type is expensive: reuse the previous one if the row's columns and readings are equal.
        if before is not None and before.rows.get(name) == row:
            made_types[name] = before.types[name]
        else:
            change = _change_type(stem, row)
            edge = _edge(stem, change)
            made_types[name] = (change, _connection(stem, edge), _table(stem, entity_type, edge))
        change, connection, table = made_types[name]
        rows[name] = row
        data = Scope(vocabulary.Area.DATA, entity_type)
        of_schema = Scope(vocabulary.Area.SCHEMA, entity_type)
        scopes |= {f"on{stem}Change": data, f"on{stem}SchemaChange": of_schema}
        live[f"on{stem}Change"] = _live(change, data)
        live[f"on{stem}SchemaChange"] = _live(CatalogChange, of_schema)
        pages[f"{names.lower(stem)}Changes"] = data
        queries[f"{names.lower(stem)}Changes"] = _history(connection)
        of_table[stem] = change, table
    for stem, kinds in of_table.items():
        for field, kind, resolver in zip(named.tables[stem], kinds, (_ROW, _ROWS), strict=True):
            queries[field] = _rows_field(kind, resolver, stems[stem])
            tables[field] = stems[stem]
    # 3. Create the schema, and add the conditions on rows.
    made = strawberry.Schema(
        query=_root("Query", {**_COMMON, **({} if schema is None else _OF_CATALOG), **queries}),
        subscription=_root("Subscription", live),
        config=StrawberryConfig(scalar_map=SCALARS),
    )
    # `_schema` is the graphql-core schema: graphql-core can execute a document that is already validated, which
    # Strawberry's `execute` cannot.
    wheres = add_conditions(made, rows, scopes, pages, tables)
    return CatalogSchema(
        *(made, made._schema, scopes, pages, tables, rows, made_types, wheres), frozenset(stems)
    )


def catalog_names(schema: LogSchema | None) -> names.CatalogNames:
    """Return the GraphQL names of all entity types of a catalog."""
    types = () if schema is None else schema.entity_types
    return names.CatalogNames(types, _RESERVED, (*_COMMON, *_OF_CATALOG, "changes"))


_UNTYPED: Final = {
    "onCatalogChange": Scope(),
    "onCatalogSchemaChange": Scope(vocabulary.Area.SCHEMA),
}


def _row_type(
    stem: str,
    entity_type: str,
    schema: LogSchema,
    earlier: Sequence[LogSchema],
    history: Mapping[int, Iterable[Column]],
) -> RowType:
    columns = {column.name: column for column in schema.columns(entity_type)}
    former = schema.former_names(entity_type, earlier, shared=True)
    fields = {
        field: (
            (name, *former.get(columns[name].id, ())),
            reading_of(columns[name], history.get(columns[name].id, ()), schema.placeholders),
        )
        for field, name in names.field_names(columns).items()
    }
    return RowType(stem, entity_type, fields)


def _change_type(stem: str, row: RowType) -> type:
    """Return the type of a row's changes; without columns it has only the fields of the head."""
    namespace: dict[str, Any] = {"__annotations__": {}, "is_type_of": classmethod(types.is_capture)}
    if row.fields:
        of_row = _object(
            stem, {name: _column(*of) for name, of in row.fields.items()}, row.entity_type
        )
        for body in ("before", "after"):
            namespace[body] = _image(body, of_row, row.entity_type)
            namespace["__annotations__"][body] = of_row | None
    made = type(f"{stem}Change", (ChangeInterface,), namespace)
    return strawberry.type(
        made, name=made.__name__, description=f"A change of a row of {row.entity_type!r}."
    )


def _edge(stem: str, change: type) -> type:
    return _object(f"{stem}ChangeEdge", {"cursor": _plain(str), "node": _plain(change)}, None)


def _table(stem: str, entity_type: str, edge: type) -> type:
    annotations = {
        "edges": list[edge],  # type: ignore[valid-type]
        "page_info": types.PageInfo,
        "version": Long,
        "commit_timestamp": Long,
        "resume_cursor": str,
    }
    made = type(
        f"{stem}Table",
        (),
        {
            "__annotations__": annotations,
            "edges": types.edges_field(edge),
            "version": strawberry.field(
                description="V: every version up to it is in the rows, and nothing above it."
            ),
            "resume_cursor": strawberry.field(
                description="Continues after V: a subscription after it begins with V + 1."
            ),
            "is_type_of": classmethod(types.is_table),
        },
    )
    described = f"Rows of {entity_type!r} as of a version, each as its last change."
    return strawberry.type(made, name=made.__name__, description=described)


def _connection(stem: str, edge: type) -> type:
    made = type(
        f"{stem}ChangeConnection",
        (ChangePage,),
        {
            "__annotations__": {"edges": list[edge]},  # type: ignore[valid-type]
            "edges": types.edges_field(edge),
            "is_type_of": classmethod(types.is_connection),
        },
    )
    return strawberry.type(
        made, name=made.__name__, description="A page of history, of whole records."
    )


def _column(names: ColumnNames, reading: ColumnReading) -> Any:
    def resolve(root: Any) -> Any:
        return root.value(names, reading)

    nullable: Any = Optional[reading.scalar]  # noqa: UP045  # a value: NewType has no | of its own
    return strawberry.field(
        resolver=resolve, graphql_type=nullable, description=f"Column {names[0]!r}."
    )


def _image(body: str, of_row: type, entity_type: str) -> Any:
    def resolve(root: Any, info: strawberry.Info) -> Any:
        image = types.image_of(root, body)
        if image is None:
            return None
        context: Context | None = info.context
        schema = LogSchema() if context is None else context.schema_of(root.version)
        return VersionedRow(row_of(image), columns_by_name(schema, entity_type))

    return strawberry.field(resolver=resolve, graphql_type=of_row | None)


def _plain(annotation: Any) -> Any:
    return strawberry.field(graphql_type=annotation)


def _subscribe(
    info: strawberry.Info,
    criteria: list[CriteriaInput] | None = UNSET,
    where: Json | None = UNSET,
    since_version: Long | None = UNSET,
    since_index: int | None = UNSET,
    after: str | None = UNSET,
    from_time: Long | None = UNSET,
    initial: vocabulary.Initial | None = UNSET,
    max_message_bytes: int | None = UNSET,
    heartbeat_interval_ms: int | None = UNSET,
    catch_up: vocabulary.CatchUp | None = UNSET,
    overrun_policy: vocabulary.OverrunPolicy | None = UNSET,
    wait_for_version: Long | None = UNSET,
    wait_ms: int | None = UNSET,
    signals: bool | None = UNSET,
) -> AsyncIterator[Any]:
    raise AssertionError("a subscription is compiled, never executed")


async def _read(
    info: strawberry.Info,
    first: int | None = UNSET,
    after: str | None = UNSET,
    last: int | None = UNSET,
    before: str | None = UNSET,
    criteria: list[CriteriaInput] | None = UNSET,
    where: Json | None = UNSET,
    from_: Annotated[Long | None, strawberry.argument(name="from")] = UNSET,
    to: Long | None = UNSET,
    since_version: Long | None = UNSET,
    since_index: int | None = UNSET,
    until_version: Long | None = UNSET,
    until_index: int | None = UNSET,
    reverse: bool | None = UNSET,
    anchor: Long | None = UNSET,
    wait_for_version: Long | None = UNSET,
    wait_ms: int | None = UNSET,
) -> Any:
    context: Context = info.context
    arguments = {
        "first": first,
        "after": after,
        "last": last,
        "before": before,
        "criteria": criteria,
        "where": where,
        "from": from_,
        "to": to,
        "sinceVersion": since_version,
        "sinceIndex": since_index,
        "untilVersion": until_version,
        "untilIndex": until_index,
        "reverse": reverse,
        "anchor": anchor,
        "waitForVersion": wait_for_version,
        "waitMs": wait_ms,
    }
    return await context.page(info, _given(arguments), context.built.histories[info.field_name])


async def _read_rows(
    info: strawberry.Info,
    first: int | None = UNSET,
    after: str | None = UNSET,
    keys: list[str] | None = UNSET,
    where: Json | None = UNSET,
    at_version: Long | None = UNSET,
    at_time: Long | None = UNSET,
    wait_for_version: Long | None = UNSET,
    wait_ms: int | None = UNSET,
) -> Any:
    context: Context = info.context
    arguments = {
        "limit": first,
        "page": after,
        "primaryKey": keys,
        "where": where,
        "atVersion": at_version,
        "atTime": at_time,
        "waitForVersion": wait_for_version,
        "waitMs": wait_ms,
    }
    return await context.table(info, _given(arguments))


async def _read_row(
    info: strawberry.Info,
    primary_key: str,
    at_version: Long | None = UNSET,
    at_time: Long | None = UNSET,
    wait_for_version: Long | None = UNSET,
    wait_ms: int | None = UNSET,
) -> Any:
    context: Context = info.context
    arguments = {
        "primaryKey": [primary_key],
        "atVersion": at_version,
        "atTime": at_time,
        "waitForVersion": wait_for_version,
        "waitMs": wait_ms,
    }
    page = await context.table(info, _given(arguments))
    return page.edges[0].node if page.edges else None


def _given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with a value; a null ``where`` is kept, so that it is refused later."""
    return {
        name: value
        for name, value in arguments.items()
        if value is not UNSET and (value is not None or name == WHERE)
    }


# Shared by all fields: most of the time and memory of a field is spent on Strawberry's arguments.
_SUBSCRIBE: Final[Any] = StrawberryResolver(_subscribe)
_READ: Final[Any] = StrawberryResolver(_read)
_ROWS: Final[Any] = StrawberryResolver(_read_rows)
_ROW: Final[Any] = StrawberryResolver(_read_row)


def _live(change: type, scope: Scope) -> Any:
    """Return a subscription field. It only declares arguments and a type; documents.py compiles its selection.

    The type is nullable, because results with an acknowledgement or a heartbeat have no change.
    """
    about = "everything" if scope.area is None else f"area {scope.area.name}"
    if scope.entity_type is not None:
        about += f", entity type {scope.entity_type!r}"
    return strawberry.subscription(
        resolver=_SUBSCRIBE,
        graphql_type=change | None,
        description=(
            f"Changes of {about}. Begins at sinceVersion (with sinceIndex; inclusive), after (a cursor; "
            "exclusive) or fromTime (µs), or with the newest rows and then their changes (initial: STATE); "
            "otherwise with the next version. It begins once waitForVersion is published. signals: also "
            "send acknowledgement and heartbeats, in the extensions of results whose data is null."
        ),
    )


def _history(connection: type) -> Any:
    """Return a field of history; nullable, so that its failure leaves the operation's other fields intact."""
    return strawberry.field(
        resolver=_READ,
        graphql_type=connection | None,
        description=(
            "A page of history, of whole records: the first N after a cursor, or the last N before one; from "
            "(inclusive) and to (exclusive) in µs; newest first with reverse; waitForVersion reads your own "
            "writes."
        ),
    )


def _rows_field(kind: type, resolver: Any, entity_type: str) -> Any:
    """Return a field of a table or of one row; nullable, for the same reason as a field of history."""
    what = "Rows" if resolver is _ROWS else "One row"
    return strawberry.field(
        resolver=resolver,
        graphql_type=kind | None,
        description=(
            f"{what} of {entity_type!r} as of atVersion, or atTime (µs), or the newest published version; "
            "waitForVersion reads your own writes."
        ),
    )


def _object(name: str, fields: Mapping[str, Any], entity_type: str | None) -> type:
    """Return an object type whose fields keep their GraphQL names.

    Columns get generated attribute names, so a column may have any GraphQL name.
    """
    namespace: dict[str, Any] = {"__annotations__": {}}
    for place, (field_name, field) in enumerate(fields.items()):
        field.graphql_name = field_name
        attribute = field_name if entity_type is None else f"column_{place}"
        field.python_name = attribute
        namespace[attribute] = field
        namespace["__annotations__"][attribute] = field.type
    described = None if entity_type is None else f"A row of {entity_type!r}."
    return strawberry.type(type(name, (), namespace), name=name, description=described)


def _root(name: str, fields: Mapping[str, Any]) -> type:
    return _object(name, fields, None)


async def _catalogs(info: strawberry.Info) -> list[CatalogObject]:
    context: Context = info.context
    return [types.catalog_of(each) for each in context.engine.catalogs(context.caller)]


async def _schema(info: strawberry.Info, version: Long | None = UNSET) -> SchemaObject:
    context: Context = info.context
    return await context.schema(None if version is UNSET else version)


async def _catalog(info: strawberry.Info) -> CatalogObject:
    context: Context = info.context
    return await context.catalog_now()


async def _statistics(info: strawberry.Info) -> StatisticsObject:
    context: Context = info.context
    return context.statistics()


_COMMON: Final = {
    "catalogs": strawberry.field(
        resolver=_catalogs, description="The catalogs that are served now."
    ),
    "statistics": strawberry.field(
        resolver=_statistics,
        description="Figures of this catalog; of the whole server at /v1/system.",
    ),
}
_OF_CATALOG: Final = {
    "catalog": strawberry.field(
        resolver=_catalog, description="The present state of this catalog."
    ),
    "schema": strawberry.field(
        resolver=_schema,
        description="Entity types and columns, at a version; the published one if unset.",
    ),
}
