"""The bindings of a catalog: its connector, and the table and the key columns of each entity type.

Rows are identified only by entity type and key. So each entity type is bound to one table and its key columns,
and each catalog to one connector: those of the first row that arrived. The bindings are stored in the source
positions of the log::

    table:orders  shop.public.orders        key:orders  ["id"]        connector  postgresql:shop

A decoder quarantines every row that does not fit the bindings (`Source.line_decoder`). But it sees one split
only, and the first batch of an entity type may have rows of two tables. So each SPLIT row names the tables of
its rows, and the driver binds the entity type to the first table in order of arrival. If other rows do not fit,
the batch is decoded again with the new bindings::

    decode ─▶ SPLIT rows ─▶ Bindings.after ─▶ admits? ──yes──▶ group, commit with the bindings
      ▲                                          │no
      └──────────────────────────────────────────┘
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from tailrace_server.pipeline.input.change import arrival, file_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tailrace_server.pipeline.input.change import Change

_CONNECTOR: Final = "connector"
_TABLE: Final = "table:"
_KEY: Final = "key:"


class RowOrigin(NamedTuple):
    """The origin of rows: entity type, table, connector and key columns."""

    entity_type: str
    table: str
    """The rows' `Change.table`."""
    connector: str
    """The rows' `Change.source`; empty if the source does not name it."""
    key_names: str
    """The rows' `Change.key_names`; empty if the source does not name them."""


class _Found(NamedTuple):
    origin: RowOrigin
    at: tuple[bytes, int, int]
    """File, block and line of the first row of this origin."""


_decode = msgspec.json.Decoder(list[tuple[RowOrigin, int]]).decode


def origins_text(origins: Mapping[tuple[str, str, str, str], int]) -> bytes | None:
    """Return the ``raw`` of a SPLIT row: the origins with the line of the first row of each; None if empty."""
    return msgspec.json.encode(list(origins.items())) if origins else None


@dataclass(frozen=True)
class Bindings:
    """The connector of a catalog, and the table and the key columns of each of its entity types."""

    connector: str | None = None
    """The connector, as in `Change.source`; None until the first row arrives."""
    tables: Mapping[str, str] = field(default_factory=dict)
    """Entity type → `Change.table`."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Entity type → `Change.key_names`. Logs of earlier releases have none until the next rows arrive."""

    @classmethod
    def read(cls, source_positions: Mapping[str, int | str]) -> Bindings:
        """Return the bindings that are stored in the source positions of a log."""
        connector = source_positions.get(_CONNECTOR)
        return cls(
            None if connector is None else str(connector),
            _noted(source_positions, _TABLE),
            _noted(source_positions, _KEY),
        )

    def positions_after(self, before: Bindings) -> dict[str, int | str]:
        """Return the source positions of the bindings that are new or changed since ``before``."""
        positions: dict[str, int | str] = {
            f"{head}{entity_type}": text
            for head, now, then in (
                (_TABLE, self.tables, before.tables),
                (_KEY, self.keys, before.keys),
            )
            for entity_type, text in now.items()
            if then.get(entity_type) != text
        }
        if self.connector is not None and self.connector != before.connector:
            positions[_CONNECTOR] = self.connector
        return positions

    def after(self, splits: Iterable[Change]) -> Bindings:
        """Return the bindings after a batch, given its SPLIT rows.

        A new table, connector or list of key columns replaces the one bound before. The decoder passes such
        rows only if an option names the table or connector, or the mapping renames the key columns.
        """
        rows = sorted(_origins(splits), key=lambda found: found.at)
        if not rows:
            return self
        # A connector other than the bound one sorts first: it was let through by an option, so it takes over.
        connector = min(rows, key=lambda row: row.origin.connector == self.connector)
        tables: dict[str, str] = {}
        keys: dict[str, str] = {}
        # The connector was chosen first: rows of another connector go to quarantine, so they bind nothing.
        for (entity_type, table, of, key), _ in rows:
            # Bind the first table that differs from the bound one; after that, only its own rows may add keys.
            before = self.tables.get(entity_type)
            taken = tables.get(entity_type, before)
            if of == connector.origin.connector and taken in (before, table):
                tables[entity_type] = table
                before = self.keys.get(entity_type)
                if key and keys.get(entity_type, before) == before:
                    keys[entity_type] = key
        return Bindings(
            connector.origin.connector, {**self.tables, **tables}, {**self.keys, **keys}
        )

    def has_rows_of(self, name: str, connector: str | None) -> bool:
        """Return True if the catalog has rows of a table of a connector; ``name`` is as in `fits`."""
        return self.connector == (connector or "") and any(
            fits(name, table) for table in self.tables.values()
        )

    def admits(self, splits: Iterable[Change]) -> bool:
        """Return True if all rows of a batch fit the bindings, given its SPLIT rows."""
        return all(
            origin.connector == self.connector
            and self.tables.get(origin.entity_type) == origin.table
            and origin.key_names in ("", self.keys.get(origin.entity_type))
            for origin, _ in _origins(splits)
        )


def fits(name: str, table: str) -> bool:
    """Return True if a name can be the name of a table, or of its database; case is ignored.

    Args:
        name: Full name of a table or a database. A name that begins with a dot has an unknown database. An
            empty name fits every table.
        table: Full name of the table.
    """
    name, table = name.casefold(), table.casefold()
    if name.startswith("."):
        return table.endswith(name)
    return not name or table == name or table.startswith(f"{name}.")


def _noted(source_positions: Mapping[str, int | str], head: str) -> dict[str, str]:
    return {
        name.removeprefix(head): str(text)
        for name, text in source_positions.items()
        if name.startswith(head)
    }


def _origins(splits: Iterable[Change]) -> Iterator[_Found]:
    for split in splits:
        if split.raw is not None:
            file = file_of(arrival(split.place))
            for origin, line in _decode(split.raw):
                yield _Found(origin, (file, split.block or 0, line))
