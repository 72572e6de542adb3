r"""Statements in a schema change topic that change rows without a message for each row, such as DROP TABLE.

The message of MySQL's connector for ``RENAME TABLE a TO other.b`` is::

    {"source": {"connector": "mysql", "name": "shop", "db": "other", "snapshot": "false", …},
     "databaseName": "other", "schemaName": null, "ddl": "RENAME TABLE a TO other.b",
     "tableChanges": [{"type": "ALTER", "id": "\"other\".\"b\"", …}]}

``tableChanges`` has the names of dropped tables. The old name of a renamed table is only in ``ddl``, which is
parsed for the few kinds of statements that change rows. ``TRUNCATE`` has no such message: the connector sends
``op: t`` in the table's own topic.

Source: messages of Debezium 3.6.3; MySQL's and MariaDB's reference manuals, data definition statements.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from tailrace_server.pipeline.sources.debezium.message import SourceBlock
from tailrace_server.pipeline.sources.debezium.names import Levels, full_name, levels_in, map_option

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_TOKEN: Final = re.compile(
    # MySQL executes the text in /*!50003 … */, so only its delimiters are skipped, not its content.
    r"(?P<passed>\s+|(?:--|#)[^\n]*|/\*M?!\d*|/\*.*?\*/|\*/)"
    r'|`(?P<ticks>(?:[^`]|``)*)`|"(?P<quotes>(?:[^"]|"")*)"'
    r"|(?P<text>'(?:[^'\\]|\\.|'')*')|(?P<word>[\w$][\w$#]*)|(?P<sign>.)",
    re.DOTALL,
)
_NO_TABLE: Final = frozenset(("COLUMN", "INDEX", "KEY", "CONSTRAINT", "PARTITION", "SUBPARTITION"))
"""Words after RENAME in an ALTER TABLE that renames something other than the table."""
_PARTITION: Final = ("PARTITION", "SUBPARTITION")


class ChangedTable(msgspec.Struct):
    """One table of a schema change message."""

    type: str | None = None
    id: str | None = None


class SchemaChangeMessage(msgspec.Struct):
    """One message of a schema change topic."""

    source: SourceBlock | None = None
    databaseName: str | None = None
    schemaName: str | None = None
    ddl: str | None = None
    tableChanges: list[ChangedTable] | None = None


class StatementEffect(NamedTuple):
    """A table, or all tables of a database, whose rows a statement changed."""

    table: Levels
    """Levels of the table's name; for a database its name alone; empty if any table may be affected. The first
    level is empty if the message does not name the table's database."""
    reason: str
    renamed: Levels | None = None
    """Levels of the table's new name; None if the table was not renamed."""


decode_schema_change: Final = msgspec.json.Decoder(SchemaChangeMessage).decode


def effects_of(message: SchemaChangeMessage) -> list[StatementEffect]:
    """Return the tables whose rows the statement in a message changed."""
    source = message.source
    # A snapshot begins with statements made up by the connector, such as DROP TABLE IF EXISTS; ignore them.
    if source is not None and source.snapshot not in (None, False, "false"):
        return []
    # The connector itself has parsed dropped tables. All other statements are read from the text.
    changes = message.tableChanges or ()
    dropped = _tables(each for each in changes if each.type == "DROP")
    if dropped:
        return [_dropped(table) for table in dropped]
    base = tuple(name for name in (message.databaseName, message.schemaName) if name)
    tokens = _tokens(message.ddl or "")
    try:
        return [*_effects(_StatementReader(tokens), base)]
    except _Unread:
        # `tableChanges` cannot replace the text: it lacks the old name of a renamed table. So report the
        # whole database.
        statement = " ".join(token.text for token in tokens[:2]).upper()
        return [
            StatementEffect(
                base[:1],
                f"{statement}: the statement cannot be interpreted, and it may have changed rows "
                f"of tables{f' in {full_name(base[:1])}' if base else ''}; compare them with the "
                "rows of the source",
            )
        ]


def _tables(changes: Iterable[ChangedTable]) -> list[Levels]:
    tables = []
    for each in changes:
        with suppress(ValueError):  # the identifier is not the name of a table
            tables.append(levels_in(each.id or ""))
    return tables


class _Unread(Exception):
    """A statement begins like one that changes rows, but continues in an unknown form."""


class _Token(NamedTuple):
    text: str
    kind: str


def _tokens(ddl: str) -> list[_Token]:
    return [
        _Token(found[kind].replace("``", "`").replace('""', '"'), kind)
        for found in _TOKEN.finditer(ddl)
        if (kind := found.lastgroup or "") != "passed"
    ]


class _StatementReader:
    """A reader of the tokens of a statement, from left to right."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self.is_qualified = False
        """True if any name read so far had a database or schema."""

    def takes(self, *words: str) -> bool:
        """Consume the next token if it is one of the given words or signs; return True if it was."""
        if self._at >= len(self._tokens):
            return False
        text, kind = self._tokens[self._at]
        found = kind in ("word", "sign") and text.upper() in words
        self._at += found
        return found

    def pass_any(self) -> None:
        """Skip the next token."""
        self._at += 1

    def name(self) -> Levels:
        """Read a name and return its levels.

        Raises:
            _Unread: The next token is not a name.
        """
        levels: list[str] = []
        while not levels or self.takes("."):
            text, kind = self._tokens[self._at] if self._at < len(self._tokens) else ("", "")
            if kind not in ("ticks", "quotes", "word"):
                raise _Unread
            levels.append(text)
            self._at += 1
        self.is_qualified |= len(levels) > 1
        return tuple(levels)

    def next_action(self) -> bool:
        """Skip tokens to after the next comma outside parentheses; return False if the statement ends first."""
        depth = 0
        while self._at < len(self._tokens):
            text, kind = self._tokens[self._at]
            self._at += 1
            if kind == "sign":
                depth += (text == "(") - (text == ")")
                if text == "," and not depth:
                    return True
        return False


def _effects(reader: _StatementReader, base: Levels) -> Iterator[StatementEffect]:
    if reader.takes("DROP"):
        yield from _drop(reader, base)
    elif reader.takes("RENAME"):
        yield from _rename(reader, base)
    elif reader.takes("ALTER"):
        while reader.takes("ONLINE", "OFFLINE", "IGNORE"):
            pass
        if reader.takes("TABLE"):
            yield from _alter(reader, base)
    elif all(reader.takes(word) for word in ("CREATE", "OR", "REPLACE", "TABLE")):
        yield _dropped(_levels(reader.name(), base))


def _drop(reader: _StatementReader, base: Levels) -> Iterator[StatementEffect]:
    if reader.takes("DATABASE", "SCHEMA"):
        _pass_if_exists(reader)
        yield _dropped(reader.name(), "DATABASE", "the rows of its tables")
    elif reader.takes("TABLE", "TABLES"):
        _pass_if_exists(reader)
        names = [reader.name()]
        while reader.takes(","):
            names.append(reader.name())
        yield from (_dropped(_levels(name, base)) for name in names)


def _rename(reader: _StatementReader, base: Levels) -> Iterator[StatementEffect]:
    if reader.takes("USER"):
        return
    reader.takes("TABLE", "TABLES")
    _pass_if_exists(reader)
    more = True
    while more:
        name = reader.name()
        _pass_wait(reader)
        if not reader.takes("TO"):
            raise _Unread
        yield _renamed(reader, name, base)
        more = reader.takes(",")


def _alter(reader: _StatementReader, base: Levels) -> Iterator[StatementEffect]:
    _pass_if_exists(reader)
    name = reader.name()
    _pass_wait(reader)
    # An ALTER TABLE has several actions, divided by commas; each may affect rows.
    more = True
    while more:
        if reader.takes("RENAME"):
            if not reader.takes(*_NO_TABLE):
                reader.takes("TO", "AS", "=")
                yield _renamed(reader, name, base)
        elif reader.takes("DROP", "TRUNCATE", "DISCARD", "IMPORT"):
            if reader.takes(*_PARTITION, "TABLESPACE"):
                yield _partition(_levels(name, base))
        elif reader.takes("EXCHANGE", "CONVERT") and reader.takes(*_PARTITION, "TABLE"):
            yield from _exchanged(reader, name, base)
        more = reader.next_action()


def _exchanged(reader: _StatementReader, name: Levels, base: Levels) -> Iterator[StatementEffect]:
    """Read the rest of a statement that moves rows between two tables, and yield both tables.

    The rest is ``p WITH TABLE t``, ``p TO TABLE t`` or ``t TO PARTITION p``.
    """
    other = reader.name()
    if not reader.takes("WITH", "TO"):
        raise _Unread
    if reader.takes("TABLE"):
        other = reader.name()
    yield _partition(_levels(name, base))
    # An unqualified name is of the session's database, but the message names the database of the other table.
    yield _partition(_levels(other, base, is_known=not reader.is_qualified))


def _renamed(reader: _StatementReader, old: Levels, base: Levels) -> StatementEffect:
    """Read the new name of a table, and return the effect; ``base`` is the database of the new name."""
    new = _levels(reader.name(), base)
    table = _levels(old, base, is_known=not reader.is_qualified)
    return StatementEffect(
        table,
        f"RENAME TABLE: {full_name(table)} is now {full_name(new)}, but the log has its rows "
        "under the former name; to give the new name the same entity type: "
        f"{map_option(full_name(new))}",
        new,
    )


def _dropped(table: Levels, kind: str = "TABLE", rows: str = "its rows") -> StatementEffect:
    return StatementEffect(
        table,
        f"DROP {kind}: {full_name(table)} was dropped, but the log still has {rows}; a message "
        "with op t of the table removes them",
    )


def _partition(table: Levels) -> StatementEffect:
    return StatementEffect(
        table,
        f"ALTER TABLE: rows of {full_name(table)} were removed or added with a partition or "
        "tablespace, but the log still has the former rows; ingest the table from a new snapshot",
    )


def _levels(name: Levels, base: Levels, *, is_known: bool = True) -> Levels:
    """Return all levels of a table's name.

    Args:
        name: The name in the statement.
        base: The database, and schema if any, of an unqualified name.
        is_known: False if the database of an unqualified name is unknown; the first level is then empty.
    """
    if len(name) == 1 and not is_known:
        return "", *name
    return *base[: max(0, len(base) + 1 - len(name))], *name


def _pass_if_exists(reader: _StatementReader) -> None:
    if reader.takes("IF"):
        reader.takes("EXISTS")


def _pass_wait(reader: _StatementReader) -> None:
    """Skip MariaDB's ``WAIT 5`` or ``NOWAIT``."""
    if reader.takes("WAIT"):
        reader.pass_any()
    else:
        reader.takes("NOWAIT")
