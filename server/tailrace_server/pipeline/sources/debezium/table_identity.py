"""Which table a row is of, what entity type that table is in the catalog, and whether the catalog takes it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, NamedTuple

from tailrace_server.pipeline.input.table_bindings import fits
from tailrace_server.pipeline.sources.debezium.message import source_name
from tailrace_server.pipeline.sources.debezium.names import FORMS, full_name, levels_in, map_option
from tailrace_server.pipeline.sources.debezium.refusals import Unusable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace_server.pipeline.input.table_bindings import Bindings
    from tailrace_server.pipeline.sources.debezium.message import SourceBlock
    from tailrace_server.pipeline.sources.debezium.names import Levels


class TableIdentity(NamedTuple):
    """The identity of a row in a source block."""

    entity_type: str
    table: str
    """The table's full name."""
    short: str
    """The table's name alone."""
    connector: str | None
    """``connector:name``, as much of it as there is."""


class OtherConnector(Unusable):
    """A row is of a connector that the catalog does not belong to, so its transaction id says nothing."""


class TableIdentities:
    """Tells the identity of rows by their source blocks; refuses those of other tables and connectors."""

    def __init__(
        self,
        form: str,
        table_map: Mapping[str, str],
        connector: str | None,
        bindings: Bindings,
    ) -> None:
        """Take the options of `Debezium`, and what the catalog's rows have come from so far."""
        self._form = form
        self._mapped = {levels_in(name): entity_type for name, entity_type in table_map.items()}
        self._owners = {entity_type: name for name, entity_type in table_map.items()}
        self._connector = connector
        self._bindings = bindings
        self._known: dict[tuple[str | None, ...], TableIdentity | Unusable] = {}

    def of(self, source: SourceBlock) -> TableIdentity:
        """Return the identity of a row.

        Raises:
            OtherConnector: The catalog is another connector's.
            Unusable: The row has no table, or its entity type is another table's.
        """
        key = (
            source.connector,
            source.name,
            source.db or source.keyspace,
            source.schema,
            source.table or source.collection,
        )
        known = self._known.get(key)
        if known is None:
            try:
                known = self._identify(source_name(source), key[2], key[3], key[4])
            except Unusable as error:
                known = error
            self._known[key] = known
        if isinstance(known, Unusable):
            raise type(known)(
                *known.args
            )  # raised itself, it would keep every frame that it went through
        return known

    def keeps(self, old: Levels, new: Levels) -> bool:
        """Return True if the map gives a renamed table the entity type that it has had so far."""
        bound = self._bindings.tables.get(self._mapped.get(self._name_in_map(new) or (), ""))
        return bound is not None and fits(full_name(old), bound)

    def _name_in_map(self, levels: Levels) -> Levels | None:
        """Return the longest name of the map that fits a table."""
        fitting = (levels[first:] for first in range(len(levels)))
        return next((each for each in fitting if each in self._mapped), None)

    def _identify(
        self, connector: str | None, database: str | None, schema: str | None, table: str | None
    ) -> TableIdentity:
        if not table:
            raise Unusable("no source.table")
        self._check_connector(connector)
        levels: Levels = (
            (database, table) if database and not schema else (database or "", schema or "", table)
        )
        name = full_name(levels)
        # 1. An entity type that the map gives to one table is no other table's, even if that has its name.
        mapped = self._name_in_map(levels)
        entity_type = self._mapped[mapped] if mapped else _entity_type(self._form, levels)
        if mapped is None and entity_type in self._owners:
            raise Unusable(
                f"a row of {name}, and --table-map gives entity type {entity_type!r} to "
                f"{self._owners[entity_type]}; name this table too: {map_option(name)}"
            )
        # 2. An entity type stays with its table, unless the map names this table and not that one.
        bound = self._bindings.tables.get(entity_type, name)
        if bound != name and (mapped is None or levels_in(bound)[-len(mapped) :] == mapped):
            raise Unusable(_other_table(entity_type, levels, bound))
        return TableIdentity(entity_type, name, table, connector)

    def _check_connector(self, connector: str | None) -> None:
        wanted = self._bindings.connector if self._connector is None else self._connector
        if wanted is None or wanted == (connector or ""):
            return
        if self._connector is not None:
            raise OtherConnector(
                f"a row of {_named(connector)}, and --connector says {self._connector}; "
                "give each connector a catalog of its own"
            )
        place = f"; if it took the place of the other: --connector {shlex.quote(connector or '')}"
        raise OtherConnector(
            f"a row of {_named(connector)}, and this catalog has the rows of {_named(wanted)}; "
            f"give each connector a catalog of its own{place}"
        )


def _entity_type(form: str, levels: Levels) -> str:
    count = FORMS.index(form) + 1
    return ".".join(level for level in levels[-count:] if level)


def _other_table(entity_type: str, levels: Levels, bound: str) -> str:
    name, other = full_name(levels), levels_in(bound)
    longer = (form for form in FORMS if _entity_type(form, levels) != _entity_type(form, other))
    form = next(longer, None)
    return (
        f"a row of {name}, and entity type {entity_type!r} has the rows of {bound}; name it apart: "
        f"{map_option(name)}"
        f"{f' or --entity-type-from {form}' if form else ''}; "
        f"if it took the place of the other: {map_option(name, entity_type)}"
    )


def _named(connector: str | None) -> str:
    return f"connector {connector}" if connector else "a connector without a name"
