"""Rows of a table in a snapshot, looked up by their keys."""

from __future__ import annotations

from base64 import b64decode
from typing import TYPE_CHECKING

import msgspec
import psycopg
from psycopg import sql

from tailrace_server.pipeline.feed.source import SourceRefused, SourceUnreachable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg import pq

    from tailrace_server.pipeline.feed.postgres.database import PublishedTable, SourceDatabase
    from tailrace_server.pipeline.feed.postgres.tables import SourceTable


class SnapshotLookup:
    """The rows of a table in a snapshot, by their keys."""

    def __init__(
        self, database: SourceDatabase, published: PublishedTable, table: SourceTable
    ) -> None:
        """Look the types of the key up; the connection stays in the snapshot's transaction."""
        self._database, self._table = database, table
        columns = [published.relation.columns[place] for place in table.key_places]
        names = ", ".join(sql.Identifier(each.name).as_string() for each in columns)
        # With -1 the name has no length, to which a cast would cut.
        types = [
            str(database.rows("SELECT format_type(%s, -1)", each.type_oid)[0][0])
            for each in columns
        ]
        lists = ", ".join(f"%s::text[]::{each}[]" for each in types)
        escaped = published.selection().replace("%", "%%")
        joint = "AND" if published.row_filter else "WHERE"
        names = names.replace("%", "%%")
        self._query = f"{escaped} {joint} ({names}) IN (SELECT * FROM unnest({lists}))"

    def of(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Return key → image of the rows that the snapshot has."""
        if not keys:
            return {}
        values = zip(*map(self._values, keys), strict=True)
        result = checked(self._database, self._query, *map(list, values))
        found = {} if result is None else images_in(result, self._table)
        return {key: image for key, image in found.items() if key in {*keys}}

    def _values(self, key: str) -> list[str]:
        """Return PostgreSQL's text of each column of a key."""
        places = self._table.key_places
        parts = [key]
        if len(places) > 1:
            raws = msgspec.json.decode(key, type=list[msgspec.Raw])
            parts = [
                str(msgspec.json.decode(each)) if bytes(each)[:1] == b'"' else bytes(each).decode()
                for each in raws
            ]
        kinds = [self._table.types[place] for place in places]
        return [
            "\\x" + b64decode(part).hex() if kind.encoding == "base64" else part
            for part, kind in zip(parts, kinds, strict=True)
        ]


def checked(database: SourceDatabase, query: str, *values: object) -> pq.abc.PGresult | None:
    """Run a statement; return its result.

    Raises:
        SourceRefused: The server refuses it.
        SourceUnreachable: The connection failed.
    """
    try:
        return database.connection.execute(query.encode(), values or None).pgresult
    except psycopg.errors.LockNotAvailable:
        raise
    except psycopg.OperationalError as error:
        raise SourceUnreachable(f"PostgreSQL cannot be reached: {error}") from error
    except psycopg.Error as error:
        raise SourceRefused(str(error).strip()) from error


def images_in(result: pq.abc.PGresult, table: SourceTable) -> dict[str, bytes]:
    """Return key → image of the rows of a result, which has the table's columns as text."""
    columns = range(result.nfields)
    found = {}
    for row in range(result.ntuples):
        texts = table.texts(tuple(result.get_value(row, column) for column in columns))
        found[table.key_of(texts)] = table.image(texts)
    return found
