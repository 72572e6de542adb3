"""The tables of the stream: their columns, their keys, and the images of their rows.

The key of a row is that of the replica identity: of the primary key, or of the index that the table names. With
the identity FULL it is the primary key, as PostgreSQL then marks every column. A table without a key is
refused: its rows could not be identified, and PostgreSQL would refuse its updates.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import orjson

from tailrace.schema import Origin
from tailrace_server.pipeline.feed.postgres.pgoutput import Unsent
from tailrace_server.pipeline.feed.source import SourceRefused
from tailrace_server.wal.record.keys import key_text
from tailrace_server.wal.record.unavailable import PLACEHOLDER
from tailrace_server.wal.schema.builder import Announced

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace_server.pipeline.feed.postgres.pgoutput import Relation, RowValues
    from tailrace_server.pipeline.feed.postgres.values import ColumnType

_NOT_SENT: Final = orjson.dumps(PLACEHOLDER)


def entity_type_of(schema: str, table: str) -> str:
    """Return the entity type of a table: its name, with the schema in front unless that is public."""
    return table if schema == "public" else f"{schema}.{table}"


def without_key(name: str, identity: str) -> SourceRefused:
    """Return the error for a table whose rows have no key.

    Args:
        name: Entity type of the table.
        identity: Replica identity of the table, as in `Relation.identity`.
    """
    if identity == "n":
        return SourceRefused(
            f"table {name} has REPLICA IDENTITY NOTHING, so its updates and removals cannot be "
            f"read: ALTER TABLE {name} REPLICA IDENTITY DEFAULT; a catalog that was written before "
            "then needs --resnapshot"
        )
    return SourceRefused(
        f"table {name} has no primary key, so its rows cannot be identified: add one, or ALTER "
        f"TABLE {name} REPLICA IDENTITY USING INDEX a unique index of columns that are NOT NULL; a "
        "catalog that was written before then needs --resnapshot"
    )


@dataclass(frozen=True)
class SourceTable:
    """A table as of a relation message or of a snapshot."""

    relation: Relation
    types: Sequence[ColumnType]
    """Types of the columns, in the order of the relation."""
    key: tuple[str, ...]
    """Names of the key's columns, in the order of the index."""

    @cached_property
    def heads(self) -> list[bytes]:
        """The names of the columns as they are in images, with the colon."""
        return [orjson.dumps(column.name) + b":" for column in self.relation.columns]

    @cached_property
    def key_places(self) -> list[int]:
        """The places of the key's columns in a row."""
        names = [column.name for column in self.relation.columns]
        return [names.index(name) for name in self.key]

    @cached_property
    def entity_type(self) -> str:
        """The table's entity type in the catalog."""
        return entity_type_of(self.relation.schema, self.relation.name)

    @cached_property
    def announced(self) -> Announced:
        """The columns as the catalog's schema has them."""
        pairs = zip(self.relation.columns, self.types, strict=True)
        columns = tuple(
            (each.name, kind.sql_type, kind.encoding, each.name not in self.key)
            for each, kind in pairs
        )
        return Announced(columns, self.key, Origin.TABLE)

    def texts(self, values: RowValues) -> list[bytes]:
        """Return the JSON texts of a row's values; a value that was not sent is the placeholder."""
        return [
            b"null" if value is None else _NOT_SENT if value is Unsent.VALUE else kind.json(value)
            for value, kind in zip(values, self.types, strict=True)
        ]

    def image(self, texts: Sequence[bytes]) -> bytes:
        """Return the image of a row, given its values' JSON texts."""
        return b"{%b}" % b",".join(map(bytes.__add__, self.heads, texts))

    def key_of(self, texts: Sequence[bytes]) -> str:
        """Return the canonical key of a row, given its values' JSON texts.

        Raises:
            SourceRefused: A column of the key is null.
        """
        found = key_text([texts[place] for place in self.key_places])
        if found is None:
            raise SourceRefused(f"a row of {self.entity_type} has null in its key {self.key}")
        return found


class SourceTables:
    """The tables of one stream, by oid, as of the newest relation message of each."""

    def __init__(
        self,
        type_of: Callable[[int, int], ColumnType],
        key_of: Callable[[Relation], tuple[str, ...]],
    ) -> None:
        """Begin without tables.

        Args:
            type_of: Returns the type of a column, given its oid and modifier.
            key_of: Returns the key columns of a table by the database's catalog, in the order of the index;
                empty if it has none.
        """
        self._type_of = type_of
        self._key_of = key_of
        self._tables: dict[int, SourceTable] = {}

    def __getitem__(self, oid: int) -> SourceTable:
        return self._tables[oid]

    def in_order(self) -> list[SourceTable]:
        """Return the tables in ascending order of their oids."""
        return [self._tables[oid] for oid in sorted(self._tables)]

    def introduce(self, relation: Relation) -> bool:
        """Store a new table; return False if the table is known and was different.

        Raises:
            SourceRefused: The table has no key.
        """
        known = self._tables.get(relation.oid)
        if known is None:
            self.put(relation)
        return known is None or known.relation == relation

    def put(self, relation: Relation) -> tuple[SourceTable | None, SourceTable]:
        """Store a table; return it as it was before, None if it is new, and as it is now.

        Raises:
            SourceRefused: The table has no key.
        """
        before = self._tables.get(relation.oid)
        if before is not None and before.relation == relation:
            return before, before
        types = [self._type_of(each.type_oid, each.modifier) for each in relation.columns]
        now = self._tables[relation.oid] = SourceTable(relation, types, self._key(relation, before))
        return before, now

    def _key(self, relation: Relation, before: SourceTable | None) -> tuple[str, ...]:
        # A relation message marks the key's columns, in the order of the table. The database's catalog has the
        # order of the index, but as of now, which may be later than the message.
        marked = tuple(column.name for column in relation.columns if column.is_identity)
        names = {column.name for column in relation.columns}
        is_full = relation.identity == "f"
        for key in (() if before is None else before.key, self._key_of(relation)):
            if key and ({*key} <= names if is_full else {*key} == {*marked}):
                return key
        if is_full or not marked:
            raise without_key(entity_type_of(relation.schema, relation.name), relation.identity)
        return marked
