"""The meaning of a name in a statement: an entity type, a view or a change table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.errors import InvalidRequest
from tailrace.errors.requests import nearest
from tailrace_server.filters.parsing import parse
from tailrace_server.filters.tree import columns_in
from tailrace_server.wal.files.sequence_documents import ChangeTableDocument, ViewDocument
from tailrace_server.wal.state.entity_names import EntityNames, columns_under

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
    """The columns that a view reads, with their names as of one version."""

    entity_type: str
    shown: dict[str, str]
    """Column name in the view → column name in the entity type."""
    asked: dict[str, str]
    """Column name in the view's condition → column name in the entity type."""


class DefinedNames:
    """The names that a statement may use: entity types, views and change tables of one log.

    A definition on a hidden entity type or column is hidden too.
    """

    def __init__(
        self,
        view: LogView,
        schema_of: Callable[[int], Schema],
        definitions: Definitions,
        of_view: Callable[[ViewDocument], ViewShown | None] = lambda document: None,
    ) -> None:
        """Compute the visible definitions.

        Args:
            view: The log.
            schema_of: Returns the schema of a version, without hidden things.
            definitions: The views and change tables of the log.
            of_view: Returns what a grant on a view itself makes visible; None: there is no such grant, and the
                view is visible if it needs nothing hidden.
        """
        self.view = view
        self.schema = schema_of(view.published)
        self._schema_of = schema_of
        self.definitions = definitions
        views = definitions.views
        found = {name: given for name, each in views.items() if (given := of_view(each))}
        self.through = {name: each for name, each in found.items() if self._is_there(each)}
        """Views that are granted by their own names. A change table on such a view is hidden."""
        shown = {name: each for name, each in views.items() if self._is_shown(each)}
        # A grant on the view itself takes precedence over grants on its entity type.
        self.views = shown | {name: each.document for name, each in self.through.items()}
        """The visible views, by name."""
        self.change_tables = {
            name: each
            for name, each in definitions.change_tables.items()
            if (
                each.source in shown and each.source not in self.through
                if each.of_view
                else self._current(each.source, each.version) is not None
            )
        }
        """The visible change tables, by name."""

    def _is_there(self, shown: ViewShown) -> bool:
        """Return True if the entity type of a view still exists; the view is granted by its own name."""
        return self._current(shown.document.entity_type, shown.document.version, shown) is not None

    def schema_at(self, view: ViewDocument, version: int) -> Schema:
        """Return the schema of a version for looking up the names of a view."""
        shown = self.through.get(view.name)
        if shown is not None:
            return shown.schema_of(version)
        return self.schema if version == self.view.published else self._schema_of(version)

    def _is_shown(self, view: ViewDocument) -> bool:
        """Return True if a view needs nothing that is hidden."""
        name = self._current(view.entity_type, view.version)
        if name is None:
            return False
        newest = self.view.schema_of(self.view.published)
        # Compare ids and not names: a column may have been renamed since the view was defined.
        hidden = {each.id for each in newest.columns(name)}
        hidden -= {each.id for each in self.schema.columns(name)}
        needed = {*view.columns, *(each.text for each in _asked(view))}
        written = self.view.schema_of(view.version).columns(view.entity_type)
        return not any(each.id in hidden for each in written if each.name in needed)

    def _current(
        self, entity_type: str, version: int, shown: ViewShown | None = None
    ) -> str | None:
        """Return the present name of an entity type, given its name at a version.

        None if it is hidden or gone.
        """
        try:
            names = EntityNames(self.view.schema_of(version), entity_type)
        except KeyError:  # the definition was not written by this program
            return None
        newest = self.view.published
        name = names.name_in(self.view.schema_of(newest))
        schema = self.schema if shown is None else shown.schema_of(newest)
        return name if name in schema.entity_types else None

    def entity_type_of(self, definition: Definition) -> str:
        """Return the present name of the entity type below a view or a change table."""
        if isinstance(definition, ChangeTableDocument) and definition.of_view:
            definition = self.views[definition.source]
        name = definition.entity_type if isinstance(definition, ViewDocument) else definition.source
        found = self._current(name, definition.version, self.through.get(definition.name))
        assert found is not None, "a definition of an entity type that is not shown is not a name"
        return found

    def columns_of(self, view: ViewDocument, version: int) -> ViewColumns:
        """Return the names of a view's entity type and columns as of a version.

        Raises:
            InvalidRequest: A column has been dropped, or does not exist yet.
        """
        written = self.view.schema_of(view.version)
        schema = self.schema_at(view, version)
        names = EntityNames(written, view.entity_type)
        entity_type = names.name_in(self.view.schema_of(version)) or ""
        columns = schema.columns(entity_type)
        # Go from the name at definition to the id, and from the id to the name at this version.
        there = {each.id: each.name for each in columns}
        ids = {each.name: each.id for each in written.columns(view.entity_type)}

        def current(name: str) -> str:
            found = there.get(ids.get(name, 0))
            if found is None:
                when = "now" if version == self.view.published else f"as of version {version}"
                raise InvalidRequest(
                    f"view {view.name} needs column {name!r}, which {entity_type or view.entity_type} does not "
                    f"have {when}; DROP VIEW {view.name} and define it again, or read another version"
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
        """Return the columns of an entity type at a version.

        Through a view, those of the view, under its names.
        """
        schema = self._schema_of(version) if shown is None else shown.schema_of(version)
        columns = schema.entity_types.get(entity_type, ())
        if shown is None:
            return columns
        return columns_under(columns, self.columns_of(shown.document, version).shown)

    def all(self) -> list[str]:
        """Return all visible names."""
        return [*self.schema.entity_types, *self.views, *self.change_tables]

    def definition(self, written: str, *, quoted: bool) -> Definition | None:
        """Return the view or change table with a name; None if there is none.

        Raises:
            InvalidRequest: An entity type has the same name, since the source has created one; or several
                names differ from ``written`` only by case.
        """
        defined: dict[str, Definition] = {**self.views, **self.change_tables}
        found = matching("table", written, defined, quoted=quoted)
        if not found:
            return None
        # CREATE refuses a taken name, but the source may have added the entity type later.
        if matching("table", written, self.schema.entity_types, quoted=quoted):
            kind = kind_of(defined[found])
            raise InvalidRequest(
                f"{found!r} is an entity type and a {kind}: DROP the {kind}, and define it with another name"
            )
        return defined[found]

    def entity_type(self, written: str, *, quoted: bool) -> str | None:
        """Return the entity type with a name; None if there is none.

        Raises:
            InvalidRequest: Several names differ from ``written`` only by case.
        """
        return matching("table", written, self.schema.entity_types, quoted=quoted)

    def taken_by(self, name: str) -> str | None:
        """Return the kind of thing that has a name, in words, also if it is hidden.

        None if the name is free.
        """
        kinds: dict[str, Iterable[str]] = {
            "an entity type": self.schema.entity_types,
            "a view": self.definitions.views,
            "a change table": self.definitions.change_tables,
        }
        folded = name.lower()
        return next(
            (kind for kind, names in kinds.items() if folded in map(str.lower, names)), None
        )

    def unknown(self, written: str) -> InvalidRequest:
        """Return the error for an unknown table name."""
        return InvalidRequest(f"there is no table {written!r}{nearest(written, self.all())}")


def _asked(view: ViewDocument) -> tuple[ColumnName, ...]:
    """Return the columns in a view's condition."""
    return columns_in(parse(view.where)) if view.where else ()


def kind_of(definition: Definition) -> str:
    """Return the kind of a definition, in words."""
    return "view" if isinstance(definition, ViewDocument) else "change table"


def matching(kind: str, written: str, names: Iterable[str], *, quoted: bool) -> str | None:
    """Return the name that a statement means: the same name, or, unless quoted, one that differs only by case.

    Args:
        kind: The kind of thing that has the name, for the error.
        written: The name in the statement.
        names: The existing names.
        quoted: True if the statement has the name in quotes, so that its case counts.

    Returns:
        The existing name; None if no name matches.

    Raises:
        InvalidRequest: Several names match, and each differs from the written name by case.
    """
    known = list(names)
    if written in known:
        return written
    found = [] if quoted else [each for each in known if each.lower() == written.lower()]
    if len(found) > 1:
        listed = ", ".join(f'"{each}"' for each in sorted(found))
        raise InvalidRequest(f"{kind} {written!r} may be {listed}: write it in double quotes")
    return found[0] if found else None
