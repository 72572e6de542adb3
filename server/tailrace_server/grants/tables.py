"""The tables that a statement in SQL may read: entity types, rows and columns that are granted with images.

It is what a read of history gives, as tables. A record that changed hidden columns alone is left out of the
changes; a column that is granted in some rows only is null in the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import structlog

from tailrace.errors import NotPermitted, TailraceError
from tailrace_server.grants.granted_conditions import ConditionedRows
from tailrace_server.grants.judged_changes import JudgedChanges
from tailrace_server.grants.schemas import granted_schema
from tailrace_server.grants.shown import (
    Rule,
    Visibility,
    columns_of,
    gives_all,
    key_of,
    refuse_mixed,
)
from tailrace_server.grants.view_grants import names_view, view_grant, view_names
from tailrace_server.sql.shown import ViewShown
from tailrace_server.wal.state.entity_names import EntityNames

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from tailrace.schema import Column, Schema
    from tailrace_server.grants.grant import Allowance
    from tailrace_server.sql.shown import ChangesShown
    from tailrace_server.wal.base.state_rows import StateRows
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
            NotPermitted: Rows are chosen by conditions, which do not fit the entity type, or show other columns
                of some rows than of others.
        """
        rules = self._rules(entity_type)
        former = {}
        if changes:
            names = EntityNames(view.schema_of(version), entity_type)
            found = {*map(names.name_in, view.schemas())} - {None, entity_type}
            former = {name: self._rules(name) for name in found if name is not None}
        every = [rules, *former.values()]
        if all(any(map(gives_all, each)) for each in every):
            return None
        if all(rule.rows is None for each in every for rule in each):
            return GrantedRows(entity_type, rules, former=former)
        refuse_mixed(entity_type, rules)
        if changes:
            judges = any(rule.rows is not None for rule in rules)
            judge = JudgedChanges(rules, view, entity_type, version) if judges else None
            return GrantedRows(entity_type, rules, former=former, changes=judge)
        return GrantedRows(entity_type, rules, ConditionedRows(rules, view, entity_type, version))

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
        self,
        entity_type: str,
        rules: tuple[Rule, ...],
        conditioned: ConditionedRows | None = None,
        *,
        former: Mapping[str, tuple[Rule, ...]] | None = None,
        changes: JudgedChanges | None = None,
    ) -> None:
        """Bind to the rules; a row is shown by those that its key is in, and whose conditions it meets.

        Rules of ``former`` names of the entity type are for the changes from before a rename.
        """
        self._former = former or {}
        self._judge = changes
        self._conditioned = conditioned
        self._entity_type = entity_type
        self._rules = rules
        self._visibility = Visibility(((entity_type, rules),), (), None, counted_are_all=True)
        self._union = columns_of(rules)
        self._by_key = any(rule.keys is not None for rule in rules)

    @property
    def judges(self) -> bool:
        """Whether changes are shown by the values of their rows."""
        return self._judge is not None

    def judged(
        self, head: BatchHead, rows: NDArray[np.int64], bodies: Mapping[str, pa.BinaryArray]
    ) -> ChangesShown:
        """Return a batch as some of its records are shown; as of ``JudgedChanges.of``."""
        assert self._judge is not None
        return self._judge.of(head, rows, bodies)

    def columns(self, columns: Iterable[Column]) -> tuple[Column, ...]:
        """Return those of some columns that a rule gives."""
        return tuple(each for each in columns if self._union.shows(each.name))

    def state(self, rows: StateRows) -> StateRows:
        """Return those of some rows of a state that a rule is for."""
        if self._conditioned is not None:
            return self._conditioned.kept(rows)
        if not self._by_key:
            return rows
        keys = rows.primary_keys.to_pylist()
        kept = [place for place, key in enumerate(keys) if self._takes(key)]
        return rows if len(kept) == len(rows) else rows.taken(np.array(kept, np.int64))

    def _takes(self, key: str | None) -> bool:
        return any(rule.takes(key) for rule in self._rules)

    def changes(self, head: BatchHead, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return those of some records that a rule is for, and that changed a column that it gives.

        Raises:
            NotPermitted: A record has a former name of the entity type, and that name has another grant.
        """
        if self._former:
            rows = self._named_now(head, rows)
        if self._judge is not None:
            return rows
        places = rows.tolist()
        kept = [
            row
            for row, changed in zip(places, head.names.values(tuple(places)), strict=True)
            if self._visibility.shows(self._entity_type, key_of(head, row), changed)
        ]
        return rows if len(kept) == len(rows) else np.array(kept, np.int64)

    def _named_now(self, head: BatchHead, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return those of some records whose name is granted: names are matched as they are in each version."""
        for code, name in enumerate(head.entity_types):
            rules = self._former.get(name, self._rules)
            if rules == self._rules:
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
        if all(rule.columns.shows(column) for rule in self._rules):
            return None
        showing = [rule for rule in self._rules if rule.columns.shows(column)]
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
