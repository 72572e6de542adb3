"""The options of ``tailrace ingest postgres`` about the database."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace_server.option_fields import FLAG, RUNNING, option, text, texts


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
    resnapshot: bool = option(
        "--resnapshot",
        "Read all tables again, and write only what differs from the catalog.",
        FLAG,
        False,
        panel=RUNNING,
    )
