"""The tables that an SQL statement may read: granted entity types, rows and columns.

Only grants with images count. The changes are those that a read of history gives: a record that changed only
hidden columns is left out. A column that is granted in some rows only is null in the other rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import structlog

from tailrace.errors import NotPermitted, TailraceError
from tailrace_server.grants.schemas import granted_schema
from tailrace_server.grants.shown import Rule, columns_of, gives_all, refuse_mixed
from tailrace_server.grants.view_grants import names_view, view_grant, view_names
from tailrace_server.sql.shown import ViewShown
from tailrace_server.wal.state.entity_names import EntityNames

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from tailrace.schema import Column, Schema
    from tailrace_server.grants.grant import Allowance
    from tailrace_server.wal.files.sequence_documents import ViewDocument
    from tailrace_server.wal.segment.reader import BatchHead
    from tailrace_server.wal.state.view import LogView

_log = structlog.get_logger("tailrace.granting")


class GrantedTables:
    """The tables that some allowances grant; threads may share it."""

    def __init__(self, allowances: Sequence[Allowance]) -> None:
        """Use the allowances that include images; ignore the others."""
        self._allowances = tuple(each for each in allowances if each.bodies)

    def schema(self, schema: Schema) -> Schema:
        """Return the granted part of a schema."""
        return granted_schema(schema, self._allowances)

    def rows(
        self, entity_type: str, view: LogView, version: int, *, changes: bool
    ) -> GrantedRows | None:
        """Return the granted rows and columns of an entity type; None: everything is granted.

        Args:
            entity_type: The name of the entity type at ``version``.
            view: The log.
            version: The version that is read.
            changes: True if changes are read: then former names of the entity type have grants of their own.

        Raises:
            NotPermitted: A grant has a condition, and the grants show different columns in different rows.
        """
        rules = self._rules(entity_type)
        # Grants are by name: records from before a rename have the rules of their former name.
        former = {}
        if changes:
            names = EntityNames(view.schema_of(version), entity_type)
            found = {*map(names.name_in, view.schemas())} - {None, entity_type}
            former = {name: self._rules(name) for name in found if name is not None}
        if all(any(map(gives_all, each)) for each in (rules, *former.values())):
            return None
        refuse_mixed(entity_type, rules)
        return GrantedRows(entity_type, rules, former)

    def view(self, document: ViewDocument, view: LogView) -> ViewShown | None:
        """Return the part of a view that grants by its name give; None: the grants of its entity type apply.

        The result is also None if the grants by its name cannot be served; the server's log has the reason.
        """
        if not any(names_view(each, document.name) for each in self._allowances):
            return None
        names = view_names(document, view)
        try:
            given = None if names is None else view_grant(names, self._allowances)
        except TailraceError as error:
            _log.warning("view not shown", view=document.name, reason=str(error))
            return None
        if given is None:
            return None
        # The allowances choose the rows, and the document the columns.
        tables = GrantedTables(given.of_rows.allowances)
        shown = given.document.columns
        ids = frozenset(given.names.columns[name].id for name in shown) if shown else None
        return ViewShown(
            given.document, tables, lambda version: tables.schema(view.schema_of(version)), ids
        )

    def _rules(self, entity_type: str) -> tuple[Rule, ...]:
        return tuple(
            Rule(each.primary_keys, each.columns, each.bodies, each.rows)
            for each in self._allowances
            if each.takes_type(entity_type)
        )


class GrantedRows:
    """The rows and columns of an entity type that some rules grant."""

    def __init__(
        self, entity_type: str, rules: tuple[Rule, ...], former: Mapping[str, tuple[Rule, ...]]
    ) -> None:
        """Bind the rules of an entity type.

        Args:
            entity_type: Its name.
            rules: Its rules.
            former: Former name → the rules of that name, for changes from before a rename.
        """
        self.rights = rules
        self._entity_type = entity_type
        self._former = former
        self._union = columns_of(rules)

    def columns(self, columns: Iterable[Column]) -> tuple[Column, ...]:
        """Return the columns that at least one rule grants."""
        return tuple(each for each in columns if self._union.shows(each.name))

    def granted_names(self, head: BatchHead, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the records whose entity type is granted under the name that it has in their version.

        Raises:
            NotPermitted: A record has a former name of the entity type, and other rules apply to that name.
        """
        for code, name in enumerate(head.entity_types):
            rules = self._former.get(name, self.rights)
            if rules == self.rights:
                continue
            mine = head.type_codes[rows] == code
            if rules and mine.any():
                raise NotPermitted(
                    f"{self._entity_type!r} had another name in version {head.versions[rows[mine][-1]]}, of "
                    "which other rows or columns are granted: ask for later changes, or read them as history"
                )
            # The former name is not granted at all: leave out its records.
            rows = rows[~mine]
        return rows

    def hidden(self, column: str, keys: pa.StringArray) -> pa.BooleanArray | None:
        """Return a mask of the rows, given by their keys, in which a column is hidden; None: in no row."""
        if all(rule.columns.shows(column) for rule in self.rights):
            return None
        showing = [rule for rule in self.rights if rule.columns.shows(column)]
        found = [not any(rule.takes(key) for rule in showing) for key in keys.to_pylist()]
        return pa.array(found, pa.bool_())


def granted_tables(allowances: Sequence[Allowance]) -> GrantedTables | None:
    """Return the tables that some allowances grant; None: the whole log.

    Raises:
        NotPermitted: No allowance includes images, and tables are made of images.
    """
    if any(each.is_whole for each in allowances):
        return None
    if not any(each.bodies for each in allowances):
        raise NotPermitted("bodies are not granted, and tables are made of them")
    return GrantedTables(allowances)
