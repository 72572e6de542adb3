"""The options of ``tailrace ingest postgres`` about the database."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace_server.option_fields import FLAG, RUNNING, option, text, texts


@dataclass(frozen=True, slots=True, kw_only=True)
class ResnapshotOptions:
    """The part of a table that an ingest reads again."""

    dsn: str = option(
        "--dsn",
        "Connection string or URI, as libpq reads it; a password is better in ~/.pgpass.",
        text("DSN"),
        environment="TAILRACE_POSTGRES_DSN",
    )
    catalog: str = option("--catalog", "Catalog that the ingest writes.", text("NAME"))
    table: str = option("--table", "Table to read again, as name or schema.name.", text("TABLE"))
    where: str | None = option(
        "--where",
        "Condition of the rows to read again, as subscribers write it. Default: all rows.",
        text("SQL"),
        None,
    )
    slot: str | None = option(
        "--slot", "Slot of the ingest. Default: tailrace_ and the catalog.", text("NAME"), None
    )
    publication: str | None = option(
        "--publication", "Publication of the ingest. Default: as the slot.", text("NAME"), None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresOptions:
    """The database, its tables, and the objects in it that the ingest uses."""

    dsn: str = option(
        "--dsn",
        "Connection string or URI, as libpq reads it; a password is better in ~/.pgpass.",
        text("DSN"),
        environment="TAILRACE_POSTGRES_DSN",
    )
    table: tuple[str, ...] = option(
        "--table",
        "Table to read, as name or schema.name; repeat for more. Default: those of the "
        "publication, or every table if it does not exist yet.",
        texts("TABLE"),
        factory=tuple,
    )
    slot: str | None = option(
        "--slot",
        "Name of the replication slot; created if absent. Default: tailrace_ and the catalog.",
        text("NAME"),
        None,
    )
    publication: str | None = option(
        "--publication",
        "Name of the publication; created if absent. Default: as the slot.",
        text("NAME"),
        None,
    )
    messages: tuple[str, ...] = option(
        "--messages",
        "Write messages of pg_logical_emit_message whose prefix begins with this; repeat for more.",
        texts("PREFIX"),
        factory=tuple,
    )
    resnapshot: bool = option(
        "--resnapshot",
        "Read all tables again, and write only what differs from the catalog.",
        FLAG,
        False,
        panel=RUNNING,
    )
