"""The names of tables and the ids of transactions, as the catalog writes them.

A table's *full name* has the levels that its connector gives::

    PostgreSQL, SQL Server, Oracle, Db2   database.schema.table
    MySQL, MariaDB                        database.table
    MongoDB                               database.collection
    Vitess, Cassandra                     keyspace.table

A level with a dot, a quote or an equals sign in it is quoted, so no two tables have one full name:
``"a.b".c`` and ``a."b.c"``. A schema without its database is ``.schema.table``, a table
without both ``..table``: the end of a name is no full name.
"""

from __future__ import annotations

import itertools
import re
import shlex
from typing import Final, TypeAlias

Levels: TypeAlias = tuple[str, ...]

FORMS: Final = ("table", "schema.table", "database.schema.table")
"""The source of entity types' names."""

_PLAIN: Final = re.compile(r'[^."=]+')
_LEVEL: Final = re.compile(r'"((?:[^"]|"")*)"|([^."=]*)')
_MAPPED: Final = re.compile(r'((?:"(?:[^"]|"")*"|[^"=])+)=(.+)', re.DOTALL)


def full_name(levels: Levels) -> str:
    """Return the text of a table's levels."""
    return ".".join(
        level
        if _PLAIN.fullmatch(level) or not any(levels[: place + 1])
        else '"' + level.replace('"', '""') + '"'
        for place, level in enumerate(levels)
    )


def levels_in(text: str) -> Levels:
    """Return the levels of a full name, or of one whose first levels are left out.

    Raises:
        ValueError: It is no such name.
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
            raise ValueError(f"{text!r} is no name of a table")
        at += 1
    given = [*itertools.dropwhile(lambda level: not level, levels)]
    lacks = len(given) < len(levels)  # its database, perhaps its schema
    if (
        not (given and all(given))
        or len(levels) > len(FORMS)
        or (lacks and len(levels) < len(FORMS))
    ):
        raise ValueError(f"{text!r} is no name of a table")
    return tuple(levels)


def map_option(name: str, entity_type: str = "NAME") -> str:
    """Return the option that names the entity type of a table."""
    return f"--table-map {shlex.quote(f'{name}={entity_type}')}"


def mapped_name(text: str) -> tuple[str, str]:
    """Return name and entity type of ``TABLE=NAME``. The name may have an equals sign in quotes.

    Raises:
        ValueError: It reads otherwise.
    """
    found = _MAPPED.fullmatch(text)
    if found is None:
        raise ValueError("it reads TABLE=NAME")
    return full_name(levels_in(found[1])), found[2]


_POSTGRES_ID = re.compile(r"(\d+):\d+", re.ASCII)


def transaction_key(transaction_id: str) -> str:
    """Return the form of a transaction id that all rows of the transaction share.

    PostgreSQL's ids read ``<transaction>:<LSN>``, and the LSN differs between BEGIN, the rows and
    END; only the part before the colon names the transaction. Other sources' ids are taken as they
    are.

    Source: Debezium documentation, PostgreSQL connector, transaction metadata.
    """
    found = _POSTGRES_ID.fullmatch(transaction_id)
    return found[1] if found else transaction_id
