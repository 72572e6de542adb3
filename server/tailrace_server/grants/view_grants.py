"""Grants that name a view: what they give of its entity type, to who asks by the view's name.

::

    view cheap      SELECT id, name FROM product WHERE price < 10
    grant           entity_types = ["cheap"]   columns = ["name"]   where = "tenant = 7"
    a request for cheap returns
                    product, column name, where price < 10 AND tenant = 7

The view's condition is then one of the grant: it is judged before anything else looks at a row, and nothing of
it is told. Names in such grants are those of the view's definition; columns are followed from there by their
ids.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import structlog

from tailrace.errors import InvalidRequest, NotPermitted, TailraceError
from tailrace_server.filters.tree import Junction, columns_in, renamed
from tailrace_server.grants.grant import ALL_COLUMNS, Action, Allowance, Columns, Grant
from tailrace_server.grants.schemas import granted_schema
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
    """The entity type and columns that the names in a view's definition mean at one moment."""

    document: ViewDocument
    condition: Condition | None
    """The view's, by the names of its definition."""
    entity_type: str
    """Its newest name."""
    entity_types: frozenset[str]
    """All names that it has had."""
    columns: Mapping[str, Column]
    """Name in the definition → the column as it is now; without those that were dropped."""

    @property
    def shown(self) -> tuple[str, ...]:
        """The columns that the view shows, by the names of its definition."""
        return tuple(self.document.columns) or tuple(self.columns)


@dataclass(frozen=True, slots=True)
class ViewGrant:
    """The part of a view that a caller gets by grants that name the view."""

    names: ViewNames
    allowances: tuple[Allowance, ...]
    """Of its entity type, under all of its names: the rows. Columns have the names of the definition."""
    document: ViewDocument
    """The columns: the view as it is to the caller, without its condition, which the allowances have."""

    @property
    def needed(self) -> frozenset[int]:
        """Ids of the columns that conditions ask for."""
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
        """The rows, with all of their columns: for who cuts the columns by the document."""
        return Grant(tuple(replace(each, columns=ALL_COLUMNS) for each in self.allowances))

    @property
    def of_criteria(self) -> Grant:
        """The entity type: for criteria that already have the keys and the conditions."""
        every = Allowance(
            self.names.entity_types, bodies=self.allowances[0].bodies, actions=frozenset(Action)
        )
        return Grant((every,))

    def again(self, allowances: Sequence[Allowance]) -> tuple[Allowance, ...]:
        """Return what a policy gives now of the same view, as of ``allowances``; nothing: none of it."""
        try:
            if gives_whole(self.names, allowances):
                return self.allowances
            found = view_grant(self.names, allowances)
        except TailraceError:
            return ()
        return () if found is None else found.allowances


def view_names(document: ViewDocument, view: LogView) -> ViewNames | None:
    """Return what the names in a definition mean now; None: the entity type does not exist."""
    # Beside what SQL parses with, which a server has in memory once somebody asks for a view.
    from tailrace_server.filters.parsing import parse

    written = view.schema_of(document.version)
    if document.entity_type not in written.entity_types:  # somebody's hand has made the definition
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
    """Return whether a grant names a view."""
    return allowance.entity_types is not None and view in allowance.entity_types


def gives_whole(names: ViewNames, allowances: Sequence[Allowance]) -> bool:
    """Return whether a grant of the entity type gives all that the view has."""
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
    """Return what a caller is given of a view by grants that name it.

    None: none of them does; or the grants of its entity type give all of it, and so count alone.

    Raises:
        InvalidRequest: The view needs a column that has been dropped.
        NotPermitted: The grants name what the view does not have, or show other columns of some rows than of
            others.
    """
    document = names.document
    naming = [each for each in allowances if names_view(each, document.name)]
    if not naming or gives_whole(names, allowances):
        return None
    given: list[Allowance] = []
    for each in naming:
        # 1. Columns: none of those that the view has is no grant, and not one of all columns.
        shown = [name for name in names.shown if each.columns.shows(name)]
        if not shown:
            _log.warning("grant has no column of its view", view=document.name)
            continue
        is_whole = each.columns.are_all and not document.columns
        # 2. Rows that meet both conditions, by the names of now.
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
    # 3. Which columns a row has may not depend on the row: it would tell of its values.
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
    """Return a condition by the names that columns have now.

    Raises:
        InvalidRequest: The view's own names a column that has been dropped; the error does not name it.
        NotPermitted: The grant's names one that there is not; the log says which.
    """
    lost = [each.text for each in columns_in(condition) if each.text not in names.columns]
    if lost:
        view = names.document.name
        if not is_own:
            raise _lost(view)
        _log.warning("grant does not fit its view", view=view, column=lost[0])
        raise NotPermitted(
            f"a condition of the grants of {view!r} does not fit it as it is; the server's log says why"
        )
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
    """A view as a caller knows it."""

    document: ViewDocument
    """Its definition; of one that is granted by its name what is granted of it."""
    names: DefinedNames
    """The meaning of its names for the caller; nothing else is defined there."""
    by_view: ViewGrant | None
    """The rights from grants that name it; None: the grants of its entity type apply."""


def known_view(
    document: ViewDocument, allowances: Sequence[Allowance], view: LogView
) -> KnownView | None:
    """Return a view as a caller knows it; None: it does not.

    Raises:
        InvalidRequest: An entity type has the name as well; or a column that grants need is gone.
        NotPermitted: As ``view_grant``.
    """
    # Beside what SQL parses with, which a server has in memory once somebody asks for a view.
    from tailrace_server.sql.defined_names import DefinedNames

    # 1. Grants that name it say by themselves what is shown: nothing that they need has to be granted too.
    if any(names_view(each, document.name) for each in allowances):
        found = view_names(document, view)
        given = None if found is None else view_grant(found, allowances)
        if given is not None:
            kept = Definitions(views={document.name: given.document})
            names = DefinedNames(view, view.schema_of, kept)
            names.definition(document.name, quoted=True)  # refuses the name of an entity type
            return KnownView(given.document, names, given)
    # 2. Else it is known by what is granted of its entity type.
    with_bodies = [each for each in allowances if each.bodies]
    schema_of: Callable[[int], Schema] = view.schema_of
    if not any(each.is_whole for each in allowances):
        schema_of = lambda version: granted_schema(view.schema_of(version), with_bodies)  # noqa: E731
    names = DefinedNames(view, schema_of, Definitions(views={document.name: document}))
    if names.definition(document.name, quoted=True) is None:
        return None
    return KnownView(document, names, None)
