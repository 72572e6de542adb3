"""Conditions on rows in criteria: read, checked against the schema, and checked against the grants.

The columns that a condition names count as requested columns, because the result reveals their values.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

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
from tailrace_server.filters.tree import columns_in
from tailrace_server.grants.asked_views import asked_views
from tailrace_server.grants.columns_named import columns_named
from tailrace_server.grants.shown_views import viewed
from tailrace_server.grants.unknown_grants import tell_unknown_grants
from tailrace_server.grants.use import use_of
from tailrace_server.rows.row_condition import ConditionText, RowCondition, condition_of, filtered
from tailrace_server.rows.state_filter import parsed_in_thread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.criteria import Beginning
    from tailrace.schema import Column
    from tailrace_server.filters.tree import Condition
    from tailrace_server.grants.grant import Action
    from tailrace_server.grants.principal import Principal
    from tailrace_server.grants.use import GrantUse
    from tailrace_server.log_cache.followed_log import FollowedLog
    from tailrace_server.resources.version_waits import VersionWait


class _Waits(Protocol):
    """A request that may wait for a version."""

    @property
    def wait(self) -> VersionWait | None:
        """The version; None: none."""


async def use_in(
    log: FollowedLog,
    caller: Principal,
    action: Action,
    asked: Sequence[Criteria],
    content: Content,
    waits: _Waits | None,
    start: Beginning | None = None,
) -> GrantUse:
    """Return what a caller gets of criteria, whose conditions are bound to the columns of now.

    Views that they name are put in terms of entity types.

    Args:
        log: The catalog's.
        caller: Who asks.
        action: What it is for.
        asked: The criteria.
        content: Which bodies captures carry.
        waits: For which version it waits: then the columns are those of that moment. None: for none.
        start: Where a subscription begins. Behind a cursor a condition may have been bound before, when its
            names meant other columns.

    Raises:
        InvalidRequest: As ``asked_views``.
        NotPermitted: As ``use_of``; also of columns that a condition names.
        EntityTypeUnknown: A condition is for an entity type that no published version has.
        ColumnsChanged: As `columns_named`.
        ConditionRefused: A condition cannot be read, or not be evaluated with these columns.
        DeadlineExceeded: The version was not published in time.
    """
    await tell_unknown_grants(log, caller)
    wait = None if waits is None else waits.wait
    views = await asked_views(log, caller, action, asked, wait)
    if views is None:
        return await _conditioned(log, caller, action, asked, content, waits, start)
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
    catalog = log.view.name
    use = use_of(caller, catalog, action, asked, content, view=log.view)
    if all(each.where is None or condition_of(each) is not None for each in asked):
        return use
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
        columns_asked = (_columns_asked(one, tree),)
        use_of(caller, catalog, action, columns_asked, Content.AFTER, judges_rows=True)
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
    """Return the names that an error may tell; None: all."""
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
