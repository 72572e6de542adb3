"""The meaning of a name in a statement: an entity type, a view or a change table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tailrace.errors import InvalidRequest
from tailrace_server.filters.parsing import parse
from tailrace_server.filters.tree import columns_in
from tailrace_server.sql.statements import nearest
from tailrace_server.wal.files.sequence_documents import ChangeTableDocument, ViewDocument
from tailrace_server.wal.state.entity_names import EntityNames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tailrace.schema import Column, Schema
    from tailrace_server.filters.tree import ColumnName
    from tailrace_server.sql.shown import ViewShown
    from tailrace_server.wal.sequences.definitions import Definitions
    from tailrace_server.wal.state.view import LogView

Definition = ViewDocument | ChangeTableDocument


@dataclass(frozen=True, slots=True)
class ViewColumns:
    """The columns that a view reads, by the names of one version."""

    entity_type: str
    shown: dict[str, str]
    """Name in the view → name in the entity type."""
    asked: dict[str, str]
    """The same of the columns in its condition."""


class DefinedNames:
    """The names that a statement may use: those of one view of a log, and what is defined of it.

    A definition on a hidden name is hidden too.
    """

    def __init__(
        self,
        view: LogView,
        schema_of: Callable[[int], Schema],
        definitions: Definitions,
        of_view: Callable[[ViewDocument], ViewShown | None] = lambda document: None,
    ) -> None:
        """Bind to them.

        Args:
            view: The log.
            schema_of: Returns the schema of a version, without what is hidden.
            definitions: What is defined of it.
            of_view: Returns how a view is shown that is granted by its name; None: it is shown if nothing that
                it needs is hidden.
        """
        self.view = view
        self.schema = schema_of(view.published)
        self._schema_of = schema_of
        self.definitions = definitions
        views = definitions.views
        found = {name: given for name, each in views.items() if (given := of_view(each))}
        self.through = {name: each for name, each in found.items() if self._is_there(each)}
        """Those that are granted by their names; a change table on one of them is not shown."""
        shown = {name: each for name, each in views.items() if self._is_shown(each)}
        self.views = shown | {name: each.document for name, each in self.through.items()}
        """By name."""
        self.change_tables = {
            name: each
            for name, each in definitions.change_tables.items()
            if (
                each.source in shown and each.source not in self.through
                if each.of_view
                else self._current(each.source, each.version) is not None
            )
        }
        """By name."""

    def _is_there(self, shown: ViewShown) -> bool:
        """Return whether the entity type of a view is there that is granted by its name."""
        return self._current(shown.document.entity_type, shown.document.version, shown) is not None

    def schema_at(self, view: ViewDocument, version: int) -> Schema:
        """Return the schema of a version in which the names of a view are looked up."""
        shown = self.through.get(view.name)
        if shown is not None:
            return shown.schema_of(version)
        return self.schema if version == self.view.published else self._schema_of(version)

    def _is_shown(self, view: ViewDocument) -> bool:
        """Return whether nothing that a view needs is hidden."""
        name = self._current(view.entity_type, view.version)
        if name is None:
            return False
        newest = self.view.schema_of(self.view.published)
        hidden = {each.id for each in newest.columns(name)}
        hidden -= {each.id for each in self.schema.columns(name)}
        needed = {*view.columns, *(each.text for each in _asked(view))}
        written = self.view.schema_of(view.version).columns(view.entity_type)
        return not any(each.id in hidden for each in written if each.name in needed)

    def _current(
        self, entity_type: str, version: int, shown: ViewShown | None = None
    ) -> str | None:
        """Return what an entity type is called now that had a name at a version; None: it is not there."""
        try:
            names = EntityNames(self.view.schema_of(version), entity_type)
        except KeyError:  # somebody's hand has made the definition
            return None
        newest = self.view.published
        name = names.name_in(self.view.schema_of(newest))
        schema = self.schema if shown is None else shown.schema_of(newest)
        return name if name in schema.entity_types else None

    def entity_type_of(self, definition: Definition) -> str:
        """Return what the entity type is called now that a view or a change table shows."""
        if isinstance(definition, ChangeTableDocument) and definition.of_view:
            definition = self.views[definition.source]
        name = definition.entity_type if isinstance(definition, ViewDocument) else definition.source
        found = self._current(name, definition.version, self.through.get(definition.name))
        assert found is not None, "a definition of an entity type that is not shown is no name"
        return found

    def columns_of(self, view: ViewDocument, version: int) -> ViewColumns:
        """Return what a view's entity type and its columns are called at a version.

        Raises:
            InvalidRequest: A column has been dropped, or is not there yet.
        """
        written = self.view.schema_of(view.version)
        schema = self.schema_at(view, version)
        names = EntityNames(written, view.entity_type)
        entity_type = names.name_in(self.view.schema_of(version)) or ""
        columns = schema.columns(entity_type)
        there = {each.id: each.name for each in columns}
        ids = {each.name: each.id for each in written.columns(view.entity_type)}

        def current(name: str) -> str:
            found = there.get(ids.get(name, 0))
            if found is None:
                when = "now" if version == self.view.published else f"as of version {version}"
                raise InvalidRequest(
                    f"view {view.name} needs column {name!r}, which {entity_type or view.entity_type} does not "
                    f"have {when}; DROP VIEW {view.name} and define it anew, or ask for another version"
                )
            return found

        return ViewColumns(
            entity_type,
            {name: current(name) for name in view.columns}
            or {each.name: each.name for each in columns},
            {each.text: current(each.text) for each in _asked(view)},
        )

    def columns_read(
        self, entity_type: str, version: int, shown: ViewShown | None
    ) -> tuple[Column, ...]:
        """Return the columns of an entity type at a version, as a view names them that it is read through."""
        schema = self._schema_of(version) if shown is None else shown.schema_of(version)
        columns = schema.entity_types.get(entity_type, ())
        if shown is None:
            return columns
        there = {each.name: each for each in columns}
        inside = self.columns_of(shown.document, version).shown
        return tuple(replace(there[found], name=name) for name, found in inside.items())

    def all(self) -> list[str]:
        """Return all names."""
        return [*self.schema.entity_types, *self.views, *self.change_tables]

    def definition(self, written: str, *, quoted: bool) -> Definition | None:
        """Return the view or change table of a name; None where there is none.

        Raises:
            InvalidRequest: An entity type is called so as well, since the source has made one.
        """
        defined: dict[str, Definition] = {**self.views, **self.change_tables}
        found = _matching(written, defined, quoted=quoted)
        if not found:
            return None
        if _matching(written, self.schema.entity_types, quoted=quoted):
            kind = kind_of(defined[found])
            raise InvalidRequest(
                f"{found!r} is an entity type and a {kind}: DROP the {kind}, and define it by another name"
            )
        return defined[found]

    def entity_type(self, written: str, *, quoted: bool) -> str | None:
        """Return the entity type of a name; None where there is none."""
        return _matching(written, self.schema.entity_types, quoted=quoted)

    def taken_by(self, name: str) -> str | None:
        """Return what has a name already, in words, whether it is shown or not; None: it is free."""
        if _matching(name, self.schema.entity_types, quoted=False):
            return "an entity type"
        if _matching(name, self.definitions.views, quoted=False):
            return "a view"
        return (
            "a change table"
            if _matching(name, self.definitions.change_tables, quoted=False)
            else None
        )

    def unknown(self, written: str) -> InvalidRequest:
        """Return the error of a name that means nothing."""
        return InvalidRequest(f"there is no table {written!r}{nearest(written, self.all())}")


def _asked(view: ViewDocument) -> tuple[ColumnName, ...]:
    """Return the columns in a view's condition."""
    return columns_in(parse(view.where)) if view.where else ()


def kind_of(definition: Definition) -> str:
    """Return what a definition is, in words."""
    return "view" if isinstance(definition, ViewDocument) else "change table"


def _matching(written: str, names: Iterable[str], *, quoted: bool) -> str | None:
    """Return the written name: exactly, or without quotes in any case of its letters."""
    known = list(names)
    if written in known:
        return written
    if quoted:
        return None
    return next((each for each in known if each.lower() == written.lower()), None)
