"""The identity of rows: the table and entity type of each row, and the check that the catalog accepts them."""

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
    """The table, entity type and connector of a row, from its source block."""

    entity_type: str
    table: str
    """The table's full name."""
    short: str
    """The last level of the table's name."""
    connector: str | None
    """Type and name of the connector, as ``connector:name``, as far as the source block has them."""


class OtherConnector(Unusable):
    """A row is of another connector than the catalog's, so its transaction id is meaningless here."""


class TableIdentities:
    """The identities of rows by their source blocks; rows of unexpected tables and connectors are rejected."""

    def __init__(
        self,
        form: str,
        table_map: Mapping[str, str],
        connector: str | None,
        bindings: Bindings,
    ) -> None:
        """Store the options of `Debezium` and the catalog's bindings."""
        self._form = form
        self._mapped = {levels_in(name): entity_type for name, entity_type in table_map.items()}
        self._owners = {entity_type: name for name, entity_type in table_map.items()}
        self._connector = connector
        self._bindings = bindings
        self._known: dict[tuple[str | None, ...], TableIdentity | Unusable] = {}

    def of(self, source: SourceBlock) -> TableIdentity:
        """Return the identity of a row.

        Raises:
            OtherConnector: The catalog belongs to another connector.
            Unusable: The row has no table, or its entity type belongs to another table.
        """
        key = (
            source.connector,
            source.name,
            source.db or source.keyspace,
            source.schema,
            source.table or source.collection,
        )
        # Cache errors, too: a table that is rejected may have millions of rows.
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
            )  # A copy: raising the cached error itself would add each traceback to it, and keep all frames.
        return known

    def keeps(self, old: Levels, new: Levels) -> bool:
        """Return True if the table map gives a renamed table the same entity type as before."""
        bound = self._bindings.tables.get(self._mapped.get(self._name_in_map(new) or (), ""))
        return bound is not None and fits(full_name(old), bound)

    def _name_in_map(self, levels: Levels) -> Levels | None:
        """Return the longest name in the table map that matches a table; None if there is none."""
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
        # 1. An entity type in the table map belongs to the mapped table only, whatever other tables are called.
        mapped = self._name_in_map(levels)
        entity_type = self._mapped[mapped] if mapped else _entity_type(self._form, levels)
        if mapped is None and entity_type in self._owners:
            raise Unusable(
                f"a row of {name}, and --table-map gives entity type {entity_type!r} to "
                f"{self._owners[entity_type]}; name this table too: {map_option(name)}"
            )
        # 2. An entity type stays bound to its table, unless the map names this table and not the bound one.
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
        place = f"; if it has replaced the other: --connector {shlex.quote(connector or '')}"
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
