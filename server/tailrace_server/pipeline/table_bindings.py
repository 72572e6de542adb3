"""Which table the rows of an entity type come from, and which connector the rows of a catalog come from.

Rows are told apart by entity type and key alone. So an entity type belongs to one table, and a catalog to one
connector: the first whose row came. Who they are is kept among the source positions of the log::

    table:orders  shop.public.orders        connector  postgresql:shop

A decoder sets aside every row of another (`Source.line_decoder`). It cannot know what a batch holds elsewhere,
and a batch may be the first with rows of two tables for one entity type. So each split tells whose rows it has,
and the driver lets the first in order of arrival stand. The batch is then decoded once more, bound to that::

    decode ─▶ SPLIT rows ─▶ Bindings.after ─▶ admits? ──yes──▶ group, commit with the bindings
      ▲                                          │no
      └──────────────────────────────────────────┘
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from tailrace_server.pipeline.changes import arrival, file_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tailrace_server.pipeline.changes import Change

_CONNECTOR: Final = "connector"
_TABLE: Final = "table:"


class RowOrigin(NamedTuple):
    """Whose rows a split has."""

    entity_type: str
    table: str
    """As `Change.table`."""
    connector: str
    """As `Change.source`; empty where the source does not say."""


class _Found(NamedTuple):
    origin: RowOrigin
    at: tuple[bytes, int, int]
    """Arrival of its first row: file, block and line."""


_decode = msgspec.json.Decoder(list[tuple[RowOrigin, int]]).decode


def origins_text(origins: Mapping[tuple[str, str, str], int]) -> bytes | None:
    """Return, for a SPLIT row, each `RowOrigin` with the line of its first row; None where there is none."""
    return msgspec.json.encode(list(origins.items())) if origins else None


@dataclass(frozen=True)
class Bindings:
    """The connector of a catalog, and the table of each of its entity types."""

    connector: str | None = None
    """None as long as no row has come."""
    tables: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, source_positions: Mapping[str, int | str]) -> Bindings:
        """Return the bindings among the source positions of a log."""
        connector = source_positions.get(_CONNECTOR)
        return cls(
            None if connector is None else str(connector),
            {
                name.removeprefix(_TABLE): str(table)
                for name, table in source_positions.items()
                if name.startswith(_TABLE)
            },
        )

    def positions_after(self, before: Bindings) -> dict[str, int | str]:
        """Return as source positions what is bound here and was not, or was bound otherwise, before."""
        positions: dict[str, int | str] = {
            f"{_TABLE}{entity_type}": table
            for entity_type, table in self.tables.items()
            if before.tables.get(entity_type) != table
        }
        if self.connector is not None and self.connector != before.connector:
            positions[_CONNECTOR] = self.connector
        return positions

    def after(self, splits: Iterable[Change]) -> Bindings:
        """Return the bindings after the rows of a batch, given by its SPLIT rows.

        A decoder lets rows of another table or connector pass only where an option names it. So one that is
        not what was bound before takes its place.
        """
        rows = sorted(_origins(splits), key=lambda found: found.at)
        if not rows:
            return self
        connector = min(rows, key=lambda row: row.origin.connector == self.connector)
        tables: dict[str, str] = {}
        # The connector first: rows that are set aside for theirs bind no entity type.
        for (entity_type, table, of), _ in rows:
            before = self.tables.get(entity_type)
            if of == connector.origin.connector and tables.get(entity_type, before) == before:
                tables[entity_type] = table
        return Bindings(connector.origin.connector, {**self.tables, **tables})

    def admits(self, splits: Iterable[Change]) -> bool:
        """Whether all rows of a batch are of the connector and the tables that are bound."""
        return all(
            origin.connector == self.connector
            and self.tables.get(origin.entity_type) == origin.table
            for origin, _ in _origins(splits)
        )


def _origins(splits: Iterable[Change]) -> Iterator[_Found]:
    for split in splits:
        if split.raw is not None:
            file = file_of(arrival(split.place))
            for origin, line in _decode(split.raw):
                yield _Found(origin, (file, split.block or 0, line))
