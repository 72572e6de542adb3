"""The full names of tables, and the keys of transactions.

A table's *full name* has the levels that its connector gives::

    PostgreSQL, SQL Server, Oracle, Db2   database.schema.table
    MySQL, MariaDB                        database.table
    MongoDB                               database.collection
    Vitess, Cassandra                     keyspace.table

A level that contains a dot, a quote or an equals sign is quoted, so that full names are unique: ``"a.b".c`` and
``a."b.c"``. If the database is unknown, the full name is ``.schema.table``; if the schema is unknown, too, it
is ``..table``. So a full name always differs from the last levels of another name.
"""

from __future__ import annotations

import itertools
import re
import shlex
from typing import Final, TypeAlias

Levels: TypeAlias = tuple[str, ...]

FORMS: Final = ("table", "schema.table", "database.schema.table")
"""The choices for the name of an entity type: the last level of a table's full name, the last two, or all."""

_PLAIN: Final = re.compile(r'[^."=]+')
_LEVEL: Final = re.compile(r'"((?:[^"]|"")*)"|([^."=]*)')
_MAPPED: Final = re.compile(r'((?:"(?:[^"]|"")*"|[^"=])+)=(.+)', re.DOTALL)


def full_name(levels: Levels) -> str:
    """Return the full name of a table, given its levels."""
    return ".".join(
        level
        if _PLAIN.fullmatch(level) or not any(levels[: place + 1])
        else '"' + level.replace('"', '""') + '"'
        for place, level in enumerate(levels)
    )


def levels_in(text: str) -> Levels:
    """Return the levels of a full name, or of a name without the first levels.

    Raises:
        ValueError: The text is not such a name.
    """
    levels: list[str] = []
    at = 0
    while True:
        found = _LEVEL.match(text, at)
        assert found is not None
        quoted, plain = found.groups()
        levels.append(plain if quoted is None else quoted.replace('""', '"'))
        at = found.end()
        if at == len(text):
            break
        if text[at] != ".":
            raise ValueError(f"{text!r} is not a valid name of a table")
        at += 1
    given = [*itertools.dropwhile(lambda level: not level, levels)]
    lacks = len(given) < len(levels)  # the database is unknown, perhaps the schema, too
    if (
        not (given and all(given))
        or len(levels) > len(FORMS)
        or (lacks and len(levels) < len(FORMS))
    ):
        raise ValueError(f"{text!r} is not a valid name of a table")
    return tuple(levels)


def map_option(name: str, entity_type: str = "NAME") -> str:
    """Return the command line option that gives a table its entity type."""
    return f"--table-map {shlex.quote(f'{name}={entity_type}')}"


def mapped_name(text: str) -> tuple[str, str]:
    """Return the table's full name and the entity type of ``TABLE=NAME``; TABLE may have quoted equals signs.

    Raises:
        ValueError: The text has another form.
    """
    found = _MAPPED.fullmatch(text)
    if found is None:
        raise ValueError("write TABLE=NAME")
    return full_name(levels_in(found[1])), found[2]


_POSTGRES_ID = re.compile(r"(\d+):\d+", re.ASCII)


def transaction_key(transaction_id: str) -> str:
    """Return the transaction key of a transaction id: the part that is equal in all rows of the transaction.

    PostgreSQL's ids have the form ``<transaction>:<LSN>``, and the LSN differs between BEGIN, the rows and END.
    So the key is the part before the colon. Ids of other databases are used unchanged.

    Source: Debezium documentation, PostgreSQL connector, transaction metadata.
    """
    found = _POSTGRES_ID.fullmatch(transaction_id)
    return found[1] if found else transaction_id
