"""Grants that name a view, and the rights to its entity type that they give in requests for the view.

::

    view cheap      SELECT id, name FROM product WHERE price < 10
    grant           entity_types = ["cheap"]   columns = ["name"]   where = "tenant = 7"
    a request for cheap returns
                    product, column name, where price < 10 AND tenant = 7

The view's condition then becomes a part of the grant's condition: it is evaluated before any other use of a
row, and errors do not reveal it. The names of columns in such grants are those of the view's definition. From
there columns are matched by id.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import structlog

from tailrace.errors import InvalidRequest, NotPermitted, TailraceError
from tailrace_server.filters.tree import Junction, columns_in, renamed
from tailrace_server.grants.grant import ALL_COLUMNS, Action, Allowance, Columns, Grant
from tailrace_server.grants.schemas import granted_schema
from tailrace_server.rows.lens import unfit
from tailrace_server.wal.sequences.definitions import Definitions
from tailrace_server.wal.state.entity_names import EntityNames

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tailrace.schema import Column, Schema
    from tailrace_server.filters.tree import Condition
    from tailrace_server.sql.defined_names import DefinedNames
    from tailrace_server.wal.files.sequence_documents import ViewDocument
    from tailrace_server.wal.state.view import LogView

_log = structlog.get_logger("tailrace.granting")


@dataclass(frozen=True, slots=True)
class ViewNames:
    """The current meaning of the names in a view's definition: the entity type and its columns."""

    document: ViewDocument
    condition: Condition | None
    """The view's condition, with the names of its definition."""
    entity_type: str
    """The newest name of the entity type."""
    entity_types: frozenset[str]
    """All names that the entity type has had."""
    columns: Mapping[str, Column]
    """Name in the definition → the newest form of the column; dropped columns are left out."""

    @property
    def shown(self) -> tuple[str, ...]:
        """The columns of the view, by the names of its definition."""
        return tuple(self.document.columns) or tuple(self.columns)


@dataclass(frozen=True, slots=True)
class ViewGrant:
    """The part of a view that is granted by the view's name."""

    names: ViewNames
    allowances: tuple[Allowance, ...]
    """The granted rows, as allowances for all names of the entity type.

    They include the view's condition, in the newest names. Their columns have the names of the definition.
    """
    document: ViewDocument
    """The view with only the granted columns, and without its condition, which the allowances have."""

    @property
    def needed(self) -> frozenset[int]:
        """Ids of the columns in the conditions of the allowances."""
        by_name = {each.name: each.id for each in self.names.columns.values()}
        asked = {
            each.text
            for held in self.allowances
            if held.rows is not None
            for each in columns_in(held.rows)
        }
        return frozenset(by_name[name] for name in asked)

    @property
    def of_rows(self) -> Grant:
        """The granted rows with all columns, for readers that take the columns from ``document``."""
        return Grant(tuple(replace(each, columns=ALL_COLUMNS) for each in self.allowances))

    @property
    def of_criteria(self) -> Grant:
        """The whole entity type, for criteria that already have the granted keys and conditions."""
        every = Allowance(
            self.names.entity_types, bodies=self.allowances[0].bodies, actions=frozenset(Action)
        )
        return Grant((every,))

    def again(self, allowances: Sequence[Allowance]) -> tuple[Allowance, ...]:
        """Return what a changed policy gives of the same view, in the form of ``self.allowances``.

        Args:
            allowances: The caller's allowances by the policy in force now.

        Returns:
            The allowances for the view; empty if the view is no longer granted.
        """
        try:
            if gives_whole(self.names, allowances):
                return self.allowances
            found = view_grant(self.names, allowances)
        except TailraceError:
            return ()
        return () if found is None else found.allowances


def view_names(document: ViewDocument, view: LogView) -> ViewNames | None:
    """Return the current meaning of the names in a definition; None: the entity type no longer exists."""
    # Imported late: only requests for views need this module and the SQL parser that it imports.
    from tailrace_server.filters.parsing import parse

    written = view.schema_of(document.version)
    # This can be true only of a definition that was written by hand.
    if document.entity_type not in written.entity_types:
        return None
    types = EntityNames(written, document.entity_type)
    newest = view.schema_of(view.published)
    entity_type = types.name_in(newest)
    if entity_type is None:
        return None
    now = {each.id: each for each in newest.columns(entity_type)}
    return ViewNames(
        document,
        parse(document.where) if document.where else None,
        entity_type,
        frozenset({*map(types.name_in, view.schemas())} - {None}),  # type: ignore[arg-type]
        {
            each.name: now[each.id]
            for each in written.columns(document.entity_type)
            if each.id in now
        },
    )


def names_view(allowance: Allowance, view: str) -> bool:
    """Return True if an allowance names a view."""
    return allowance.entity_types is not None and view in allowance.entity_types


def gives_whole(names: ViewNames, allowances: Sequence[Allowance]) -> bool:
    """Return True if an allowance for the view's entity type gives all rows and columns that the view needs."""
    asked = () if names.condition is None else columns_in(names.condition)
    needed = {*names.shown, *(each.text for each in asked)}
    now = [names.columns[name].name for name in needed if name in names.columns]
    return any(
        each.takes_type(names.entity_type)
        and each.primary_keys is None
        and each.rows is None
        and each.bodies
        and (bool(names.document.columns) or each.columns.are_all)
        and all(map(each.columns.shows, now))
        for each in allowances
    )


def view_grant(names: ViewNames, allowances: Sequence[Allowance]) -> ViewGrant | None:
    """Return the part of a view that is granted by its name.

    None: no allowance names the view. Or the allowances for its entity type give the whole view, so that those
    by the view's name do not matter.

    Raises:
        InvalidRequest: The view needs a column that has been dropped.
        NotPermitted: The grants do not fit the view, or show different columns in different rows.
    """
    document = names.document
    naming = [each for each in allowances if names_view(each, document.name)]
    if not naming or gives_whole(names, allowances):
        return None
    given: list[Allowance] = []
    for each in naming:
        # 1. Take the columns that view and grant have in common. Without any, the grant must be ignored: an
        #    empty list of columns in a definition means all columns.
        shown = [name for name in names.shown if each.columns.shows(name)]
        if not shown:
            _log.warning("grant has no column of its view", view=document.name)
            continue
        is_whole = each.columns.are_all and not document.columns
        # 2. Join the conditions of view and grant, with the newest names of columns.
        parts = [held for held in (names.condition, each.rows) if held is not None]
        rows = [_of_now(part, names, is_own=part is each.rows) for part in parts]
        given.append(
            Allowance(
                names.entity_types,
                each.primary_keys,
                ALL_COLUMNS if is_whole else Columns(frozenset(shown), listed=True),
                each.bodies,
                each.actions,
                Junction(True, tuple(rows)) if len(rows) > 1 else next(iter(rows), None),
            )
        )
    if not given:
        raise NotPermitted(f"nothing of {document.name!r} is granted")
    # 3. The visible columns of a row must not depend on the row, because this would reveal its values.
    if len({(each.columns, each.bodies) for each in given}) > 1:
        raise NotPermitted(
            f"the grants of {document.name!r} show other columns or images of some rows than of others: that "
            "is not served; have the policy grant the same of all of them"
        )
    columns = given[0].columns
    kept = [] if columns.are_all else [name for name in names.shown if columns.shows(name)]
    _refuse_lost(names, kept)
    return ViewGrant(names, tuple(dict.fromkeys(given)), _narrowed(document, kept))


def _narrowed(document: ViewDocument, columns: list[str]) -> ViewDocument:
    import msgspec

    return msgspec.structs.replace(document, columns=columns, where="")


def _of_now(condition: Condition, names: ViewNames, *, is_own: bool) -> Condition:
    """Return a condition with the newest names of its columns.

    Args:
        condition: The condition, with the names of the view's definition.
        names: The meaning of these names.
        is_own: True if the condition is the grant's own, False if it is the view's.

    Raises:
        InvalidRequest: The view's condition is on a column that has been dropped; the error does not name it.
        NotPermitted: The grant's condition is on a column that does not exist; the server's log names it.
    """
    lost = [each.text for each in columns_in(condition) if each.text not in names.columns]
    if lost:
        view = names.document.name
        if not is_own:
            raise _lost(view)
        raise unfit(view, f"there is no column {lost[0]!r}")
    return renamed(condition, {name: each.name for name, each in names.columns.items()})


def _refuse_lost(names: ViewNames, columns: Sequence[str]) -> None:
    if any(name not in names.columns for name in columns):
        raise _lost(names.document.name)


def _lost(view: str) -> InvalidRequest:
    return InvalidRequest(
        f"view {view} needs a column that the source has dropped; DROP VIEW {view} and define it anew"
    )


@dataclass(frozen=True, slots=True)
class KnownView:
    """A view as a caller may see it."""

    document: ViewDocument
    """The view's definition; for a view that is granted by its name, only the granted part."""
    names: DefinedNames
    """The meaning of the view's names for the caller; the view is the only definition in it."""
    by_view: ViewGrant | None
    """The rights from grants that name the view; None: the grants of its entity type apply."""


def known_view(
    document: ViewDocument, allowances: Sequence[Allowance], view: LogView
) -> KnownView | None:
    """Return a view as a caller may see it; None: the caller may not see the view.

    Raises:
        InvalidRequest: An entity type has the view's name too, or a column that the view needs was dropped.
        NotPermitted: The grants do not fit the view, or show different columns in different rows.
    """
    # Imported late: only requests for views need this module and the SQL parser that it imports.
    from tailrace_server.sql.defined_names import DefinedNames

    # 1. Grants that name the view are sufficient: its entity type need not be granted.
    if any(names_view(each, document.name) for each in allowances):
        found = view_names(document, view)
        given = None if found is None else view_grant(found, allowances)
        if given is not None:
            kept = Definitions(views={document.name: given.document})
            names = DefinedNames(view, view.schema_of, kept)
            names.definition(document.name, quoted=True)  # raises if an entity type has this name
            return KnownView(given.document, names, given)
    # 2. Otherwise the view is visible if the grants of its entity type cover all that it needs.
    with_bodies = [each for each in allowances if each.bodies]
    schema_of: Callable[[int], Schema] = view.schema_of
    if not any(each.is_whole for each in allowances):
        schema_of = lambda version: granted_schema(view.schema_of(version), with_bodies)  # noqa: E731
    names = DefinedNames(view, schema_of, Definitions(views={document.name: document}))
    if names.definition(document.name, quoted=True) is None:
        return None
    return KnownView(document, names, None)
