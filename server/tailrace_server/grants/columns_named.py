"""The columns that the names of a condition mean: those of now, or of the version in which it was bound first.

A source may rename a column and give its name to another one. A subscription that runs follows the columns by
their ids. One that resumes has only its text. So it gives the version whose names the text has.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tailrace.errors import ColumnsChanged, EntityTypeUnknown, InvalidRequest
from tailrace_server.filters.tree import columns_in
from tailrace_server.wal.state.entity_names import EntityNames

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tailrace.criteria import Criteria
    from tailrace.schema import Column, Schema
    from tailrace_server.filters.tree import Condition
    from tailrace_server.grants.use import GrantUse
    from tailrace_server.wal.state.view import LogView


def columns_named(
    view: LogView, one: Criteria, tree: Condition, use: GrantUse, *, goes_on: bool
) -> list[Column]:
    """Return the columns that a condition may name, as they are now, under the names that it has for them.

    A condition may have a former name of a column if no other column has had it. A caller who is granted a part
    of the catalog has names of now alone, as grants are of names.

    Args:
        view: The log.
        one: The criteria; they name one entity type.
        tree: Their condition.
        use: What the caller is granted of the criteria.
        goes_on: True if the subscription continues behind a cursor.

    Raises:
        EntityTypeUnknown: No published version has the entity type.
        InvalidRequest: The version whose names it has is not published.
        ColumnsChanged: A name may mean another column than the subscriber means, or its column was dropped.
    """
    entity_type = one.entity_type[0]
    schema = view.schema_of(view.published)
    if entity_type not in schema.entity_types:
        raise EntityTypeUnknown(view.name, entity_type, use.granted_types(schema.entity_types))
    named = {name.text for name in columns_in(tree)}
    is_whole = use.narrowed.is_whole
    version = one.where_version
    if version is not None and version > view.published:
        raise InvalidRequest(
            f"criteria.where_version {version}: the newest published version is {view.published}"
        )
    if version is None or view.schema_of(version) is schema:
        if version is None and goes_on:
            _refuse_unclear(view, entity_type, named)
        return _with_former(schema, entity_type, view.schemas(), is_whole=is_whole)
    # 1. The columns that the names meant then, of the entity type as it was called then.
    then = view.schema_of(version)
    names = EntityNames(schema, entity_type)
    earlier = (each for each in view.schemas() if each.id <= then.id)
    type_then = names.name_in(then)
    columns = [] if type_then is None else _with_former(then, type_then, earlier, is_whole=is_whole)
    # 2. The same columns as they are now.
    now = {column.id: column for column in schema.entity_types[entity_type]}
    found = []
    for each in columns:
        current = now[each.id]
        if each.name in named and current.dropped:
            raise ColumnsChanged(entity_type, each.name, "has been dropped by the source")
        if each.name in named and current.name != each.name and not is_whole:
            raise ColumnsChanged(entity_type, each.name, "has another name now")
        found.append(replace(current, name=each.name))
    return found


def _with_former(
    schema: Schema, entity_type: str, earlier: Iterable[Schema], *, is_whole: bool
) -> list[Column]:
    """Return the columns of an entity type in a schema; if all is granted, under their former names too."""
    columns = [*schema.columns(entity_type)]
    if not is_whole:
        return columns
    former = schema.former_names(entity_type, earlier)
    taken = {each.name for each in columns}
    return columns + [
        replace(each, name=name)
        for each in columns
        for name in former.get(each.id, ())
        if name not in taken
    ]


def _refuse_unclear(view: LogView, entity_type: str, named: set[str]) -> None:
    """Refuse names that mean a column now and meant another one before.

    Raises:
        ColumnsChanged: One does.
    """
    schema = view.schema_of(view.published)
    now = {each.name: each.id for each in schema.columns(entity_type) if each.name in named}
    names = EntityNames(schema, entity_type)
    for each in view.schemas():
        columns: Sequence[Column] = names.columns_in(each)
        for column in columns:
            if now.get(column.name, column.id) != column.id:
                raise ColumnsChanged(
                    entity_type,
                    column.name,
                    "is another column than before; to go on, give the where_version of the first "
                    "acknowledgement",
                )
