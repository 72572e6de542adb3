"""The rows of the published tables as of the snapshot that a new slot exports.

The stream of the slot begins exactly behind this snapshot, so no change is missing between the two or in both.
The snapshot is read by COPY in one transaction, table by table, while writers continue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import sql

from tailrace_server.pipeline.feed.postgres.tables import SourceTables
from tailrace_server.pipeline.feed.source import (
    SnapshotEnd,
    SnapshotRows,
    SourceRefused,
    SourceUnreachable,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace_server.pipeline.feed.postgres.database import PublishedTable, SourceDatabase
    from tailrace_server.pipeline.feed.postgres.tables import SourceTable

_ROWS: Final = 10_000
_BYTES: Final = 8 << 20
"""Maximum rows and bytes of images in a version of the snapshot; a larger row is a version alone."""


def snapshot_items(
    database: SourceDatabase, publication: str, snapshot: str
) -> Iterator[SnapshotRows | SnapshotEnd]:
    """Yield the rows of all tables of a publication.

    Args:
        database: The database; its connection is in a transaction while this runs.
        publication: Name of the publication.
        snapshot: Name of the exported snapshot.

    Raises:
        SourceUnreachable: The connection failed.
        SourceRefused: A table has no key, or the user may not read it.
    """
    found = database.tables(publication)
    keys = {each.relation.oid: each.key for each in found}
    tables = SourceTables(database.type_of, lambda relation: keys[relation.oid])
    published = [(each, tables.put(each.relation)[1]) for each in found]
    database.rows("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    database.rows(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
    # The columns of all tables first: they are then one change of the catalog's schema.
    for _, table in published:
        yield SnapshotRows(table.entity_type, {}, table.announced)
    for each, table in published:
        yield from _rows(database, each, table)
        yield SnapshotEnd(table.entity_type)
    database.rows("COMMIT")


def _rows(
    database: SourceDatabase, published: PublishedTable, table: SourceTable
) -> Iterator[SnapshotRows]:
    relation = published.relation
    # Rows of tables that inherit are published with those tables; those of partitions with their root.
    command = sql.SQL("COPY (SELECT {} FROM {}{}{}) TO STDOUT").format(
        sql.SQL(", ").join(sql.Identifier(column.name) for column in relation.columns),
        sql.SQL("" if published.is_partitioned else "ONLY "),
        sql.Identifier(relation.schema, relation.name),
        sql.SQL(f" WHERE {published.row_filter}" if published.row_filter else ""),
    )
    rows: dict[str, bytes] = {}
    size = 0
    try:
        with database.connection.cursor() as cursor, cursor.copy(command) as copy:
            for values in copy.rows():
                texts = table.texts(
                    tuple(None if each is None else each.encode() for each in values)
                )
                image = table.image(texts)
                rows[table.key_of(texts)] = image
                size += len(image)
                if len(rows) >= _ROWS or size >= _BYTES:
                    yield SnapshotRows(table.entity_type, rows)
                    rows, size = {}, 0
    except psycopg.OperationalError as error:
        raise SourceUnreachable(f"PostgreSQL cannot be reached: {error}") from error
    except psycopg.Error as error:
        raise SourceRefused(
            f"table {table.entity_type} cannot be read: {str(error).strip()}"
        ) from error
    if rows:
        yield SnapshotRows(table.entity_type, rows)
