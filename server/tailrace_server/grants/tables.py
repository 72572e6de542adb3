"""The tables that a statement in SQL may read: entity types, rows and columns that are granted with images.

It is what a read of history gives, as tables. A record that changed hidden columns alone is left out of the
changes; a column that is granted in some rows only is null in the others.
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
        """Keep those that give images."""
        self._allowances = tuple(each for each in allowances if each.bodies)

    def schema(self, schema: Schema) -> Schema:
        """Return a schema without what no allowance gives."""
        return granted_schema(schema, self._allowances)

    def rows(
        self, entity_type: str, view: LogView, version: int, *, changes: bool
    ) -> GrantedRows | None:
        """Return what is given of an entity type; None: all of it.

        Raises:
            NotPermitted: Rows are chosen by conditions, and show other columns of some rows than of others.
        """
        rules = self._rules(entity_type)
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
        """Return how a view is shown by grants that name it; None: it is shown as its entity type is.

        One whose grants cannot be served is as if it were not defined; the log says why.
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
        """Bind to the rules, and to those of former names, for the changes from before a rename."""
        self.rights = rules
        self._entity_type = entity_type
        self._former = former
        self._union = columns_of(rules)

    def columns(self, columns: Iterable[Column]) -> tuple[Column, ...]:
        """Return those of some columns that a rule gives."""
        return tuple(each for each in columns if self._union.shows(each.name))

    def granted_names(self, head: BatchHead, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return those of some records whose name is granted: names are matched as they are in each version.

        Raises:
            NotPermitted: A record has a former name of the entity type, and that name has another grant.
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
            rows = rows[~mine]
        return rows

    def hidden(self, column: str, keys: pa.StringArray) -> pa.BooleanArray | None:
        """Return in which of the rows that have some keys no rule gives a column; None: in none."""
        if all(rule.columns.shows(column) for rule in self.rights):
            return None
        showing = [rule for rule in self.rights if rule.columns.shows(column)]
        found = [not any(rule.takes(key) for rule in showing) for key in keys.to_pylist()]
        return pa.array(found, pa.bool_())


def granted_tables(allowances: Sequence[Allowance]) -> GrantedTables | None:
    """Return what some allowances give of a log; None: all of it.

    Raises:
        NotPermitted: None of them gives images, which tables are made of.
    """
    if any(each.is_whole for each in allowances):
        return None
    if not any(each.bodies for each in allowances):
        raise NotPermitted("bodies are not granted, and tables are made of them")
    return GrantedTables(allowances)
