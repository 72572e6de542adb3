"""Statements about the source database: its settings, tables, keys, publication and slot."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import psycopg
from psycopg import sql

from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.feed.postgres.pgoutput import Relation, RelationColumn
from tailrace_server.pipeline.feed.postgres.replication import (
    connected,
    lsn_of,
    without_logical_log,
)
from tailrace_server.pipeline.feed.postgres.tables import entity_type_of, without_key
from tailrace_server.pipeline.feed.postgres.values import FIRST_USER_TYPE, column_type
from tailrace_server.pipeline.feed.source import SourceRefused, SourceUnreachable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace_server.pipeline.feed.postgres.values import ColumnType


class Slot(NamedTuple):
    """The state of a replication slot."""

    confirmed_lsn: int
    """Everything up to here was confirmed."""
    reader: int | None
    """Process of the server that reads the slot; None if none does."""
    application: str
    """Application name of the reader."""
    behind_bytes: int
    """Size of the log from the confirmed LSN to its end."""
    status: str
    """``lost`` if the server has removed a part that the slot needs; ``unreserved`` if it soon will."""
    left_bytes: int | None
    """Bytes that may be written until the slot is lost; None if there is no bound."""


class PublishedTable(NamedTuple):
    """A table of the publication, as of now."""

    relation: Relation
    is_partitioned: bool
    row_filter: str | None
    """Condition of the rows that are published; None: all rows."""
    key: tuple[str, ...]
    """Its key columns, as `SourceDatabase.key_of` returns them."""

    def selection(self, condition: str = "") -> str:
        """Return the statement that selects the published rows; those of a condition if it is not empty."""
        relation = self.relation
        # Rows of tables that inherit are published with those tables; those of partitions with their root.
        chosen = sql.SQL("SELECT {} FROM {}{}").format(
            sql.SQL(", ").join(sql.Identifier(column.name) for column in relation.columns),
            sql.SQL("" if self.is_partitioned else "ONLY "),
            sql.Identifier(relation.schema, relation.name),
        )
        conditions = [f"({each})" for each in (self.row_filter, condition) if each]
        return chosen.as_string() + " WHERE " * bool(conditions) + " AND ".join(conditions)


class SourceDatabase:
    """The source database, by a connection for statements."""

    def __init__(self, parameters: dict[str, str]) -> None:
        """Connect.

        Raises:
            SourceUnreachable: The server cannot be reached.
        """
        self.connection = connected(parameters)

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def rows(self, query: str, *values: object) -> list[tuple[object, ...]]:
        """Return the rows of a query.

        Raises:
            SourceUnreachable: The connection failed.
            SourceRefused: The user lacks a right.
        """
        try:
            cursor = self.connection.execute(query.encode(), values or None)
            return [] if cursor.description is None else cursor.fetchall()
        except psycopg.errors.InsufficientPrivilege as error:
            raise SourceRefused(f"the user lacks a right: {str(error).strip()}") from error
        except psycopg.OperationalError as error:
            raise SourceUnreachable(f"PostgreSQL cannot be reached: {error}") from error

    def check_settings(self) -> None:
        """Check that the server and the user can replicate.

        Raises:
            SourceRefused: ``wal_level`` is not logical, or the user may not replicate.
        """
        [(level, user)] = self.rows("SELECT current_setting('wal_level'), current_user")
        if level != "logical":
            raise without_logical_log(f"wal_level is {level}")
        [(may,)] = self.rows(
            "SELECT rolreplication OR rolsuper OR EXISTS (SELECT 1 FROM pg_roles g WHERE "
            "g.rolname = 'rds_replication' AND pg_has_role(r.oid, g.oid, 'member')) "
            "FROM pg_roles r WHERE rolname = current_user"
        )
        if not may:
            raise SourceRefused(
                f"the user {user} may not replicate: ALTER ROLE {user} REPLICATION as a superuser"
            )

    def timeline(self) -> int:
        """Return the timeline of the server's log; a copy that becomes the primary begins a new one."""
        [(name,)] = self.rows("SELECT pg_walfile_name(pg_current_wal_lsn())")
        return int(str(name)[:8], 16)

    def identity(self) -> tuple[str, str]:
        """Return the identifier of the database cluster, and the name of the database."""
        [(system, database)] = self.rows(
            "SELECT system_identifier::text, current_database()::text FROM pg_control_system()"
        )
        return str(system), str(database)

    def end_lsn(self) -> int:
        """Return the end of the server's log that is safe on its disk."""
        [(lsn,)] = self.rows("SELECT pg_current_wal_flush_lsn()::text")
        return lsn_of(str(lsn))

    def slot(self, name: str) -> Slot | None:
        """Return the state of a slot; None if there is no slot of that name.

        Raises:
            SourceRefused: The slot is not one of pgoutput, or of another database.
        """
        found = self.rows(
            "SELECT confirmed_flush_lsn::text, active_pid, coalesce((SELECT application_name FROM "
            "pg_stat_activity WHERE pid = active_pid), ''), "
            "coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn), 0)::bigint, "
            "coalesce(wal_status, 'lost'), safe_wal_size, "
            "plugin = 'pgoutput' AND database = current_database() "
            "FROM pg_replication_slots WHERE slot_name = %s",
            name,
        )
        if not found:
            return None
        lsn, reader, application, behind, status, left, fits = found[0]
        if not fits:
            raise SourceRefused(
                f"slot {name} is not a slot of pgoutput in this database: choose another --slot"
            )
        assert isinstance(behind, int)
        assert isinstance(reader, int | None)
        assert isinstance(left, int | None)
        confirmed = 0 if lsn is None else lsn_of(str(lsn))
        return Slot(confirmed, reader, str(application), behind, str(status), left)

    def drop_slot(self, name: str) -> None:
        """Drop a slot that has no reader."""
        self.rows("SELECT pg_drop_replication_slot(%s)", name)

    def end_reader(self, pid: int) -> None:
        """End the server's process of an earlier run, which still reads the slot."""
        self.rows("SELECT pg_terminate_backend(%s)", pid)

    def publish(self, publication: str, tables: Sequence[str]) -> None:
        """Create the publication unless it exists; check that it has the tables.

        Args:
            publication: Name of the publication.
            tables: Names of tables, with their schema unless that is public; none: every table of a new
                publication.

        Raises:
            InvalidRequest: A table does not exist.
            SourceRefused: A table has no key or is not in the publication, or the user may not create it.
        """
        names = [parts_of(each) for each in tables]
        for schema, table in names:
            if not self.rows(
                "SELECT to_regclass(format('%%I.%%I', %s::text, %s::text))", schema, table
            )[0][0]:
                raise InvalidRequest(f"--table {schema}.{table}: the database has no such table")
        exists = self.rows("SELECT 1 FROM pg_publication WHERE pubname = %s", publication)
        if not exists:
            # A publication of a table without a key would make PostgreSQL refuse the table's updates.
            self._check_keys(names)
            listed = sql.SQL(", ").join(sql.Identifier(*name) for name in names)
            given = sql.SQL("FOR TABLE {}").format(listed) if names else sql.SQL("FOR ALL TABLES")
            command = sql.SQL("CREATE PUBLICATION {} {} WITH (publish_via_partition_root = true)")
            try:
                self.connection.execute(command.format(sql.Identifier(publication), given))
            except psycopg.errors.InsufficientPrivilege as error:
                raise SourceRefused(
                    f"the user may not create publication {publication} ({error}): name tables "
                    "that the user owns with --table, or let a superuser create the publication"
                ) from error
        published = {
            (each.relation.schema, each.relation.name) for each in self.tables(publication)
        }
        for schema, table in names:
            if (schema, table) not in published:
                raise SourceRefused(
                    f"publication {publication} has no table {schema}.{table}: ALTER PUBLICATION "
                    f"{publication} ADD TABLE {schema}.{table}, and run with --resnapshot"
                )

    def _check_keys(self, names: Sequence[tuple[str, str]]) -> None:
        condition = "(n.nspname, c.relname) IN (SELECT * FROM unnest(%s::text[], %s::text[]))"
        if not names:
            condition = (
                "n.nspname NOT LIKE 'pg\\_%%' AND n.nspname <> 'information_schema' "
                "AND c.relpersistence = 'p'"
            )
        given = [[each[place] for each in names] for place in (0, 1)] if names else []
        for schema, name, identity, key in self.rows(
            f"SELECT n.nspname::text, c.relname::text, c.relreplident::text, {_KEY} FROM pg_class c "
            f"JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p') AND {condition}",
            *given,
        ):
            if not key or identity == "n":
                raise without_key(entity_type_of(str(schema), str(name)), str(identity))

    def tables(self, publication: str) -> list[PublishedTable]:
        """Return the tables of a publication with the columns that it publishes."""
        version = self.connection.info.server_version
        # From version 15 on a publication may have some columns and rows of a table; from 18 on it may have
        # generated columns, and lists them.
        listed = "t.attnames, t.rowfilter" if version >= 150_000 else "NULL, NULL"
        is_sent = "a.attgenerated = ''" if version < 180_000 else "true"
        found = self.rows(
            f"""SELECT c.oid::bigint, n.nspname::text, c.relname::text, c.relreplident::text,
            c.relkind = 'p', f.rowfilter,
            (SELECT array_agg(a.attname::text ORDER BY a.attnum) FROM pg_attribute a WHERE {_SENT}),
            (SELECT array_agg(a.atttypid::bigint ORDER BY a.attnum) FROM pg_attribute a WHERE {_SENT}),
            (SELECT array_agg(a.atttypmod ORDER BY a.attnum) FROM pg_attribute a WHERE {_SENT}),
            {_KEY}
            FROM (SELECT t.schemaname, t.tablename, {listed} FROM pg_publication_tables t
                  WHERE t.pubname = %s) f (schemaname, tablename, attnames, rowfilter)
            JOIN pg_namespace n ON n.nspname = f.schemaname
            JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = f.tablename
            ORDER BY 2, 3""".replace("IS_SENT", is_sent),
            publication,
        )
        tables = []
        for oid, schema, name, identity, is_root, condition, *lists, key in found:
            names, types, modifiers = (list(each or ()) for each in lists)  # type: ignore[call-overload]
            key = tuple(key or ())  # type: ignore[arg-type]
            columns = tuple(
                RelationColumn(column in key, column, kind, modifier)
                for column, kind, modifier in zip(names, types, modifiers, strict=True)
            )
            relation = Relation(int(str(oid)), str(schema), str(name), str(identity), columns)
            tables.append(
                PublishedTable(
                    relation, bool(is_root), None if condition is None else str(condition), key
                )
            )
        return tables

    def key_of(self, relation: Relation) -> tuple[str, ...]:
        """Return the key columns of a table as of now, in the order of their index; empty if it has none."""
        found = self.rows(f"SELECT {_KEY} FROM pg_class c WHERE c.oid = %s", relation.oid)
        return tuple(found[0][0] or ()) if found else ()  # type: ignore[arg-type]

    def type_of(self, oid: int, modifier: int) -> ColumnType:
        """Return the type of a column; that of its base type if it is a domain."""
        while oid >= FIRST_USER_TYPE:
            found = self.rows(
                "SELECT typbasetype::bigint, typtypmod FROM pg_type WHERE oid = %s AND typtype = 'd'",
                oid,
            )
            if not found:
                break
            base, base_modifier = found[0]
            assert isinstance(base, int)
            assert isinstance(base_modifier, int)
            oid, modifier = base, base_modifier if modifier == -1 else modifier
        return column_type(oid, modifier)


_SENT = (
    "a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND IS_SENT "
    "AND (f.attnames IS NULL OR a.attname = ANY (f.attnames))"
)
_KEY = """(SELECT array_agg(a.attname::text ORDER BY array_position(i.indkey::int2[], a.attnum))
    FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid
    AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
    WHERE i.indrelid = c.oid AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END)"""
"""Names of the columns of the replica identity of a table ``c``, or of its primary key."""


def parts_of(name: str) -> tuple[str, str]:
    """Return the schema and the name of a table, as ``--table`` writes them."""
    schema, _, table = name.rpartition(".")
    return schema or "public", table
