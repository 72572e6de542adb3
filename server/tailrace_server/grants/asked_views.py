"""Expansion of criteria that name views to criteria of entity types; the only place that does this.

::

    entity type cheap, key 7, where name <> 'x'
        entity type product, key 7, area DATA, where price < 10 AND name <> 'x'; id and name are shown

Views are expanded before grants narrow the criteria, so a view shows only what the caller may see of its entity
type. Captures have the name of the entity type, and columns have the names of their versions: clients look up
the schema by these names.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tailrace.conditions import read_where
from tailrace.criteria import Area, ContainerType, Criteria, Operation, parameter_texts
from tailrace.errors import InvalidRequest, NotPermitted
from tailrace.errors.requests import nearest
from tailrace_server.filters.binding import bind
from tailrace_server.filters.tree import renamed
from tailrace_server.grants.principal import allowances_of
from tailrace_server.grants.shown_views import ShownView
from tailrace_server.grants.view_grants import known_view
from tailrace_server.rows.row_condition import ConditionText, RowCondition, filtered
from tailrace_server.rows.state_filter import parsed
from tailrace_server.wal.state.entity_names import EntityNames, columns_under

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from tailrace.conditions import Where
    from tailrace_server.filters.tree import Condition
    from tailrace_server.grants.grant import Action, Keys
    from tailrace_server.grants.principal import Principal
    from tailrace_server.grants.view_grants import KnownView, ViewGrant
    from tailrace_server.log_cache.followed_log import FollowedLog
    from tailrace_server.resources.version_waits import VersionWait
    from tailrace_server.wal.files.sequence_documents import ViewDocument
    from tailrace_server.wal.state.view import LogView


@dataclass(frozen=True, slots=True)
class AskedViews:
    """The result of an expansion: criteria of entity types, and the views that they came from."""

    criteria: tuple[Criteria, ...]
    """The expanded criteria. Criteria that named a view include its condition, already bound."""
    shown: tuple[ShownView, ...]
    """The columns that each view shows."""
    documents: tuple[ViewDocument, ...]
    """The definitions of the views."""
    by_view: ViewGrant | None = None
    """The grants of a view, if all criteria name this view and only grants by its name allow the request.

    None: the grants of entity types apply.
    """


async def asked_views(
    log: FollowedLog,
    caller: Principal,
    action: Action,
    asked: Sequence[Criteria],
    wait: VersionWait | None = None,
) -> AskedViews | None:
    """Expand criteria that name views; None if no criteria name a view that the caller may see.

    Args:
        log: The catalog's log.
        caller: The caller.
        action: The action that the criteria are requested for.
        asked: The criteria.
        wait: A version to wait for before names are looked up; None: look them up at once.

    Raises:
        InvalidRequest: The criteria request something that a view does not show, or a view has lost a column.
        ConditionRefused: A condition cannot be parsed, or cannot be evaluated on the view's columns.
        NotPermitted: The action is not granted for anything.
        DeadlineExceeded: The version was not published in time.
    """
    names = {name for one in asked for name in one.entity_type}
    if not names:
        return None
    views = await views_named(log, names)
    if not views:
        return None
    if wait is not None:
        await log.reach(*wait)
    view = log.view
    allowances = allowances_of(caller, view.name, action)

    def expanded() -> AskedViews | None:
        known = {
            name: found
            for name, document in views.items()
            if (found := known_view(document, allowances, view)) is not None
        }
        # Grants by a view's name apply only to requests for this view alone: with other criteria, a capture
        # would not say which columns it may have.
        granted = [each.by_view for each in known.values() if each.by_view is not None]
        if granted and any(one.entity_type != (granted[0].document.name,) for one in asked):
            raise InvalidRequest(
                f"criteria: {granted[0].document.name} is a view that is granted by its name; ask for it by "
                "itself"
            )
        parts = {name: _View(found, view) for name, found in known.items()}
        if not parts:
            return None
        documents = tuple(views[name] for name in parts)  # as they are defined
        by_view = next(iter(granted), None)
        return replace(_expanded(asked, parts), documents=documents, by_view=by_view)

    # Conditions are parsed and bound in a thread, as they may have thousands of values.
    return await asyncio.to_thread(expanded)


async def views_named(log: FollowedLog, names: Collection[str]) -> dict[str, ViewDocument]:
    """Return the views among some names, by name; ``log.view`` then has the versions of their definitions."""
    definitions = await log.definitions.of(names, log.view.schema_of(log.view.published))
    views = {name: definitions.views[name] for name in names if name in definitions.views}
    # Another process may have defined a view on a version that this server has not read yet: catch up.
    if views:
        await log.view_with(max(each.version for each in views.values()))
    return views


def _expanded(asked: Sequence[Criteria], views: Mapping[str, _View]) -> AskedViews:
    plain: list[Criteria] = []
    criteria: list[Criteria] = []
    for one in asked:
        mine = [name for name in one.entity_type if name in views]
        others = tuple(name for name in one.entity_type if name not in views)
        if not mine:
            plain.append(one)
        elif others:
            plain.append(replace(one, entity_type=others))
        for name in mine:
            criteria.extend(views[name].criteria(one))
    shown = tuple(each.shown for each in views.values())
    _refuse_mixed(shown, plain)
    return AskedViews((*plain, *criteria), shown, ())


class _View:
    """One view and its columns, by the names of the newest version."""

    def __init__(self, known: KnownView, view: LogView) -> None:
        names, self._granted = known.names, known.by_view
        self.document = document = known.document
        self._version = view.published
        self._found = found = names.columns_of(document, view.published)
        self._schemas = [*view.schemas()]
        schema = view.schema_of(view.published)
        entity_type = found.entity_type or names.entity_type_of(document)
        self._columns = schema.columns(entity_type)
        ids = {each.name: each.id for each in self._columns}
        types = EntityNames(view.schema_of(document.version), document.entity_type)
        self._types = types
        # Former names of the entity type count too, unless another entity type has the name now.
        called = {types.name_in(each) for each in self._schemas} - {None}
        self._type_names = sorted(
            name
            for name in called
            if name is not None
            and (name == types.name_in(schema) or name not in schema.entity_types)
        )
        # Columns that only a grant's condition needs are followed too, but errors must not name them.
        untold = frozenset[int]() if self._granted is None else self._granted.needed
        needed = frozenset(ids[inside] for inside in found.asked.values()) | untold
        shown = frozenset(ids[inside] for inside in found.shown.values())
        self.shown = ShownView(
            document.name,
            frozenset(self._type_names),
            frozenset(each.id for each in types.columns_in(schema) if each.id),
            shown if document.columns else None,
            needed | shown if document.columns else needed,
            untold,
        )

    def criteria(self, one: Criteria) -> Iterator[Criteria]:
        """Yield criteria of the view's entity type for criteria that name the view.

        Raises:
            InvalidRequest: The criteria request records or columns that the view does not have.
        """
        name = self.document.name
        # Without the parts that a view does not have, such criteria would be empty, which means every change.
        if (
            one.area in (Area.SCHEMA, Area.INFRASTRUCTURE)
            or one.container_type == (ContainerType.CATALOG,)
            or one.operation == (Operation.TRANSACTION,)
        ):
            raise InvalidRequest(
                f"criteria: view {name} has rows, and no records of the schema or of transactions; ask for "
                "area DATA, or for its entity type"
            )
        base = replace(
            one,
            area=Area.DATA,
            entity_type=(),
            operation=tuple(each for each in one.operation if each is not Operation.TRANSACTION),
            container_type=tuple(
                each for each in one.container_type if each is not ContainerType.CATALOG
            ),
            container_name=self._names_ever(one.container_name),
            where=None,
            parameters=(),
        )
        self._refuse_keys(one)
        # Each grant that names the view has keys and a condition of its own.
        for granted in (None,) if self._granted is None else self._granted.allowances:
            given = base if granted is None else _of_keys(base, granted.primary_keys)
            if given is None:
                continue
            condition, where = self._condition(one, None if granted is None else granted.rows)
            # Records from before a rename have a former name of the entity type.
            for entity_type in self._type_names:
                found = replace(given, entity_type=(entity_type,), where=where)
                yield found if condition is None else filtered(found, condition)

    def _refuse_keys(self, one: Criteria) -> None:
        """Check that each requested key is granted, if the view is granted by its name.

        Raises:
            NotPermitted: A key is not granted; the error names the first one.
        """
        if self._granted is None:
            return
        granted = [each.primary_keys for each in self._granted.allowances]
        for key in one.primary_key:
            if not any(keys is None or key in keys for keys in granted):
                raise NotPermitted(f"primary key {key!r} is not granted")

    def _names_ever(self, asked: Sequence[str]) -> tuple[str, ...]:
        """Return all names, at any version, of some columns of the view, given by their names in the view."""
        written = self._found.shown
        for name in asked:
            if name not in written:
                raise InvalidRequest(
                    f"criteria.container_name: view {self.document.name} has no column {name!r}"
                    f"{nearest(name, written)}"
                )
        # Records name columns as their own versions do, so take every name that these columns have had.
        inside = {written[name] for name in asked}
        ids = {each.id for each in self._columns if each.name in inside}
        return tuple(
            {
                each.name
                for schema in self._schemas
                for each in self._types.columns_in(schema)
                if each.id in ids
            }
        )

    def _condition(
        self, one: Criteria, granted: Condition | None
    ) -> tuple[RowCondition | None, Where | None]:
        """Join the conditions of view, grant and criteria.

        Returns:
            The bound condition, and the part of it that the caller may read, without the grant's; each None if
            there is no condition.
        """
        parts = [] if granted is None else [ConditionText(granted, is_granted=True)]
        told: Where | None = None
        if own := self.document.where:
            parts.append(ConditionText(renamed(parsed(own), self._found.asked)))
            told = own
        where = read_where(one.where)
        if where is not None:
            tree, parameters = parsed(where), parameter_texts(one.parameters)
            # The caller uses the names of the view. Bind these first, so that an error has them too.
            shown = self._found.shown
            bind(tree, columns_under(self._columns, shown), dict(parameters))
            parts.append(ConditionText(renamed(tree, shown), parameters))
            told = f"({own}) AND ({where})" if own and isinstance(where, str) else where
        if not parts:
            return None, None
        return RowCondition(parts, self._columns, self._version), told


def _of_keys(base: Criteria, granted: Keys) -> Criteria | None:
    """Return criteria with only those of their keys that are granted; None if no key is left."""
    if not isinstance(granted, frozenset):
        return base
    keys = base.primary_key or tuple(granted)
    kept = tuple(key for key in keys if key in granted)
    return replace(base, primary_key=kept) if kept else None


def _refuse_mixed(views: Sequence[ShownView], plain: Sequence[Criteria]) -> None:
    """Check that the criteria request one set of columns of each entity type.

    With two sets, a capture would not say which of them it has.

    Raises:
        InvalidRequest: Two views show different columns of an entity type, or other criteria request all
            columns.
    """
    for place, one in enumerate(views):
        for other in views[place + 1 :]:
            if one.type_ids & other.type_ids and one.ids != other.ids:
                raise InvalidRequest(
                    f"criteria: views {one.name} and {other.name} show different columns of one entity type; "
                    "ask for each by itself"
                )
        if one.ids is None:
            continue
        for each in plain:
            takes = not each.entity_type or not one.entity_types.isdisjoint(each.entity_type)
            rows = each.area in (None, Area.DATA) and each.operation != (Operation.TRANSACTION,)
            if takes and rows and each.container_type != (ContainerType.CATALOG,):
                raise InvalidRequest(
                    f"criteria: view {one.name} shows some columns of its entity type, and other criteria ask "
                    "for all of them; ask for each by itself"
                )
