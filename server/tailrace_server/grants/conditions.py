"""Conditions on rows in criteria: parsed, bound to the schema, and checked against the grants.

The columns that a condition names count as requested columns, because the result reveals their values.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from tailrace.conditions import read_where
from tailrace.criteria import (
    COLUMN_TYPES,
    After,
    Area,
    ContainerType,
    Content,
    Criteria,
    FromState,
    parameter_texts,
)
from tailrace.errors import ColumnsChanged, EntityTypeUnknown, InvalidRequest, LogError
from tailrace_server.filters.tree import columns_in
from tailrace_server.grants.asked_views import asked_views
from tailrace_server.grants.shown_views import viewed
from tailrace_server.grants.use import use_of
from tailrace_server.rows.row_condition import ConditionText, RowCondition, condition_of, filtered
from tailrace_server.rows.state_filter import parsed_in_thread
from tailrace_server.wal.state.entity_names import EntityNames

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from tailrace.criteria import Beginning
    from tailrace.schema import Column, Schema
    from tailrace_server.filters.tree import Condition
    from tailrace_server.grants.grant import Action
    from tailrace_server.grants.principal import Principal
    from tailrace_server.grants.use import GrantUse
    from tailrace_server.log_cache.followed_log import FollowedLog
    from tailrace_server.resources.version_waits import VersionWait
    from tailrace_server.wal.state.view import LogView


_TOLD_MAX: Final = 1_000
"""The most unknown names in grants that are logged for a catalog."""
_log = structlog.get_logger("tailrace.granting")


class _Waits(Protocol):
    """Interface of a request that may wait for a version."""

    @property
    def wait(self) -> VersionWait | None:
        """The version to wait for, and how long; None: no wait."""


async def use_in(
    log: FollowedLog,
    caller: Principal,
    action: Action,
    asked: Sequence[Criteria],
    content: Content,
    waits: _Waits | None,
    start: Beginning | None = None,
) -> GrantUse:
    """Return the granted part of criteria, with their views expanded and their conditions bound.

    Conditions are bound to the columns of the newest published version.

    Args:
        log: The catalog's log.
        caller: The caller.
        action: The action that the criteria are requested for.
        asked: The criteria.
        content: The bodies that captures carry.
        waits: The request, if it may wait for a version: then conditions are bound after the wait. None: no
            wait.
        start: Where a subscription begins. One that continues after a cursor may have been opened before, when
            the names in its condition meant other columns.

    Raises:
        InvalidRequest: The criteria request something that a view does not show, a view has lost a column, or
            ``where_version`` is not published.
        NotPermitted: The request names something that is not granted, such as a column in a condition, or
            nothing of it is granted.
        EntityTypeUnknown: A condition is on an entity type that no published version has.
        ColumnsChanged: A name in a condition may mean another column than the subscriber means, or its column
            was dropped.
        ConditionRefused: A condition cannot be parsed, or cannot be evaluated with these columns.
        DeadlineExceeded: The version was not published in time.
    """
    await tell_unknown_grants(log, caller)
    wait = None if waits is None else waits.wait
    views = await asked_views(log, caller, action, asked, wait)
    if views is None:
        return await _conditioned(log, caller, action, asked, content, waits, start)
    # A view that is granted by its name has its conditions bound by the expansion already.
    if views.by_view is None:
        use = await _conditioned(log, caller, action, views.criteria, content, waits, start)
    else:
        assert views.criteria, "no criteria would be all of them"
        given = (caller, log.view.name, action, views.criteria, content)
        use = use_of(*given, view=log.view, by_view=views.by_view)
    shown = viewed(use.narrowed.shown, views.shown, lambda version: log.view.schema_of(version))
    narrowed = use.narrowed._replace(shown=shown, is_whole=False)
    return replace(use, narrowed=narrowed, views=views.documents)


async def _conditioned(
    log: FollowedLog,
    caller: Principal,
    action: Action,
    asked: Sequence[Criteria],
    content: Content,
    waits: _Waits | None,
    start: Beginning | None,
) -> GrantUse:
    # 1. Narrow the criteria to the grants, whatever their conditions.
    catalog = log.view.name
    use = use_of(caller, catalog, action, asked, content, view=log.view)
    if all(each.where is None or condition_of(each) is not None for each in asked):
        return use
    # 2. Wait for the requested version, so that the condition may name its columns.
    if waits is not None and waits.wait is not None:
        await log.reach(*waits.wait)
    view = log.view
    bound = []
    for one in asked:
        where = read_where(one.where)
        if where is None or condition_of(one) is not None:
            bound.append(one)
            continue
        tree = await parsed_in_thread(where)
        # The result reveals values of the columns in the condition,
        # so these must be granted: this call raises if one is not.
        columns_asked = (_columns_asked(one, tree),)
        use_of(caller, catalog, action, columns_asked, Content.AFTER, judges_rows=True)
        # Schemas and values may be many: look up and bind in a thread.
        find = partial(columns_named, view, one, tree, use, goes_on=_goes_on(start))
        columns = await asyncio.to_thread(find)
        part = ConditionText(tree, parameter_texts(one.parameters))
        bind = partial(RowCondition, (part,), columns, view.published, shown=_shown(use, columns))
        bound.append(filtered(one, await asyncio.to_thread(bind)))
    return use_of(caller, catalog, action, bound, content, view=view)


def _goes_on(start: Beginning | None) -> bool:
    return isinstance(start, After) or (isinstance(start, FromState) and start.after is not None)


def _columns_asked(one: Criteria, tree: Condition) -> Criteria:
    """Return criteria that request the columns of a condition, so that grants apply to them."""
    return Criteria(
        area=Area.DATA,
        entity_type=one.entity_type,
        primary_key=one.primary_key,
        container_type=(ContainerType.ENTITY, *COLUMN_TYPES),
        container_name=tuple({name.text for name in columns_in(tree)}),
    )


def _shown(use: GrantUse, columns: Sequence[Column]) -> list[str] | None:
    """Return the names of columns that an error may reveal; None: all."""
    shown = use.narrowed.shown
    if shown is None:
        return None
    rules = [
        rule
        for one in use.narrowed.criteria
        for name in one.entity_type
        for rule in shown.rules_of(name)
    ]
    return [each.name for each in columns if any(rule.columns.shows(each.name) for rule in rules)]


def columns_named(
    view: LogView, one: Criteria, tree: Condition, use: GrantUse, *, goes_on: bool
) -> list[Column]:
    """Return the columns that a condition may name: the newest form of each, under its name in the condition.

    A condition may use a former name of a column if no other column has had that name. A caller who is granted
    only a part of the catalog must use the newest names, because grants refer to columns by name.

    Args:
        view: The log.
        one: The criteria; they name one entity type.
        tree: The condition of the criteria.
        use: The granted part of the criteria.
        goes_on: True if the subscription continues after a cursor.

    Raises:
        EntityTypeUnknown: No published version has the entity type.
        InvalidRequest: The ``where_version`` of the criteria is not published.
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
        # The subscription may have been opened when a name meant
        # another column, and the request does not say when.
        if version is None and goes_on:
            _refuse_unclear(view, entity_type, named)
        return _with_former(schema, entity_type, view.schemas(), is_whole=is_whole)
    # 1. Look up the names in the schema of `where_version`, where the entity type may have had another name.
    then = view.schema_of(version)
    names = EntityNames(schema, entity_type)
    earlier = (each for each in view.schemas() if each.id <= then.id)
    type_then = names.name_in(then)
    columns = [] if type_then is None else _with_former(then, type_then, earlier, is_whole=is_whole)
    # 2. Find the newest form of the same columns, by id.
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
    """Return the columns of an entity type in a schema.

    If the whole catalog is granted, each column is also there under its former names that no other column has.
    """
    columns = [*schema.columns(entity_type)]
    if not is_whole:
        return columns
    former = schema.former_names(entity_type, earlier)
    # A former name of a column that another column has now means the other column.
    taken = {each.name for each in columns}
    return columns + [
        replace(each, name=name)
        for each in columns
        for name in former.get(each.id, ())
        if name not in taken
    ]


def _refuse_unclear(view: LogView, entity_type: str, named: set[str]) -> None:
    """Check that some names have meant the same columns in all versions.

    Raises:
        ColumnsChanged: A name meant another column in an earlier version.
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


def unknown_names_in(view: LogView, names: Collection[str], views: Collection[str]) -> list[str]:
    """Return the names that belong to no view, and to no entity type of any version; sorted."""
    return sorted(name for name in names if name not in views and not view.had_entity_type(name))


async def tell_unknown_grants(log: FollowedLog, caller: Principal) -> None:
    """Log a warning for each name in a caller's grants that the log does not have.

    Each name is logged once while the log is open.
    """
    view = log.view
    grant = caller.grant(view.name)
    if grant is None or any(each.is_whole for each in grant.allowances):
        return
    types = view.schema_of(view.published).entity_types
    names = {name for each in grant.allowances for name in each.entity_types or ()}
    told = log.definitions.told
    names = names.difference(types, told)
    # Reading definitions may touch the log's folder, so do it
    # only for names that are neither entity types nor logged.
    if not names or len(told) >= _TOLD_MAX:
        return
    try:
        views = (await log.definitions.newest()).views
    except LogError:  # a request for a view reports it
        return
    for name in unknown_names_in(view, names, views):
        told.add(name)
        _log.warning("grant names what is not there", catalog=view.name, entity_type=name)
