"""Parser of the statements that create, alter, drop or show views and change tables.

::

    CREATE VIEW [IF NOT EXISTS] name AS SELECT column, … FROM entity_type [WHERE condition]
    DROP VIEW [IF EXISTS] name
    CREATE CDC [IF NOT EXISTS] name ON entity_type_or_view
        [INCLUDE (PRE, POST, CHANGE)] [SALT_BUCKETS = 4] [MAX_LOOKBACK = '7 days']
    ALTER CDC name SET [INCLUDE (…)] [SALT_BUCKETS = …] [MAX_LOOKBACK = …]
    DROP CDC [IF EXISTS] name [ON entity_type_or_view]
    SHOW TABLES | VIEWS | CDC
    DESCRIBE name

Words may have any case. Commas between properties are allowed, as in Apache Phoenix.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from tailrace.errors import InvalidRequest
from tailrace.errors.requests import nearest
from tailrace_server.filters.parsing import ParsedTrees, sql_text
from tailrace_server.sql.parsing import DUCKDB, refuse_long, statements_of, words_of
from tailrace_server.units import parse_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

IMAGES: Final = ("CHANGE", "PRE", "POST")
"""Images that the JSON of a change table may have, in their order there."""
_MICROS: Final = 1_000_000
_LOOKBACK_MAX_S: Final = 36_500 * 86_400.0
_LOOKBACK_TEXT: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)\s*", re.IGNORECASE)
_SALT_BUCKETS_MAX: Final = 256
"""The limit of Apache Phoenix."""
_DIGITS: Final = re.compile(r"[0-9]{1,9}")
_UNITS: Final = {
    "second": "s",
    "minute": "m",
    "hour": "h",
    "day": "d",
}
"""Long names of units, without the plural s."""
_SKIPPED: Final = re.compile(r"\s+|--[^\n]*|/\*(?!\+)")
"""Text that may precede a statement. Comments may be nested, so this matches only the start of one."""
_COMMENT_MARK: Final = re.compile(r"/\*|\*/")
_FIRST_WORD: Final = re.compile(r"(?:create|drop|alter|show)\b", re.IGNORECASE)
_SHOWN: Final = ("TABLES", "VIEWS", "VIEW", "CDC")
_ON_DATA: Final = "a view is SELECT column, … FROM entity_type WHERE condition"


@dataclass(frozen=True, slots=True)
class WrittenName:
    """A name as it is written in a statement."""

    text: str
    quoted: bool


@dataclass(frozen=True, slots=True)
class CreateView:
    """A ``CREATE VIEW`` statement."""

    name: str
    of: WrittenName
    columns: tuple[WrittenName, ...]
    """The columns of the view; empty: all columns."""
    where: str
    """The condition as the text of a filter; empty: none."""
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class ChangeTableOptions:
    """The options after the name of a change table; None: the option is not given."""

    images: tuple[str, ...] | None = None
    lookback_us: int | None = None
    """The lookback in µs; 0 if the statement says ``NONE``."""
    salt_buckets: int | None = None


@dataclass(frozen=True, slots=True)
class CreateChangeTable:
    """A ``CREATE CDC`` statement."""

    name: str
    on: WrittenName
    if_not_exists: bool
    options: ChangeTableOptions


@dataclass(frozen=True, slots=True)
class AlterChangeTable:
    """An ``ALTER CDC`` statement."""

    name: str
    options: ChangeTableOptions


@dataclass(frozen=True, slots=True)
class Drop:
    """A ``DROP VIEW`` or ``DROP CDC`` statement."""

    name: str
    is_view: bool
    if_exists: bool
    on: WrittenName | None = None
    """The table that the change table must be on; None: the statement names none."""


@dataclass(frozen=True, slots=True)
class Show:
    """A ``SHOW`` statement."""

    what: str
    """``TABLES``, ``VIEWS`` or ``CDC``."""


Defining = CreateView | CreateChangeTable | AlterChangeTable | Drop | Show


def parsed_ddl(text: str) -> Defining | None:
    """Return the parsed statement; None if the text is a statement of another kind.

    Raises:
        InvalidRequest: The text begins as a statement of these kinds, but does not continue as one.
    """
    # Most statements are queries: recognize them without splitting them into words.
    if _FIRST_WORD.match(text, statement_start(text)) is None:
        return None
    refuse_long(text)
    tokens = words_of(text)
    if tokens and tokens[-1].token_type is TokenType.SEMICOLON:
        tokens.pop()
    words = _Words(text, tokens)
    first = words.word("CREATE", "ALTER", "DROP", "SHOW")
    if first == "SHOW":
        if words.peek() not in _SHOWN:
            return None
        what = words.word(*_SHOWN)
        words.end()
        return Show(f"{what}S" if what == "VIEW" else what)
    replaces = first == "CREATE" and words.takes("OR", "REPLACE")
    # Statements such as CREATE TABLE are refused later, like every statement that is not a query.
    if words.peek() not in ("VIEW", "CDC"):
        return None
    if replaces:
        raise InvalidRequest("CREATE OR REPLACE is not supported: DROP it, then CREATE it")
    kind = words.word("VIEW", "CDC")
    if first == "DROP":
        return _drop(words, is_view=kind == "VIEW")
    if kind == "VIEW":
        if first == "ALTER":
            raise InvalidRequest("ALTER VIEW is not supported: DROP it, then CREATE it")
        return _create_view(tokens, text)
    return _create_cdc(words) if first == "CREATE" else _alter_cdc(words)


def statement_start(text: str) -> int:
    """Return the index where a statement begins, after spaces and comments; a hint is part of the statement."""
    place = 0
    while (skipped := _SKIPPED.match(text, place)) is not None:
        place = skipped.end()
        # Comments nest, which no regular expression can follow: count their marks.
        depth = int(skipped[0] == "/*")
        while depth:
            mark = _COMMENT_MARK.search(text, place)
            if mark is None:
                return place
            depth += 1 if mark[0] == "/*" else -1
            place = mark.end()
    return place


def image_names(written: Iterable[str], where: str) -> tuple[str, ...]:
    """Return the images that some words name, in the order in which the JSON has them.

    Args:
        written: The words.
        where: The place of the words in the statement, for the error.

    Raises:
        InvalidRequest: A word names no image.
    """
    found = {each.upper() for each in written}
    for each in sorted(found.difference(IMAGES)):
        raise InvalidRequest(f"{where}: no image {each!r}{nearest(each, IMAGES)}")
    return tuple(each for each in IMAGES if each in found)


def lookback_us(text: str) -> int:
    """Return a length of time, written as ``7 days`` or ``7d``, in µs.

    Raises:
        InvalidRequest: The text is not a length of time, or not within the limits for change tables.
    """
    match = _LOOKBACK_TEXT.fullmatch(text)
    short = text
    if match is not None:
        # Turn a long unit such as `days` into the short one that `parse_seconds` knows.
        unit = match[2].lower()
        short = match[1] + _UNITS.get(unit.removesuffix("s"), unit)
    try:
        seconds = parse_seconds(short)
    except ValueError:
        raise InvalidRequest(
            f"MAX_LOOKBACK = {text!r}: write '7 days', '12 hours' or '90 minutes'"
        ) from None
    if not 1 <= seconds <= _LOOKBACK_MAX_S:
        raise InvalidRequest(f"MAX_LOOKBACK = {text!r}: must be from 1 second to 100 years")
    return round(seconds * _MICROS)


def salt_buckets(text: str) -> int:
    """Return the number of threads that read the log for a change table.

    Raises:
        InvalidRequest: The text is not a whole number within the limits.
    """
    number = int(text) if _DIGITS.fullmatch(text) else 0
    if not 1 <= number <= _SALT_BUCKETS_MAX:
        raise InvalidRequest(
            f"SALT_BUCKETS = {text}: must be a whole number from 1 to {_SALT_BUCKETS_MAX} (scans at once)"
        )
    return number


class _Words:
    """The tokens of a statement, consumed one after the other."""

    def __init__(self, text: str, tokens: Sequence[Token]) -> None:
        self._text = text
        self._tokens = tokens
        self._place = 0

    def _next(self) -> Token | None:
        return self._tokens[self._place] if self._place < len(self._tokens) else None

    def _wrong(self, wanted: str) -> InvalidRequest:
        token = self._next()
        if token is None:
            return InvalidRequest(f"the statement ends where {wanted} is expected")
        return InvalidRequest(
            f"line {token.line}, column {token.col}: expected {wanted}, not {token.text!r}"
        )

    def peek(self) -> str:
        """Return the next word in capitals; empty at the end, and for a quoted name or text."""
        token = self._next()
        if token is None or token.token_type in (TokenType.STRING, TokenType.IDENTIFIER):
            return ""
        return token.text.upper()

    def takes(self, *words: str) -> bool:
        """Consume all of some words if they come next; return True if they did."""
        start = self._place
        for each in words:
            if self.peek() != each:
                # All words or none: give back those that were consumed.
                self._place = start
                return False
            self._place += 1
        return True

    def word(self, *words: str) -> str:
        """Consume one of some words, and return it."""
        found = self.peek()
        if found not in words:
            raise self._wrong(" or ".join(words))
        self._place += 1
        return found

    def name(self, what: str) -> WrittenName:
        """Consume a name whose parts are joined by dots."""
        parts, quoted = [], False
        while True:
            token = self._next()
            is_quoted = token is not None and token.token_type is TokenType.IDENTIFIER
            is_plain = token is not None and re.fullmatch(r"[^\W\d]\w*", token.text) is not None
            if token is None or token.token_type is TokenType.STRING or not (is_quoted or is_plain):
                raise self._wrong(what)
            parts.append(token.text)
            quoted |= is_quoted
            self._place += 1
            if not self.takes("."):
                return WrittenName(".".join(parts), quoted)

    def value(self, what: str) -> str:
        """Consume a text in quotes, or a number."""
        token = self._next()
        if token is None or token.token_type not in (TokenType.STRING, TokenType.NUMBER):
            raise self._wrong(what)
        self._place += 1
        return token.text

    def options(self) -> ChangeTableOptions:
        """Consume the options of a change table, up to the end of the statement."""
        images: tuple[str, ...] | None = None
        lookback: int | None = None
        buckets: int | None = None
        seen: set[str] = set()
        while self._next() is not None:
            self.takes(",")
            option = self.word("INCLUDE", "MAX_LOOKBACK", "SALT_BUCKETS")
            if option in seen:
                raise InvalidRequest(f"{option} is given twice")
            seen.add(option)
            if option == "INCLUDE":
                images = image_names(self._list(), "INCLUDE")
                continue
            if not self.takes("="):
                raise self._wrong("=")
            if option == "SALT_BUCKETS":
                buckets = salt_buckets(self.value("a number"))
                continue
            lookback = 0 if self.takes("NONE") else lookback_us(self.value("a length of time"))
        return ChangeTableOptions(images, lookback, buckets)

    def _list(self) -> list[str]:
        if not self.takes("("):
            raise self._wrong("(")
        found = []
        while True:
            found.append(self.name(f"one of {', '.join(IMAGES)}").text)
            if self.takes(")"):
                return found
            if not self.takes(","):
                raise self._wrong(", or )")

    def end(self) -> None:
        """Raise if more words follow."""
        if self._next() is not None:
            raise self._wrong("the end of the statement")


def _create_cdc(words: _Words) -> CreateChangeTable:
    if_not_exists = words.takes("IF", "NOT", "EXISTS")
    name = words.name("the name of the change table").text
    words.word("ON")
    on = words.name("an entity type or a view")
    return CreateChangeTable(name, on, if_not_exists, words.options())


def _alter_cdc(words: _Words) -> AlterChangeTable:
    name = words.name("the name of the change table").text
    words.word("SET")
    options = words.options()
    if options == ChangeTableOptions():
        raise InvalidRequest(
            "ALTER CDC … SET needs INCLUDE (…), SALT_BUCKETS = … or MAX_LOOKBACK = …"
        )
    return AlterChangeTable(name, options)


def _drop(words: _Words, *, is_view: bool) -> Drop:
    if_exists = words.takes("IF", "EXISTS")
    name = words.name("a name").text
    on = None if is_view or not words.takes("ON") else words.name("an entity type or a view")
    words.end()
    return Drop(name, is_view, if_exists, on)


def _create_view(tokens: list[Token], text: str) -> CreateView:
    with ParsedTrees(DUCKDB) as trees:
        try:
            found = statements_of(trees, tokens, text)
        except (SqlglotError, RecursionError) as error:
            reason = str(error).partition("\n")[0]
            raise InvalidRequest(f"the view cannot be parsed: {reason}") from None
        if len(found) != 1 or not isinstance(found[0], exp.Create):
            raise InvalidRequest(f"give one CREATE VIEW; {_ON_DATA}")
        return _view_of(found[0])


def _view_of(create: exp.Create) -> CreateView:
    name, select = create.this, create.expression
    if not isinstance(name, exp.Table) or create.args.get("replace"):
        raise InvalidRequest("write CREATE VIEW name AS SELECT …; the columns keep their names")
    if not isinstance(select, exp.Select):
        raise InvalidRequest(f"{_ON_DATA}, but this is not a SELECT")
    # A view has only columns, one table and a condition. The error names any other part.
    known = ("expressions", "from_", "where", "kind")
    for part, value in select.args.items():
        if value and part not in known:
            raise InvalidRequest(f"{_ON_DATA}: {part.strip('_').upper()} is not supported")
    source = select.args["from_"].this if select.args.get("from_") else None
    if not isinstance(source, exp.Table) or not isinstance(source.this, exp.Identifier):
        raise InvalidRequest(f"{_ON_DATA}, but this reads no entity type")
    for part, value in source.args.items():
        if value and part not in ("this", "db", "catalog"):
            raise InvalidRequest(
                f"{_ON_DATA}: {part.upper()} after {_name_of(source).text} is not supported"
            )
    where = select.args.get("where")
    return CreateView(
        _name_of(name).text,
        _name_of(source),
        _columns(select),
        "" if where is None else sql_text(where.this, "postgres"),
        bool(create.args.get("exists")),
    )


def _columns(select: exp.Select) -> tuple[WrittenName, ...]:
    """Return the columns that a view names; empty for a star."""
    if len(select.expressions) == 1 and isinstance(select.expressions[0], exp.Star):
        if any(select.expressions[0].args.values()):
            raise InvalidRequest(f"{_ON_DATA}: use the star without EXCEPT or REPLACE")
        return ()
    found = []
    for each in select.expressions:
        if not isinstance(each, exp.Column) or each.table or isinstance(each.this, exp.Star):
            raise InvalidRequest(
                f"{_ON_DATA}: {sql_text(each, 'duckdb')} is not a column under its own name"
            )
        found.append(WrittenName(each.name, bool(each.this.args.get("quoted"))))
    return tuple(found)


def _name_of(table: exp.Table) -> WrittenName:
    parts = table.parts
    return WrittenName(
        ".".join(part.name for part in parts), any(part.args.get("quoted") for part in parts)
    )
