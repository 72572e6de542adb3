"""The table and the key columns of each entity type, and the connector of a catalog.

Rows are distinguished by entity type and key alone. So an entity type belongs to one table and keeps its key
columns, and a catalog belongs to one connector: those of the first row that came. The source positions of the
log keep them::

    table:orders  shop.public.orders        key:orders  ["id"]        connector  postgresql:shop

A decoder sets aside every row of another (`Source.line_decoder`). It cannot know what a batch holds elsewhere,
and a batch may be the first with rows of two tables for one entity type. So each split names the table of its
rows, and the driver keeps the first in order of arrival. The batch is then decoded once more, bound to that::

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
    """The tables of a split's rows."""

    entity_type: str
    table: str
    """As `Change.table`."""
    connector: str
    """As `Change.source`; empty where the source does not say."""
    key_names: str
    """As `Change.key_names`; empty where the source does not name them."""


class _Found(NamedTuple):
    origin: RowOrigin
    at: tuple[bytes, int, int]
    """Arrival of its first row: file, block and line."""


_decode = msgspec.json.Decoder(list[tuple[RowOrigin, int]]).decode


def origins_text(origins: Mapping[tuple[str, str, str, str], int]) -> bytes | None:
    """Return, for a SPLIT row, each `RowOrigin` with the line of its first row; None where there is none."""
    return msgspec.json.encode(list(origins.items())) if origins else None


@dataclass(frozen=True)
class Bindings:
    """The connector of a catalog, and the table and the key columns of each of its entity types."""

    connector: str | None = None
    """None as long as no row has come."""
    tables: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    """Entity type → `Change.key_names`. A log of an earlier release has none until the next rows come."""

    @classmethod
    def read(cls, source_positions: Mapping[str, int | str]) -> Bindings:
        """Return the bindings among the source positions of a log."""
        connector = source_positions.get(_CONNECTOR)
        return cls(
            None if connector is None else str(connector),
            _noted(source_positions, _TABLE),
            _noted(source_positions, _KEY),
        )

    def positions_after(self, before: Bindings) -> dict[str, int | str]:
        """Return as source positions what is bound here and was not, or was bound otherwise, before."""
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
        """Return the bindings after the rows of a batch, given by its SPLIT rows.

        A decoder lets rows of another table or connector pass only where an option names it, and rows with
        key columns of another name only where the mapping says that they were renamed. So one that is not what
        was bound before takes its place.
        """
        rows = sorted(_origins(splits), key=lambda found: found.at)
        if not rows:
            return self
        connector = min(rows, key=lambda row: row.origin.connector == self.connector)
        tables: dict[str, str] = {}
        keys: dict[str, str] = {}
        # The connector first: rows that are set aside for theirs bind no entity type.
        for (entity_type, table, of, key), _ in rows:
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
        """Return True if rows of a table are in the catalog; ``name`` as `fits` takes it."""
        return self.connector == (connector or "") and any(
            fits(name, table) for table in self.tables.values()
        )

    def admits(self, splits: Iterable[Change]) -> bool:
        """Return True if all rows of a batch have the connector, tables and key columns that are bound."""
        return all(
            origin.connector == self.connector
            and self.tables.get(origin.entity_type) == origin.table
            and origin.key_names in ("", self.keys.get(origin.entity_type))
            for origin, _ in _origins(splits)
        )


def fits(name: str, table: str) -> bool:
    """Return True if a name may be that of a table, or of its database.

    Case does not count, since some databases ignore it.

    Args:
        name: Full name of a table or a database. If it begins with a dot, its database is not known.
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
